"""Progress in the words and shape of Structured Streaming, so that the same dashboards can read it.

`numInputRows` are records completed since the progress before, `startOffset` and `endOffset` the committed offsets then
and now, `latestOffset` the log ends. keylane's own names follow the standard ones.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.consumer.snapshot import OldestRecord, PartitionSnapshot, Snapshot, Waits
    from keylane.flow.breakers import OpenBreaker
    from keylane.spark.lane_record import LaneStatus

Name = tuple[str, int]
"""Topic and partition."""

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class QueryName:
    """What identifies a query. As in Structured Streaming, `id` outlives a restart, and `run_id` does not."""

    id: str
    run_id: str
    name: str | None
    group: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset of each partition, at one moment: eight bytes each, since a query keeps a hundred progresses."""

    names: Sequence[Name]
    """Of all that keep some; the first are those that were known then."""
    values: array[int]

    def by_topic(self) -> dict[str, dict[str, int]]:
        """As Spark's Kafka source writes them: `{"flights": {"0": 17}}`."""
        known = ((name, one) for name, one in zip(self.names, self.values, strict=False) if one != UNKNOWN)
        made: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(known):
            made.setdefault(topic, {})[str(partition)] = offset
        return made


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress: its facts. Their shape is made when somebody reads it, since few of them are read, and a thousand
    lanes have ten thousand partitions."""

    query: QueryName
    wall_clock: float
    batch: int
    duration_ms: int
    rows: int
    """Completed since the progress before."""
    rows_out: int
    rows_in_per_s: float
    rows_per_s: float
    committed_before: Offsets
    committed: Offsets
    log_ends: Offsets
    lag: int | None
    remaining: int | None
    in_flight: int
    buffered: int
    incomplete: int
    oldest: OldestRecord | None
    breakers: tuple[OpenBreaker, ...]
    waits: Waits | None
    lanes: tuple[LaneStatus, ...]

    def to_dict(self) -> dict[str, Any]:
        """As `lastProgress` and listeners have it."""
        rows = {
            "numInputRows": self.rows,
            "inputRowsPerSecond": self.rows_in_per_s,
            "processedRowsPerSecond": self.rows_per_s,
        }
        group = self.query.group
        source = {
            "description": f"keylane[group {group}, topics {', '.join(self.query.topics)}]",
            "startOffset": self.committed_before.by_topic(),
            "endOffset": self.committed.by_topic(),
            "latestOffset": self.log_ends.by_topic(),
            **rows,
            "metrics": {"lag": self.lag, "remaining": self.remaining, **self._behind()},
        }
        return {
            "id": self.query.id,
            "runId": self.query.run_id,
            "name": self.query.name,
            "timestamp": timestamp(self.wall_clock),
            "batchId": self.batch,
            "batchDuration": self.duration_ms,
            **rows,
            "durationMs": {"triggerExecution": self.duration_ms},
            "eventTime": {},
            "stateOperators": [],
            "sources": [source],
            "sink": {"description": f"keylane[group {group}]", "numOutputRows": self.rows_out, "metrics": {}},
            "observedMetrics": {},
            "inFlight": self.in_flight,
            "buffered": self.buffered,
            "incomplete": self.incomplete,
            "oldestRecord": None if self.oldest is None else _shown(self.oldest),
            "breakers": [one._asdict() for one in self.breakers],
            "waitsFor": None if self.waits is None else str(self.waits),
            "lanes": [one.to_dict() for one in self.lanes],
        }

    def _behind(self) -> dict[str, str]:
        """Records behind the latest, of the partitions' smallest, largest and mean, as Spark's Kafka source writes it;
        nothing before any is known."""
        both = zip(self.committed.values, self.log_ends.values, strict=False)
        behind = [max(0, end - offset) for offset, end in both if UNKNOWN not in (offset, end)]
        if not behind:
            return {}
        mean = sum(behind) / len(behind)
        return {
            "minOffsetsBehindLatest": str(min(behind)),
            "maxOffsetsBehindLatest": str(max(behind)),
            "avgOffsetsBehindLatest": str(mean),
        }


class ProgressReporter:
    """Turns what lanes say into progress. Keeps what the next progress is compared with, and of each partition what is
    known of it."""

    def __init__(self, query: QueryName, log_ends: Mapping[Name, int] | None = None) -> None:
        """`log_ends` as far as they are known; lanes tell newer ones."""
        self.query = query
        self._processed = self._polled = self._produced = self._batch = 0
        self._at: float | None = None
        self._names: list[Name] = []
        """Partitions, each with its place in the three arrays."""
        self._places: dict[Name, int] = {}
        self._committed, self._log_ends = array("q"), array("q")
        self._remaining = array("q")
        """What was left of each partition when a lane last told of it."""
        self._noted: Sequence[tuple[PartitionSnapshot, ...]] = ()
        """What each lane said when the last progress was made."""
        self._reported = Offsets(self._names, array("q"))
        """The committed offsets of the last progress."""
        self._left: tuple[int | None, int | None] | None = None
        """`lag` and `remaining`; None since something was noted."""
        for name, end in (log_ends or {}).items():
            self._log_ends[self._place(name)] = end

    @property
    def lag(self) -> int | None:
        """Records between committed offsets and log ends, of the partitions of which both are known."""
        return self._added_up()[0]

    @property
    def remaining(self) -> int | None:
        """The same, less what is complete above the committed offsets, as the lanes told it last."""
        return self._added_up()[1]

    def report(
        self,
        totals: Snapshot,
        partitions: Sequence[tuple[PartitionSnapshot, ...]],
        lanes: Sequence[LaneStatus],
        now: float,
        wall_clock: float,
    ) -> Progress:
        """The progress since the last call, of what all lanes have done and what each says of its partitions: the same
        tuple, while it says nothing new. `now` is monotonic, `wall_clock` since the epoch, both in seconds."""
        elapsed = None if self._at is None else now - self._at
        completed = totals.processed + totals.dead_lettered + totals.skipped
        polled = completed + totals.buffered
        for place, held in enumerate(partitions):
            if place >= len(self._noted) or held is not self._noted[place]:
                self.note(held)
        self._noted = partitions
        before, self._reported = self._reported, Offsets(self._names, self._committed[:])
        rows = max(0, completed - self._processed)  # a lane that was killed takes what it had not yet reported with it
        rows_in = max(0, polled - self._polled)
        rows_out = max(0, totals.produced - self._produced)
        self._processed, self._polled, self._produced, self._at = completed, polled, totals.produced, now
        self._batch += 1
        return Progress(
            query=self.query,
            wall_clock=wall_clock,
            batch=self._batch - 1,
            duration_ms=0 if elapsed is None else round(elapsed * 1000),
            rows=rows,
            rows_out=rows_out,
            rows_in_per_s=_rate(rows_in, elapsed),
            rows_per_s=_rate(rows, elapsed),
            committed_before=before,
            committed=self._reported,
            log_ends=Offsets(self._names, self._log_ends[:]),
            lag=self.lag,
            remaining=self.remaining,
            in_flight=totals.in_flight,
            buffered=totals.buffered,
            incomplete=sum(one.incomplete for held in partitions for one in held),
            oldest=totals.oldest,
            breakers=totals.breakers,
            waits=totals.waits,
            lanes=tuple(lanes),
        )

    def note(self, partitions: Iterable[PartitionSnapshot]) -> None:
        """Takes the offsets that a lane knows; partitions move between lanes, so the highest counts."""
        for one in partitions:
            name = one[:2]
            place = self._places[name] if name in self._places else self._place(name)
            if one.committed is not None and one.committed > self._committed[place]:
                self._committed[place] = one.committed
            if one.log_end_offset is not None and one.log_end_offset > self._log_ends[place]:
                self._log_ends[place] = one.log_end_offset
            if one.remaining is not None:
                self._remaining[place] = one.remaining
        self._left = None

    def note_committed(self, committed: Mapping[Name, int]) -> None:
        """Takes the group's committed offsets as the broker has them."""
        for name, offset in committed.items():
            self._committed[self._place(name)] = offset
        self._left = None

    def _place(self, name: Name) -> int:
        place = self._places.setdefault(name, len(self._names))
        if place == len(self._names):
            self._names.append(name)
            for values in (self._committed, self._log_ends, self._remaining):
                values.append(UNKNOWN)
        return place

    def _added_up(self) -> tuple[int | None, int | None]:
        if self._left is None:
            known = lag = remaining = 0
            for committed, end, left in zip(self._committed, self._log_ends, self._remaining, strict=True):
                if committed != UNKNOWN and end != UNKNOWN:
                    known += 1
                    if end > committed:
                        behind = end - committed
                        lag += behind
                        remaining += behind if left == UNKNOWN or left > behind else left
            self._left = (lag, remaining) if known else (None, None)
        return self._left


def _shown(oldest: OldestRecord) -> dict[str, Any]:
    return {
        "topic": oldest.topic,
        "partition": oldest.partition,
        "offset": oldest.offset,
        "ageMs": oldest.age_ms,
    }


def timestamp(wall_clock: float) -> str:
    """As Spark writes it: UTC, with milliseconds."""
    return datetime.fromtimestamp(wall_clock, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _rate(rows: int, seconds: float | None) -> float:
    return round(rows / seconds, 1) if seconds else 0.0
