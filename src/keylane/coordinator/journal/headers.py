"""The 36 bytes that segments and snapshots begin with: what the file is, its format, its number, and how many offsets
partitions there are, with a checksum of their own."""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from keylane.errors import DataFolderError, other_format

_FIELDS = struct.Struct(">16sIQI")
_CRC = struct.Struct(">I")
HEADER_SIZE = _FIELDS.size + _CRC.size
FORMAT_VERSION = 2


class JournalDamagedError(DataFolderError):
    """Bytes in a journal that no crash explains: what they held may have been acknowledged."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(
            f"{path} at byte {position}: {reason}; committed offsets may be lost behind it: restore this file from a "
            "copy, or let `keylane broker repair` keep what is sound before it"
        )
        self.path = path
        self.position = position
        self.reason = reason


class FileKind(NamedTuple):
    """What a file says that it is."""

    magic: bytes
    name: str
    is_numbered: str
    """What its number says: `segment`, or what a snapshot stands before."""


SEGMENT = FileKind(b"keylane journal\0", "journal", "is segment")
SNAPSHOT = FileKind(b"keylane snapshot", "snapshot", "stands before segment")


def encode_header(kind: FileKind, number: int, partitions: int) -> bytes:
    head = _FIELDS.pack(kind.magic, FORMAT_VERSION, number, partitions)
    return head + _CRC.pack(crc32c(head))


def check_header(head: bytes, path: str, kind: FileKind, *, number: int, partitions: int) -> None:
    """Raises `JournalDamagedError`, and `DataFolderError` for a header that is sound and of another broker's."""
    if len(head) < HEADER_SIZE or not head.startswith(kind.magic):
        raise JournalDamagedError(path, 0, f"this is not a keylane {kind.name}")
    if not _has_sound_checksum(head):
        raise JournalDamagedError(path, 0, "the checksum of its header does not hold")
    _, version, found_number, found_partitions = _FIELDS.unpack_from(head)
    if version != FORMAT_VERSION:
        raise DataFolderError(
            f"{path}: {kind.name} format {version}, and this keylane reads {FORMAT_VERSION}: "
            f"{other_format(version, FORMAT_VERSION)}"
        )
    if found_number != number:
        raise JournalDamagedError(path, 0, f"it says that it {kind.is_numbered} {found_number}")
    if found_partitions != partitions:
        raise DataFolderError(
            f"offsets.topic.num.partitions={partitions}: {path} was written with {found_partitions}; groups "
            f"cannot move between partitions, so start with {found_partitions}"
        )


def partitions_of(head: bytes) -> int | None:
    """How many offsets partitions the journal has, by the header of a segment; None when it does not hold."""
    if len(head) < HEADER_SIZE or not head.startswith(SEGMENT.magic) or not _has_sound_checksum(head):
        return None
    partitions: int = _FIELDS.unpack_from(head)[3]
    return partitions


def _has_sound_checksum(head: bytes) -> bool:
    found: int = _CRC.unpack_from(head, _FIELDS.size)[0]
    return found == crc32c(head[: _FIELDS.size])
