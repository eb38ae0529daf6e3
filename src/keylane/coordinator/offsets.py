"""The committed offsets in memory: what a start would load from the journal, and nothing that is not synced.

By group, then by topic: columns (`OffsetColumns`). A group that has one offset in all, without metadata, is one small
record (`OneOffset`) until it has more. Nothing in here waits or writes: the coordinator applies a commit whole, in one
call, once the journal says that it is durable.

Sources: S1 (at most 64 bytes an entry; only committed offsets in the map), S2 (the offsets cache and its queries).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keylane.coordinator.offset_columns import NO_OFFSET, OffsetColumns, OneOffset, nothing_committed
from keylane.coordinator.records import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from keylane.coordinator.commits import TopicCommit
    from keylane.coordinator.offset_columns import FetchedColumns
    from keylane.coordinator.records import OffsetValue


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
        elif isinstance(topics, OneOffset):
            one, topics = topics, {topics.topic: topics.columns()}
            self._groups[group] = topics
            one.let_go()
        return topics

    def _topics(self, group: str) -> Mapping[str, OffsetColumns]:
        """What this group has, by topic, to be looked at only."""
        topics = self._groups.get(group)
        return {topics.topic: topics.columns()} if isinstance(topics, OneOffset) else topics or {}

    def put_plain(
        self, group: str, topic: str, partition: int, offset: int, leader_epoch: int, timestamp_ms: int, log_offset: int
    ) -> None:
        """One offset without metadata and expiry."""
        known = self._groups.get(group)
        if known is None:
            self._groups[group] = OneOffset(
                sys.intern(topic), partition, offset, leader_epoch, timestamp_ms, log_offset
            )
            self._size += 1
        elif (
            type(known) is not OneOffset
            or known.topic != topic
            or not known.overwrite(partition, offset, leader_epoch, timestamp_ms, log_offset)
        ):
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

    def restore(self, group: str, topic: str, columns: OffsetColumns) -> None:
        """Columns from a snapshot, for a group and topic that have none yet."""
        topic = sys.intern(topic)
        self._size += len(columns)
        if group not in self._groups and columns.beside is None and len(columns) == 1:
            partition, offset, timestamp, leader_epoch, log_offset = (column[0] for column in columns.all())
            self._groups[group] = OneOffset(topic, partition, offset, leader_epoch, timestamp, log_offset)
        else:
            self._by_topic(group)[topic] = columns

    def columns(self, group: str, topic: str) -> OneOffset | OffsetColumns | None:
        """Those of this group and topic."""
        topics = self._groups.get(group)
        if isinstance(topics, OneOffset):
            return topics if topics.topic == topic else None
        return topics.get(topic) if topics else None

    def columns_of(self, group: str) -> list[tuple[str, OffsetColumns]]:
        """What the group has, by topic; the list is the caller's, the columns are not."""
        return list(self._topics(group).items())

    def remove(self, group: str, topic: str, partition: int) -> None:
        """Apply a tombstone; removing what is not there is no error."""
        topics = self._groups.get(group)
        if isinstance(topics, OneOffset):
            if (topics.topic, topics.partition) == (topic, partition):
                del self._groups[group]
                topics.let_go()
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
        columns = self._topics(group).get(topic)
        return None if columns is None else columns.get(partition)

    def log_offset_of(self, group: str, topic: str, partition: int) -> int:
        """Where in `__consumer_offsets` the record stands that committed this offset; -1 when none did."""
        columns = self._topics(group).get(topic)
        return NO_OFFSET if columns is None else columns.log_offset_of(partition)

    def fetch(self, group: str, topic: str, partitions: Sequence[int]) -> FetchedColumns:
        """The committed offsets of these partitions, -1 where there is none."""
        columns = self._topics(group).get(topic)
        return nothing_committed(partitions) if columns is None else columns.fetch(partitions)

    def fetch_all(self, group: str) -> Iterator[tuple[str, FetchedColumns]]:
        """Everything that `group` has committed, by topic."""
        for topic, columns in self._topics(group).items():
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
        if isinstance(known, OneOffset):
            return [(known.topic, [known.partition])] if known.timestamp <= committed_before_ms else []
        found = []
        for topic, columns in (known or {}).items():
            partitions = columns.stale(committed_before_ms, now_ms)
            if partitions:
                found.append((topic, partitions))
        return found

    def topics(self) -> set[str]:
        """Every topic that some group has an offset in."""
        found: set[str] = set()
        for topics in self._groups.values():
            if isinstance(topics, OneOffset):
                found.add(topics.topic)
            else:
                found.update(topics)
        return found

    def entries_of(self, topic: str) -> Iterator[tuple[str, list[int]]]:
        """Groups with offsets in `topic`, each with its partitions."""
        for group, topics in self._groups.items():
            if isinstance(topics, OneOffset):
                if topics.topic == topic:
                    yield group, [topics.partition]
            elif topic in topics:
                yield group, topics[topic].partitions.tolist()
