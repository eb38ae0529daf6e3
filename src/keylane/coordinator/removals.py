"""How committed offsets and groups end: with their topic, on request, or by age. Tombstones first, the cache after.

The idea: whatever the reason, offsets end as tombstones in their group's offsets partition, many to a batch, and leave
the store in the moment in which that batch is durable. So readers, the log, and a restart always agree.

Sources: S2 (`compact`: tombstones grouped by partition, their number), KIP-211 (expiry), KIP-229 (DeleteGroups),
KIP-496 (OffsetDelete).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import OffsetKey, encode_group_key, encode_offset_key, partition_for
from keylane.coordinator.offsets.expiry import rule_of, stale_offsets
from keylane.wire.batches import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from keylane.coordinator.groups.registry import GroupRegistry
    from keylane.coordinator.journal.journal import Journal
    from keylane.coordinator.offset_service import OffsetService
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.storage.filesystem import StorageError
    from keylane.storage.shared_sync import Round

logger = logging.getLogger("keylane.coordinator")

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


class Removals:
    """Over one coordinator's offsets, groups and journal."""

    def __init__(
        self,
        offsets: OffsetService,
        groups: GroupRegistry,
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
        candidates += (group for group in self._groups.by_id if group not in self._store)
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
            found = self._groups.by_id.get(group)
            if found is not None and found.is_empty and len(stale) == self._store.size_of(group):
                ended.append(group)
            if len(names) >= SLICE_OFFSETS:
                break
        self._append(names, ended, is_expiry=True)

    def _stale(self, group: str, now_ms: int) -> list[OffsetKey]:
        retention_ms = self._options.offsets_retention_minutes * MS_A_MINUTE
        rule = rule_of(self._groups.by_id.get(group))
        found = stale_offsets(self._store, group, rule, now_ms=now_ms, retention_ms=retention_ms)
        return [OffsetKey(group, topic, one) for topic, partitions in found for one in partitions]

    def _append(
        self, names: Iterable[OffsetKey], groups: Iterable[str] = (), *, is_expiry: bool = False
    ) -> Round | None:
        """Tombstones for these offsets, and then for these groups, in batches of their offsets partitions."""
        by_partition: dict[int, list[OffsetKey | str]] = {}
        ends = [(one.group, one) for one in names] + [(group, group) for group in groups]
        for group, one in ends:
            by_partition.setdefault(partition_for(group, self._options.offsets_topic_num_partitions), []).append(one)
        durable = None
        for partition, all_of_it in by_partition.items():
            for keys, batch in _batches(all_of_it, self._options.message_max_bytes):
                durable = self._append_batch(partition, keys, batch, is_expiry=is_expiry)
        return durable

    def _append_batch(
        self, partition: int, keys: list[bytes], ends: list[OffsetKey | str], *, is_expiry: bool
    ) -> Round:
        names = [one for one in ends if isinstance(one, OffsetKey)]
        ended = [(one, self._groups.generation_of(one)) for one in ends if isinstance(one, str)]

        def done(failure: StorageError | None, _base_offset: int) -> None:
            if failure is not None:
                return
            for group, generation in ended:
                self._groups.forget(group, generation)
            if is_expiry:
                self.expired = Expired(self.expired.offsets + len(names), self.expired.groups + len(ended))

        return self._offsets.remove(partition, names, keys, done)


def _batches(ends: Iterable[OffsetKey | str], limit_bytes: int) -> Iterator[tuple[list[bytes], list[OffsetKey | str]]]:
    """Keys, and whose they are, as many as fit a batch."""
    keys: list[bytes] = []
    batch: list[OffsetKey | str] = []
    left = limit_bytes - HEADER_SIZE
    for one in ends:
        key = encode_group_key(one) if isinstance(one, str) else encode_offset_key(*one)
        size = len(key) + RECORD_OVERHEAD_BYTES
        if batch and (size > left or len(batch) == TOMBSTONES_A_BATCH):
            yield keys, batch
            keys, batch, left = [], [], limit_bytes - HEADER_SIZE
        keys.append(key)
        batch.append(one)
        left -= size
    if batch:
        yield keys, batch
