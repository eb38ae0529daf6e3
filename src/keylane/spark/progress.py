"""Progress in the words and shape of Structured Streaming, so that the same dashboards can read it.

`numInputRows` are records completed since the progress before, `startOffset` and `endOffset` the committed offsets then
and now, `latestOffset` the log ends. keylane's own names follow the standard ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keylane.consumer.snapshot import OldestRecord, Snapshot, Wait
    from keylane.flow.breakers import OpenBreaker
    from keylane.spark.lane_record import LaneStatus

Offsets = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class QueryName:
    """What identifies a query. As in Structured Streaming, `id` outlives a restart, and `run_id` does not."""

    id: str
    run_id: str
    name: str | None
    group: str
    topics: tuple[str, ...]


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
    waits: Wait | None
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
            "startOffset": by_topic(self.committed_before),
            "endOffset": by_topic(self.committed),
            "latestOffset": by_topic(self.log_ends),
            **rows,
            "metrics": {"lag": self.lag, "remaining": self.remaining},
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


@dataclass(slots=True)
class ProgressReporter:
    """Turns merged snapshots into progress. Keeps what the next progress is compared with."""

    query: QueryName
    _log_ends: Offsets = field(default_factory=dict)
    """The log ends as far as they are known; lanes tell newer ones."""
    _processed: int = 0
    _polled: int = 0
    _produced: int = 0
    _committed: Offsets = field(default_factory=dict)
    _remaining: Offsets = field(default_factory=dict)
    """What was left of each partition when a lane last told of it."""
    _reported: Offsets = field(default_factory=dict)
    """The committed offsets of the last progress."""
    _at: float | None = None
    _batch: int = 0
    _left: tuple[int | None, int | None] | None = None
    """`lag` and `remaining`; None since something was noted."""

    @property
    def lag(self) -> int | None:
        """Records between committed offsets and log ends, of the partitions of which both are known."""
        return self._added_up()[0]

    @property
    def remaining(self) -> int | None:
        """The same, less what is complete above the committed offsets, as the lanes told it last."""
        return self._added_up()[1]

    def report(self, snapshot: Snapshot, lanes: Sequence[LaneStatus], now: float, wall_clock: float) -> Progress:
        """The progress since the last call. `now` is monotonic, `wall_clock` since the epoch, both in seconds."""
        elapsed = None if self._at is None else now - self._at
        completed = snapshot.processed + snapshot.dead_lettered + snapshot.skipped
        polled = completed + snapshot.buffered
        self.note(snapshot)
        before, self._reported = self._reported, dict(self._committed)
        rows = max(0, completed - self._processed)  # a lane that was killed takes what it had not yet reported with it
        rows_in = max(0, polled - self._polled)
        rows_out = max(0, snapshot.produced - self._produced)
        self._processed, self._polled, self._produced, self._at = completed, polled, snapshot.produced, now
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
            log_ends=dict(self._log_ends),
            lag=self.lag,
            remaining=self.remaining,
            in_flight=snapshot.in_flight,
            buffered=snapshot.buffered,
            incomplete=sum(one.incomplete for one in snapshot.partitions),
            oldest=snapshot.oldest,
            breakers=snapshot.breakers,
            waits=snapshot.waits,
            lanes=tuple(lanes),
        )

    def note(self, snapshot: Snapshot) -> None:
        """Takes the offsets that a lane knows; partitions move between lanes, so the highest counts."""
        for one in snapshot.partitions:
            name = (one.topic, one.partition)
            if one.committed is not None:
                self._committed[name] = max(one.committed, self._committed.get(name, one.committed))
            if one.log_end_offset is not None:
                self._log_ends[name] = max(one.log_end_offset, self._log_ends.get(name, one.log_end_offset))
            if one.remaining is not None:
                self._remaining[name] = one.remaining
        self._left = None

    def note_committed(self, committed: Mapping[tuple[str, int], int]) -> None:
        """Takes the group's committed offsets as the broker has them."""
        self._committed.update(committed)
        self._left = None

    def _added_up(self) -> tuple[int | None, int | None]:
        if self._left is None:
            ends = self._log_ends.items()
            lags = {name: max(0, end - self._committed[name]) for name, end in ends if name in self._committed}
            left = (min(lag, self._remaining.get(name, lag)) for name, lag in lags.items())
            self._left = (sum(lags.values()), sum(left)) if lags else (None, None)
        return self._left


def by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as Spark's Kafka source writes them: `{"flights": {"0": 17}}`."""
    made: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        made.setdefault(topic, {})[str(partition)] = offset
    return made


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
