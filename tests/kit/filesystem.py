"""A file system in memory that forgets what was not synced, tears what was being written, and fails on request.

It keeps two states: the live one, which the running program sees, and the durable one, which a sync carries things
into: `AppendFile.sync` a file's content, `sync_dir` a folder's names. `after_crash` builds what a machine may find
after power was lost: only what is durable, or also some of the rest, whole, torn, as zeros, or every other sector.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from keylane.storage.filesystem import FILL, NO_ROOM, SECTOR_BYTES, TEMPORARY_SUFFIX, DiskFullError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

Names = Literal["lost", "kept"]
Content = Literal["lost", "kept", "torn", "zeroed", "scattered"]


_MAKING = frozenset({"create", "mkdir"})
_GROWING = _MAKING | {"write", "reserve", "rename"}
"""What may find no room."""


class SimulatedCrashError(Exception):
    """The machine stopped at this operation; nothing after it happens either."""


@dataclass
class _File:
    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    changed_from: int | None = None
    """Live and durable content may differ from here on, up to `changed_to`; None when they do not."""
    changed_to: int = 0

    def write(self, at: int, data: bytes | bytearray | memoryview) -> None:
        self.live[at : at + len(data)] = data
        self._note(at, at + len(data))

    def truncate(self, size: int) -> None:
        end = max(len(self.live), len(self.durable))
        del self.live[size:]
        self._note(size, end)

    def sync(self) -> None:
        if self.changed_from is None:
            return
        to = self.changed_to if len(self.live) == len(self.durable) else None
        self.durable[self.changed_from : to] = self.live[self.changed_from : to]
        self.changed_from = None

    @property
    def unsynced(self) -> range:
        """Positions of the live content that may differ from the durable one."""
        start = 0 if self.changed_from is None else self.changed_from
        return range(start, start if self.changed_from is None else min(self.changed_to, len(self.live)))

    def _note(self, start: int, end: int) -> None:
        if self.changed_from is None:
            self.changed_from, self.changed_to = start, end
        else:
            self.changed_from, self.changed_to = min(self.changed_from, start), max(self.changed_to, end)


@dataclass
class _Folder:
    live: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)


class SimulatedAppendFile:
    """`AppendFile` on a file in memory."""

    def __init__(self, filesystem: SimulatedFileSystem, path: str, file: _File) -> None:
        self.path = path
        self._filesystem = filesystem
        self._file = file
        self._is_open = True
        self.size = len(file.live)

    @property
    def reserved(self) -> int:
        return len(self._file.live)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._write("write", self.size, data)
        self.size += len(data)

    def reserve(self, end: int) -> None:
        if end > self.reserved:
            self._write("reserve", self.reserved, FILL * (end - self.reserved))
        self.sync()

    def _write(self, kind: str, at: int, data: bytes | bytearray | memoryview) -> None:
        assert self._is_open, self.path
        room = self._filesystem.room
        try:
            self._filesystem.operation(kind, self.path, len(data))
        except OSError:
            if kind == "reserve":
                raise
            # A failed write may leave some of its bytes.
            written = bytes(data)[: len(data) // 2 if room is None else min(room, len(data))]
            self._file.write(at, written)
            self.size += len(written)
            raise
        except SimulatedCrashError:
            self._file.write(at, data)
            raise
        self._file.write(at, data)

    def sync(self) -> None:
        assert self._is_open, self.path
        self._filesystem.operation("sync", self.path)
        self._file.sync()

    def read(self, offset: int, size: int) -> bytes:
        assert self._is_open, self.path
        return bytes(self._file.live[offset : min(offset + size, self.size)])

    def truncate(self, size: int) -> None:
        self._filesystem.operation("truncate", self.path)
        self._file.truncate(size)
        self.size = min(self.size, size)

    def close(self) -> None:
        self._is_open = False


class SimulatedLock:
    """A lock that the simulated process holds."""

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class SimulatedFileSystem:
    """`FileSystem` in memory, with faults.

    Every change counts as one operation (`operations`, from 1). `crash_at(n)` stops the machine at operation n: it and
    all later ones raise `SimulatedCrashError`. `fail_at(n)` makes operation n raise an `OSError`, once.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        """Bytes that may still be written; may be set at any time. None: there is no end. Nothing gives room back."""
        self.operations = 0
        self.history: list[str] = []
        """Kind and path of every operation, for messages of failing tests."""
        self._root = _Folder()
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._crash_at: int | None = None
        self._failures: dict[int, OSError] = {}

    def crash_at(self, operation: int) -> None:
        """Stop at the given operation, counted from the first one ever."""
        self._crash_at = operation

    def fail_at(self, operation: int, error: OSError | None = None) -> None:
        """Let the given operation fail, by default as a broken disk does (EIO)."""
        self._failures[operation] = error or OSError(errno.EIO, "simulated input/output error")

    def operation(self, kind: str, path: str, size: int = 0) -> None:
        """Count one change of so many bytes, and raise what was asked for at it."""
        with self._lock:
            if self._crash_at is not None and self.operations >= self._crash_at:
                raise SimulatedCrashError(f"after the crash: {kind} {path}")
            self.operations += 1
            self.history.append(f"{kind} {path}")
            if self.operations == self._crash_at:
                raise SimulatedCrashError(f"operation {self.operations}: {kind} {path}")
            failure = self._failures.pop(self.operations, None)
            if failure is None and kind in _GROWING:
                failure = self._take_room(kind, size)
        if failure is None:
            return
        if failure.errno in NO_ROOM and kind in _GROWING:
            raise DiskFullError(failure.errno, failure.strerror, path)
        raise failure

    def _take_room(self, kind: str, size: int) -> OSError | None:
        if self.room is None:
            return None
        if size > self.room or (kind in _MAKING and not self.room):
            if kind == "write":
                self.room = 0
            return OSError(errno.ENOSPC, "simulated: no room")
        self.room -= size
        return None

    def after_crash(
        self,
        *,
        names: Names = "lost",
        content: Content = "lost",
        torn_share: float = 0.5,
        torn_bytes: int | None = None,
    ) -> SimulatedFileSystem:
        """The file system that a restart finds.

        Of the names that were not synced, all are lost or kept. Of the bytes that were not synced, all are lost or
        kept, or the first `torn_share` of them (or `torn_bytes`, in each file) is kept (torn), or the file is as long
        as with them, and has zeros where there was nothing before (zeroed), or every other sector is kept (scattered:
        those with an even number where `torn_share` is 0, else the odd ones). What is lost of bytes that took the place
        of others is as it was before.
        """
        found = SimulatedFileSystem()
        torn = _Torn(torn_share, torn_bytes)
        found._root = _crashed_folder(self._root, names, content, torn)
        return found

    def contents(self) -> tuple[Hashable, ...]:
        """Every name with what is below it: equal for file systems that a program cannot tell apart."""
        return _contents(self._root)

    def unsynced_bytes(self) -> int:
        """Bytes that were not synced, of the file that has most of them."""
        return _unsynced(self._root)

    def after_kill(self) -> SimulatedFileSystem:
        """The file system that a restart finds when only the process ended: all that was written is there, and what
        was not synced can still be lost."""
        found = SimulatedFileSystem()
        found._root = self._root
        return found

    def open_append(self, path: str) -> SimulatedAppendFile:
        folder, name = _parent(self._root, path)
        entry = folder.live.get(name)
        if entry is None:
            self.operation("create", path)
            entry = folder.live[name] = _File()
        if isinstance(entry, _Folder):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        return SimulatedAppendFile(self, path, entry)

    def read(self, path: str) -> bytes:
        entry = _entry(self._root, path)
        if isinstance(entry, _Folder):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        return bytes(entry.live)

    def read_part(self, path: str, offset: int, size: int) -> bytes:
        return self.read(path)[offset : offset + size]

    def size_of(self, path: str) -> int:
        return len(self.read(path))

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + TEMPORARY_SUFFIX
        if self.exists(temporary):
            self.remove(temporary)
        try:
            file = self.open_append(temporary)
            file.write(data)
            file.sync()
            self.rename(temporary, path)
        except OSError:
            if self.exists(temporary):
                self.remove(temporary)
            raise
        self.sync_dir(path.rpartition("/")[0])

    def exists(self, path: str) -> bool:
        return _find(self._root, path) is not None

    def is_dir(self, path: str) -> bool:
        return isinstance(_find(self._root, path), _Folder)

    def listdir(self, path: str) -> list[str]:
        return sorted(_folder(self._root, path).live)

    def mkdir(self, path: str) -> None:
        folder, name = _parent(self._root, path)
        if name in folder.live:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self.operation("mkdir", path)
        folder.live[name] = _Folder()

    def rename(self, old: str, new: str) -> None:
        source, old_name = _parent(self._root, old)
        target, new_name = _parent(self._root, new)
        entry = _entry(self._root, old)
        self.operation("rename", new)
        del source.live[old_name]
        target.live[new_name] = entry

    def link(self, path: str, name: str) -> None:
        folder, short = _parent(self._root, name)
        entry = _entry(self._root, path)
        self.operation("link", name)
        folder.live[short] = entry

    def remove(self, path: str) -> None:
        folder, name = _parent(self._root, path)
        _entry(self._root, path)
        self.operation("remove", path)
        del folder.live[name]

    def remove_tree(self, path: str) -> None:
        for name in self.listdir(path):
            child = f"{path}/{name}"
            if self.is_dir(child):
                self.remove_tree(child)
            else:
                self.remove(child)
        self.remove(path)

    def sync_dir(self, path: str) -> None:
        folder = _folder(self._root, path)
        self.operation("sync_dir", path)
        folder.durable = dict(folder.live)

    def sync_all(self, files: Sequence[str], folders: Sequence[str]) -> None:
        for path in files:
            self.open_append(path).sync()
        for path in folders:
            self.sync_dir(path)

    def lock(self, path: str) -> SimulatedLock | None:
        if path in self._held:
            return None
        self.open_append(path)
        self._held.add(path)
        return SimulatedLock(self._held, path)


def _find(root: _Folder, path: str) -> _File | _Folder | None:
    entry: _File | _Folder | None = root
    for name in path.strip("/").split("/"):
        if not name:
            continue
        if not isinstance(entry, _Folder):
            return None
        entry = entry.live.get(name)
    return entry


def _entry(root: _Folder, path: str) -> _File | _Folder:
    entry = _find(root, path)
    if entry is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or folder", path)
    return entry


def _folder(root: _Folder, path: str) -> _Folder:
    entry = _entry(root, path)
    if isinstance(entry, _File):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
    return entry


def _parent(root: _Folder, path: str) -> tuple[_Folder, str]:
    parent, _, name = path.rstrip("/").rpartition("/")
    return _folder(root, parent), name


class _Torn(NamedTuple):
    share: float
    exact: int | None

    def of(self, size: int) -> int:
        return int(size * self.share) if self.exact is None else min(self.exact, size)


def _contents(folder: _Folder) -> tuple[Hashable, ...]:
    return tuple(
        (name, _contents(entry) if isinstance(entry, _Folder) else bytes(entry.live))
        for name, entry in sorted(folder.live.items())
    )


def all_different(disks: Iterable[SimulatedFileSystem]) -> Iterator[SimulatedFileSystem]:
    """Those that are not as one before: what was done to lose something may have found nothing to lose."""
    seen = set()
    for disk in disks:
        contents = disk.contents()
        if contents not in seen:
            seen.add(contents)
            yield disk


def _unsynced(entry: _File | _Folder) -> int:
    if isinstance(entry, _Folder):
        return max((_unsynced(child) for child in entry.live.values()), default=0)
    return len(entry.unsynced)


def _crashed_folder(folder: _Folder, names: Names, content: Content, torn: _Torn) -> _Folder:
    kept = folder.durable if names == "lost" else folder.live
    found = _Folder()
    for name, entry in kept.items():
        if isinstance(entry, _Folder):
            found.live[name] = _crashed_folder(entry, names, content, torn)
        else:
            found.live[name] = _crashed_file(entry, content, torn)
    found.durable = dict(found.live)
    return found


def _crashed_file(file: _File, content: Content, torn: _Torn) -> _File:
    data = bytearray(file.durable)
    start, end = file.unsynced.start, file.unsynced.stop
    if content == "kept":
        data = bytearray(file.live)
    elif not file.unsynced or content == "lost":
        pass
    elif content == "torn":
        kept = start + torn.of(end - start)
        data[start:kept] = file.live[start:kept]
    else:
        data += bytes(max(end - len(data), 0))
        if content == "scattered":
            for sector in range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
                if sector % 2 == (torn.share > 0):
                    kept_from, kept_to = max(sector * SECTOR_BYTES, start), min((sector + 1) * SECTOR_BYTES, end)
                    data[kept_from:kept_to] = file.live[kept_from:kept_to]
    return _File(data, bytearray(data))
