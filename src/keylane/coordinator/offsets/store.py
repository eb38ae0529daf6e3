"""The committed offsets in memory: what a start would load from the journal, and nothing that is not synced.

By group: the rows of all its topics, in blocks (`rows`): one `bytes`, and a list of them where there are more than
about 4 KB. One offset without metadata takes 64 bytes, each further one of its group 32, and metadata its own length
and 12. Nothing in here waits or writes: the coordinator applies a commit whole, in one call, once the journal says that
it is durable.

Sources: S1 (at most 64 bytes an entry; only committed offsets in the map), S2 (the offsets cache and its queries).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import NO_LEADER_EPOCH, NO_TIMESTAMP, OffsetValue
from keylane.coordinator.offsets import rows
from keylane.coordinator.offsets.rows import KEPT_ROW_BYTES, KEY_BYTES, MARK_BYTES, OFFSET_END, Columns
from keylane.wire.columns import FEW_ROWS, as_array, is_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keylane.coordinator.formats import TopicCommit

NO_OFFSET = -1
"""What a fetch says of a partition without a committed offset."""

NOTHING = rows.encode_offset(NO_OFFSET, NO_LEADER_EPOCH)
NOTHING_BESIDE = "", NO_TIMESTAMP

Blocks = bytes | list[bytes]
"""Rows in the order of their keys: one block, or several."""

SHARES = (6, 6, 7, 7, 8, 9, 10, 11)
"""Of the parts of a `GroupTable`; in all a power of two. The next one is about an eighth root of two times as large."""
LAST_SHARE = sum(SHARES) - 1

Besides = dict[int, tuple[str, int]]
"""By partition: metadata and expire timestamp, where there are any."""


class FetchedColumns(NamedTuple):
    """Committed offsets of one topic, as columns; a partition without one has offset -1, epoch -1 and metadata ''."""

    partitions: Sequence[int]
    offsets: Sequence[int]
    leader_epochs: Sequence[int]
    metadata: Sequence[str] | None
    """None when every one is empty."""


class TopicOffsets(NamedTuple):
    """All that a group has committed in a topic, by partition."""

    columns: Columns
    beside: Besides

    def values(self) -> Iterator[tuple[int, OffsetValue, int]]:
        """Partition, value and log offset of each."""
        for partition, offset, timestamp_ms, leader_epoch, log_offset in zip(*self.columns, strict=True):
            metadata, expires = self.beside.get(partition, NOTHING_BESIDE)
            yield partition, OffsetValue(offset, leader_epoch, metadata, timestamp_ms, expires), log_offset


OneOffset = tuple[str, int, int, int, int, int]
"""Topic, partition, offset, leader epoch, timestamp, log offset: all that a group has committed, where that is one
offset without metadata. Millions of them go through a snapshot, so it has no names."""


def nothing_committed(partitions: Sequence[int]) -> FetchedColumns:
    return FetchedColumns(partitions, [NO_OFFSET] * len(partitions), [NO_LEADER_EPOCH] * len(partitions), None)


class TopicMarks(dict[str, bytes]):
    """Owned by the store: the mark of each topic with rows; `marks[topic]` gives one to a topic that is about to have
    rows. A mark is a number; one that no row has any more is given to another topic."""

    def __init__(self) -> None:
        super().__init__()
        self._topics: list[str] = []
        """By number, and so is `_rows`."""
        self._rows = array("Q")
        """How many have the mark."""
        self._free: list[int] = []

    def __missing__(self, topic: str) -> bytes:
        if not self._free:
            self._free.append(len(self._topics))
            self._topics.append("")
            self._rows.append(0)
        number = self._free.pop()
        topic = self._topics[number] = sys.intern(topic)
        # More than 16,777,216 topics have an offset: no Kafka cluster has as many.
        mark = self[topic] = number.to_bytes(MARK_BYTES, "big")
        return mark

    def topic(self, mark: bytes) -> str:
        return self._topics[int.from_bytes(mark, "big")]

    def count(self, mark: bytes, more: int) -> None:
        """So many more rows have this mark (or fewer: negative)."""
        number = int.from_bytes(mark, "big")
        self._rows[number] += more
        if not self._rows[number]:
            del self[self._topics[number]]
            self._topics[number] = ""
            self._free.append(number)


class GroupTable:
    """Owned by the store: blocks of rows by group, in dictionaries of unlike sizes.

    A dictionary that is full doubles: a group's place takes 22 bytes in a full one, and 44 in one that has just grown.
    These grow one after the other, so a place takes 25 to 35 bytes on the whole, and no growth holds up everybody for
    as long.
    """

    def __init__(self) -> None:
        self._parts: list[dict[str, Blocks]] = [{} for _ in SHARES]
        self._by_hash = [part for part, share in zip(self._parts, SHARES, strict=True) for _ in range(share)]

    def of(self, group: str) -> dict[str, Blocks]:
        """The dictionary that this group is in, or would be."""
        # Not the lowest bits, by which a dictionary divides its own.
        return self._by_hash[hash(group) >> 40 & LAST_SHARE]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def __contains__(self, group: str) -> bool:
        return group in self.of(group)

    def clear(self) -> None:
        for part in self._parts:
            part.clear()


class OffsetStore:
    """Every committed offset, by group and topic.

    Thread safety: owned by the event loop. One call of `apply` makes a whole commit visible, so no fetch sees a part.
    """

    def __init__(self) -> None:
        self._groups = GroupTable()
        self._marks = TopicMarks()
        self._size = 0

    def __len__(self) -> int:
        """Committed offsets, over all groups."""
        return self._size

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    @property
    def groups(self) -> Iterable[str]:
        """Every group with at least one committed offset."""
        return self._groups

    def clear(self) -> None:
        self._groups.clear()
        self._marks = TopicMarks()
        self._size = 0

    def _blocks(self, group: str) -> list[bytes]:
        """Those of this group, as a list to be changed and given to `_keep`."""
        kept = self._groups.of(group).get(group)
        return kept if isinstance(kept, list) else [] if kept is None else [kept]

    def _keep(self, group: str, blocks: list[bytes], mark: bytes, more: int) -> None:
        """These blocks are the group's, with so many more entries of this topic."""
        groups = self._groups.of(group)
        if blocks:
            groups[group] = blocks[:] if len(blocks) > 1 else blocks[0]  # a copy has no room to grow
        else:
            groups.pop(group, None)
        if more:
            self._size += more
            self._marks.count(mark, more)

    def put_plain(
        self, group: str, topic: str, partition: int, offset: int, leader_epoch: int, timestamp_ms: int, log_offset: int
    ) -> None:
        """One offset without metadata and expiry."""
        mark = self._marks[topic]
        row = rows.row_of(mark, partition, offset, leader_epoch, timestamp_ms, log_offset)
        groups = self._groups.of(group)
        kept = groups.get(group)
        if kept is None:
            self._keep(group, [row], mark, 1)
            return
        key = row[:KEY_BYTES]
        if len(kept) == KEPT_ROW_BYTES and kept[:KEY_BYTES] == key:  # as of most groups; a list of blocks never is
            groups[group] = row
            return
        place = 0 if isinstance(kept, bytes) else rows.place_of(kept, key)
        block = kept if isinstance(kept, bytes) else kept[place]
        if not rows.is_plain(block):
            self._merge(group, mark, [(row, b"")])
            return
        at = rows.find(block, key)
        if at < 0:
            blocks = self._blocks(group)
            blocks[place : place + 1] = rows.divided(rows.with_rows(block, -1 - at, 0, row))
            self._keep(group, blocks, mark, 1)
        elif isinstance(kept, bytes):
            groups[group] = rows.with_row(block, at, row)
        else:
            kept[place] = rows.with_row(block, at, row)

    def _merge(self, group: str, mark: bytes, new: list[tuple[bytes, bytes]]) -> None:
        """Rows of one topic, each with what is to stand beside it; the last one of a partition counts."""
        blocks = self._blocks(group) or [b""]
        left = sorted({row[:KEY_BYTES]: (row, beside) for row, beside in new}.values())
        more = 0
        while left:  # from the last block on: one that is divided moves those behind it
            place = rows.place_of(blocks, left[-1][0][:KEY_BYTES])
            start = bisect_left(left, (blocks[place][:KEY_BYTES],)) if place else 0
            together, besides, added = rows.merged(blocks[place], left[start:])
            blocks[place : place + 1] = rows.divided(together, besides)
            more += added
            del left[start:]
        self._keep(group, blocks, mark, more)

    def _put_run(self, group: str, mark: bytes, new: bytes, count: int) -> bool:
        """Rows of partitions that follow each other, where all of them are there, or none in between; or False."""
        first, last = new[:KEY_BYTES], new[-KEPT_ROW_BYTES : KEY_BYTES - KEPT_ROW_BYTES]
        groups = self._groups.of(group)
        kept = groups.get(group)
        if isinstance(kept, bytes) and len(kept) == len(new):
            ends = kept[:KEY_BYTES], kept[-KEPT_ROW_BYTES : KEY_BYTES - KEPT_ROW_BYTES]
            if ends == (first, last):  # a member that commits all that it has, again
                groups[group] = new
                return True
        blocks = self._blocks(group)
        found = _between(blocks, first, last)
        if found is None:
            return False
        places, old, begin, end = found
        is_there = end == begin + count - 1 and begin >= 0
        if not is_there and (begin >= 0 or begin != end):
            return False
        new = rows.with_rows(old, begin, count, new) if is_there else rows.with_rows(old, -1 - begin, 0, new)
        blocks[places] = rows.divided(new)
        self._keep(group, blocks, mark, 0 if is_there else count)
        return True

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
            topic, partitions, offsets, epochs, metadata = commit
            count = len(partitions)
            if metadata is not None or expire_timestamp_ms != NO_TIMESTAMP:
                self._merge_commit(group, commit, log_offset, timestamp_ms, expire_timestamp_ms)
            elif count == 1:
                self.put_plain(group, topic, partitions[0], offsets[0], epochs[0], timestamp_ms, log_offset)
            elif count < FEW_ROWS or not self._put_commit(group, commit, log_offset, timestamp_ms):
                for at, row in enumerate(zip(partitions, offsets, epochs, strict=True), log_offset):
                    self.put_plain(group, topic, *row, timestamp_ms, at)
            log_offset += count

    def _put_commit(self, group: str, commit: TopicCommit, log_offset: int, timestamp_ms: int) -> bool:
        """The quick way for partitions that follow each other, without metadata; or False."""
        topic, partitions, offsets, epochs, _ = commit
        if not is_run(as_array("i", partitions)):
            return False
        mark = self._marks[topic]
        new = rows.commit_rows(mark, partitions, offsets, epochs, timestamp_ms, log_offset)
        return self._put_run(group, mark, new, len(partitions))

    def _merge_commit(
        self, group: str, commit: TopicCommit, log_offset: int, timestamp_ms: int, expire_timestamp_ms: int
    ) -> None:
        """Partitions in any order, with metadata or without."""
        topic, partitions, offsets, epochs, metadata = commit
        if not partitions:
            return
        mark = self._marks[topic]
        each = enumerate(zip(partitions, offsets, epochs, metadata or ("",) * len(partitions), strict=True), log_offset)
        self._merge(
            group,
            mark,
            [
                (
                    rows.row_of(mark, partition, offset, epoch, timestamp_ms, at),
                    rows.beside_of(text, expire_timestamp_ms),
                )
                for at, (partition, offset, epoch, text) in each
            ],
        )

    def put(
        self, group: str, topic: str, partition: int, value: tuple[int, int, str, int, int], log_offset: int
    ) -> None:
        """One offset; `value` has the fields of an `OffsetValue`."""
        offset, leader_epoch, metadata, timestamp_ms, expires = value
        mark = self._marks[topic]
        row = rows.row_of(mark, partition, offset, leader_epoch, timestamp_ms, log_offset)
        self._merge(group, mark, [(row, rows.beside_of(metadata, expires))])

    def restore(self, group: str, topic: str, kept: OneOffset | TopicOffsets) -> None:
        """What a snapshot has of a group and topic that have nothing yet."""
        if not isinstance(kept, TopicOffsets):
            self.put_plain(group, topic, *kept[1:])
            return
        columns, beside = kept
        mark = self._marks[topic]
        if not beside and columns.partitions[0] >= 0:
            new = rows.as_rows(mark, columns)
            if self._put_run(group, mark, new, len(columns.partitions)):
                return
        for partition, value, log_offset in kept.values():
            self.put(group, topic, partition, value, log_offset)

    def one_of(self, group: str) -> OneOffset | None:
        """All of this group, when it is one offset without metadata."""
        kept = self._groups.of(group).get(group)
        if isinstance(kept, bytes) and len(kept) == KEPT_ROW_BYTES:
            return self._marks.topic(kept[:MARK_BYTES]), *rows.read_row(kept)
        return None

    def topics_of(self, group: str) -> list[tuple[str, TopicOffsets]]:
        """What the group has, by topic."""
        return [(self._marks.topic(mark), _offsets_of(blocks)) for mark, blocks in _by_topic(self._blocks(group))]

    def remove(self, group: str, topic: str, partition: int) -> None:
        """Apply a tombstone; removing what is not there is no error."""
        found = self._find(group, topic, partition)
        if found is None:
            return
        block, row = found
        blocks = self._blocks(group)
        place = blocks.index(block)
        besides = None if rows.is_plain(block) else rows.besides_in(block)
        if besides is not None:
            del besides[row]
        blocks[place : place + 1] = rows.divided(rows.with_rows(rows.rows_in(block), row, 1, b""), besides)
        self._keep(group, blocks, rows.mark_in(block, row), -1)

    def _find(self, group: str, topic: str, partition: int) -> tuple[bytes, int] | None:
        """The block that has this partition, and in which row."""
        kept, mark = self._groups.of(group).get(group), self._marks.get(topic)
        if kept is None or mark is None:
            return None
        key = rows.key_of(mark, partition)
        block = kept if isinstance(kept, bytes) else kept[rows.place_of(kept, key)]
        row = rows.find(block, key)
        return None if row < 0 else (block, row)

    def get(self, group: str, topic: str, partition: int) -> OffsetValue | None:
        found = self._find(group, topic, partition)
        if found is None:
            return None
        _, offset, leader_epoch, timestamp_ms, _ = rows.read_row(*found)
        metadata, expires = rows.read_beside(rows.beside_in(*found))
        return OffsetValue(offset, leader_epoch, metadata, timestamp_ms, expires)

    def plain(self, group: str, topic: str, partition: int) -> bytes | None:
        """Offset and leader epoch (-1 for none) as an answer has them: i64 and i32; or None where the partition has
        metadata or an expiry."""
        kept, mark = self._groups.of(group).get(group), self._marks.get(topic)
        if kept is None or mark is None:
            return NOTHING
        if isinstance(kept, bytes) and len(kept) == KEPT_ROW_BYTES:  # as of most groups
            return kept[KEY_BYTES:OFFSET_END] if kept[:KEY_BYTES] == rows.key_of(mark, partition) else NOTHING
        found = self._find(group, topic, partition)
        if found is None:
            return NOTHING
        return None if rows.beside_in(*found) else rows.offset_in(*found)

    def log_offset_of(self, group: str, topic: str, partition: int) -> int:
        """Where in `__consumer_offsets` the record stands that committed this offset; -1 when none did."""
        found = self._find(group, topic, partition)
        return NO_OFFSET if found is None else rows.read_row(*found).log_offset

    def fetch(self, group: str, topic: str, partitions: Sequence[int]) -> FetchedColumns:
        """The committed offsets of these partitions, -1 where there is none."""
        mark, blocks, wanted = self._marks.get(topic), self._blocks(group), as_array("i", partitions)
        if not blocks or mark is None or not partitions:
            return nothing_committed(partitions)
        if is_run(wanted):
            found = _between(blocks, rows.key_of(mark, wanted[0]), rows.key_of(mark, wanted[-1]))
            if found is not None:
                _, together, begin, end = found
                if begin >= 0 and end == begin + len(wanted) - 1:
                    return FetchedColumns(wanted, *rows.fetched_in(rows.part_of(together, begin, end + 1)), None)
        found_blocks = _of_topic(blocks, mark)
        return _fetched(found_blocks, wanted) if found_blocks else nothing_committed(partitions)

    def fetch_all(self, group: str) -> Iterator[tuple[str, FetchedColumns]]:
        """Everything that `group` has committed, by topic."""
        for mark, blocks in _by_topic(self._blocks(group)):
            yield self._marks.topic(mark), _fetched(blocks, None)

    def partitions_of(self, group: str) -> Iterator[tuple[str, list[int]]]:
        """Everything that `group` has committed, by name only."""
        for mark, blocks in _by_topic(self._blocks(group)):
            yield self._marks.topic(mark), _partitions_in(blocks).tolist()

    def size_of(self, group: str) -> int:
        """Committed offsets of this group."""
        return sum(map(rows.count_of, self._blocks(group)))

    def stale(self, group: str, committed_before_ms: int, now_ms: int) -> list[tuple[str, list[int]]]:
        """By topic: partitions committed at or before that time; one with an expiry of its own only when that has
        come."""
        blocks = self._blocks(group)
        if all(map(rows.is_plain, blocks)) and all(
            min(rows.timestamps_in(block)) > committed_before_ms for block in blocks
        ):
            return []
        stale = []
        for topic, kept in self.topics_of(group):
            partitions = [
                partition
                for partition, (_, _, _, timestamp_ms, expires), _ in kept.values()
                if (expires <= now_ms if expires != NO_TIMESTAMP else timestamp_ms <= committed_before_ms)
            ]
            if partitions:
                stale.append((topic, partitions))
        return stale

    def topics(self) -> set[str]:
        """Every topic that some group has an offset in."""
        return set(self._marks)

    def entries_of(self, topic: str) -> Iterator[tuple[str, list[int]]]:
        """Groups with offsets in `topic`, each with its partitions."""
        mark = self._marks.get(topic)
        if mark is None:
            return
        for group in self._groups:
            blocks = _of_topic(self._blocks(group), mark)
            if blocks:
                yield group, _partitions_in(blocks).tolist()


def _of_topic(blocks: Sequence[bytes], mark: bytes) -> list[bytes]:
    """The rows of one topic, in blocks."""
    if not blocks or (len(blocks) == 1 and mark not in blocks[0]):
        return []
    place = rows.place_of(blocks, rows.first_key(mark))
    parts = (rows.of_mark(block, mark) for block in blocks[place : rows.place_of(blocks, rows.last_key(mark)) + 1])
    return [part for part in parts if part]


def _between(blocks: Sequence[bytes], first: bytes, last: bytes) -> tuple[slice, bytes, int, int] | None:
    """The blocks from one key to another one, their rows, and where in these the two are (as `find` says); None where
    some row has something beside it."""
    if not blocks:
        return slice(0), b"", -1, -1
    places = slice(rows.place_of(blocks, first), rows.place_of(blocks, last) + 1)
    if not all(map(rows.is_plain, blocks[places])):
        return None
    together = rows.joined(blocks[places])
    return places, together, rows.find(together, first), rows.find(together, last)


def _by_topic(blocks: Sequence[bytes]) -> list[tuple[bytes, list[bytes]]]:
    """The rows of each topic, in blocks, by its mark."""
    found: list[tuple[bytes, list[bytes]]] = []
    for block in blocks:
        for mark in rows.marks_in(block):
            if not found or found[-1][0] != mark:
                found.append((mark, []))
            found[-1][1].append(rows.of_mark(block, mark))
    return found


def _partitions_in(blocks: Iterable[bytes]) -> array[int]:
    return rows.partitions_in(rows.joined(map(rows.rows_in, blocks)))


def _besides_in(blocks: Sequence[bytes]) -> list[tuple[str, int]] | None:
    """Metadata and expire timestamp of each row; None when none has any."""
    if all(map(rows.is_plain, blocks)):
        return None
    return [rows.read_beside(beside) for block in blocks for beside in rows.besides_in(block)]


def _offsets_of(blocks: Sequence[bytes]) -> TopicOffsets:
    columns = rows.columns_in(rows.joined(map(rows.rows_in, blocks)))
    each = zip(columns.partitions, _besides_in(blocks) or (), strict=False)
    return TopicOffsets(columns, {partition: beside for partition, beside in each if beside != NOTHING_BESIDE})


def _fetched(blocks: Sequence[bytes], wanted: array[int] | None) -> FetchedColumns:
    """These partitions of the topic of these rows, in this order, or all."""
    found = rows.joined(map(rows.rows_in, blocks))
    besides = _besides_in(blocks)
    partitions = rows.partitions_in(found)
    offsets, epochs = rows.fetched_in(found)
    texts = None if besides is None else [metadata for metadata, _ in besides]
    if wanted is None or wanted == partitions:
        return FetchedColumns(partitions, offsets, epochs, texts)
    row_of = dict(zip(partitions, range(len(partitions)), strict=True))
    places = [row_of.get(partition, -1) for partition in wanted]
    return FetchedColumns(
        wanted,
        [NO_OFFSET if row < 0 else offsets[row] for row in places],
        [NO_LEADER_EPOCH if row < 0 else epochs[row] for row in places],
        texts and ["" if row < 0 else texts[row] for row in places],
    )
