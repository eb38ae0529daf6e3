"""The bytes of a journal segment, purely: its header, its frames, and what a damaged one looks like.

A segment is a 36-byte header, frames, and in the last one a reserve behind them, which is `FILL` to its end. A frame is
a head, one Kafka record batch in exactly the bytes that a reader of its offsets partition sees, and a mark:

    mark u8 | crc32c u32 | batch length u32 | offsets partition i32 | round u32 | record batch v2 | mark u8

The round is the bytes between the first frame that was written with this one and this one: all before was synced when
it was written. The frame's checksum covers all of its head behind it, and the batch's first 21 bytes, which end with
the batch's own checksum; that covers the rest. So every byte is covered, and none twice. docs/offset-store.md has the
layout in full.

A tail is *torn* when it is what a crash leaves of a round that was never acknowledged. A disk writes a sector whole or
not at all, and sectors in any order; where one was not written there is still the reserve, or zeros where there was
nothing. So of a torn frame all that is in some sector is `FILL` or zeros, or all from some byte on is missing; and
nothing of a later round is there. Its marks are neither, so that no end of a sound frame looks lost. Anything else that
does not hold is *damage*. ADR 77.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from keylane.coordinator.journal.headers import HEADER_SIZE, SEGMENT, JournalDamagedError, check_header, partitions_of
from keylane.storage.filesystem import FILL, SECTOR_BYTES
from keylane.wire.batches import CRC_START, MAGIC, PREFIX_SIZE
from keylane.wire.batches import HEADER_SIZE as BATCH_HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = b"\x1a"
"""How a frame begins and ends: far from `FILL` and from zero, so that no flipped bit makes one of the other."""
MARK_BYTE = MARK[0]
_FRAME_HEAD = struct.Struct(">BIIiI")
FRAME_HEAD_SIZE = _FRAME_HEAD.size
COVERED_FROM = 5
"""The frame's checksum covers what is behind it."""
_COVERED = struct.Struct(">IiI")
CHECKED_SIZE = FRAME_HEAD_SIZE + CRC_START
"""The frame's checksum covers what is before, the batch's what is behind."""
_HEADS = struct.Struct(">BIIiIqi4xBI2xi")
"""A frame's head, and of its batch: base offset, length, magic, checksum, last offset delta."""
_HEADS_SIZE = _HEADS.size
_CRC = struct.Struct(">I")

_CHUNK_BYTES = 64 * 1024
_NOT_WRITTEN = (FILL[0], 0)
"""What stands for a mark in a sector of its own that was lost. If all checksums hold, the frame is whole nonetheless,
and never cut off: it may have been acknowledged, and its mark altered since."""


Frame = tuple[int, int, int, int, bytes]
"""Position, offsets partition, base offset, last offset delta, batch: a plain tuple, since a start reads millions."""


def encode_frame(partition: int, round_bytes: int, head: bytes, rest: bytes) -> bytes:
    """`head` is the batch's first 21 bytes, `rest` all others; `round_bytes` are before it in its round."""
    assert len(head) == CRC_START
    covered = _COVERED.pack(CRC_START + len(rest), partition, round_bytes) + head
    return b"".join((MARK, _CRC.pack(crc32c(covered)), covered, rest, MARK))


def frame_size(batch_size: int) -> int:
    """Bytes of the frame around a batch."""
    return FRAME_HEAD_SIZE + batch_size + len(MARK)


def batch_in(frame: bytes) -> bytes:
    return frame[FRAME_HEAD_SIZE : -len(MARK)]


def read_frame_head(data: bytes, position: int) -> tuple[int, int]:
    """Batch length and offsets partition of a frame that was checked before."""
    _, _, length, partition, _ = _FRAME_HEAD.unpack_from(data, position)
    return length, partition


def holds(head: bytes, batch: bytes) -> bool:
    """Whether the checksums of a frame hold."""
    crc: int = _CRC.unpack_from(head, len(MARK))[0]
    batch_crc: int = _CRC.unpack_from(batch, CRC_START - _CRC.size)[0]
    return crc32c(batch[:CRC_START], crc32c(head[COVERED_FROM:])) == crc and crc32c(batch[CRC_START:]) == batch_crc


class SegmentReader:
    """Reads one segment from memory. `may_be_torn` is true for the last one: only there a crash can cut a write short.

    Iterating yields the frames in order, from `end` on, and moves it; then `end` is where sound content ends, and
    `is_torn` whether a tail of `torn_bytes` follows. A reserve is no tail.
    Raises `JournalDamagedError`.
    """

    def __init__(self, data: bytes, path: str, *, number: int, partitions: int, may_be_torn: bool) -> None:
        self.data = data
        self.path = path
        self.end = 0
        self.is_torn = False
        self._content = _Content(data) if may_be_torn else None
        self._check_header(number, partitions)

    @property
    def torn_bytes(self) -> int:
        return self._content.end - self.end if self._content is not None and self.is_torn else 0

    def _check_header(self, number: int, partitions: int) -> None:
        content, head = self._content, self.data[:HEADER_SIZE]
        # Nothing is written behind a header before it is durable.
        if (
            content is not None
            and content.end < HEADER_SIZE
            and partitions_of(head) is None
            and _agree(head[: content.end], SEGMENT.magic)
        ):
            self.is_torn = True
            return
        check_header(head, self.path, SEGMENT, number=number, partitions=partitions)
        self.end = HEADER_SIZE

    def __iter__(self) -> Iterator[Frame]:
        data = self.data
        size = len(data)
        last = size if self._content is None else self._content.end
        unpack = _HEADS.unpack_from
        marks = (MARK_BYTE,) if self._content is None else (MARK_BYTE, *_NOT_WRITTEN)
        position = self.end
        while not self.is_torn and position < last:
            if size - position < _HEADS_SIZE:
                self._stop(position, position + _HEADS_SIZE, f"{size - position} bytes are no frame")
                return
            mark, crc, length, partition, _, base_offset, batch_length, magic, batch_crc, delta = unpack(data, position)
            start = position + FRAME_HEAD_SIZE
            checked = position + CHECKED_SIZE
            if mark not in marks or crc32c(data[position + COVERED_FROM : checked]) != crc:
                self._stop(position, checked, "the checksum of a frame does not hold")
                return
            if length < BATCH_HEADER_SIZE or batch_length + PREFIX_SIZE != length or magic != MAGIC:
                raise JournalDamagedError(self.path, position, f"a frame of {length} bytes that holds no such batch")
            end = start + length
            if end >= size:
                self._stop(position, end + 1, f"a frame of {length} bytes, and {size - start} are left")
                return
            if data[end] not in marks or crc32c(data[checked:end]) != batch_crc:
                self._stop(position, end + 1, "the checksum of a record batch does not hold")
                return
            self.end = end + 1
            yield position, partition, base_offset, delta, data[start:end]
            position = end + 1

    def _stop(self, position: int, end: int, reason: str) -> None:
        """The frame from `position` to `end` (as far as it is known) does not hold: a torn tail, or damage."""
        content = self._content
        if content is None or not (
            content.end < end or (content.has_lost_sector(position, end) and not content.has_later_round(position))
        ):
            raise JournalDamagedError(self.path, position, reason)
        self.is_torn = True


def _agree(one: bytes, other: bytes) -> bool:
    return one.startswith(other) or other.startswith(one)


class _Content:
    """What is in a segment that may have a reserve: where it ends, and what of it was lost."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.end = _end_without(data, FILL + b"\0")

    def has_lost_sector(self, position: int, end: int) -> bool:
        """Whether of the bytes from `position` to `end` all that are in some sector were lost."""
        start = position
        while start < end:
            stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if self._data[start:stop] in (FILL * (stop - start), bytes(stop - start)):
                return True
            start = stop
        return False

    def has_later_round(self, position: int) -> bool:
        """Whether behind `position` there is the head of a frame whose round began behind it: it was written when what
        is at `position` was durable."""
        data = self._data
        at = data.find(MARK, position + 1, self.end)
        while at >= 0:
            if at + CHECKED_SIZE <= self.end:
                _, crc, _, _, round_bytes = _FRAME_HEAD.unpack_from(data, at)
                if at - round_bytes > position and crc32c(data[at + COVERED_FROM : at + CHECKED_SIZE]) == crc:
                    return True
            at = data.find(MARK, at + 1, self.end)
        return False


def _end_without(data: bytes, padding: bytes) -> int:
    """Where `data` ends when the padding is left out, without a copy of all."""
    end = len(data)
    while end:
        start = max(end - _CHUNK_BYTES, 0)
        rest = data[start:end].rstrip(padding)
        if rest:
            return start + len(rest)
        end = start
    return 0
