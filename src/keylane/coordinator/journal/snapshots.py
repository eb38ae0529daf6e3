"""Snapshots: what a start loads instead of the journal's history, and what stands for the segments behind it.

One is written while commits go on: the image is encoded in slices on the event loop, some milliseconds each, and what
they give is written and synced in the background. It gets its name when all of it is durable; only then are segments
behind it removed. A snapshot that fails is abandoned, and no other is tried before a restart: nothing is lost, since
the last one and all segments after it stay.

Thread safety: the event loop's thread; files are read and written in the executor.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from keylane.coordinator.formats import journal_partitions, partition_for
from keylane.coordinator.journal import snapshot_format
from keylane.coordinator.journal.compacted_view import CompactedView, Place
from keylane.coordinator.journal.headers import SNAPSHOT, JournalDamagedError, encode_header
from keylane.coordinator.journal.segments import snapshot_path
from keylane.storage.filesystem import TEMPORARY_SUFFIX, DiskFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor

    from keylane.coordinator.formats import OffsetKey
    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.offsets.transactional import Owner, Waiting
    from keylane.storage.filesystem import AppendFile, FileSystem

T = TypeVar("T")

SLICE_GROUPS = 1_000
"""Groups sorted by offsets partition before other work gets its turn: some milliseconds."""


SYNC_EVERY_BYTES = 4 * 1024 * 1024
"""A snapshot is synced piece by piece, so that commits never wait for a large one on the same disk."""


class SnapshotStoppedError(Exception):
    """The journal closes: the snapshot that is being written ends where it is."""


class SnapshotFile:
    """A snapshot being written. It has its name when it is whole and durable, and not before; till then, `discard`."""

    def __init__(self, filesystem: FileSystem, folder: str, number: int) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._path = snapshot_path(folder, number)
        self._temporary = self._path + TEMPORARY_SUFFIX
        self._unsynced = 0
        self._file = filesystem.open_append(self._temporary)
        if self._file.size:
            self._file.truncate(0)

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_EVERY_BYTES:
            self._file.sync()
            self._unsynced = 0

    def publish(self) -> None:
        """Whole content, then the name, then the name's durability: whatever stops in between, the old one holds."""
        self._file.sync()
        self._filesystem.rename(self._temporary, self._path)
        self._filesystem.sync_dir(self._folder)

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        """It cannot be finished: give its room back."""
        if self._filesystem.exists(self._temporary):
            self._filesystem.remove(self._temporary)


class Snapshots:
    """The snapshots of one journal: the last durable one, and the one being written."""

    def __init__(
        self, filesystem: FileSystem, folder: str, executor: Executor, *, partitions: int, image: Image
    ) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._executor = executor
        self._partitions = partitions
        self._image = image
        self._number: int | None = None
        self._view: CompactedView | None = None
        self._is_stopping = False
        self._entries = 0
        self.size = 0
        """Bytes of the last one."""

    @property
    def path(self) -> str | None:
        """Of the last one; None when there is none."""
        return None if self._number is None else snapshot_path(self._folder, self._number)

    async def load(self, number: int) -> list[int]:
        """Fill the image; where each offsets partition ends in it. Raises `DataFolderError`."""
        return await self._in_executor(partial(self._load, number))

    async def write(self, number: int, ends: list[int]) -> None:
        """Write the image, which must hold all before segment `number`; durable on return.

        Raises `OSError`, and `SnapshotStoppedError` after `stop`.
        """
        # First what waits for a marker: a marker from later stands in the segments behind the snapshot and is replayed.
        # Taken after anything else, what it ends could be missing here and in the offsets too.
        waiting = list(self._image.transactional)
        groups = await self._groups_by_partition()
        file = await self._in_executor(partial(SnapshotFile, self._filesystem, self._folder, number))
        try:
            places: list[Place] = []
            await self._in_executor(partial(file.write, encode_header(SNAPSHOT, number, self._partitions)))
            await self._in_executor(partial(file.write, snapshot_format.encode_ends(ends)))
            self._entries = 0
            count = 1
            for kind, partition, payload in self._chunks(waiting, groups):
                self._check_stop()
                places.append(Place(kind, partition, file.size, len(payload)))
                await self._in_executor(partial(file.write, snapshot_format.encode_chunk(kind, partition, payload)))
                count += 1
            await self._in_executor(partial(file.write, snapshot_format.encode_end(self._entries, count)))
            self._check_stop()
            await self._in_executor(file.publish)
        except DiskFullError:
            await self._in_executor(file.discard)
            raise
        finally:
            await self._in_executor(file.close)
        old, self._number = self._number, number
        self._show(self._filesystem.open_append(snapshot_path(self._folder, number)), places, ends)
        if old is not None:
            await self._in_executor(partial(self._filesystem.remove, snapshot_path(self._folder, old)))

    def _show(self, file: AppendFile, places: list[Place], ends: list[int]) -> None:
        if self._view is not None:
            self._view.close()
        self._view = CompactedView(file, places, ends, self._executor)
        self.size = file.size

    async def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        """Batches of `__consumer_offsets` from before the segment that the last snapshot stands before."""
        return b"" if self._view is None else await self._view.read(partition, offset, max_bytes)

    def stop(self) -> None:
        """Let a snapshot that is being written end where it is."""
        self._is_stopping = True

    def close(self) -> None:
        if self._view is not None:
            self._view.close()

    def _check_stop(self) -> None:
        if self._is_stopping:
            raise SnapshotStoppedError

    async def _in_executor(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, step)

    async def _groups_by_partition(self) -> list[list[str]]:
        groups: list[list[str]] = [[] for _ in range(self._partitions)]
        for count, group in enumerate(list(self._image.store.groups), 1):
            groups[partition_for(group, self._partitions)].append(group)
            if count % SLICE_GROUPS == 0:
                self._check_stop()
                await asyncio.sleep(0)
        return groups

    def _chunks(
        self, waiting: list[tuple[Owner, OffsetKey, Waiting]], groups: list[list[str]]
    ) -> Iterator[tuple[int, int, bytes]]:
        """Kind, offsets partition and payload of each chunk; other work may change the image between two of them."""
        for payload in _joined(snapshot_format.encode_waiting(*one) for one in waiting):
            yield snapshot_format.TRANSACTIONAL, snapshot_format.ALL_PARTITIONS, payload
        for partition, names in enumerate(groups):
            for payload in _joined(self._sections(names)):
                yield snapshot_format.OFFSETS, partition, payload
        kept = list(self._image.kept.items())
        for payload in _joined(snapshot_format.encode_kept(partition, key, value) for (partition, key), value in kept):
            yield snapshot_format.KEPT, snapshot_format.ALL_PARTITIONS, payload
        tombstones = list(self._image.tombstones)
        for payload in _joined(map(snapshot_format.encode_tombstones, tombstones)):
            yield snapshot_format.TOMBSTONES, snapshot_format.ALL_PARTITIONS, payload

    def _sections(self, groups: Iterable[str]) -> Iterator[bytes]:
        store = self._image.store
        for group in groups:
            one = store.one_of(group)
            if one is not None:
                self._entries += 1
                yield snapshot_format.encode_one(group, one)
                continue
            for topic, offsets in store.topics_of(group):
                self._entries += len(offsets.columns.partitions)
                yield snapshot_format.encode_section(group, topic, offsets)

    def _load(self, number: int) -> list[int]:
        file = self._filesystem.open_append(snapshot_path(self._folder, number))
        places: list[Place] = []
        ends: list[int] = []
        for chunk in snapshot_format.read_chunks(file, number=number, partitions=self._partitions):
            if chunk.kind == snapshot_format.ENDS:
                ends = snapshot_format.decode_ends(chunk)
            elif chunk.kind == snapshot_format.END:
                self._entries = snapshot_format.decode_entries(chunk)
            else:
                snapshot_format.load_chunk(chunk, self._image)
            places.append(Place(chunk.kind, chunk.partition, chunk.position, len(chunk.payload)))
        wanted = len(journal_partitions(self._partitions))
        if len(ends) == wanted - 1:  # of a version without share groups
            ends.append(0)
        if self._entries != len(self._image.store) or len(ends) != wanted:
            raise JournalDamagedError(file.path, 0, f"it counts {self._entries} offsets, and holds other ones")
        self._number = number
        self._show(file, places, ends)
        return ends


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Payloads of a chunk's size, in whole pieces."""
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= snapshot_format.CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)
