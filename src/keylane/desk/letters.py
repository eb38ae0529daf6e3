"""Dead letters: which there are, which are wanted, and what is shown of them.

Each report is what `--json` prints; `None` is what a letter does not say.
"""

from __future__ import annotations

import re
import time
from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from keylane.consumer.dead_letters import Death, Letter, read
from keylane.consumer.start import cut_at
from keylane.desk.payloads import payload, sizes, time_text
from keylane.errors import UsageError
from keylane.kafka.log_changes import Reached, changes_of
from keylane.kafka.redriving import read_committed
from keylane.offsets import OffsetMap, decode
from keylane.offsets.codec import map_origin
from keylane.records import carried_headers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from keylane.desk import Report
    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.redriving import Settings
    from keylane.pipeline import Pipeline
    from keylane.records import Record


def redrive_group(topic: str) -> str:
    """The group of redrives of a topic, unless another one is named."""
    return f"keylane-redrive-{topic}"


class Position(NamedTuple):
    """How far a redrive is in a partition."""

    map: OffsetMap
    """What came back."""
    is_own: bool
    """Whether it was committed of this topic's log. Else a mirror has copied it, or a keylane that did not say so."""


def _pause() -> bool:
    time.sleep(0.2)
    return False


@dataclass(frozen=True, slots=True)
class Queue:
    """A dead-letter topic, and who looks at it."""

    topic: str
    group: str
    """The redrive's."""
    kafka: Settings
    """Client settings."""
    admin: Admin
    pipeline: Pipeline | None = None
    """Whose deserializers show payloads."""

    def positions(self) -> dict[int, Position]:
        """How far the redrive is, by partition, held against what the topic's log is now. Raises `MetadataError` for a
        group that is no redrive's."""
        # A redrive's offsets are in its transactions, and so at the brokers, wherever the pipeline's group is.
        committed = self.admin.at_brokers.committed_offsets(self.group, [self.topic])
        maps = {name: decode(one.metadata, one.offset) for name, one in committed.items()}
        own = {name for name, one in committed.items() if one.leader_epoch >= 0}
        for name, one in committed.items():
            if map_origin(one.metadata, one.leader_epoch) == "copied":
                maps[name] = OffsetMap(one.offset)
        changes = self._changes({name: committed[name] for name in own}, maps)
        for name, change in changes.items():
            if change is not None and maps[name].highest_completed >= change:
                maps[name] = cut_at(maps[name], change) if change > maps[name].base else OffsetMap(change)
        return {name[1]: Position(found, name in own) for name, found in maps.items()}

    def _changes(
        self, committed: Mapping[tuple[str, int], CommittedOffset], maps: Mapping[tuple[str, int], OffsetMap]
    ) -> dict[tuple[str, int], int | None]:
        starts, ends = self.admin.log_starts(committed), self.admin.log_ends(committed, read_committed=False)
        reached = {
            name: Reached(one.offset, one.leader_epoch, starts[name] or 0, ends[name] or 0, maps[name].span > 0)
            for name, one in committed.items()
        }
        return changes_of(self.kafka, reached, _pause)

    def redriven(self) -> dict[int, OffsetMap]:
        """What came back already, by partition. Raises as `positions` does."""
        return {partition: one.map for partition, one in self.positions().items()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters; None is any."""

    topic: str | None = None
    error: str | None = None
    reason: str | None = None
    key: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def has(self, record: Record, death: Death) -> bool:
        """Whether this letter is one of them."""
        error = death.error_class or ""
        return (
            self.topic in (None, death.topic)
            and (self.error is None or self.error in (error, re.split(r"[.$]", error)[-1]))
            and (self.reason is None or self.reason in (death.error_text or ""))
            and self.key in (None, record.raw_key)
            and (self.since_ms is None or record.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or record.timestamp_ms < self.until_ms)
        )


def is_letter_of(letter: Record, death: Death, record: Record) -> bool:
    """Whether this record, which is where the letter's was, is the one that died: the log may be another one now."""
    return (letter.raw_key, letter.raw_value) == (record.raw_key, record.raw_value) and death.timestamp_ms in (
        None,
        record.timestamp_ms,
    )


def letters(queue: Queue) -> Iterator[tuple[Record, Letter]]:
    """Every committed letter, those of a partition in their order."""
    for batch in read_committed(queue.kafka, queue.topic):
        for record in batch:
            yield record, read(carried_headers_of(record.message))


# --- list ---


def list_report(queue: Queue, wanted: Wanted, limit: int, *, waiting: bool = False, payloads: bool = False) -> Report:
    """How many are wanted, and the oldest `limit` of them, in the order in which they were written, with all that is
    shown of each; with `waiting` only those that did not come back. Raises `UsageError`."""
    if limit < 0:
        raise UsageError(f"--limit {limit}: give a whole number from 0 on")
    redriven = queue.redriven()
    oldest: list[tuple[Record, Letter, bool]] = []
    matching = 0
    for record, letter in letters(queue):
        came_back = record.partition in redriven and redriven[record.partition].is_complete(record.offset)
        if not wanted.has(record, letter.death) or (waiting and came_back):
            continue
        matching += 1
        insort(oldest, (record, letter, came_back), key=lambda one: _when(one[0]))  # partitions come as brokers answer
        del oldest[limit:]
    rows = [
        _row(record, letter) | {"redriven": came_back} | (_payload(queue, record, letter) if payloads else {})
        for record, letter, came_back in oldest
    ]
    return {"topic": queue.topic, "group": queue.group, "matching": matching, "letters": rows}


def _when(record: Record) -> tuple[int, int, int]:
    return record.timestamp_ms, record.partition, record.offset


def _row(record: Record, letter: Letter) -> Report:
    death = letter.death
    return {
        "letter": f"{record.topic}:{record.partition}@{record.offset}",
        "written": time_text(record.timestamp_ms),
        "kind": death.kind,
        "topic": death.topic,
        "partition": death.partition,
        "offset": death.offset,
        "timestamp": None if death.timestamp_ms is None else time_text(death.timestamp_ms),
        "error": death.error_class,
        "reason": death.error_text,
        "attempts": death.attempts,
        "rounds": letter.rounds,
    } | ({} if death.steps is None else {"steps": death.steps})


# --- show ---


def show_report(queue: Queue, partition: int, offset: int, *, payloads: bool = False) -> Report:
    """One letter; with `payloads` key, value and headers too. Raises `UsageError` for one that is not there."""
    for record, letter in letters(queue):
        if (record.partition, record.offset) == (partition, offset):
            shown = _row(record, letter) | sizes(record, letter.headers)
            return shown | (_payload(queue, record, letter) if payloads else {})
    raise UsageError(
        f"{queue.topic}:{partition}@{offset}: there is no such letter: `keylane dlq list {queue.topic}` shows those "
        "that are there"
    )


def _payload(queue: Queue, record: Record, letter: Letter) -> Report:
    return payload(record, letter.death.topic or record.topic, letter.headers, queue.pipeline)
