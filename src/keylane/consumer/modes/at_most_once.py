"""`AtMostOnce`: what is handed over is committed, and starts when the broker has acknowledged that.

The idea: a record that is taken for a worker counts as complete from then on, for commits. It is held here until a
commit that says so is acknowledged; one commit carries all that were taken together. A commit whose answer is lost may
have been made, so it is made again, and nothing of it starts before an acknowledgement: after a crash in between, those
records are lost, and none of them runs twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from keylane.consumer.modes.at_least_once import AtLeastOnce
from keylane.consumer.partitions import Partition, partition_of
from keylane.flow.items import Call

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keylane.consumer.commits import CommitEntry
    from keylane.consumer.modes.at_least_once import Parts
    from keylane.flow.items import Unit

    Mark = tuple[Partition, int]


class AtMostOnce(AtLeastOnce):
    """One consumer's mode. Thread safety: none; its owner is the loop."""

    alone = True
    one_a_key = True
    begins_when_stopped = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._held: list[Unit] = []
        self._marks: dict[Mark, int] = {}
        """Records whose commit is not acknowledged, with their tracker's `changes` that such a commit has to say."""
        self._changed = False
        self._closed = False
        """Whether partitions were closed since `given_back` was asked."""

    def hand_over(self, units: Sequence[Unit], now: float, *, may_start: bool) -> Sequence[Unit]:  # noqa: ARG002 - the protocol's
        self._hold(units)
        return self._released() if may_start else ()

    def complete(self, partition: Partition, offsets: Sequence[int]) -> None:
        """These are through; an operator's rule may have passed over some of them before they were claimed."""
        passed_over = [offset for offset in offsets if not partition.tracker.is_complete(offset)]
        if passed_over:
            self._parts.partitions.complete(partition, passed_over)
        self._parts.partitions.unclaim(partition, len(offsets) - len(passed_over))

    @property
    def waits_for_commit(self) -> bool:
        return bool(self._marks)

    def acknowledged(self, entries: Sequence[CommitEntry]) -> None:
        """The broker took these. A commit without its map says nothing of what lies above its offset."""
        by_partition = {entry.partition: entry for entry in entries}
        for (partition, offset), mark in list(self._marks.items()):
            entry = by_partition.get(partition)
            if entry is not None and mark <= entry.changes and (entry.metadata or offset < entry.offset):
                del self._marks[partition, offset]
        self._changed = True
        for partition in {partition for partition, _ in self._marks if partition in by_partition}:
            partition.doubt(min(mark for (one, _), mark in self._marks.items() if one is partition) - 1)
            self._parts.partitions.doubt_commits()

    def given_back(self) -> Sequence[Unit]:
        """What is held of closed partitions. A batch goes back as a whole; those of its records that are still wanted
        stay committed, or about to be."""
        if not self._closed:
            return ()
        self._closed = False
        self._marks = {mark: changes for mark, changes in self._marks.items() if mark[0].wanted}
        gone = [unit for unit in self._held if not all(partition.wanted for partition, _ in _records(unit))]
        self._held = [unit for unit in self._held if unit not in gone]
        return gone

    def closed(self) -> None:
        self._closed = True

    def _hold(self, units: Sequence[Unit]) -> None:
        """These were taken for the workers. What came back from them without having run is committed already."""
        fresh: dict[Partition, list[int]] = defaultdict(list)
        for unit in units:
            for partition, offset in _records(unit):
                if not partition.tracker.is_complete(offset):
                    fresh[partition].append(offset)
        for partition, offsets in fresh.items():
            self._parts.partitions.claim(partition, offsets)
            self._marks.update(((partition, offset), partition.tracker.changes) for offset in offsets)
        self._held += units
        self._changed = self._changed or bool(units)

    def _released(self) -> list[Unit]:
        """What may start now."""
        if not self._changed:
            return []
        self._changed = False
        held, self._held = self._held, []
        ready: list[Unit] = []
        for unit in held:
            (self._held if any(one in self._marks for one in _records(unit)) else ready).append(unit)
        return ready


def _records(unit: Unit) -> Iterator[Mark]:
    if isinstance(unit, Call):
        return ((partition_of(unit.source), number) for number in unit.numbers)
    return ((partition_of(item.source), item.number) for item in unit.items)
