"""The file-system port: everything that storage and coordinator do to disks, so that tests can stand in for one; and
the clock, of the same system.

A write is durable after `AppendFile.sync()`; the name of a new, renamed or removed file is durable after `sync_dir()`
of its folder. Nothing else is. Paths are absolute strings. All methods block: call them in an executor where that
matters.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from keylane.errors import PeerError
from keylane.telling import logger_of
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FILL = b"\xe5"
"""What a reserve is filled with: no byte that content is likely to have in rows, as zeros are."""
SECTOR_BYTES = 512
"""A disk writes at least this much at once, whole or not at all."""


logger = logger_of("keylane.storage")

NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the machine, has as many files open as it may."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG}) | NO_DESCRIPTOR
"""The disk is full, or the user's share of it is, or the file is as large as the process may make one, or no file can
be opened: nothing was written, and the next write may find room."""
TOLD_EVERY_S = 60.0
"""A disk that stays full is told of again, with a count, after this time."""


class StorageError(PeerError):
    """A write or sync of a data folder failed; what it covered was not acknowledged, and its file takes no more."""

    code: int = codes.KAFKA_STORAGE_ERROR
    """What clients are told."""


class NoRoomError(StorageError):
    """There is no room for a write. What it left was cut off, nothing of it was acknowledged, and the file takes the
    next one that there is room for."""


class DiskFullError(OSError):
    """A write, or the making of a file or folder, for which there is no room. A failed `sync` is never one: what is on
    the disk is unknown then, whatever the reason."""


class DurableFiles(NamedTuple):
    """What is durable of something at one moment."""

    grown: list[tuple[str, int]]
    """Files that only grow at their ends, and their sizes."""
    written: dict[str, bytes]
    """Files that are replaced as wholes, with their contents then."""


class AppendFile(Protocol):
    """A file whose content only grows at its end (but for `truncate`). One object writes it."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int:
        """Bytes of content: written through this object or found at opening, synced or not."""
        ...

    @property
    def reserved(self) -> int:
        """Where the file ends: its content, and the reserve behind it."""
        ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`, or raise `OSError` (the tail is then undefined), `DiskFullError` for want of room."""
        ...

    def reserve(self, end: int) -> None:
        """Make the file reach to `end`, with `FILL` behind its content, and all of it durable. Content that is written
        into the reserve gives the file no new size to sync, which takes as long as a short content does.

        What is found there at opening counts as content: cut it off with `truncate`. After a `DiskFullError` the file
        ends where it did.
        """
        ...

    def sync(self) -> None:
        """Return when the content is durable (fdatasync)."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes of content from `offset` (pread: safe from several threads); less only at its end."""
        ...

    def truncate(self, size: int) -> None:
        """Cut off what is behind, of the content and of the reserve."""
        ...

    def close(self) -> None: ...


class FileLock(Protocol):
    """An exclusive lock that ends with its process."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """What storage needs of a file system. What makes or grows something raises `DiskFullError` for want of room, and
    nothing is made then."""

    def open_append(self, path: str) -> AppendFile:
        """Open for reading and appending; makes the file when it is missing (its name is durable after `sync_dir`)."""
        ...

    def read(self, path: str) -> bytes:
        """All of a file. Raises `FileNotFoundError`."""
        ...

    def read_part(self, path: str, offset: int, size: int) -> bytes:
        """Up to `size` bytes of a file from `offset`; less only at its end. Raises `FileNotFoundError`."""
        ...

    def size_of(self, path: str) -> int:
        """Of a file, in bytes. Raises `FileNotFoundError`."""
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the file at `path` by one with this content: durable, and whole or not at all after a crash. After a
        `DiskFullError` it is as before."""
        ...

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def listdir(self, path: str) -> list[str]:
        """Names, in order. Raises `FileNotFoundError`."""
        ...

    def mkdir(self, path: str) -> None:
        """Make one folder; `FileExistsError` when it is there."""
        ...

    def rename(self, old: str, new: str) -> None: ...
    def link(self, path: str, name: str) -> None:
        """Give the file at `path` a second name, which stays when the first one is removed or means another file."""
        ...

    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None: ...
    def sync_all(self, files: Sequence[str], folders: Sequence[str]) -> None:
        """Return when the content of these files is durable, and then the names in these folders."""
        ...

    def lock(self, path: str) -> FileLock | None:
        """Lock the file at `path` (made when missing); None when another process holds it."""
        ...


TEMPORARY_SUFFIX = ".tmp"
"""What `write_atomic` writes before it renames; such a file may be left by a crash and means nothing."""


FILL_BYTES = 1024 * 1024
"""Of a reserve, written at once."""


SYNCS_AT_ONCE = 8
"""A disk makes so many files durable in the time of one: ext4 commits its journal for all that wait (2,000 small files:
8.3 s one after another, 0.5 s by 8 threads as by 32)."""


class FullDisk:
    """Tells of a disk without room, or files that cannot be opened: the first write that is refused with its path and
    sizes, and then their number, a line a minute at most.

    Thread safety: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told_at: float | None = None
        self._untold = 0

    @contextmanager
    def watch(self, path: str, size: int = 0) -> Iterator[None]:
        """Around what makes or grows `path` by so many bytes: want of room is told of, and raised as `DiskFullError`.

        A context manager costs a microsecond: the writes of each round do without it.
        """
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM:
                raise self.refuse(path, size, error) from error
            raise

    def refuse(self, path: str, size: int, error: OSError) -> DiskFullError:
        """What to raise for a write of so many bytes."""
        if error.errno in NO_DESCRIPTOR:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self._tell(f"{path}: {error.strerror}: it cannot be opened (the process may have {most} files open)")
        else:
            self._tell(f"{path}: {error.strerror}: no room for {size} bytes more ({_room_at(path)})")
        return DiskFullError(error.errno, error.strerror, path)

    def _tell(self, what: str) -> None:
        with self._lock:
            now = time.monotonic()
            if self._told_at is not None and now - self._told_at < TOLD_EVERY_S:
                self._untold += 1
                return
            before, self._untold, self._told_at = self._untold, 0, now
        others = f", and {before} writes before this one since the last such line" if before else ""
        logger.error("%s%s; it is refused, and so is what follows until there is room", what, others)


def _room_at(path: str) -> str:
    """What there is: bytes of the file, of the disk, and of what the process may write."""
    with suppress(OSError):
        parts = []
        if os.path.isfile(path):  # noqa: PTH113 - this is the error path
            parts.append(f"the file has {os.stat(path).st_size}")  # noqa: PTH116
        disk = os.statvfs(os.path.dirname(path))  # noqa: PTH120
        parts.append(f"the disk has {disk.f_bavail * disk.f_frsize} free")
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY:
            parts.append(f"a file may have {limit}")
        return ", ".join(parts)
    return "sizes unknown"


class OsAppendFile:
    """`AppendFile` on a file descriptor."""

    def __init__(self, path: str, full_disk: FullDisk) -> None:
        self.path = path
        self._full_disk = full_disk
        with full_disk.watch(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = self.reserved = os.fstat(self._fd).st_size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        left = memoryview(data)
        try:
            while left:
                written = os.pwrite(self._fd, left, self.size)
                self.size += written
                left = left[written:]
        except OSError as error:
            if error.errno in NO_ROOM:
                raise self._full_disk.refuse(self.path, len(left), error) from error
            raise
        finally:
            self.reserved = max(self.reserved, self.size)

    def reserve(self, end: int) -> None:
        before = self.reserved
        try:
            while self.reserved < end:
                fill = FILL * min(end - self.reserved, FILL_BYTES)
                self.reserved += os.pwrite(self._fd, fill, self.reserved)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            os.ftruncate(self._fd, before)
            self.reserved = before
            raise DiskFullError(error.errno, error.strerror, self.path) from error
        os.fdatasync(self._fd)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def read(self, offset: int, size: int) -> bytes:
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self.size = min(self.size, size)
        self.reserved = size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFileLock:
    """flock on an open file: it ends with the process, however that ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFileSystem:
    """`FileSystem` of the operating system."""

    def __init__(self) -> None:
        self._full_disk = FullDisk()

    def open_append(self, path: str) -> AppendFile:
        return OsAppendFile(path, self._full_disk)

    # pathlib takes longer than the system's calls, and a start makes some for each partition.

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.readall()

    def read_part(self, path: str, offset: int, size: int) -> bytes:
        with open(path, "rb") as file:  # noqa: PTH123
            file.seek(offset)
            return file.read(size)

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size  # noqa: PTH116

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary, folder = path + TEMPORARY_SUFFIX, str(Path(path).parent)
        with self._opened_folder(folder) as folder_fd:
            with self._full_disk.watch(temporary, len(data)):
                self._replace(path, temporary, data)
            self._sync_fd(folder_fd)

    def _replace(self, path: str, temporary: str, data: bytes) -> None:
        try:
            # Unbuffered: a buffer would be written once more when the file is closed.
            with Path(temporary).open("wb", buffering=0) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                self._sync_fd(file.fileno())
            Path(temporary).rename(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)  # whatever it was, nothing of it counts; and it takes room
            raise

    def _sync_fd(self, fd: int) -> None:
        os.fsync(fd)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)  # noqa: PTH110

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)  # noqa: PTH112

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))  # noqa: PTH208

    def mkdir(self, path: str) -> None:
        with self._full_disk.watch(path):
            Path(path).mkdir()

    def rename(self, old: str, new: str) -> None:
        with self._full_disk.watch(new):
            Path(old).rename(new)

    def link(self, path: str, name: str) -> None:
        with self._full_disk.watch(name):
            os.link(path, name)

    def remove(self, path: str) -> None:
        Path(path).unlink()

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        with self._opened_folder(path) as fd:
            self._sync_fd(fd)

    def sync_all(self, files: Sequence[str], folders: Sequence[str]) -> None:
        with ThreadPoolExecutor(SYNCS_AT_ONCE) as threads:
            list(threads.map(self._sync_file, files))
            list(threads.map(self.sync_dir, folders))

    def _sync_file(self, path: str) -> None:
        file = self.open_append(path)
        try:
            file.sync()
        finally:
            file.close()

    @contextmanager
    def _opened_folder(self, path: str) -> Iterator[int]:
        """Its descriptor. Opened before anything is changed in it: without one nothing is."""
        with self._full_disk.watch(path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def lock(self, path: str) -> FileLock | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return OsFileLock(fd)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
