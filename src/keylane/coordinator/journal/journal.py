"""The one journal of all coordinator records: append, know when it is durable, replay, read one partition's view.

Whatever its offsets partition, every commit goes into the same file, so one fdatasync covers all that wait. What a
reader of a `__consumer_offsets` partition sees is a view: the partition's frames in order, without their frame heads.
When what came after the last snapshot outgrows a segment and that snapshot, a new one is written and takes the place of
all segments before it: a start reads a snapshot and a tail, never history.

After a failed write or sync nothing is appended any more, ever: what was waiting is told the error, and so is everyone
who comes later. Only a restart, which reads what is really on disk, goes on. A write for which there was no room is cut
off again, durably; what was waiting is told so, and what comes later is written if there is room.

ADR 5. Thread safety: all methods belong to the event loop's thread; files are written and read in the executor.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from keylane.coordinator.formats import encode_batch, journal_partitions
from keylane.coordinator.journal.headers import HEADER_SIZE as SEGMENT_HEADER_SIZE
from keylane.coordinator.journal.headers import JournalDamagedError
from keylane.coordinator.journal.segments import (
    FRAME_HEAD_SIZE,
    INDEX_INTERVAL_BYTES,
    MANIFEST,
    POSITION_BITS,
    POSITION_MASK,
    SegmentReader,
    Segments,
    View,
    batch_in,
    encode_frame,
    encode_manifest,
    find_files,
    frame_size,
    holds,
    read_frame_head,
    read_manifest,
)
from keylane.coordinator.journal.snapshots import Snapshots, SnapshotStoppedError
from keylane.coordinator.journal.tail_replay import TailReplay
from keylane.errors import DataFolderError, PeerError
from keylane.storage.filesystem import DiskFullError, DurableFiles, NoRoomError, StorageError
from keylane.storage.shared_sync import SharedSync
from keylane.telling import logger_of
from keylane.wire.batches import HEADER_SIZE, read_header

if TYPE_CHECKING:
    from array import array
    from collections.abc import AsyncIterator, Iterator
    from concurrent.futures import Executor

    from keylane.coordinator.formats import Records
    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.journal.segments import Found
    from keylane.coordinator.options import CoordinatorOptions
    from keylane.storage.filesystem import FileSystem
    from keylane.storage.shared_sync import Round

logger = logger_of("keylane.coordinator")
T = TypeVar("T")

REPLAY_SLICE_BYTES = 256 * 1024
"""Replayed before other work gets its turn: some 10 ms."""

RESERVE_SHARE = 100
"""One part in so many of a segment is reserved ahead of what is written: 1 MiB of the default."""

Done = Callable[["StorageError | None", int], None]
"""Called when a batch is durable (None), or when it never will be; and with its base offset."""


class BatchTooLargeError(PeerError):
    """A commit of more bytes than one record batch may have; nothing of it was written."""


class Journal(Protocol):
    """The port: this one on local files, or a replicated one in its place."""

    async def load(self) -> None:
        """Fill the image; must be done before the first append. Raises `DataFolderError`."""
        ...

    def append(self, partition: int, records: Records, done: Done) -> Round:
        """Queue one batch: durable whole, or not at all. `done` is called in the order of the appends, before those
        that wait for the returned future go on; what is not a committed offset is in the image by then.

        Raises `BatchTooLargeError`, and `StorageError` after a failure.
        """
        ...

    must_confirm: bool
    """Whether somebody else can have changed the state that an answer tells. Where not, there is nothing to confirm."""

    def confirm(self) -> Round | None:
        """What an answer that tells state has to wait for: None where nobody else can have changed it meanwhile. Over
        well, what is durable then holds all that was acknowledged to anyone before this call. Raises `StorageError`."""
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


MakeJournal = Callable[["Image", "CoordinatorOptions", Callable[[], int]], Journal]
"""Makes the journal of an image, with a clock of milliseconds since the epoch."""


def on_files(
    filesystem: FileSystem,
    folder: str,
    executor: Executor,
    *,
    background: Executor | None = None,
    may_sync_inline: bool = False,
) -> Callable[[Image, CoordinatorOptions, Callable[[], int]], FileJournal]:
    """A journal on local files. `executor` has one thread; `background` (or else the same) does what no commit waits
    for."""
    return lambda image, options, clock: FileJournal(
        filesystem,
        folder,
        executor,
        background or executor,
        image=image,
        options=options,
        clock=clock,
        may_sync_inline=may_sync_inline,
    )


_Waiting = tuple[int, int, "Records", bytes, Done]
"""A batch that is not durable yet: offsets partition, base offset, records, frame, and whom to tell. Every commit is
one, so it has no names."""


class FileJournal:
    """The journal in a folder of local files."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        executor: Executor,
        background: Executor,
        *,
        image: Image,
        options: CoordinatorOptions,
        clock: Callable[[], int],
        may_sync_inline: bool = False,
    ) -> None:
        """`executor` has one thread: what it is given is done in order. Snapshots are written in `background`."""
        self._filesystem = filesystem
        self._folder = folder
        self._executor = executor
        self._image = image
        self._clock = clock
        self._partitions = options.offsets_topic_num_partitions
        self._max_batch_bytes = options.message_max_bytes
        self._segment_bytes = options.offsets_topic_segment_bytes
        self._codec = options.offsets_topic_compression_codec
        self._tombstones_ms = options.log_cleaner_delete_retention_ms
        self._segments = Segments(filesystem, folder, self._partitions, self._segment_bytes // RESERVE_SHARE)
        self._snapshots = Snapshots(filesystem, folder, background, partitions=self._partitions, image=image)
        self._snapshot_task: asyncio.Task[None] | None = None
        self._takes_snapshots = True
        self._is_holding_files = False
        self._sync = SharedSync(
            self._segments,
            executor,
            on_synced=self._on_synced,
            on_failed=self._on_failed,
            may_sync_inline=may_sync_inline,
        )
        self._views = {partition: View() for partition in journal_partitions(self._partitions)}
        self._number = 0
        self._position = 0
        self._durable = (0, 0)
        """Segment and position behind the last durable batch, as far as anyone was told."""
        self._tail_bytes = 0
        """In the ended segments since the last snapshot."""
        self._round: Round | None = None
        self._round_position = 0
        """Where in the segment the round began: all before is synced when it is written."""
        self._waiting: list[_Waiting] = []
        self.torn_bytes = 0
        """Bytes of a torn tail that loading cut off; none of them had been acknowledged."""

    async def load(self) -> None:
        try:
            await self._load()
        except OSError as error:
            raise DataFolderError(f"{self._folder}: {error}; the broker needs to read and write this folder") from error

    async def _load(self) -> None:
        found = await self._in_executor(self._prepare_folder)
        if found.snapshot is not None:
            for view, end in zip(self._views.values(), await self._snapshots.load(found.snapshot), strict=True):
                view.begin(end)
        tail = TailReplay(self._image, self._views)
        for number in found.segments:
            await self._load_segment(number, tail, is_last=number == found.segments[-1])
        for view in self._views.values():
            view.durable = view.appended
        if not found.segments:
            self._number = 1
            await self._in_executor(partial(self._segments.begin, 1))
            self._position = SEGMENT_HEADER_SIZE
        self._durable = (self._number, self._position)
        for path in found.leftovers:
            await self._in_executor(partial(self._filesystem.remove, path))

    def append(self, partition: int, records: Records, done: Done) -> Round:
        size = HEADER_SIZE + len(records.body)
        if size > self._max_batch_bytes:
            raise BatchTooLargeError(
                f"a commit of {size} bytes: at most {self._max_batch_bytes} (message.max.bytes) go into one batch"
            )
        if self._position >= self._segment_bytes:
            self._roll()
        round_ = self._sync.join()
        if round_ is not self._round:
            self._begin_round(round_)
        view = self._views[partition]
        base_offset = view.appended
        batch = encode_batch(records, base_offset, codec=self._codec)
        frame = encode_frame(partition, self._position - self._round_position, *batch)
        self._sync.append(frame, (self._number, self._position + len(frame)))
        place = self._number << POSITION_BITS | self._position
        view.append(base_offset, base_offset + records.record_count, place)
        self._position += len(frame)
        self._waiting.append((partition, base_offset, records, frame, done))
        return round_

    must_confirm = False

    def confirm(self) -> None:
        return None

    async def flush(self) -> None:
        await self._sync.flush()

    def end_offset(self, partition: int) -> int:
        return self._views[partition].durable

    async def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        view = self._views[partition]
        if not 0 <= offset < view.durable:
            return b""
        if offset < view.tail:
            return await self._snapshots.read(partition, offset, max_bytes)
        read = partial(self._read, partition, view.offsets, view.places, offset, view.durable, max_bytes)
        return await self._in_executor(read)

    @asynccontextmanager
    async def holding_files(self) -> AsyncIterator[None]:
        """Until this ends no snapshot is written, and no file is removed. One at a time."""
        self._is_holding_files = True
        try:
            if self._snapshot_task is not None:
                await asyncio.wait({self._snapshot_task})
            yield
        finally:
            self._is_holding_files = False

    def durable_files(self) -> DurableFiles:
        """What a crash at this moment would certainly leave, while the files are held."""
        last, size = self._durable
        grown = [] if self._snapshots.path is None else [(self._snapshots.path, self._snapshots.size)]
        grown += [(file.path, file.size) for number, file in sorted(self._segments.files.items()) if number < last]
        grown.append((self._segments.path_of(last), size))
        return DurableFiles(grown, {f"{self._folder}/{MANIFEST}": encode_manifest(last)})

    async def close(self) -> None:
        if self._snapshot_task is not None:
            self._snapshots.stop()
            await asyncio.wait({self._snapshot_task})
        await self._sync.close()
        await self._in_executor(self._segments.close)
        self._snapshots.close()

    async def _in_executor(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, step)

    def _prepare_folder(self) -> Found:
        if not self._filesystem.is_dir(self._folder):
            self._filesystem.mkdir(self._folder)
        # A process that was killed may have left names that only the memory of this machine knows.
        self._filesystem.sync_dir(self._folder.rpartition("/")[0] or "/")
        self._filesystem.sync_dir(self._folder)
        return find_files(self._filesystem, self._folder, read_manifest(self._filesystem, self._folder))

    async def _load_segment(self, number: int, tail: TailReplay, *, is_last: bool) -> None:
        data = await self._in_executor(partial(self._segments.read_all, number))
        path = self._segments.path_of(number)
        reader = SegmentReader(data, path, number=number, partitions=self._partitions, may_be_torn=is_last)
        is_more = True
        while is_more:
            is_more = tail.replay(reader, number, stop=reader.end + REPLAY_SLICE_BYTES)
            await asyncio.sleep(0)
        await self._in_executor(partial(self._segments.open, number, is_last=is_last))
        self._number = number
        self._position = max(reader.end, SEGMENT_HEADER_SIZE)
        if not is_last:
            self._tail_bytes += self._position
        if reader.is_torn:
            self.torn_bytes = reader.torn_bytes
            logger.warning(
                "%s at byte %d: cut off %d bytes that were never acknowledged", path, reader.end, self.torn_bytes
            )
        if is_last:
            await self._in_executor(partial(self._segments.end_load, number, reader.end))

    def _begin_round(self, round_: Round) -> None:
        self._round = round_
        self._round_position = self._position
        self._waiting = []
        round_.when_over(partial(self._finish, self._waiting))

    def _roll(self) -> None:
        self._tail_bytes += self._position
        self._number += 1
        rolled = self._sync.run(partial(self._segments.begin, self._number), (self._number, SEGMENT_HEADER_SIZE))
        self._position = self._round_position = SEGMENT_HEADER_SIZE
        is_due = self._tail_bytes >= max(self._segment_bytes, self._snapshots.size)
        if is_due and self._takes_snapshots and not self._is_holding_files and self._snapshot_task is None:
            ends = [view.appended for view in self._views.values()]
            snapshot = self._snapshot(self._number, ends, rolled, self._tail_bytes)
            self._tail_bytes = 0
            self._snapshot_task = asyncio.get_running_loop().create_task(snapshot)

    async def _snapshot(self, number: int, ends: list[int], rolled: Round, tail_bytes: int) -> None:
        """Write a snapshot of all before segment `number`, then drop the segments that it stands for."""
        try:
            await rolled  # all before that segment is in the image then
            self._image.forget_tombstones(self._clock() - self._tombstones_ms)
            await self._snapshots.write(number, ends)
            for view, end in zip(self._views.values(), ends, strict=True):
                view.drop_before(end, number << POSITION_BITS)
            await self._in_executor(partial(self._segments.drop_before, number))
        except SnapshotStoppedError:
            pass
        except (DiskFullError, NoRoomError) as error:
            self._tail_bytes += tail_bytes
            logger.error("%s: no snapshot now, the next segment will ask again: %s", self._folder, error)  # noqa: TRY400
        except (OSError, StorageError) as error:
            self._takes_snapshots = False
            logger.error("%s: no more snapshots until the broker is restarted: %s", self._folder, error)  # noqa: TRY400
        finally:
            self._snapshot_task = None

    def _on_synced(self, mark: tuple[int, int]) -> None:
        self._durable = mark

    def _finish(self, waiting: list[_Waiting], round_: Round) -> None:
        error = round_.exception()
        assert error is None or isinstance(error, StorageError), error
        if error is None:
            for partition, base_offset, records, frame, done in waiting:
                self._views[partition].durable = base_offset + records.record_count
                if records.pairs:
                    kept = [(at, key, value) for at, (key, value) in enumerate(records.pairs, base_offset)]
                    self._image.note(partition, records.timestamp_ms, kept, batch_in(frame))
                done(None, base_offset)
        else:
            for _, base_offset, _, _, done in waiting:
                done(error, base_offset)

    def _on_failed(self, error: StorageError) -> None:
        """What was not written is taken back, before anyone is told; for good, or until there is room."""
        if not isinstance(error, NoRoomError):
            logger.critical("%s; commits are refused from here on", error)
            return
        for view in self._views.values():
            view.cut()
        number, self._position = self._segments.synced
        if number < self._number:
            self._tail_bytes = max(self._tail_bytes - self._position, 0)
        self._number = number

    def _read(
        self, partition: int, offsets: array[int], places: array[int], offset: int, end: int, max_bytes: int
    ) -> bytes:
        """Frames between two index entries belong to this partition for one index interval at most; then it jumps."""
        entry = max(bisect_right(offsets, offset) - 1, 0)
        parts: list[bytes] = []
        size = 0
        while entry < len(places) and offsets[entry] < end:  # beyond it there may be no file yet
            place = places[entry]
            for head, batch in self._frames_near(place, partition):
                header = read_header(batch)
                if header.next_offset <= offset:
                    continue
                if header.base_offset >= end or (parts and size + len(batch) > max_bytes):
                    return b"".join(parts)
                if not holds(head, batch):
                    path = self._segments.path_of(place >> POSITION_BITS)
                    raise JournalDamagedError(
                        path, place & POSITION_MASK, "the checksum of a frame behind does not hold"
                    )
                parts.append(batch)
                size += len(batch)
                offset = header.next_offset
            entry += 1
        return b"".join(parts)

    def _frames_near(self, place: int, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """Frame head and batch of the partition's frames that begin within one index interval of `place`."""
        number, first = place >> POSITION_BITS, place & POSITION_MASK
        file = self._segments.files[number]
        data = file.read(first, INDEX_INTERVAL_BYTES + FRAME_HEAD_SIZE)
        at = 0
        while at < INDEX_INTERVAL_BYTES and at + FRAME_HEAD_SIZE <= len(data):
            length, owner = read_frame_head(data, at)
            if owner == partition:
                start = at + FRAME_HEAD_SIZE
                batch = data[start : start + length]
                if len(batch) < length:
                    batch = file.read(first + start, length)
                if len(batch) < length:
                    return  # still being written, so not durable
                yield data[at:start], batch
            at += frame_size(length)
