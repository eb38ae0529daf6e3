"""The bytes of a journal segment, purely: its header, its frames, and what a damaged one looks like.

A segment is a 36-byte header and then frames. A frame is 12 bytes that name an offsets partition, and one Kafka record
batch in exactly the bytes that a reader of that partition sees:

    crc32c u32 | batch length u32 | offsets partition i32 | record batch v2

The frame's checksum covers its length and partition and the batch's first 21 bytes, which end with the batch's own
checksum; that covers the rest. So every byte is covered, and none twice. docs/offset-store.md has the layout in full.

A tail is *torn* when it is what a crash leaves of a write that was never acknowledged: cut off before the end of a
frame, or zeros where a file's length was kept and its content was not. Anything else that does not hold is *damage*.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from keylane.coordinator.headers import HEADER_SIZE, SEGMENT, JournalDamagedError, check_header
from keylane.wire.batches import CRC_START, MAGIC, PREFIX_SIZE
from keylane.wire.batches import HEADER_SIZE as BATCH_HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

_FRAME_HEAD = struct.Struct(">IIi")
FRAME_HEAD_SIZE = _FRAME_HEAD.size
_COVERED = struct.Struct(">Ii")
CHECKED_SIZE = FRAME_HEAD_SIZE + CRC_START
"""The frame's checksum covers what is before, the batch's what is behind."""
_HEADS = struct.Struct(">IIiqi4xBI2xi")
"""A frame's head, and of its batch: base offset, length, magic, checksum, last offset delta."""
_HEADS_SIZE = _HEADS.size
_U32 = struct.Struct(">I")

SECTOR_BYTES = 512
"""A disk writes at least this much at once: a write that was lost in part is zeros from such a boundary on."""


Frame = tuple[int, int, int, int, bytes]
"""Position, offsets partition, base offset, last offset delta, batch: a plain tuple, since a start reads millions."""


def encode_frame(partition: int, head: bytes, rest: bytes) -> bytes:
    """`head` is the batch's first 21 bytes, `rest` all others."""
    assert len(head) == CRC_START
    covered = _COVERED.pack(CRC_START + len(rest), partition) + head
    return _U32.pack(crc32c(covered)) + covered + rest


def read_frame_head(data: bytes, position: int) -> tuple[int, int]:
    """Batch length and offsets partition of a frame that was checked before."""
    _, length, partition = _FRAME_HEAD.unpack_from(data, position)
    return length, partition


class SegmentReader:
    """Reads one segment from memory. `may_be_torn` is true for the last one: only there a crash can cut a write short.

    Iterating yields the frames in order, from `end` on, and moves it; then `end` is where sound content ends, and
    `is_torn` whether a tail follows.
    Raises `JournalDamagedError`.
    """

    def __init__(self, data: bytes, path: str, *, number: int, partitions: int, may_be_torn: bool) -> None:
        self.data = data
        self.path = path
        self._may_be_torn = may_be_torn
        self.end = 0
        self.is_torn = False
        self._check_header(number, partitions)

    def _check_header(self, number: int, partitions: int) -> None:
        head = self.data[:HEADER_SIZE]
        if not any(head) or (len(head) < HEADER_SIZE and SEGMENT.magic.startswith(head[: len(SEGMENT.magic)])):
            self._stop(0, f"its header of {HEADER_SIZE} bytes is not there", is_cut=len(head) == len(self.data))
            return
        check_header(head, self.path, SEGMENT, number=number, partitions=partitions)
        self.end = HEADER_SIZE

    def __iter__(self) -> Iterator[Frame]:
        data = self.data
        size = len(data)
        unpack = _HEADS.unpack_from
        position = self.end
        while not self.is_torn and position < size:
            if size - position < _HEADS_SIZE:
                self._stop_short(position)
                return
            crc, length, partition, base_offset, batch_length, magic, batch_crc, delta = unpack(data, position)
            start = position + FRAME_HEAD_SIZE
            checked = position + CHECKED_SIZE
            if crc32c(data[position + 4 : checked]) != crc:
                self._stop(position, "the checksum of a frame does not hold", is_cut=False)
                return
            if length < BATCH_HEADER_SIZE or batch_length + PREFIX_SIZE != length or magic != MAGIC:
                raise JournalDamagedError(self.path, position, f"a frame of {length} bytes that holds no such batch")
            end = start + length
            if end > size:
                self._stop(position, f"a frame of {length} bytes, and {size - start} are left", is_cut=True)
                return
            if crc32c(data[checked:end]) != batch_crc:
                self._stop(position, "the checksum of a record batch does not hold", is_cut=False)
                return
            self.end = end
            yield position, partition, base_offset, delta, data[start:end]
            position = end

    def _stop_short(self, position: int) -> None:
        """Less is left than a frame has at least."""
        left = len(self.data) - position
        if left >= CHECKED_SIZE and _U32.unpack_from(self.data, position)[0] != crc32c(
            self.data[position + 4 : position + CHECKED_SIZE]
        ):
            self._stop(position, "the checksum of a frame does not hold", is_cut=False)
        else:
            self._stop(position, f"{left} bytes are no frame", is_cut=True)

    def _stop(self, position: int, reason: str, *, is_cut: bool) -> None:
        """What begins at `position` does not hold: a torn tail, or damage."""
        if self._may_be_torn and (is_cut or _ends_in_lost_writes(self.data, position)):
            self.is_torn = True
            return
        raise JournalDamagedError(self.path, position, reason)


def _ends_in_lost_writes(data: bytes, position: int) -> bool:
    """Whether everything from `position`, or from a disk sector behind it, is zeros to the end."""
    zeros_from = len(data.rstrip(b"\0"))
    if zeros_from <= position:
        return True
    boundary = -(-zeros_from // SECTOR_BYTES) * SECTOR_BYTES
    return boundary < len(data) and len(data) - zeros_from >= FRAME_HEAD_SIZE
