"""The one journal of all coordinator records: append, know when it is durable, replay, read one partition's view.

Whatever its offsets partition, every commit goes into the same file, so one fdatasync covers all that wait. What a
reader of a `__consumer_offsets` partition sees is a view: the partition's frames in order, without their frame heads.
Segments let a later snapshot replace old ones.

After a failed write or sync nothing is appended any more, ever: what was waiting is told the error, and so is everyone
who comes later. Only a restart, which reads what is really on disk, goes on.

ADR 5. Thread safety: all methods belong to the event loop's thread; files are written and read in the executor.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from keylane.coordinator.commits import encode_batch
from keylane.coordinator.frames import (
    FRAME_HEAD_SIZE,
    SEGMENT_HEADER_SIZE,
    Frame,
    JournalDamagedError,
    SegmentReader,
    base_and_last_delta,
    encode_frame,
    encode_segment_header,
    read_frame_head,
)
from keylane.coordinator.records import RecordFormatError
from keylane.errors import DataFolderError, PeerError
from keylane.storage.filesystem import StorageError
from keylane.storage.group_sync import GroupSync
from keylane.wire.batches import HEADER_SIZE, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from keylane.coordinator.commits import Records
    from keylane.storage.filesystem import AppendFile, FileSystem
    from keylane.storage.group_sync import Round

logger = logging.getLogger("keylane.coordinator")
T = TypeVar("T")

INDEX_INTERVAL_BYTES = 64 * 1024
"""A partition's view has one index entry for at least this much journal: 16 bytes of memory each."""
REPLAY_SLICE_FRAMES = 2_000
"""Frames replayed before other work gets its turn: some 20 ms."""
SEGMENT_SUFFIX = ".journal"

Done = Callable[["StorageError | None"], None]
"""Called when a batch is durable (None), or when it never will be."""
Replay = Callable[[int, bytes], None]
"""Called with every batch of the journal, in order: offsets partition, batch."""


class BatchTooLargeError(PeerError):
    """A commit of more bytes than one record batch may have; nothing of it was written."""


class Journal(Protocol):
    """The port: this one on local files, or a replicated one in its place."""

    async def load(self, replay: Replay) -> None:
        """Replay everything; must be done before the first append. Raises `DataFolderError`."""
        ...

    def append(self, partition: int, records: Records, done: Done) -> Round:
        """Queue one batch: durable whole, or not at all. `done` is called in the order of the appends, before those
        that wait for the returned future go on. Raises `BatchTooLargeError`, and `StorageError` after a failure."""
        ...

    async def flush(self) -> None:
        """Return when everything appended so far is durable. Raises `StorageError`."""
        ...

    def end_offset(self, partition: int) -> int:
        """The offset behind the last durable record of this partition."""
        ...

    async def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        """Whole durable batches of this partition, from the one that holds `offset` on; one at least, if there is."""
        ...

    async def close(self) -> None: ...


class _Segments:
    """The files of the journal: what one round of the group commit writes to and syncs."""

    def __init__(self, filesystem: FileSystem, folder: str, partitions: int) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._partitions = partitions
        self.files: dict[int, AppendFile] = {}
        self._current: AppendFile | None = None

    @property
    def path(self) -> str:
        return self._folder if self._current is None else self._current.path

    def path_of(self, number: int) -> str:
        return f"{self._folder}/{number:010d}{SEGMENT_SUFFIX}"

    def numbers(self) -> list[int]:
        """Segments on disk, checked to be without a gap. Raises `DataFolderError`."""
        names = [name for name in self._filesystem.listdir(self._folder) if name.endswith(SEGMENT_SUFFIX)]
        stems = [name.removesuffix(SEGMENT_SUFFIX) for name in names]
        numbers = sorted(int(stem) for stem in stems if stem.isdigit())
        for expected, number in enumerate(numbers, 1):
            if number != expected:
                raise JournalDamagedError(self.path_of(expected), 0, f"this segment is missing, and {number} is there")
        return numbers

    def read_all(self, number: int) -> bytes:
        return self._filesystem.read(self.path_of(number))

    def open(self, number: int, *, is_last: bool) -> None:
        """Open a segment that was replayed; the last one takes the appends."""
        file = self.files[number] = self._filesystem.open_append(self.path_of(number))
        if is_last:
            self._current = file

    def end_load(self, number: int, size: int) -> None:
        """Cut a torn tail off, so that what is appended next cannot be taken for a part of it; and make what is left
        durable before anyone sees it, since a killed process may not have."""
        file = self.files[number]
        if file.size > size:
            file.truncate(size)
        if size == 0:
            file.write(encode_segment_header(number, self._partitions))
        file.sync()

    def begin(self, number: int) -> None:
        """End the current segment and begin the next one; all before it is durable first."""
        if self._current is not None:
            self._current.sync()
        file = self._filesystem.open_append(self.path_of(number))
        file.write(encode_segment_header(number, self._partitions))
        file.sync()
        self._filesystem.sync_dir(self._folder)
        self.files[number] = self._current = file

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self._current is not None
        self._current.write(data)

    def sync(self) -> None:
        assert self._current is not None
        self._current.sync()

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        self.files.clear()


class _View:
    """Where one offsets partition's batches are, and how far they reach."""

    __slots__ = ("appended", "durable", "offsets", "places")

    def __init__(self) -> None:
        self.appended = 0
        """The next offset to give."""
        self.durable = 0
        """The offset behind the last durable record."""
        self.offsets = array("q")
        self.places = array("q")
        """A sparse index: base offset of a batch, and its frame's place (segment, then position)."""

    def note(self, base_offset: int, place: int) -> None:
        if not self.places or place - self.places[-1] >= INDEX_INTERVAL_BYTES:
            self.offsets.append(base_offset)
            self.places.append(place)


_POSITION_BITS = 40
"""A place is a segment number and, in these low bits, a position in it."""


class FileJournal:
    """The journal in a folder of local files."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        executor: Executor,
        *,
        partitions: int,
        segment_bytes: int,
        max_batch_bytes: int,
    ) -> None:
        """A segment of `segment_bytes` or more is followed by a new one; no batch has more than `max_batch_bytes`."""
        self._filesystem = filesystem
        self._folder = folder
        self._executor = executor
        self._partitions = partitions
        self._max_batch_bytes = max_batch_bytes
        self._segment_bytes = segment_bytes
        self._segments = _Segments(filesystem, folder, partitions)
        self._sync = GroupSync(self._segments, executor)
        self._views = [_View() for _ in range(partitions)]
        self._number = 0
        self._position = 0
        self._round: Round | None = None
        self._waiting: list[tuple[_View, int, Done]] = []
        self._failure: StorageError | None = None
        self.torn_bytes = 0
        """Bytes of a torn tail that loading cut off; none of them had been acknowledged."""

    async def load(self, replay: Replay) -> None:
        try:
            await self._load(replay)
        except OSError as error:
            raise DataFolderError(f"{self._folder}: {error}; the broker needs to read and write this folder") from error

    async def _load(self, replay: Replay) -> None:
        numbers = await self._in_executor(self._prepare_folder)
        for number in numbers:
            await self._load_segment(number, replay, is_last=number == numbers[-1])
        for view in self._views:
            view.durable = view.appended
        if not numbers:
            self._number = 1
            await self._in_executor(partial(self._segments.begin, 1))
            self._position = SEGMENT_HEADER_SIZE

    def append(self, partition: int, records: Records, done: Done) -> Round:
        size = HEADER_SIZE + len(records.body)
        if size > self._max_batch_bytes:
            raise BatchTooLargeError(
                f"a commit of {size} bytes: at most {self._max_batch_bytes} (message.max.bytes) go into one batch"
            )
        if self._position >= self._segment_bytes:
            self._roll()
        view = self._views[partition]
        base_offset = view.appended
        frame = encode_frame(partition, *encode_batch(records, base_offset))
        round_ = self._sync.append(frame)
        view.note(base_offset, self._number << _POSITION_BITS | self._position)
        view.appended = base_offset + records.record_count
        self._position += len(frame)
        if round_ is not self._round:
            self._round = round_
            self._waiting = []
            round_.add_done_callback(partial(self._finish, self._waiting))
        self._waiting.append((view, view.appended, done))
        return round_

    async def flush(self) -> None:
        await self._sync.flush()

    def end_offset(self, partition: int) -> int:
        return self._views[partition].durable

    async def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        view = self._views[partition]
        if not 0 <= offset < view.durable:
            return b""
        return await self._in_executor(partial(self._read, partition, offset, view.durable, max_bytes))

    async def close(self) -> None:
        await self._sync.close()
        await self._in_executor(self._segments.close)

    async def _in_executor(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, step)

    def _prepare_folder(self) -> list[int]:
        if not self._filesystem.is_dir(self._folder):
            self._filesystem.mkdir(self._folder)
        # A process that was killed may have left names that only the memory of this machine knows.
        self._filesystem.sync_dir(self._folder.rpartition("/")[0] or "/")
        self._filesystem.sync_dir(self._folder)
        return self._segments.numbers()

    async def _load_segment(self, number: int, replay: Replay, *, is_last: bool) -> None:
        data = await self._in_executor(partial(self._segments.read_all, number))
        path = self._segments.path_of(number)
        reader = SegmentReader(data, path, number=number, partitions=self._partitions, may_be_torn=is_last)
        for count, frame in enumerate(reader, 1):
            self._note_replayed(number, path, frame)
            try:
                replay(frame.partition, frame.batch)
            except RecordFormatError as error:  # its checksums hold, but this release did not write it
                raise JournalDamagedError(path, frame.position, str(error)) from error
            if count % REPLAY_SLICE_FRAMES == 0:
                await asyncio.sleep(0)
        await self._in_executor(partial(self._segments.open, number, is_last=is_last))
        self._number = number
        self._position = max(reader.end, SEGMENT_HEADER_SIZE)
        if reader.is_torn:
            self.torn_bytes = len(data) - reader.end
            logger.warning(
                "%s at byte %d: cut off %d bytes that were never acknowledged", path, reader.end, self.torn_bytes
            )
        if is_last:
            await self._in_executor(partial(self._segments.end_load, number, reader.end))

    def _note_replayed(self, number: int, path: str, frame: Frame) -> None:
        base_offset, last_offset_delta = base_and_last_delta(frame.batch)
        if not 0 <= frame.partition < self._partitions:
            raise JournalDamagedError(path, frame.position, f"a frame of offsets partition {frame.partition}")
        view = self._views[frame.partition]
        if base_offset != view.appended:
            raise JournalDamagedError(
                path,
                frame.position,
                f"offset {base_offset} of offsets partition {frame.partition}, where {view.appended} is due",
            )
        view.note(base_offset, number << _POSITION_BITS | frame.position)
        view.appended = base_offset + last_offset_delta + 1

    def _roll(self) -> None:
        self._number += 1
        self._sync.run(partial(self._segments.begin, self._number))
        self._position = SEGMENT_HEADER_SIZE

    def _finish(self, waiting: list[tuple[_View, int, Done]], round_: asyncio.Future[None]) -> None:
        error = round_.exception()
        assert error is None or isinstance(error, StorageError), error
        if error is None:
            for view, end, done in waiting:
                view.durable = end
                done(None)
        else:
            if self._failure is None:
                self._failure = error
                logger.critical("%s; commits are refused from here on", error)
            for _, _, done in waiting:
                done(error)

    def _read(self, partition: int, offset: int, end: int, max_bytes: int) -> bytes:
        """Frames between two index entries belong to this partition for one index interval at most; then it jumps."""
        view = self._views[partition]
        entry = max(bisect_right(view.offsets, offset) - 1, 0)
        parts: list[bytes] = []
        size = 0
        while entry < len(view.places) and view.offsets[entry] < end:  # beyond it there may be no file yet
            place = view.places[entry]
            for batch in self._frames_near(place, partition):
                header = read_header(batch)
                if header.next_offset <= offset:
                    continue
                if header.base_offset >= end or (parts and size + len(batch) > max_bytes):
                    return b"".join(parts)
                parts.append(batch)
                size += len(batch)
                offset = header.next_offset
            entry += 1
        return b"".join(parts)

    def _frames_near(self, place: int, partition: int) -> Iterator[bytes]:
        """The partition's batches whose frames begin within one index interval of `place`."""
        number, first = place >> _POSITION_BITS, place & ((1 << _POSITION_BITS) - 1)
        file = self._segments.files[number]
        data = file.read(first, INDEX_INTERVAL_BYTES + FRAME_HEAD_SIZE)
        at = 0
        while at < INDEX_INTERVAL_BYTES and at + FRAME_HEAD_SIZE <= len(data):
            length, owner = read_frame_head(data, at)
            at += FRAME_HEAD_SIZE
            if owner == partition:
                batch = data[at : at + length]
                if len(batch) < length:
                    batch = file.read(first + at, length)
                if len(batch) < length:
                    return  # still being written, so not durable
                yield batch
            at += length
