"""How committed offsets and groups end: with their topic, on request, or by age. Tombstones first, the cache after.

The idea: whatever the reason, offsets end as tombstones in their group's offsets partition, many to a batch, and leave
the store in the moment in which that batch is durable. So readers, the log, and a restart always agree.

Sources: S2 (`compact`: tombstones grouped by partition, their number), KIP-211 (expiry), KIP-229 (DeleteGroups),
KIP-496 (OffsetDelete).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.consumer_groups.records import encode_key
from keylane.coordinator.formats import OffsetKey, encode_group_key, encode_offset_key, partition_for
from keylane.coordinator.offsets.expiry import Rule, rule_of, stale_offsets
from keylane.telling import logger_of
from keylane.wire.batches import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from keylane.coordinator.consumer_groups.registry import ConsumerGroups
    from keylane.coordinator.groups.registry import GroupRegistry
    from keylane.coordinator.journal.journal import Journal
    from keylane.coordinator.offset_service import OffsetService
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.storage.filesystem import StorageError
    from keylane.storage.shared_sync import Round

logger = logger_of("keylane.coordinator")

TOMBSTONES_A_BATCH = 1_000
RECORD_OVERHEAD_BYTES = 24
"""At most, around a tombstone's key: lengths, deltas, the null value."""
SLICE_GROUPS = 500
"""Groups that are looked at before other work gets its turn: a few milliseconds when none has anything stale."""
SLICE_OFFSETS = 5_000
"""Stale offsets after which it gets its turn too: some 20 ms."""
MS_A_MINUTE = 60_000


class Expired(NamedTuple):
    """What a check for stale offsets removed."""

    offsets: int
    groups: int


class GroupEnd(NamedTuple):
    """A record of a group that ends."""

    group: str
    key: bytes


class Removals:
    """Over one coordinator's offsets, groups and journal."""

    def __init__(
        self,
        offsets: OffsetService,
        groups: GroupRegistry,
        consumer_groups: ConsumerGroups,
        journal: Journal,
        options: CoordinatorOptions,
        clock: Callable[[], int],
        owns: Callable[[str], bool],
    ) -> None:
        """`owns(group)`: only groups of this node's expire here."""
        self._offsets = offsets
        self._store = offsets.store
        self._transactional = offsets.transactional
        self._groups = groups
        self._consumer_groups = consumer_groups
        self._journal = journal
        self._options = options
        self._clock = clock
        self._owns = owns
        self.expired = Expired(0, 0)
        """All that expired since the start."""

    async def end_topic(self, topic: str) -> None:
        """End every group's offsets in a topic that takes no more commits, durably. Raises `StorageError`."""
        await self._journal.flush()  # commits that were accepted before come into the store first
        names = {OffsetKey(group, topic, one) for group, found in self._store.entries_of(topic) for one in found}
        names |= {key for _, key, _ in self._transactional if key.topic == topic}
        self._append(sorted(names))
        await self._journal.flush()

    def delete_offsets(self, group: str, topics: Iterable[tuple[str, Sequence[int]]]) -> Round | None:
        """End these offsets of a group; None when it has none of them. Raises `StorageError`."""
        known = self._offsets.partitions_of(group)
        names = [
            OffsetKey(group, topic, one) for topic, asked in topics for one in known.get(topic, set()) & set(asked)
        ]
        return self._append(names)

    def delete_group(self, group: str) -> Round | None:
        """End a group without members, with all its offsets. Raises `StorageError`."""
        known = self._offsets.partitions_of(group)
        names = [OffsetKey(group, topic, one) for topic, partitions in known.items() for one in sorted(partitions)]
        return self._append(names, [group])

    async def expire(self) -> Expired:
        """End every offset that is stale now, and every group that has neither members nor offsets left.

        Raises `StorageError`.
        """
        now_ms = self._clock()
        before = self.expired
        # A list, since groups come and go between the slices: 8 bytes a group, and no more.
        candidates = [*self._store.groups]
        for known in (self._groups.by_id, self._consumer_groups.by_id):
            candidates += (group for group in known if group not in self._store)
        while candidates:
            self._expire_some(candidates, now_ms)
            await asyncio.sleep(0)
        await self._journal.flush()
        return Expired(self.expired.offsets - before.offsets, self.expired.groups - before.groups)

    def _expire_some(self, candidates: list[str], now_ms: int) -> None:
        """Take groups off the end until a slice of work is done."""
        # The offsets of these are about to change: they are looked at next time.
        busy = self._offsets.pending.groups() | set(self._transactional.groups)
        names: list[OffsetKey] = []
        ended: list[str] = []
        for _ in range(min(SLICE_GROUPS, len(candidates))):
            group = candidates.pop()
            if group in busy or not self._owns(group):
                continue
            stale = self._stale(group, now_ms)
            names += stale
            found = self._groups.by_id.get(group) or self._consumer_groups.by_id.get(group)
            if found is not None and found.is_empty and len(stale) == self._store.size_of(group):
                ended.append(group)
            if len(names) >= SLICE_OFFSETS:
                break
        self._append(names, ended, is_expiry=True)

    def _stale(self, group: str, now_ms: int) -> list[OffsetKey]:
        retention_ms = self._options.offsets_retention_minutes * MS_A_MINUTE
        modern = self._consumer_groups.by_id.get(group)
        rule = rule_of(self._groups.by_id.get(group)) if modern is None else Rule(modern.subscribed_topics)
        found = stale_offsets(self._store, group, rule, now_ms=now_ms, retention_ms=retention_ms)
        return [OffsetKey(group, topic, one) for topic, partitions in found for one in partitions]

    def _append(
        self, names: Iterable[OffsetKey], groups: Iterable[str] = (), *, is_expiry: bool = False
    ) -> Round | None:
        """Tombstones for these offsets, and then for these groups, in batches of their offsets partitions."""
        by_partition: dict[int, list[OffsetKey | GroupEnd]] = {}
        ends: list[tuple[str, OffsetKey | GroupEnd]] = [(one.group, one) for one in names]
        ends += [(group, GroupEnd(group, key)) for group in groups for key in self._keys_of(group)]
        for group, one in ends:
            by_partition.setdefault(partition_for(group, self._options.offsets_topic_num_partitions), []).append(one)
        durable = None
        for partition, all_of_it in by_partition.items():
            for keys, batch in _batches(all_of_it, self._options.message_max_bytes):
                durable = self._append_batch(partition, keys, batch, is_expiry=is_expiry)
        return durable

    def _append_batch(
        self, partition: int, keys: list[bytes], ends: list[OffsetKey | GroupEnd], *, is_expiry: bool
    ) -> Round:
        names = [one for one in ends if isinstance(one, OffsetKey)]
        ended = {one.group: self._generation_of(one.group) for one in ends if isinstance(one, GroupEnd)}

        def done(failure: StorageError | None, _base_offset: int) -> None:
            if failure is not None:
                return
            for group, generation in ended.items():
                self._forget(group, generation)
            if is_expiry:
                self.expired = Expired(self.expired.offsets + len(names), self.expired.groups + len(ended))

        return self._offsets.remove(partition, names, keys, done)

    def _keys_of(self, group: str) -> list[bytes]:
        """Of the records that a group without members has."""
        modern = self._consumer_groups.by_id.get(group)
        if modern is None:
            return [encode_group_key(group)]
        return [encode_key(group, *one) for one in modern.record_keys()]

    def _generation_of(self, group: str) -> int:
        modern = self._consumer_groups.by_id.get(group)
        return self._groups.generation_of(group) if modern is None else modern.epoch

    def _forget(self, group: str, generation: int) -> None:
        """Unless someone joined it meanwhile."""
        modern = self._consumer_groups.by_id.get(group)
        if modern is None:
            self._groups.forget(group, generation)
        elif modern.is_empty and modern.epoch == generation:
            self._consumer_groups.forget(group)


def _batches(
    ends: Iterable[OffsetKey | GroupEnd], limit_bytes: int
) -> Iterator[tuple[list[bytes], list[OffsetKey | GroupEnd]]]:
    """Keys, and whose they are, as many as fit a batch."""
    keys: list[bytes] = []
    batch: list[OffsetKey | GroupEnd] = []
    left = limit_bytes - HEADER_SIZE
    for one in ends:
        key = one.key if isinstance(one, GroupEnd) else encode_offset_key(*one)
        size = len(key) + RECORD_OVERHEAD_BYTES
        if batch and (size > left or len(batch) == TOMBSTONES_A_BATCH):
            yield keys, batch
            keys, batch, left = [], [], limit_bytes - HEADER_SIZE
        keys.append(key)
        batch.append(one)
        left -= size
    if batch:
        yield keys, batch
