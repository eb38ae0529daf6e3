"""What all records of the journal amount to: the last value of every key. A start needs nothing else.

Committed offsets are columns (`OffsetStore`), those of open transactions stand beside them (`TransactionalOffsets`).
Every other record (a group's metadata, a transactional id's state) is kept as its bytes, by partition and key.
Tombstones are kept as whole batches, for as long as a reader of `__consumer_offsets` that is behind may still have to
see them. Only durable records come in here, so a snapshot of the image is a snapshot of the journal.

Thread safety: owned by the event loop; while the journal is loaded nobody else sees it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.consumer_groups.records import decode
from keylane.coordinator.formats import (
    SHARE_STATE,
    TRANSACTION_STATE,
    GroupKey,
    decode_group_value,
    decode_key,
    is_offset_key,
)
from keylane.coordinator.offsets.store import OffsetStore
from keylane.coordinator.offsets.transactional import TransactionalOffsets
from keylane.coordinator.share_groups import records as share_records
from keylane.coordinator.transactions.records import decode_transaction, decode_transaction_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keylane.coordinator.consumer_groups.records import Record
    from keylane.coordinator.formats import GroupValue
    from keylane.coordinator.share_groups.partition import State
    from keylane.coordinator.share_groups.records import Place
    from keylane.coordinator.transactions.transactional_ids import Transaction


class Kept(NamedTuple):
    """The last record of a key that is no committed offset."""

    offset: int
    """In its partition of `__consumer_offsets`."""
    timestamp_ms: int
    value: bytes


class Tombstones(NamedTuple):
    """A batch with at least one tombstone."""

    partition: int
    timestamp_ms: int
    batch: bytes


class Image:
    """The last value of every key in the journal."""

    def __init__(self) -> None:
        self.store = OffsetStore()
        self.transactional = TransactionalOffsets()
        self.kept: dict[tuple[int, bytes], Kept] = {}
        """By partition and key."""
        self.tombstones: deque[Tombstones] = deque()
        """In the order in which they were written."""

    def clear(self) -> None:
        """Empty again: the log is to be read anew."""
        self.store.clear()
        self.kept.clear()
        self.tombstones.clear()

    def note(
        self, partition: int, timestamp_ms: int, records: Iterable[tuple[int, bytes, bytes | None]], batch: bytes
    ) -> None:
        """Take in a durable batch of these offsets, keys and values. Committed offsets are left to the store."""
        has_tombstone = False
        for offset, key, value in records:
            if value is None:
                has_tombstone = True
                self.kept.pop((partition, key), None)
            elif partition < 0 or not is_offset_key(key):
                self.kept[partition, key] = Kept(offset, timestamp_ms, value)
        if has_tombstone:
            self.tombstones.append(Tombstones(partition, timestamp_ms, batch))

    def forget_tombstones(self, before_ms: int) -> None:
        """Drop tombstones older than this: readers had the time to see them."""
        while self.tombstones and self.tombstones[0].timestamp_ms < before_ms:
            self.tombstones.popleft()

    def groups(self, only: str | None = None) -> Iterator[tuple[str, GroupValue]]:
        """Every group of the classic protocol that has metadata, with its last, or one. Raises `RecordFormatError`."""
        for (partition, key), kept in self.kept.items():
            if partition < 0:
                continue
            name = decode_key(key)
            if isinstance(name, GroupKey) and only in (None, name.group):
                yield name.group, decode_group_value(kept.value)

    def consumer_groups(self, only: str | None = None) -> Iterator[tuple[str, Record]]:
        """Every record of consumer groups (KIP-848), or those of one. Raises `RecordFormatError`."""
        for (partition, key), kept in self.kept.items():
            found = None if partition < 0 else decode(key, kept.value)
            if found is not None and only in (None, found[0]):
                yield found

    def share_groups(self, only: str | None = None) -> Iterator[tuple[str, share_records.Record]]:
        """Every record of share groups, or those of one. Raises `RecordFormatError`."""
        for (partition, key), kept in self.kept.items():
            found = None if partition < 0 else share_records.decode(key, kept.value)
            if found is not None and only in (None, found[0]):
                yield found

    def share_states(self, only: str | None = None) -> Iterator[tuple[Place, State]]:
        """How far share groups have got in their partitions, or one of them. Raises `RecordFormatError`."""
        for (partition, key), kept in self.kept.items():
            if partition != SHARE_STATE:
                continue
            place = share_records.decode_state_key(key)
            if only in (None, place.group):
                yield place, share_records.decode_state(kept.value)

    def transactions(self) -> Iterator[tuple[str, Transaction]]:
        """Every transactional id, with its last state. Raises `RecordFormatError`."""
        for (partition, key), kept in self.kept.items():
            if partition == TRANSACTION_STATE:
                yield decode_transaction_key(key), decode_transaction(kept.value)
