"""A partition's log: record batches in segments, appended through one group commit, read up to what is durable.

The idea that keeps it honest: an append assigns offsets at once but enters the index, and raises the high watermark,
only when its bytes are synced. So what readers see is exactly what a restart would find.

Positions are bytes of the whole log, counted from the first segment that is left; they give a fetch the amount of data
that waits for it without reading.

Thread safety: all methods belong to the event loop's thread. Writing, rolling and syncing run in the executor, one
round at a time; reads use pread on the loop.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.storage.group_sync import GroupSync, Round
from keylane.storage.segment import NO_TIMESTAMP, Index, Segment, segment_name
from keylane.wire.batches import (
    HEADER_SIZE,
    PREFIX_SIZE,
    BatchHeader,
    UnsupportedCodecError,
    decode_records,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from keylane.storage.filesystem import FileSystem, StorageError
    from keylane.storage.producers import Producers

LEADER_EPOCH = 0
"""One node leads every partition from the beginning."""
PLACED_PREFIX = struct.Struct(">qii")
"""Base offset, length, leader epoch: what an append writes anew."""


class LogOptions(NamedTuple):
    """Sizes of one log."""

    segment_bytes: int
    index_interval_bytes: int


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    durable: Round | None
    """Resolves when the batch is durable; None when it is already (a repeated batch)."""


class OffsetAndTimestamp(NamedTuple):
    """A record found by its timestamp."""

    offset: int
    timestamp_ms: int


class _Unsynced(NamedTuple):
    """A batch that was appended and is not durable yet."""

    segment: Segment
    position: int
    length: int
    base_offset: int
    max_timestamp: int


class _Writer:
    """The active segment's file, as the executor sees it."""

    def __init__(self, filesystem: FileSystem, folder: str, segment: Segment) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._segment = segment

    @property
    def path(self) -> str:
        return self._segment.path

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._segment.open(self._filesystem).write(data)

    def sync(self) -> None:
        self._segment.open(self._filesystem).sync()

    def roll(self, segment: Segment) -> None:
        """Go on in a new segment. The old one is durable before the new one exists: only the last may ever be torn."""
        self.sync()
        segment.open(self._filesystem)
        self._filesystem.sync_dir(self._folder)
        self._segment = segment


class PartitionLog:
    """The log of one partition. Opened by the functions of `keylane.storage.open_log`."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        options: LogOptions,
        executor: Executor,
        *,
        segments: list[Segment],
        producers: Producers,
        next_offset: int,
    ) -> None:
        self.folder = folder
        self.next_offset = next_offset
        """The offset that the next record gets; records below it may not be durable yet."""
        self.high_watermark = next_offset
        """All records below are durable, and visible."""
        self.synced_position = segments[-1].end
        self.listeners: set[Callable[[int], None]] = set()
        """Called with the number of new visible bytes; with 0 when the log is closed."""
        self.is_closed = False
        self._filesystem = filesystem
        self._options = options
        self._executor = executor
        self._segments = segments
        self._active = segments[-1]
        self._producers = producers
        self._unsynced: deque[_Unsynced] = deque()
        self._writer = _Writer(filesystem, folder, self._active)
        self._sync = GroupSync(self._writer, executor, on_synced=self._on_synced)
        self._appended = self._active.size
        """Bytes in the active segment, synced or not."""

    @property
    def log_start_offset(self) -> int:
        return self._segments[0].base_offset

    @property
    def failure(self) -> StorageError | None:
        """Why the log takes no more appends."""
        return self._sync.failure

    def append(self, batch: bytes, header: BatchHeader, now_ms: int) -> Appended:
        """Queue a checked batch at the end of the log, giving it its offsets.

        A batch that an idempotent producer repeats is not appended: the answer is where it went the first time. Raises
        `StorageError` once the log has failed, `OutOfOrderSequenceError` and `ProducerEpochError`.
        """
        if self._sync.failure is not None:
            raise self._sync.failure
        base_offset = self.next_offset
        if header.producer_id >= 0:
            repeated = self._producers.check(header)
            if repeated is not None:
                is_durable = repeated.last_offset < self.high_watermark
                return Appended(repeated.base_offset, None if is_durable else self._sync.pending)
        if self._appended and self._appended + header.length > self._options.segment_bytes:
            self._roll(base_offset)
        if header.producer_id >= 0:
            self._producers.record(header, base_offset, now_ms)
        length = header.length
        self._unsynced.append(_Unsynced(self._active, self._appended, length, base_offset, header.max_timestamp))
        self._appended += length
        self.next_offset = base_offset + header.last_offset_delta + 1
        # Offset and leader epoch lie before what the checksum covers; the rest is written as it came, uncopied.
        prefix = PLACED_PREFIX.pack(base_offset, length - PREFIX_SIZE, LEADER_EPOCH)
        rest = memoryview(batch)[PLACED_PREFIX.size :]
        return Appended(base_offset, self._sync.append_all((prefix, rest), self.next_offset))

    def locate(self, offset: int) -> int:
        """The position of the batch that holds `offset`; for one at or above the high watermark, the end.

        `prepare` must have been awaited for this offset. Raises `StorageError` for damage.
        """
        if offset >= self.high_watermark:
            return self.synced_position
        segment = self._segment_of(offset)
        return segment.start + segment.find_offset(self._filesystem, offset)

    def read(self, position: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Durable batches from `position` on, at most `max_bytes` (the last may be cut off), from one segment.

        With `at_least_one` the first batch is whole, however large. Blocks on the file.
        """
        if position >= self.synced_position:
            return b""
        segment = self._segments[bisect_right(self._segments, position, key=lambda segment: segment.start) - 1]
        start = position - segment.start
        size = min(max_bytes, min(segment.end, self.synced_position) - position)
        file = segment.open(self._filesystem)
        if not at_least_one:
            return file.read(start, size) if size > 0 else b""
        data = file.read(start, max(size, HEADER_SIZE))
        first = read_header(data).length
        if first > len(data):
            return file.read(start, first)
        return data[: max(size, first)]

    async def prepare(self, offset: int) -> None:
        """Make the index of the segment that holds `offset` (after a clean start it is built by the first reader)."""
        if self.log_start_offset <= offset < self.high_watermark:
            await self._build_index(self._segment_of(offset))

    def is_prepared(self, offset: int) -> bool:
        """Whether `locate(offset)` can be called."""
        return not self.log_start_offset <= offset < self.high_watermark or self._segment_of(offset).index is not None

    async def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first visible record of this time or later, or None. Raises `StorageError` for damage.

        In a batch whose compression keylane does not unpack it is the batch's first record: earlier, never later.
        """
        for segment in self._segments:
            if segment.max_timestamp >= timestamp_ms:
                await self._build_index(segment)
                batch = segment.read_batch(self._filesystem, segment.find_timestamp(self._filesystem, timestamp_ms))
                return _first_record(batch, timestamp_ms)
        return None

    def latest_timestamp(self) -> OffsetAndTimestamp | None:
        """The (first) visible record with the latest timestamp, or None in an empty log."""
        segment = max(self._segments, key=lambda segment: segment.max_timestamp)
        if segment.max_timestamp == NO_TIMESTAMP:
            return None
        batch = segment.read_batch(self._filesystem, segment.max_timestamp_position)
        return _first_record(batch, segment.max_timestamp)

    def expire_producers(self, before_ms: int) -> None:
        """Forget idempotent producers that have not appended since."""
        self._producers.expire(before_ms)

    async def close(self) -> None:
        """Wait for what is being synced, then close the files. Waiting fetches are woken."""
        self.is_closed = True
        for listener in list(self.listeners):
            listener(0)
        await self._sync.close()
        for segment in self._segments:
            segment.close()

    def snapshot(self) -> dict[str, Any]:
        """What a clean start needs instead of reading the log; only for a log that is idle."""
        assert self._sync.is_idle
        return {
            "next_offset": self.next_offset,
            "segments": [[s.base_offset, s.size, s.max_timestamp, s.max_timestamp_position] for s in self._segments],
            "producers": self._producers.snapshot(),
        }

    def _segment_of(self, offset: int) -> Segment:
        return self._segments[bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1]

    def _roll(self, base_offset: int) -> None:
        path = f"{self.folder}/{segment_name(base_offset)}"
        start = self._active.start + self._appended
        segment = Segment(path, base_offset, start, self._options.index_interval_bytes)
        self._segments.append(segment)
        self._active = segment
        self._appended = 0
        self._sync.run(lambda: self._writer.roll(segment))

    def _on_synced(self, next_offset: int) -> None:
        before = self.synced_position
        unsynced = self._unsynced
        while unsynced and unsynced[0].base_offset < next_offset:
            segment, position, length, base_offset, max_timestamp = unsynced.popleft()
            segment.note(position, base_offset, max_timestamp)
            segment.size = position + length
            self.synced_position = segment.start + segment.size
        self.high_watermark = next_offset
        if self.listeners:
            for listener in list(self.listeners):
                listener(self.synced_position - before)

    async def _build_index(self, segment: Segment) -> None:
        if segment.index is not None:
            return
        index = Index(self._options.index_interval_bytes)
        size = segment.size
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, segment.scan, self._filesystem, index, 0, size)
        if segment.index is None:
            segment.scan(self._filesystem, index, size, segment.size)  # what was appended meanwhile
            segment.index = index


def _first_record(batch: bytes, timestamp_ms: int) -> OffsetAndTimestamp | None:
    header = read_header(batch)
    if header.base_timestamp < timestamp_ms:
        try:
            for record in decode_records(batch):
                if record.timestamp_ms >= timestamp_ms:
                    return OffsetAndTimestamp(record.offset, record.timestamp_ms)
        except UnsupportedCodecError:
            pass
    return OffsetAndTimestamp(header.base_offset, header.base_timestamp)
