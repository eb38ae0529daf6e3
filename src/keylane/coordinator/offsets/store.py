"""The committed offsets in memory: what a start would load from the journal, and nothing that is not synced.

By group, then by topic: columns (`OffsetColumns`). A group that has one offset in all, without metadata, is one small
record (`OneOffset`) until it has more. Nothing in here waits or writes: the coordinator applies a commit whole, in one
call, once the journal says that it is durable.

Sources: S1 (at most 64 bytes an entry; only committed offsets in the map), S2 (the offsets cache and its queries).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keylane.coordinator.formats.consumer_offsets import NO_TIMESTAMP
from keylane.coordinator.offsets.columns import (
    NO_OFFSET,
    NOTHING,
    OffsetColumns,
    as_columns,
    fetch_one,
    nothing_committed,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from keylane.coordinator.formats.commit_batch import TopicCommit
    from keylane.coordinator.formats.consumer_offsets import OffsetValue
    from keylane.coordinator.offsets.columns import FetchedColumns, OneOffset


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
