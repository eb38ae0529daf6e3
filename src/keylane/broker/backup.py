"""`keylane broker backup` and `restore`: one moment of a data folder in a folder elsewhere, and a data folder of it.

    TO/unfinished.json   whose moment is being copied; gone in the end
    TO/copied            a line for each file that is there: path, bytes, checksum
    TO/data/…            the files, as they lie in the data folder
    TO/backup.json       what there is, with checksums: written last, so the backup is whole

What was copied is durable before its line is. So a backup that was killed goes on behind the last line, with the same
moment, which the data folder keeps meanwhile (`backup_points`). A restore writes `meta.properties` last, without which
no broker takes the folder for one.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from keylane.broker import data_folder
from keylane.broker.backup_points import (
    FOLDER,
    POINT,
    REFUSED,
    REFUSED_KIND,
    REQUEST,
    Point,
    make_point,
    read_point,
    state_files,
)
from keylane.errors import DataFolderError, PeerError, UsageError
from keylane.storage.filesystem import TEMPORARY_SUFFIX, DurableFiles
from keylane.storage.sealed import read_sealed, write_sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from keylane.storage.filesystem import AppendFile, FileSystem

BACKUP = "backup.json"
KIND = "backup"
UNFINISHED = "unfinished.json"
UNFINISHED_KIND = "backup-unfinished"
COPIED = "copied"
DATA = "data"
RESTORING_KIND = "restoring"
PIECE_BYTES = 4 * 1024 * 1024
"""Read and written at once."""
SYNCED_FILES = 256
SYNCED_BYTES = 256 * 1024 * 1024
"""Files are made durable together, so many or so large; a backup that was killed copies these again."""
HEARD_WITHIN_S = 60.0
"""A broker hears a request within half a second; one of a version before this one never does."""
POLL_S = 0.05


class Backup(NamedTuple):
    """What a folder holds."""

    point_id: str
    taken_ms: int
    """When the moment was kept, in milliseconds since the epoch."""
    files: list[tuple[str, int, int]]
    """Path, bytes and CRC-32C of each."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(size for _, size, _ in self.files)

    def describe(self) -> str:
        when = datetime.fromtimestamp(self.taken_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"{len(self.files)} files, {self.size} bytes, as of {when}"


def back_up(filesystem: FileSystem, source: str, target: str, clock: Callable[[], int]) -> Backup:
    """Copy one moment of the data folder `source` to `target`; whole and durable on return. Blocks.

    A target that an earlier call left unfinished is gone on with. Raises `UsageError` for other folders, and
    `DataFolderError` and `PeerError` where there is no such moment.
    """
    if not filesystem.exists(f"{source}/{data_folder.META}"):
        raise UsageError(f"{source} is no data folder of a keylane broker: it has no {data_folder.META}")
    data_folder.read_identity(filesystem, source)
    points = f"{source}/{FOLDER}"
    _make_folder(filesystem, points)
    with _locked(filesystem, f"{points}/{data_folder.LOCK}", f"another backup of {source} is being made: wait for it"):
        point_id, taken_ms = _begin(filesystem, source, target, clock)
        place = f"{points}/{point_id}"
        point = read_point(filesystem, place)
        files = _copy_point(filesystem, place, point, target)
        backup = Backup(point_id, taken_ms, files)
        write_sealed(filesystem, f"{target}/{BACKUP}", KIND, backup._asdict())
        for name in (UNFINISHED, COPIED):
            filesystem.remove(f"{target}/{name}")
        filesystem.sync_dir(target)
        filesystem.remove_tree(place)
    return backup


def read_backup(filesystem: FileSystem, path: str) -> Backup:
    """What a whole backup says of itself. Raises `UsageError` for any other folder, and `DataFolderError`."""
    if not filesystem.exists(f"{path}/{BACKUP}"):
        if filesystem.exists(f"{path}/{UNFINISHED}"):
            raise UsageError(f"{path} is a backup that was not finished: run the same `keylane broker backup` again")
        raise UsageError(f"{path} is no backup of a keylane broker: it has no {BACKUP}")
    value = read_sealed(filesystem, f"{path}/{BACKUP}", KIND)
    files = [(name, size, checksum) for name, size, checksum in value["files"]]
    return Backup(value["point_id"], value["taken_ms"], files)


def restore(filesystem: FileSystem, source: str, target: str) -> Backup:
    """Make a data folder of a backup; whole and durable on return. Every byte is held against its checksum. Blocks.

    Raises `UsageError` for a target that is not empty and `DataFolderError` for one in use, or a damaged backup.
    """
    backup = read_backup(filesystem, source)
    data = f"{source}/{DATA}"
    if not filesystem.exists(f"{data}/{data_folder.META}"):
        raise DataFolderError(f"{data}/{data_folder.META} is missing: the backup is damaged; restore another one")
    data_folder.read_identity(filesystem, data)
    _make_folder(filesystem, target)
    with _locked(filesystem, f"{target}/{data_folder.LOCK}", f"{target} is in use by a broker: give another folder"):
        found = {*filesystem.listdir(target)} - {data_folder.LOCK, data_folder.RESTORING + TEMPORARY_SUFFIX}
        if found and (data_folder.RESTORING not in found or data_folder.META in found):
            raise UsageError(f"{target} is not empty (it has {min(found)}): give a new or empty folder to restore to")
        marker = f"{target}/{data_folder.RESTORING}"
        write_sealed(filesystem, marker, RESTORING_KIND, backup.point_id)
        _make_folders(filesystem, target)
        # Whose folder it is comes last: until then no broker takes it for one.
        meta = filesystem.read(f"{data}/{data_folder.META}")
        for batch in _batches(backup.files):
            for path, size, checksum in batch:
                is_meta = path == data_folder.META
                found_sum = crc32c(meta) if is_meta else _copy(filesystem, f"{data}/{path}", size, target, path)
                if found_sum != checksum:
                    raise DataFolderError(
                        f"{data}/{path}: the checksum does not hold: the backup is damaged; restore another one"
                    )
            _sync(filesystem, target, [path for path, _, _ in batch if path != data_folder.META])
        filesystem.write_atomic(f"{target}/{data_folder.META}", meta)
        filesystem.remove(marker)
        filesystem.sync_dir(target)
    return backup


def _make_folders(filesystem: FileSystem, path: str) -> None:
    for name in (data_folder.TOPICS, data_folder.COORDINATOR):
        _make_folder(filesystem, f"{path}/{name}")


@contextlib.contextmanager
def _locked(filesystem: FileSystem, path: str, refusal: str) -> Iterator[None]:
    lock = filesystem.lock(path)
    if lock is None:
        raise DataFolderError(refusal)
    try:
        yield
    finally:
        lock.release()


def _make_folder(filesystem: FileSystem, path: str) -> None:
    """With its parents."""
    parent = path.rpartition("/")[0]
    if filesystem.exists(path):
        return
    if parent:
        _make_folder(filesystem, parent)
    filesystem.mkdir(path)
    filesystem.sync_dir(parent or "/")


def _begin(filesystem: FileSystem, source: str, target: str, clock: Callable[[], int]) -> tuple[str, int]:
    """The moment that is copied to this target, kept: the one that was begun with, or a new one; and when it was."""
    _make_folder(filesystem, target)
    unfinished = f"{target}/{UNFINISHED}"
    if filesystem.exists(f"{target}/{BACKUP}"):
        raise UsageError(f"{target} holds a backup already: give a new folder for each")
    if filesystem.exists(unfinished):
        point_id, taken_ms = read_sealed(filesystem, unfinished, UNFINISHED_KIND)
        if filesystem.exists(f"{source}/{FOLDER}/{point_id}/{POINT}"):
            return point_id, taken_ms
    elif {*filesystem.listdir(target)} - {UNFINISHED + TEMPORARY_SUFFIX}:
        raise UsageError(f"{target} is not empty, and no backup that was begun: give a new folder")
    for name in filesystem.listdir(f"{source}/{FOLDER}"):  # of backups that nobody goes on with
        if filesystem.is_dir(f"{source}/{FOLDER}/{name}"):
            filesystem.remove_tree(f"{source}/{FOLDER}/{name}")
    for name in (COPIED, DATA):
        if filesystem.exists(f"{target}/{name}"):
            filesystem.remove_tree(f"{target}/{name}") if name == DATA else filesystem.remove(f"{target}/{name}")
    point_id = uuid.uuid4().hex
    write_sealed(filesystem, unfinished, UNFINISHED_KIND, [point_id, clock()])
    _keep_point(filesystem, source, point_id)
    taken_ms = clock()
    write_sealed(filesystem, unfinished, UNFINISHED_KIND, [point_id, taken_ms])
    return point_id, taken_ms


def _keep_point(filesystem: FileSystem, source: str, point_id: str) -> None:
    """Return when the folder keeps a moment of now: the broker that runs in it keeps it, and else this does."""
    place, request = f"{source}/{FOLDER}/{point_id}", f"{source}/{FOLDER}/{REQUEST}"
    try:
        give_up_at = time.monotonic() + HEARD_WITHIN_S
        while not filesystem.exists(f"{place}/{POINT}"):
            if filesystem.exists(f"{place}/{REFUSED}"):
                reason = read_sealed(filesystem, f"{place}/{REFUSED}", REFUSED_KIND)
                filesystem.remove_tree(place)
                raise PeerError(f"{source}: the broker has kept no moment: {reason}")
            if not filesystem.exists(request):  # or an answer to an older one has removed it
                filesystem.write_atomic(request, point_id.encode())
            lock = filesystem.lock(f"{source}/{data_folder.LOCK}")
            if lock is not None:
                try:
                    _keep_stopped(filesystem, source, point_id)
                finally:
                    lock.release()
            elif time.monotonic() > give_up_at and filesystem.exists(request) and not filesystem.exists(place):
                raise PeerError(
                    f"{source}: the broker that runs there has not answered within {HEARD_WITHIN_S:.0f} s: if it is of "
                    "a version without backups, stop it first"
                )
            else:
                time.sleep(POLL_S)
    finally:
        if filesystem.exists(request):
            filesystem.remove(request)


def _keep_stopped(filesystem: FileSystem, source: str, point_id: str) -> None:
    """Of a folder that no broker uses. After a clean stop its files only grow, as those of a moment must; a start after
    a crash cuts them."""
    if not filesystem.exists(f"{source}/{data_folder.CLEAN_SHUTDOWN}"):
        raise DataFolderError(
            f"{source}: no broker runs there, and the last one did not stop cleanly: start it, and back it up while it "
            "runs"
        )
    top = state_files(filesystem, source, data_folder.CLEAN_SHUTDOWN)
    below = [one for name in (data_folder.TOPICS, data_folder.COORDINATOR) for one in _tree(filesystem, source, name)]
    make_point(filesystem, source, point_id, [top, DurableFiles(below, {})])


def _tree(filesystem: FileSystem, source: str, name: str) -> Iterator[tuple[str, int]]:
    path = f"{source}/{name}"
    if not filesystem.is_dir(path):
        yield path, filesystem.size_of(path)
        return
    for child in filesystem.listdir(path):
        yield from _tree(filesystem, source, f"{name}/{child}")


def _copy_point(filesystem: FileSystem, place: str, point: Point, target: str) -> list[tuple[str, int, int]]:
    """Copy what is not there yet; path, bytes and checksum of all."""
    data = f"{target}/{DATA}"
    _make_folder(filesystem, data)
    _make_folders(filesystem, data)
    done = _read_copied(filesystem, f"{target}/{COPIED}")
    links = {path: f"{place}/{number}" for number, (path, _) in enumerate(point.linked)}
    wanted = [(path, size) for path, size in point.linked if path not in done]
    wanted += [(path, len(text.encode())) for path, text in point.written.items() if path not in done]
    copied = filesystem.open_append(f"{target}/{COPIED}")
    try:
        filesystem.sync_dir(target)
        for batch in _batches([(path, size, 0) for path, size in wanted]):
            sums = _copy_files(filesystem, links, point.written, data, batch)
            _sync(filesystem, data, list(sums))
            copied.write("".join(json.dumps([path, size, sums[path]]) + "\n" for path, size, _ in batch).encode())
            copied.sync()
            done |= {path: (size, sums[path]) for path, size, _ in batch}
    finally:
        copied.close()
    return [(path, *done[path]) for path in (*links, *point.written)]


def _copy_files(
    filesystem: FileSystem,
    links: Mapping[str, str],
    written: Mapping[str, str],
    data: str,
    batch: Sequence[tuple[str, int, int]],
) -> dict[str, int]:
    sums = {}
    for path, size, _ in batch:
        if path in links:
            sums[path] = _copy(filesystem, links[path], size, data, path)
        else:
            content = written[path].encode()
            file = _fresh(filesystem, data, path)
            file.write(content)
            file.close()
            sums[path] = crc32c(content)
    return sums


def _read_copied(filesystem: FileSystem, path: str) -> dict[str, tuple[int, int]]:
    """Size and checksum of each file that is there; what a kill left of a last line is cut off."""
    if not filesystem.exists(path):
        return {}
    whole = filesystem.read(path).rpartition(b"\n")[0]
    file = filesystem.open_append(path)
    try:
        file.truncate(len(whole) + 1 if whole else 0)
    finally:
        file.close()
    return {name: (size, checksum) for name, size, checksum in map(json.loads, whole.decode().splitlines())}


def _batches(files: Sequence[tuple[str, int, int]]) -> Iterator[list[tuple[str, int, int]]]:
    """Files that are made durable together."""
    batch: list[tuple[str, int, int]] = []
    size = 0
    for file in files:
        batch.append(file)
        size += file[1]
        if len(batch) == SYNCED_FILES or size >= SYNCED_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _fresh(filesystem: FileSystem, folder: str, path: str) -> AppendFile:
    """The file at a path below the folder, empty."""
    full = f"{folder}/{path}"
    parent = full.rpartition("/")[0]
    if not filesystem.exists(parent):
        _make_folder(filesystem, parent)
    file = filesystem.open_append(full)
    if file.size:
        file.truncate(0)
    return file


def _copy(filesystem: FileSystem, source: str, size: int, folder: str, path: str) -> int:
    """Copy the first `size` bytes; their checksum. Raises `DataFolderError` where there are not as many."""
    if not filesystem.exists(source) or filesystem.size_of(source) < size:
        raise DataFolderError(f"{source} is missing, or has less than {size} bytes: {path} cannot be copied")
    checksum = at = 0
    file = _fresh(filesystem, folder, path)
    try:
        while at < size:
            piece = filesystem.read_part(source, at, min(PIECE_BYTES, size - at))
            checksum = crc32c(piece, checksum)
            file.write(piece)
            at += len(piece)
    finally:
        file.close()
    return checksum


def _sync(filesystem: FileSystem, folder: str, paths: Sequence[str]) -> None:
    files = [f"{folder}/{path}" for path in paths]
    filesystem.sync_all(files, sorted({file.rpartition("/")[0] for file in files}))
