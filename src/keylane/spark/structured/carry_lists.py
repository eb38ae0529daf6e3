"""Carry-over lists: what each batch left behind, a file a batch, written once (docs/adr/0040).

The idea: a list is a value; `Lists` keeps them in a folder, where the first write of a batch wins and nothing changes
afterwards. The driver alone opens the folder, its planning process included; tasks are told the lists that they need
(`told_lists`). Arrow is imported where a folder is used, as in `rows`.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping  # noqa: TC003 - dataclass fields
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from keylane.errors import PeerError, UsageError

if TYPE_CHECKING:
    from pyarrow import fs

KEPT = 100
"""Lists that stay: as many batches as Spark's checkpoint keeps by default."""

SCHEMES = {"s3a": "s3", "s3n": "s3", "s3": "s3", "gs": "gs", "abfs": "abfs", "abfss": "abfss", "hdfs": "hdfs"}
"""Of folders on shared storage, as Spark's users write them, and Arrow's names of the same."""
DBFS_MOUNT = "/dbfs"
"""Where Databricks shows dbfs:/ as files."""

TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class CarryList:
    """What one batch left behind."""

    batch: int
    """Spark's number of the batch."""
    id: str
    """The query's (`Plan.id`)."""
    seq: int
    """The plan's."""
    carried: Mapping[TopicPartition, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    """Offset to (attempts made, when it is due in milliseconds since the epoch)."""
    dead: frozenset[tuple[str, int, int]] = frozenset()
    """Records of this batch that went to the dead-letter topic."""

    def records(self) -> list[tuple[str, int, int]]:
        """The carried ones: topic, partition, offset."""
        return [(*name, offset) for name, some in self.carried.items() for offset in some]

    def counts(self) -> dict[TopicPartition, int]:
        return {name: len(some) for name, some in self.carried.items() if some}

    def next_due_ms(self) -> int | None:
        return min((due for some in self.carried.values() for _, due in some.values()), default=None)

    def has(self, topic: str, partition: int, offset: int) -> bool:
        """Whether the batch left the record out: carried, or dead."""
        return offset in self.carried.get((topic, partition), ()) or (topic, partition, offset) in self.dead

    def to_json(self) -> str:
        carried: dict[str, dict[str, list[list[int]]]] = {}
        for (topic, partition), some in sorted(self.carried.items()):
            rows = [[offset, attempts, due] for offset, (attempts, due) in sorted(some.items())]
            carried.setdefault(topic, {})[str(partition)] = rows
        made = {"batch": self.batch, "id": self.id, "seq": self.seq, "carried": carried, "dead": sorted(self.dead)}
        return json.dumps(made)

    @classmethod
    def from_json(cls, text: str) -> CarryList:
        """Raises `ValueError`, `KeyError` or `TypeError` for what is no list."""
        fields: dict[str, Any] = json.loads(text)
        carried = {
            (topic, int(partition)): {int(offset): (int(attempts), int(due)) for offset, attempts, due in rows}
            for topic, some in fields["carried"].items()
            for partition, rows in some.items()
        }
        dead = frozenset((str(t), int(p), int(o)) for t, p, o in fields["dead"])
        return cls(int(fields["batch"]), str(fields["id"]), int(fields["seq"]), carried, dead)


class Lists:
    """The lists in one folder. Thread safety: any thread; one process writes."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._files, self._root = _open(folder)

    @classmethod
    def checked(cls, folder: str) -> Lists:
        """The same, once the folder has kept a file. Raises `UsageError` when it does not."""
        import pyarrow as pa

        try:
            lists = cls(folder)
            lists._keep_a_file()
        except (OSError, pa.ArrowException) as error:
            raise UsageError(
                f"CarryOver: the folder {folder!r} cannot be written and read back here, with the driver's credentials "
                f"({str(error).partition(chr(10))[0]}): give another one"
            ) from error
        return lists

    def _keep_a_file(self) -> None:
        """Raises `OSError` when what was written is not there."""
        path, text = f"{self._root}/.check-{uuid.uuid4().hex}", uuid.uuid4().bytes
        self._files.create_dir(self._root, recursive=True)
        with self._files.open_output_stream(path) as file:
            file.write(text)
        with self._files.open_input_stream(path) as file:
            there = file.read()
        self._files.delete_file(path)
        if there != text:
            raise OSError("it gives back other bytes")

    def read(self, batch: int) -> CarryList | None:
        """None when the batch has no list. Raises `PeerError` for a file that is none."""
        from pyarrow import fs

        path = self._path(batch)
        if self._files.get_file_info(path).type is not fs.FileType.File:
            return None
        with self._files.open_input_stream(path) as file:
            text = file.read().decode(errors="replace")
        try:
            return CarryList.from_json(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PeerError(f"{path} is no carry-over list ({error!r}): restore it, or use a new checkpoint") from None

    def newest(self, before: int | None = None) -> CarryList | None:
        """The list of the last batch, or of the last one before a batch."""
        batches = [batch for batch in self._batches() if before is None or batch < before]
        return self.read(max(batches)) if batches else None

    def write_once(self, made: CarryList) -> CarryList:
        """Keep the list, unless the batch has one already; returns the one that counts."""
        from pyarrow import fs

        path, text = self._path(made.batch), made.to_json().encode()
        self._files.create_dir(self._root, recursive=True)
        part = f"{self._root}/.{made.batch}-{uuid.uuid4().hex}"
        if isinstance(self._files, fs.LocalFileSystem):
            _write_synced(part, text)
            try:
                os.link(part, path)  # the one call that creates a whole file, or fails where there is one
                _sync_folder(self._root)
            except FileExistsError:
                pass
            finally:
                os.unlink(part)  # noqa: PTH108 - as os.link
        elif self.read(made.batch) is None:
            with self._files.open_output_stream(part) as file:
                file.write(text)
            self._files.move(part, path)
        found = self.read(made.batch)
        if found is None:
            raise PeerError(f"{path} was written, and is not there: check the folder {self.folder!r}")
        return found

    def prune(self, batch: int) -> None:
        """Delete lists that no replay can ask for any more."""
        for old in self._batches():
            if old < batch - KEPT:
                self._files.delete_file(self._path(old))

    def _batches(self) -> list[int]:
        from pyarrow import fs

        found = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        names = [PurePosixPath(one.path) for one in found]
        return [int(name.stem) for name in names if name.suffix == ".json" and name.stem.isdecimal()]

    def _path(self, batch: int) -> str:
        return f"{self._root}/{batch}.json"


def absolute(folder: str) -> str:
    """The folder by a name that means the same in each process of the driver's machine.

    Raises `UsageError` for a scheme that Arrow's file systems do not have.
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", folder, re.DOTALL)
    if found is None:
        return os.path.abspath(folder)  # noqa: PTH100 - Arrow takes strings
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return os.path.abspath(re.sub("^//(localhost)?(?=/)", "", rest))  # noqa: PTH100 - as above
    if scheme == "dbfs":
        path = "/" + rest.lstrip("/")
        if path.startswith("/Volumes/"):
            return path
        if not os.path.isdir(DBFS_MOUNT):  # noqa: PTH112 - as above
            raise UsageError(f"the folder {folder!r}: there is no {DBFS_MOUNT} here: take one below dbfs:/Volumes")
        return DBFS_MOUNT + path
    if scheme not in SCHEMES or not rest.startswith("//"):
        known = ", ".join(f"{name}:" for name in SCHEMES)
        raise UsageError(f"the folder {folder!r}: give a path, or a URI of file:, dbfs:, {known}")
    return f"{SCHEMES[scheme]}:{rest}"


def _open(folder: str) -> tuple[fs.FileSystem, str]:
    from pyarrow import fs

    name = absolute(folder)
    if name.startswith("/"):
        return fs.LocalFileSystem(), name
    files, root = fs.FileSystem.from_uri(name)
    return files, root.rstrip("/")


def _write_synced(path: str, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(descriptor, text)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
