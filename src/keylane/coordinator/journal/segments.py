"""The files of the journal: segments, of which the last one grows, and the snapshot that the first one follows.

    0000000007.snapshot   the image of everything before segment 7
    0000000007.journal    segments, without a gap
    0000000008.journal
    journal.json          the last one that there must be

Without a snapshot the first segment is 1. Files before the last snapshot are what a crash left between writing it and
removing them; `*.tmp` is a snapshot that was never finished. Both mean nothing and are removed by a start.

Thread safety: the executor's thread; `numbers` and `files` are changed by nobody else.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.journal.headers import HEADER_SIZE as SEGMENT_HEADER_SIZE
from keylane.coordinator.journal.headers import SEGMENT, JournalDamagedError, encode_header
from keylane.storage.filesystem import SECTOR_BYTES, TEMPORARY_SUFFIX, DiskFullError
from keylane.storage.sealed import read_sealed, write_sealed

if TYPE_CHECKING:
    from keylane.storage.filesystem import AppendFile, FileSystem

logger = logging.getLogger("keylane.coordinator")

MANIFEST = "journal.json"
"""The number of a segment that is there: noted when it is made, before anything in it is acknowledged. 0: none yet."""
MANIFEST_KIND = "journal"
SEGMENT_SUFFIX = ".journal"
SNAPSHOT_SUFFIX = ".snapshot"
SYNC_EVERY_BYTES = 4 * 1024 * 1024
"""A snapshot is synced piece by piece, so that commits never wait for a large one on the same disk."""

LEAST_RESERVE_BYTES = 2_048
SMALL_SHARE = 8
"""A round is small if it takes at most one part in so many of a reserve."""


class Found(NamedTuple):
    """What a start finds."""

    snapshot: int | None
    """The segment that the last snapshot stands before."""
    segments: list[int]
    leftovers: list[str]
    """Paths that mean nothing any more."""


def segment_path(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}{SEGMENT_SUFFIX}"


def snapshot_path(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}{SNAPSHOT_SUFFIX}"


def find_files(filesystem: FileSystem, folder: str, last: int) -> Found:
    """The last snapshot, the segments from there on, and what is left over. `last` must be among the segments.

    Raises `JournalDamagedError` for what is missing.
    """
    names = filesystem.listdir(folder)
    snapshots = _numbers(names, SNAPSHOT_SUFFIX)
    numbers = _numbers(names, SEGMENT_SUFFIX)
    snapshot = snapshots[-1] if snapshots else None
    first = 1 if snapshot is None else snapshot
    segments = [number for number in numbers if number >= first]
    if not segments and snapshot is not None:
        raise JournalDamagedError(segment_path(folder, first), 0, "this segment is missing, and its snapshot is there")
    if snapshot is None and segments and segments[0] > 1:
        missing = snapshot_path(folder, segments[0])
        raise JournalDamagedError(missing, 0, "this snapshot is missing, and the segment behind it is there")
    if last > (segments[-1] if segments else 0):
        raise JournalDamagedError(segment_path(folder, last), 0, "this segment is missing")
    for expected, number in enumerate(segments, first):
        if number != expected:
            raise JournalDamagedError(
                segment_path(folder, expected), 0, f"this segment is missing, and {number} is there"
            )
    leftovers = [segment_path(folder, number) for number in numbers if number < first]
    leftovers += (snapshot_path(folder, number) for number in snapshots[:-1])
    leftovers += (f"{folder}/{name}" for name in names if name.endswith(SNAPSHOT_SUFFIX + TEMPORARY_SUFFIX))
    return Found(snapshot, segments, leftovers)


def read_manifest(filesystem: FileSystem, folder: str) -> int:
    """The number of a segment that must be there; 0 for none, and in a folder that is not a broker's.

    Raises `DataFolderError` for damage.
    """
    path = f"{folder}/{MANIFEST}"
    if not filesystem.exists(path):
        return 0
    last: int = read_sealed(filesystem, path, MANIFEST_KIND)
    return last


def write_manifest(filesystem: FileSystem, folder: str, last: int) -> None:
    """Note that this segment is there; durable on return."""
    write_sealed(filesystem, f"{folder}/{MANIFEST}", MANIFEST_KIND, last)


def last_segment(filesystem: FileSystem, folder: str) -> int:
    """The last segment that is there; 0 for none."""
    return max(_numbers(filesystem.listdir(folder), SEGMENT_SUFFIX), default=0)


def _numbers(names: list[str], suffix: str) -> list[int]:
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


class Segments:
    """What one round of the group commit writes to and syncs."""

    def __init__(self, filesystem: FileSystem, folder: str, partitions: int, reserve_bytes: int) -> None:
        """The last segment has up to so many bytes of reserve behind its content."""
        self._filesystem = filesystem
        self._folder = folder
        self._partitions = partitions
        self._reserve_bytes = max(reserve_bytes, LEAST_RESERVE_BYTES)
        self._unwritten: list[bytes | bytearray | memoryview] = []
        """What the next sync writes."""
        self._is_sound = True
        """False while it is not known what is on the disk."""
        self._synced = (0, 0)
        """Segment and position behind all that rounds have made durable."""
        self._number = 0
        """The segment that takes the appends."""
        self._begun: int | None = None
        """The one that is being made."""
        self.files: dict[int, AppendFile] = {}
        self._current: AppendFile | None = None

    @property
    def path(self) -> str:
        return self._folder if self._current is None else self._current.path

    def path_of(self, number: int) -> str:
        return segment_path(self._folder, number)

    def read_all(self, number: int) -> bytes:
        return self._filesystem.read(self.path_of(number))

    def open(self, number: int, *, is_last: bool) -> None:
        """Open a segment that was replayed; the last one takes the appends."""
        file = self.files[number] = self._filesystem.open_append(self.path_of(number))
        if is_last:
            self._current, self._number = file, number

    def end_load(self, number: int, size: int) -> None:
        """Cut the old reserve and a torn tail off, so that what is appended next cannot be taken for a part of it; and
        make what is left durable before anyone sees it, since a killed process may not have."""
        file = self.files[number]
        if file.size > size:
            file.truncate(size)
        if size == 0:
            file.write(encode_header(SEGMENT, number, self._partitions))
        file.sync()
        self._synced = (number, file.size)

    def begin(self, number: int) -> None:
        """End the current segment and begin the next one; all before it is durable first, and without a reserve."""
        if self._current is not None:
            self._write()
            self._current.truncate(self._current.size)
            self._current.sync()
            self._is_sound = True
        self._begun = number
        file = self._filesystem.open_append(self.path_of(number))
        try:
            file.write(encode_header(SEGMENT, number, self._partitions))
            file.sync()
            self._filesystem.sync_dir(self._folder)
            write_manifest(self._filesystem, self._folder, number)
        except OSError:
            file.close()
            raise
        if self._current is None:
            self._synced = (number, file.size)
        self.files[number] = self._current = file
        self._number, self._begun = number, None

    def cut(self) -> None:
        """Take back what the round wrote, in every segment that it wrote to; a segment that it began stays, empty, if
        it was made whole."""
        self._unwritten.clear()
        if self._begun is not None:
            path, self._begun = self.path_of(self._begun), None
            if self._filesystem.exists(path):
                self._filesystem.remove(path)
            self._filesystem.sync_dir(self._folder)
        number, size = self._synced
        if self._number != number:
            self._cut_to(self._number, SEGMENT_HEADER_SIZE)
        self._cut_to(number, size)
        self._synced = (self._number, self.files[self._number].size)
        self._is_sound = True

    def _cut_to(self, number: int, size: int) -> None:
        file = self.files[number]
        if file.reserved > size:
            file.truncate(size)
            file.sync()

    @property
    def synced(self) -> tuple[int, int]:
        """Segment and position behind all that is durable. For the loop, while no round is under way."""
        return self._synced

    def drop_before(self, number: int) -> None:
        """Remove the segments that a durable snapshot stands for."""
        for old in [old for old in self.files if old < number]:
            self.files.pop(old).close()
            self._filesystem.remove(self.path_of(old))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._unwritten.append(data)

    def sync(self) -> None:
        assert self._current is not None
        self._write()
        self._current.sync()
        self._is_sound = True
        self._synced = (self._number, self._current.size)

    def _write(self) -> None:
        """A small round goes into the reserve, since a new size takes longer to sync than its content; a large one is
        quicker if it is not written twice.

        A reserve ends with a sector: of one that is lost, all bytes are as they were.
        """
        file, pieces = self._current, self._unwritten
        assert file is not None
        self._is_sound = False
        size = sum(map(len, pieces))
        if file.size + size > file.reserved and size <= self._reserve_bytes // SMALL_SHARE:
            end = file.size + self._reserve_bytes
            with suppress(DiskFullError):  # what room is left is for commits, not for a reserve
                file.reserve(-(-end // SECTOR_BYTES) * SECTOR_BYTES)
        for piece in pieces:
            file.write(piece)
        pieces.clear()

    def close(self) -> None:
        if self._current is not None and self._is_sound:
            try:
                self._current.truncate(self._current.size)
            except OSError as error:
                logger.warning("%s: its reserve stays: %s", self._current.path, error)
        for file in self.files.values():
            file.close()
        self.files.clear()


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
