"""The file-system port: everything that storage and coordinator do to disks, so that tests can stand in for one.

A write is durable after `AppendFile.sync()`; the name of a new, renamed or removed file is durable after `sync_dir()`
of its folder. Nothing else is. Paths are absolute strings. All methods block: call them in an executor where that
matters.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Protocol

from keylane.errors import PeerError

FILL = b"\xe5"
"""What a reserve is filled with: no byte that content is likely to have in rows, as zeros are."""
SECTOR_BYTES = 512
"""A disk writes at least this much at once, whole or not at all."""


class StorageError(PeerError):
    """A write or sync of a data folder failed; what it covered was not acknowledged, and its file takes no more."""


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
        """Append all of `data`, or raise `OSError` (the tail is then undefined)."""
        ...

    def reserve(self, end: int) -> None:
        """Make the file reach to `end`, with `FILL` behind its content, and all of it durable. Content that is written
        into the reserve gives the file no new size to sync, which takes as long as a short content does.

        What is found there at opening counts as content: cut it off with `truncate`.
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
    """What storage needs of a file system."""

    def open_append(self, path: str) -> AppendFile:
        """Open for reading and appending; makes the file when it is missing (its name is durable after `sync_dir`)."""
        ...

    def read(self, path: str) -> bytes: ...
    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the file at `path` by one with this content: durable, and whole or not at all after a crash."""
        ...

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def listdir(self, path: str) -> list[str]: ...
    def mkdir(self, path: str) -> None:
        """Make one folder; `FileExistsError` when it is there."""
        ...

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None: ...
    def lock(self, path: str) -> FileLock | None:
        """Lock the file at `path` (made when missing); None when another process holds it."""
        ...


TEMPORARY_SUFFIX = ".tmp"
"""What `write_atomic` writes before it renames; such a file may be left by a crash and means nothing."""


FILL_BYTES = 1024 * 1024
"""Of a reserve, written at once."""


class OsAppendFile:
    """`AppendFile` on a file descriptor."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = self.reserved = os.fstat(self._fd).st_size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._fd, left, self.size)
            self.size += written
            left = left[written:]
        self.reserved = max(self.reserved, self.size)

    def reserve(self, end: int) -> None:
        while self.reserved < end:
            fill = FILL * min(end - self.reserved, FILL_BYTES)
            self.reserved += os.pwrite(self._fd, fill, self.reserved)
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

    def open_append(self, path: str) -> AppendFile:
        return OsAppendFile(path)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + TEMPORARY_SUFFIX
        with Path(temporary).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.rename(temporary, path)
        self.sync_dir(str(Path(path).parent))

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def is_dir(self, path: str) -> bool:
        return Path(path).is_dir()

    def listdir(self, path: str) -> list[str]:
        return sorted(entry.name for entry in Path(path).iterdir())

    def mkdir(self, path: str) -> None:
        Path(path).mkdir()

    def rename(self, old: str, new: str) -> None:
        Path(old).rename(new)

    def remove(self, path: str) -> None:
        Path(path).unlink()

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
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
