"""The committed offsets in memory: what a start would load from the journal, and nothing that is not synced.

By group, then by topic: columns, one set of `array`s for each (group, topic), sorted by partition: 32 bytes an entry.
Metadata and expiry are rare or long, so they stand beside the columns, for the partitions that have them. What a group
of one partition would pay for five arrays, a dictionary and their owner is five times what it keeps, so it is one small
record (`OneOffset`) until it has more. Nothing in here waits or writes: the coordinator applies a commit whole, in one
call, once the journal says that it is durable.

Sources: S1 (at most 64 bytes an entry; only committed offsets in the map), S2 (the offsets cache and its queries).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import NO_LEADER_EPOCH, NO_TIMESTAMP, OffsetValue
from keylane.wire.columns import as_array, is_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from keylane.coordinator.formats import TopicCommit

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


class OffsetStore:
    """Every committed offset, by group and topic.

    Thread safety: owned by the event loop. One call of `apply` makes a whole commit visible, so no fetch sees a part.
    """

    def __init__(self) -> None:
        self._groups: dict[str, OneOffset | dict[str, OffsetColumns]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Committed offsets, over all groups."""
        return self._size

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    @property
    def groups(self) -> Iterable[str]:
        """Every group with at least one committed offset."""
        return self._groups.keys()

    def clear(self) -> None:
        self._groups.clear()
        self._size = 0

    def _columns(self, group: str, topic: str) -> OffsetColumns:
        """Those of this group and topic, made when there are none."""
        topics = self._by_topic(group)
        columns = topics.get(topic)
        if columns is None:
            columns = topics[sys.intern(topic)] = OffsetColumns()
        return columns

    def _by_topic(self, group: str) -> dict[str, OffsetColumns]:
        """What this group has, to be added to: a single record becomes columns."""
        topics = self._groups.get(group)
        if topics is None:
            topics = self._groups[group] = {}
        elif isinstance(topics, tuple):
            topics = self._groups[group] = {topics[0]: as_columns(topics)}
        return topics

    def _topics(self, group: str) -> Mapping[str, OffsetColumns]:
        """What this group has, by topic, to be looked at only."""
        topics = self._groups.get(group)
        return {topics[0]: as_columns(topics)} if isinstance(topics, tuple) else topics or {}

    def put_plain(
        self, group: str, topic: str, partition: int, offset: int, leader_epoch: int, timestamp_ms: int, log_offset: int
    ) -> None:
        """One offset without metadata and expiry."""
        topics = self._groups.get(group)
        if topics is None:
            self._groups[group] = sys.intern(topic), partition, offset, leader_epoch, timestamp_ms, log_offset
            self._size += 1
            return
        if isinstance(topics, tuple):
            if topics[1] == partition and topics[0] == topic:
                self._groups[group] = topics[0], partition, offset, leader_epoch, timestamp_ms, log_offset
                return
        elif topic in topics and topics[topic].overwrite(partition, offset, leader_epoch, timestamp_ms, log_offset):
            return
        columns = self._columns(group, topic)
        before = len(columns.partitions)
        columns.put(partition, (offset, leader_epoch, "", timestamp_ms, NO_TIMESTAMP), log_offset)
        self._size += len(columns.partitions) - before

    def apply(
        self,
        group: str,
        topics: Iterable[TopicCommit],
        log_offset: int,
        timestamp_ms: int,
        expire_timestamp_ms: int = NO_TIMESTAMP,
    ) -> None:
        """Make one durable commit visible, whole; `log_offset` is the base offset of its batch."""
        for commit in topics:
            if len(commit.partitions) == 1 and commit.metadata is None and expire_timestamp_ms == NO_TIMESTAMP:
                _, (partition,), (offset,), (leader_epoch,), _ = commit
                self.put_plain(group, commit.topic, partition, offset, leader_epoch, timestamp_ms, log_offset)
                log_offset += 1
                continue
            columns = self._columns(group, commit.topic)
            before = len(columns.partitions)
            columns.put_commit(commit, log_offset, timestamp_ms, expire_timestamp_ms)
            log_offset += len(commit.partitions)
            self._size += len(columns.partitions) - before

    def put(
        self, group: str, topic: str, partition: int, value: tuple[int, int, str, int, int], log_offset: int
    ) -> None:
        """One offset; `value` has the fields of an `OffsetValue`."""
        offset, leader_epoch, metadata, timestamp, expires = value
        if not metadata and expires == NO_TIMESTAMP:
            self.put_plain(group, topic, partition, offset, leader_epoch, timestamp, log_offset)
            return
        columns = self._columns(group, topic)
        before = len(columns.partitions)
        columns.put(partition, value, log_offset)
        self._size += len(columns.partitions) - before

    def restore(self, group: str, topic: str, kept: OneOffset | OffsetColumns) -> None:
        """What a snapshot has of a group and topic that have nothing yet."""
        topic = sys.intern(topic)
        if not isinstance(kept, tuple):
            self._by_topic(group)[topic] = kept
            self._size += len(kept)
            return
        if group in self._groups:
            self._by_topic(group)[topic] = as_columns(kept)
        else:
            self._groups[group] = topic, *kept[1:]
        self._size += 1

    def one_of(self, group: str) -> OneOffset | None:
        """All of this group, when it is one offset without metadata."""
        topics = self._groups.get(group)
        return topics if isinstance(topics, tuple) else None

    def columns_of(self, group: str) -> list[tuple[str, OffsetColumns]]:
        """What the group has, by topic; the list is the caller's, the columns are not."""
        return list(self._topics(group).items())

    def remove(self, group: str, topic: str, partition: int) -> None:
        """Apply a tombstone; removing what is not there is no error."""
        topics = self._groups.get(group)
        if isinstance(topics, tuple):
            if topics[:2] == (topic, partition):
                del self._groups[group]
                self._size -= 1
            return
        columns = topics.get(topic) if topics else None
        if topics is None or columns is None or not columns.remove(partition):
            return
        self._size -= 1
        if not columns:
            del topics[topic]
            if not topics:
                del self._groups[group]

    def get(self, group: str, topic: str, partition: int) -> OffsetValue | None:
        topics = self._groups.get(group)
        if isinstance(topics, tuple):
            return value_of(topics) if topics[:2] == (topic, partition) else None
        return topics[topic].get(partition) if topics and topic in topics else None

    def plain(self, group: str, topic: str, partition: int) -> tuple[int, int] | None:
        """Offset and leader epoch (-1 for none), where no partition of the topic has metadata; or None."""
        topics = self._groups.get(group)
        if isinstance(topics, tuple):
            return topics[2:4] if topics[1] == partition and topics[0] == topic else NOTHING
        return topics[topic].plain(partition) if topics and topic in topics else NOTHING

    def log_offset_of(self, group: str, topic: str, partition: int) -> int:
        """Where in `__consumer_offsets` the record stands that committed this offset; -1 when none did."""
        topics = self._groups.get(group)
        if isinstance(topics, tuple):
            return topics[5] if topics[:2] == (topic, partition) else NO_OFFSET
        return topics[topic].log_offset_of(partition) if topics and topic in topics else NO_OFFSET

    def fetch(self, group: str, topic: str, partitions: Sequence[int]) -> FetchedColumns:
        """The committed offsets of these partitions, -1 where there is none."""
        topics = self._groups.get(group)
        if isinstance(topics, tuple):
            return fetch_one(topics, partitions) if topics[0] == topic else nothing_committed(partitions)
        return topics[topic].fetch(partitions) if topics and topic in topics else nothing_committed(partitions)

    def fetch_all(self, group: str) -> Iterator[tuple[str, FetchedColumns]]:
        """Everything that `group` has committed, by topic."""
        topics = self._groups.get(group)
        if isinstance(topics, tuple):
            yield topics[0], fetch_one(topics, topics[1:2])
            return
        for topic, columns in (topics or {}).items():
            yield topic, columns.fetch(None)

    def partitions_of(self, group: str) -> Iterator[tuple[str, list[int]]]:
        """Everything that `group` has committed, by name only."""
        for topic, columns in self._topics(group).items():
            yield topic, columns.partitions.tolist()

    def size_of(self, group: str) -> int:
        """Committed offsets of this group."""
        return sum(map(len, self._topics(group).values()))

    def stale(self, group: str, committed_before_ms: int, now_ms: int) -> list[tuple[str, list[int]]]:
        """By topic: partitions committed at or before that time; one with an expiry of its own only when that has
        come."""
        known = self._groups.get(group)
        if isinstance(known, tuple):
            topic, partition, _, _, timestamp_ms, _ = known
            return [(topic, [partition])] if timestamp_ms <= committed_before_ms else []
        stale = []
        for topic, columns in (known or {}).items():
            partitions = columns.stale(committed_before_ms, now_ms)
            if partitions:
                stale.append((topic, partitions))
        return stale

    def topics(self) -> set[str]:
        """Every topic that some group has an offset in."""
        names: set[str] = set()
        for topics in self._groups.values():
            if isinstance(topics, tuple):
                names.add(topics[0])
            else:
                names.update(topics)
        return names

    def entries_of(self, topic: str) -> Iterator[tuple[str, list[int]]]:
        """Groups with offsets in `topic`, each with its partitions."""
        for group, topics in self._groups.items():
            if isinstance(topics, tuple):
                if topics[0] == topic:
                    yield group, [topics[1]]
            elif topic in topics:
                yield group, topics[topic].partitions.tolist()
