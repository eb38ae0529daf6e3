"""The committed offsets of a group, as they stand in memory: columns for each topic, or one record for a single one.

Columns are one set of `array`s for each (group, topic), sorted by partition: 32 bytes an entry. Metadata and expiry are
rare or long, so they stand beside the columns, for the partitions that have them. What a group of one partition would
pay for five arrays, a dictionary and their owner is five times what it keeps, so it has an object of its own.

Sources: S1 (at most 64 bytes an entry), S2 (the offsets cache and its queries).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats.consumer_offsets import NO_LEADER_EPOCH, NO_TIMESTAMP, OffsetValue
from keylane.wire.columns import as_array, is_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.coordinator.formats.commit_batch import TopicCommit

NO_OFFSET = -1
"""What a fetch says of a partition without a committed offset."""

NOTHING = NO_OFFSET, NO_LEADER_EPOCH

INTERNED_METADATA_CHARACTERS = 64
"""Metadata up to this length is interned: short texts repeat, offset maps do not."""


class FetchedColumns(NamedTuple):
    """Committed offsets of one topic, as columns; a partition without one has offset -1, epoch -1 and metadata ''."""

    partitions: Sequence[int]
    offsets: Sequence[int]
    leader_epochs: Sequence[int]
    metadata: Sequence[str] | None
    """None when every one is empty."""


OneOffset = tuple[str, int, int, int, int, int]
"""All that a group has committed, while that is one partition of one topic without metadata, as most consumers' groups
are that read small topics: topic, partition, offset, leader epoch, timestamp, log offset.

A plain tuple, since a start makes millions: anything with names takes five times as long to make."""


def value_of(one: OneOffset) -> OffsetValue:
    _, _, offset, leader_epoch, timestamp_ms, _ = one
    return OffsetValue(offset, leader_epoch, "", timestamp_ms, NO_TIMESTAMP)


def as_columns(one: OneOffset) -> OffsetColumns:
    """The same as columns, that are nobody's yet."""
    _, partition, *_, log_offset = one
    columns = OffsetColumns()
    columns.put(partition, value_of(one), log_offset)
    return columns


def fetch_one(one: OneOffset, partitions: Sequence[int]) -> FetchedColumns:
    """These partitions of its topic, in this order."""
    _, own, offset, leader_epoch, *_ = one
    return FetchedColumns(
        partitions,
        [offset if partition == own else NO_OFFSET for partition in partitions],
        [leader_epoch if partition == own else NO_LEADER_EPOCH for partition in partitions],
        None,
    )


class OffsetColumns:
    """The committed offsets of one group in one topic."""

    __slots__ = ("beside", "leader_epochs", "log_offsets", "offsets", "partitions", "timestamps")

    def __init__(self) -> None:
        self.partitions = array("i")
        self.offsets = array("q")
        self.timestamps = array("q")
        self.leader_epochs = array("i")
        self.log_offsets = array("q")
        """Where in `__consumer_offsets` the record is that committed it."""
        self.beside: dict[int, tuple[str, int]] | None = None
        """By partition: metadata and expire timestamp, where there are any."""

    def __len__(self) -> int:
        return len(self.partitions)

    def all(self) -> tuple[array[int], ...]:
        """Every column, in the order in which a snapshot has them."""
        return self.partitions, self.offsets, self.timestamps, self.leader_epochs, self.log_offsets

    def _find(self, partition: int) -> int:
        """The row of `partition`, or -1."""
        partitions = self.partitions
        # While partitions 0, 1, 2 … are all there, a partition's row is its number.
        if 0 <= partition < len(partitions) and partitions[partition] == partition:
            return partition
        row = bisect_left(partitions, partition)
        return row if row < len(partitions) and partitions[row] == partition else -1

    def get(self, partition: int) -> OffsetValue | None:
        row = self._find(partition)
        if row < 0:
            return None
        metadata, expires = (self.beside or {}).get(partition, ("", NO_TIMESTAMP))
        return OffsetValue(self.offsets[row], self.leader_epochs[row], metadata, self.timestamps[row], expires)

    def plain(self, partition: int) -> tuple[int, int] | None:
        """Offset and leader epoch (-1 for none), where no partition of the topic has metadata; or None."""
        if self.beside is not None:
            return None
        row = self._find(partition)
        return NOTHING if row < 0 else (self.offsets[row], self.leader_epochs[row])

    def put(self, partition: int, value: tuple[int, int, str, int, int], log_offset: int) -> None:
        """`value` has the fields of an `OffsetValue`."""
        offset, epoch, metadata, timestamp, expires = value
        row = self._find(partition)
        if row >= 0:
            self.offsets[row] = offset
            self.timestamps[row] = timestamp
            self.leader_epochs[row] = epoch
            self.log_offsets[row] = log_offset
        elif not self.partitions:
            # Many never get another partition: `insert` would keep room for them.
            self.partitions = array("i", (partition,))
            self.offsets = array("q", (offset,))
            self.timestamps = array("q", (timestamp,))
            self.leader_epochs = array("i", (epoch,))
            self.log_offsets = array("q", (log_offset,))
        else:
            row = bisect_left(self.partitions, partition)
            self.partitions.insert(row, partition)
            self.offsets.insert(row, offset)
            self.timestamps.insert(row, timestamp)
            self.leader_epochs.insert(row, epoch)
            self.log_offsets.insert(row, log_offset)
        if metadata or expires != NO_TIMESTAMP:
            self.set_beside(partition, metadata, expires)
        elif self.beside is not None:
            self._forget_beside(partition)

    def overwrite(self, partition: int, offset: int, leader_epoch: int, timestamp_ms: int, log_offset: int) -> bool:
        """The short way for a partition that is there, where no partition of the topic has metadata; or False."""
        row = self._find(partition)
        if row < 0 or self.beside is not None:
            return False
        self.offsets[row] = offset
        self.timestamps[row] = timestamp_ms
        self.leader_epochs[row] = leader_epoch
        self.log_offsets[row] = log_offset
        return True

    def set_beside(self, partition: int, metadata: str, expires: int) -> None:
        """Metadata and expire timestamp of a partition that has an offset."""
        if self.beside is None:
            self.beside = {}
        if len(metadata) <= INTERNED_METADATA_CHARACTERS:
            metadata = sys.intern(metadata)
        self.beside[partition] = (metadata, expires)

    def put_commit(self, commit: TopicCommit, log_offset: int, timestamp_ms: int, expire_timestamp_ms: int) -> None:
        """`log_offset` is that of the first row; the others follow it."""
        partitions = commit.partitions
        count = len(partitions)
        if count == 1:
            text = "" if commit.metadata is None else commit.metadata[0]
            value = (commit.offsets[0], commit.leader_epochs[0], text, timestamp_ms, expire_timestamp_ms)
            self.put(partitions[0], value, log_offset)
            return
        if commit.metadata is None and expire_timestamp_ms == NO_TIMESTAMP and self.beside is None:
            wanted = as_array("i", partitions)
            first = self._block(wanted)
            if first >= 0:
                offsets, epochs = as_array("q", commit.offsets), as_array("i", commit.leader_epochs)
                timestamps = array("q", (timestamp_ms,)) * count
                log_offsets = array("q", range(log_offset, log_offset + count))
                self._set_block(first, wanted, offsets, timestamps, epochs, log_offsets)
                return
        metadata = commit.metadata or ("",) * count
        each = zip(partitions, commit.offsets, commit.leader_epochs, metadata, strict=True)
        for at, (partition, offset, epoch, text) in enumerate(each, log_offset):
            self.put(partition, (offset, epoch, text, timestamp_ms, expire_timestamp_ms), at)

    def _set_block(self, first: int, *columns: array[int]) -> None:
        """New values from this row on, of every column in the order of `all`."""
        end = first + len(columns[0])
        if first == 0 and end > len(self.partitions):  # copies have the size that they need, and no room to grow
            self.partitions, self.offsets, self.timestamps, self.leader_epochs, self.log_offsets = (
                column[:] for column in columns
            )
            return
        for own, column in zip(self.all(), columns, strict=True):
            own[first:end] = column

    def _block(self, wanted: array[int]) -> int:
        """The row from which on these partitions can be copied over as a block, or -1: all that are there, or a run
        that keeps the columns dense (row = partition)."""
        rows = self.partitions
        if wanted == rows:
            return 0
        first = wanted[0]
        is_dense = not rows or rows[-1] == len(rows) - 1
        return first if is_dense and 0 <= first <= len(rows) and is_run(wanted) else -1

    def remove(self, partition: int) -> bool:
        row = self._find(partition)
        if row < 0:
            return False
        for column in self.all():
            del column[row]
        self._forget_beside(partition)
        return True

    def stale(self, committed_before_ms: int, now_ms: int) -> list[int]:
        """Partitions committed at or before that time; one with an expiry of its own only when that has come."""
        beside = self.beside
        if beside is None and min(self.timestamps) > committed_before_ms:
            return []
        rows = zip(self.partitions, self.timestamps, strict=True)
        if beside is None:
            return [partition for partition, timestamp in rows if timestamp <= committed_before_ms]
        stale = []
        for partition, timestamp in rows:
            expires = beside[partition][1] if partition in beside else NO_TIMESTAMP
            if expires <= now_ms if expires != NO_TIMESTAMP else timestamp <= committed_before_ms:
                stale.append(partition)
        return stale

    def _forget_beside(self, partition: int) -> None:
        if self.beside is not None and self.beside.pop(partition, None) is not None and not self.beside:
            self.beside = None

    def log_offset_of(self, partition: int) -> int:
        """Where the record stands that committed this partition's offset; -1 when none did."""
        row = self._find(partition)
        return NO_OFFSET if row < 0 else self.log_offsets[row]

    def fetch(self, partitions: Sequence[int] | None) -> FetchedColumns:
        """These partitions in this order, or all that are committed."""
        wanted = self.partitions[:] if partitions is None else as_array("i", partitions)
        count = len(wanted)
        first = self._block(wanted) if count else -1
        if 0 <= first <= len(self) - count:
            block = slice(first, first + count)
            return FetchedColumns(wanted, self.offsets[block], self.leader_epochs[block], self._metadata(wanted))
        rows = [self._find(partition) for partition in wanted]
        offsets, epochs = self.offsets, self.leader_epochs
        return FetchedColumns(
            wanted,
            [NO_OFFSET if row < 0 else offsets[row] for row in rows],
            [NO_LEADER_EPOCH if row < 0 else epochs[row] for row in rows],
            self._metadata(wanted),
        )

    def _metadata(self, partitions: Sequence[int]) -> Sequence[str] | None:
        beside = self.beside
        return None if beside is None else [beside.get(partition, ("", 0))[0] for partition in partitions]


def nothing_committed(partitions: Sequence[int]) -> FetchedColumns:
    return FetchedColumns(partitions, [NO_OFFSET] * len(partitions), [NO_LEADER_EPOCH] * len(partitions), None)
