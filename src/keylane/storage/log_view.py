"""What readers see of a partition's log: durable batches, from its start to the high watermark, by offset and by time.

Nothing in here changes the log; `PartitionLog`, which extends it, moves its ends and its segments.

Positions are bytes of the whole log, counted from the first segment that is left; they give a fetch the amount of data
that waits for it without reading.

Thread safety: all methods belong to the event loop's thread; reads use pread on the loop.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from keylane.wire.batches import HEADER_SIZE, BatchError, decode_records, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    from keylane.storage.facts import LogFacts
    from keylane.storage.filesystem import FileSystem
    from keylane.storage.partition_transactions import PartitionTransactions
    from keylane.storage.segment import Segment


class OffsetAndTimestamp(NamedTuple):
    """A record found by its timestamp."""

    offset: int
    timestamp_ms: int


class LogView:
    """The durable part of one partition's log."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        executor: Executor,
        segments: list[Segment],
        transactions: PartitionTransactions,
        next_offset: int,
        facts: LogFacts,
    ) -> None:
        self.folder = folder
        self.epochs = facts.epochs
        """In which leader epochs its batches were written, the present one included."""
        for segment in segments:
            segment.epochs = self.epochs
        self.log_start_offset = max(facts.start, segments[0].base_offset)
        """No record below is shown."""
        self.version = 0
        """Changes when a position may stand for other bytes than before, or for none."""
        self.next_offset = next_offset
        """The offset that the next record gets; records below it may not be durable yet."""
        self.high_watermark = next_offset
        """All records below are durable, and visible."""
        self.synced_position = segments[-1].end
        self.listeners: set[Callable[[int], None]] = set()
        """Called with the number of new visible bytes; with 0 when the log is closed, or begins elsewhere."""
        self.stable_listeners: set[Callable[[int], None]] = set()
        """The same for bytes below the last stable offset."""
        self.is_closed = False
        self._filesystem = filesystem
        self._executor = executor
        self._segments = segments
        self._transactions = transactions

    @property
    def size(self) -> int:
        """Bytes of its durable batches."""
        return self.synced_position - self._segments[0].start

    @property
    def stable_offset(self) -> int:
        """All records below are durable, and of no transaction that is undecided (the last stable offset)."""
        first = self._transactions.first_undecided
        return self.high_watermark if first is None else min(first[0], self.high_watermark)

    @property
    def stable_position(self) -> int:
        """Where the stable records end."""
        first = self._transactions.first_undecided
        return self.synced_position if first is None else min(first[1], self.synced_position)

    @property
    def leader_epoch(self) -> int:
        """What is appended now is of this one."""
        return self.epochs.latest

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest leader epoch up to this one, and where it ends. Source: KIP-320."""
        return self.epochs.starting_at(self.log_start_offset).end_of(leader_epoch, self.high_watermark)

    def aborted(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions that may have records in these offsets."""
        return self._transactions.aborted(start_offset, end_offset)

    def locate(self, offset: int) -> int:
        """The position of the batch that holds `offset`; for one at or above the high watermark, the end.

        `prepare` must have been awaited for this offset. Raises `StorageError` for damage.
        """
        if offset >= self.high_watermark:
            return self.synced_position
        segment = self._segment_of(offset)
        return segment.start + segment.find_offset(self._filesystem, offset)

    def read(self, position: int, max_bytes: int, *, at_least_one: bool, end: int | None = None) -> bytes:
        """Durable batches from `position` on, at most `max_bytes` (the last may be cut off), from one segment, and only
        up to the position `end`.

        With `at_least_one` the first batch is there, however large; else there is nothing where it would be cut off,
        which clients take for a large record. Blocks on the file. What lies before damage is read; the damage itself
        raises `DamagedBatchError`.
        """
        end = self.synced_position if end is None else end
        if position >= end:
            return b""
        segment = self._segments[bisect_right(self._segments, position, key=lambda segment: segment.start) - 1]
        start = position - segment.start
        size = min(max_bytes, min(segment.end, end) - position, segment.sound_end(start) - start)
        file = segment.open(self._filesystem)
        if not at_least_one and size <= 0:
            return b""
        data = file.read(start, max(size, HEADER_SIZE))
        first = read_header(data).length
        if first > size and not at_least_one:
            return b""
        if first > len(data):
            return file.read(start, first)
        return data[: max(size, first)]

    async def prepare(self, offset: int) -> None:
        """Check the segment that holds `offset`, and make its index (after a clean start the first reader does)."""
        if self.log_start_offset <= offset < self.high_watermark:
            await self._segment_of(offset).prepare(self._filesystem, self._executor)

    def is_prepared(self, offset: int) -> bool:
        """Whether `locate(offset)` can be called."""
        return not self.log_start_offset <= offset < self.high_watermark or self._segment_of(offset).index is not None

    async def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first visible record of this time or later, or None. Raises `StorageError` for damage."""
        for segment in list(self._segments):
            if segment.max_timestamp >= timestamp_ms:
                await segment.prepare(self._filesystem, self._executor)
                found = _record_at(self._filesystem, segment, timestamp_ms, self.log_start_offset)
                if found is not None:
                    return found
        return None

    async def latest_timestamp(self) -> OffsetAndTimestamp | None:
        """The (first) record with the latest timestamp, or None when no record has one. It is one that was deleted as
        long as its segment is there, as in Apache Kafka: to find another one is to read the segment.

        Raises `StorageError` for damage.
        """
        segment = max(self._segments, key=lambda segment: segment.max_timestamp)
        if segment.max_timestamp < 0:
            return None
        await segment.prepare(self._filesystem, self._executor)
        batch = segment.read_batch(self._filesystem, segment.max_timestamp_position)
        return _first([batch], segment.max_timestamp, segment.base_offset)

    def _segment_of(self, offset: int) -> Segment:
        return self._segments[bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1]


def _record_at(
    filesystem: FileSystem, segment: Segment, timestamp_ms: int, start_offset: int
) -> OffsetAndTimestamp | None:
    """The first record of this time or later, at `start_offset` or behind it, in a segment that has an index.

    In a batch whose records cannot be read it is the batch's first record: earlier, never later.
    """
    if segment.base_offset >= start_offset:
        position = segment.find_timestamp(filesystem, timestamp_ms)
        found = _first([segment.read_batch(filesystem, position)], timestamp_ms, start_offset)
        if found is not None:
            return found
    return _first(segment.times(filesystem, timestamp_ms, start_offset), timestamp_ms, start_offset)


def _first(batches: Iterable[bytes], timestamp_ms: int, start_offset: int) -> OffsetAndTimestamp | None:
    for batch in batches:
        try:
            for record in decode_records(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    return OffsetAndTimestamp(record.offset, record.timestamp_ms)
        except BatchError:
            header = read_header(batch)
            return OffsetAndTimestamp(max(header.base_offset, start_offset), header.base_timestamp)
    return None
