"""A store of exactly once, held against the log and the group: what it has not, and how exactly that is made to run."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keylane.delivery.checksums import Kept, checksum, compare
from keylane.delivery.exactly_once import Identities
from keylane.delivery.positions import position_of
from keylane.delivery.statements import Housekeeping
from keylane.delivery.stores import Position
from keylane.delivery.transactions import answering, once_of, store_of
from keylane.errors import UsageError
from keylane.kafka.log_changes import Reached, changes_of
from keylane.kafka.ranges import RangeReader
from keylane.offsets import OffsetMap, decode, is_map
from keylane.options import ExactlyOnce

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from keylane.delivery.checksums import Comparison
    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.pipeline import Pipeline

Partition = tuple[str, int]

AGAIN_S = 0.2
"""Between two questions to a leader that moves."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one partition."""

    name: Partition
    scope: str
    log_start: int
    log_end: int
    kept: Kept
    comparison: Comparison

    @property
    def is_well(self) -> bool:
        return self.comparison.same_below is None and not self.comparison.missing and not self.comparison.gone

    @property
    def purged_below(self) -> int:
        """What counts as purged once the store is made to have only what this log has."""
        same_below = self.comparison.same_below
        return self.kept.below if same_below is None else min(self.kept.below, same_below)

    @property
    def start(self) -> int | None:
        """The offset from which the group has to begin, so that what is missing runs; None: it need not be set."""
        committed = self.kept.committed
        if self.is_well:
            begin = self.log_start if committed is None else committed.base
            return self.kept.below if begin < self.kept.below else None  # the group alone went back, or its commits
        first = [] if committed is None else [committed.base]
        return max(min([self.log_end, *first, *self.comparison.missing]), self.purged_below)

    def report(self) -> dict[str, Any]:
        found, committed = self.comparison, self.kept.committed
        return {
            "topic": self.name[0],
            "partition": self.name[1],
            "committed": None if committed is None else committed.base,
            "store_position": None if self.kept.position is None else self.kept.position.base,
            "purged_below": self.kept.below,
            "log_start_offset": self.log_start,
            "log_end_offset": self.log_end,
            "other_log_from": found.same_below,
            "missing": len(found.missing),
            "first_missing": found.missing[0] if found.missing else None,
            "gone": found.gone,
            "unsure": found.unsure,
            "new_offset": self.start,
        }


class StoreDesk:
    """Raises `UsageError` for a pipeline whose store has no places. Thread safety: one thread at a time."""

    def __init__(self, admin: Admin, pipeline: Pipeline) -> None:
        if not isinstance(pipeline.delivery, ExactlyOnce):
            raise UsageError("the pipeline has no store: its delivery is not ExactlyOnce(store)")
        self._admin = admin
        self._pipeline = pipeline
        self._store = store_of(once_of(pipeline).store)
        self._identities = Identities(admin.cluster_id(), pipeline)
        if self._identities.by_key:
            raise UsageError(
                "the pipeline knows its records by keys (ExactlyOnce.identity): those are the same in each log, and "
                "there is nothing to compare"
            )

    def look(self) -> list[Finding]:
        """Read the log and the store. Changes nothing."""
        committed = self._admin.committed_offsets(self._pipeline.group_id)
        topics = self._admin.topics()
        names = [
            (topic, number)
            for topic, count in topics.items()
            if self._pipeline.reads_topic(topic)
            for number in range(count)
        ]
        starts = self._admin.log_starts(names)
        ends = self._admin.log_ends(names, read_committed=True)
        bounds = {name: (starts[name] or 0, ends[name] or 0) for name in sorted(names)}
        with self._transaction() as transaction:
            positions = {name: transaction.position(self._scope(name[0]), name[1]) for name in bounds}
            same_below = self._same_below(positions, bounds)
            return [
                self._finding(transaction, name, *around, committed.get(name), positions[name], same_below.get(name))
                for name, around in bounds.items()
            ]

    def _same_below(
        self, positions: Mapping[Partition, Position | None], bounds: Mapping[Partition, tuple[int, int]]
    ) -> dict[Partition, int]:
        """Up to where each log is the one that the store knows, by the leader epochs of its positions. The group's
        commits say it of the log that the group has read since then."""
        reached = {
            name: Reached(position.base, position.leader_epoch, *bounds[name])
            for name, position in positions.items()
            if position is not None and position.leader_epoch >= 0
        }
        return {
            name: reached[name].offset if cut is None else min(cut, reached[name].offset)
            for name, cut in self._changes(reached).items()
        }

    def _changes(self, reached: Mapping[Partition, Reached]) -> Mapping[Partition, int | None]:
        return changes_of(self._pipeline.kafka, reached, _pause)

    def forget(self, findings: list[Finding]) -> None:
        """Make store and group agree, so that exactly what is missing runs. The group has no members."""
        with self._transaction() as transaction:
            for one in findings:
                if not one.is_well:
                    self._forget(transaction, one)
        set_to = {one.name: one.start for one in findings if one.start is not None}
        if set_to:
            self._admin.commit_offsets(self._pipeline.group_id, set_to)

    def accept(self, findings: list[Finding]) -> None:
        """Take what the group has committed as seen."""
        with self._transaction() as transaction:
            for one in findings:
                if one.kept.committed is not None:
                    transaction.note_position(one.scope, one.name[1], position_of(one.kept.committed))

    def _forget(self, transaction: Housekeeping, one: Finding) -> None:
        partition = one.name[1]
        transaction.forget_places(one.scope, partition, one.comparison.stale)
        transaction.lower_purged(one.scope, partition, one.purged_below)
        if one.start is not None:
            transaction.note_position(one.scope, partition, Position(one.start))

    def _finding(
        self,
        transaction: Housekeeping,
        name: Partition,
        log_start: int,
        log_end: int,
        committed: CommittedOffset | None,
        position: Position | None,
        same_below: int | None,
    ) -> Finding:
        scope, partition = self._scope(name[0]), name[1]
        kept = Kept(
            transaction.places(scope, partition),
            transaction.purged_below(scope, partition),
            position,
            _map_of(committed),
            -1 if committed is None else committed.leader_epoch,
            _set_back_to(committed, position) if same_below is None else same_below,
            is_cut=position is not None and same_below is not None and same_below < position.base,
        )
        log = self._log(name, log_start, log_end)
        return Finding(name, scope, log_start, log_end, kept, compare(log, log_start, log_end, kept))

    def _scope(self, topic: str) -> str:
        if not self._identities.knows(topic):
            self._identities.know(topic, self._admin.topic_id(topic))
        return self._identities.scope(topic)

    def _log(self, name: Partition, log_start: int, log_end: int) -> Iterator[tuple[int, int]]:
        if log_start >= log_end:
            return
        reader = RangeReader({"isolation.level": "read_committed"} | dict(self._pipeline.kafka), "keylane-store")
        try:
            for some in reader.read(*name, [(log_start, log_end)], fail_on_data_loss=False):
                for key, value, offset, timestamp_ms in zip(
                    some.keys, some.values, some.offsets, some.times, strict=True
                ):
                    yield offset, checksum(key, value, timestamp_ms)
        finally:
            reader.close()

    @contextmanager
    def _transaction(self) -> Iterator[Housekeeping]:
        with answering(self._store):
            opened = self._store.open()
            try:
                with opened.transaction() as transaction:
                    if not isinstance(transaction, Housekeeping):
                        raise UsageError(
                            f"{type(self._store).__name__} is a store of your own: this command knows SqliteStore and "
                            "PostgresStore"
                        )
                    yield transaction
            finally:
                opened.close()


def _set_back_to(committed: CommittedOffset | None, position: Position | None) -> int:
    """Where an operator has set the group back to, who knows the log below; 0: nobody has."""
    if committed is None or position is None or committed.leader_epoch >= 0:
        return 0
    return committed.offset if committed.offset < position.base else 0


def _pause() -> bool:
    time.sleep(AGAIN_S)
    return False


def _map_of(committed: CommittedOffset | None) -> OffsetMap | None:
    if committed is None:
        return None
    return decode(committed.metadata, committed.offset) if is_map(committed.metadata) else OffsetMap(committed.offset)
