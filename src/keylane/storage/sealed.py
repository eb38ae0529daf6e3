"""Small state files: one line that says what they are, with a checksum, then JSON. Replaced as a whole, durably.

`keylane topics 1 9ae1c2f0` means: the kind "topics" in format version 1, and the CRC-32C of all bytes after the line.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from keylane.errors import DataFolderError, other_format
from keylane.storage.filesystem import DiskFullError, NoRoomError, StorageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from keylane.storage.filesystem import FileSystem

FORMAT_VERSION = 1
_MARK = "keylane"


def write_sealed(filesystem: FileSystem, path: str, kind: str, value: Any) -> None:
    """Replace the file at `path`; it is durable on return, and whole or as before after a crash."""
    filesystem.write_atomic(path, seal(kind, json.dumps(value, separators=(",", ":")).encode()))


async def keep_sealed(filesystem: FileSystem, executor: Executor, path: str, kind: str, value: Any) -> None:
    """`write_sealed` in an executor, for a change that a client has asked for. Raises `StorageError`."""
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(executor, write_sealed, filesystem, path, kind, value)
    except DiskFullError as error:
        raise NoRoomError(f"{error.filename}: {error.strerror}; nothing was changed: make room") from error
    except OSError as error:
        raise StorageError(f"{path}: {error}; restart the broker when the disk is mended") from error


def read_sealed(filesystem: FileSystem, path: str, kind: str) -> Any:
    """The value in the file at `path`. Raises `DataFolderError` when it is damaged, of another kind, or newer."""
    return json.loads(unseal(filesystem.read(path), path, kind))


def seal(kind: str, body: bytes) -> bytes:
    """What a file with this JSON holds."""
    return f"{_MARK} {kind} {FORMAT_VERSION} {crc32c(body):08x}\n".encode() + body + b"\n"


def unseal(data: bytes, path: str, kind: str) -> bytes:
    """The JSON in what a file at `path` holds. Raises `DataFolderError` as `read_sealed` does."""
    head, _, body = data.partition(b"\n")
    words = head.decode(errors="replace").split(" ")
    if len(words) != 4 or words[:2] != [_MARK, kind]:
        raise DataFolderError(f"{path} at byte 0: not a keylane {kind} file; restore it from a copy")
    if words[2] != str(FORMAT_VERSION):
        raise DataFolderError(
            f"{path} at byte 0: format version {words[2]}, and this keylane reads {FORMAT_VERSION}: "
            f"{other_format(words[2], FORMAT_VERSION)}"
        )
    body = body.removesuffix(b"\n")
    if words[3] != f"{crc32c(body):08x}":
        raise DataFolderError(
            f"{path} at byte {len(head) + 1}: the checksum does not hold: the file is damaged; restore it from a copy"
        )
    return body
