"""Snappy and LZ4, unpacked in plain Python: for the few batches that the broker has to look into.

Batches pass through a broker compressed. Only compaction, look-ups by time and the check for keys read records; for
those some ten megabytes a second are enough, and no compiled library is needed.

Source: the format descriptions of google/snappy and lz4/lz4 (block and frame); Java's Snappy streams put blocks with
their lengths behind a header of their own.
"""

from __future__ import annotations

_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER = 16
_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_DICTIONARY = 0x10, 0x08, 0x01
_LZ4_STORED = 0x80000000
_MIN_MATCH = 4


def unsnappy(data: bytes, limit: int) -> bytes:
    """Raises `ValueError` or `IndexError` for damage and for more than `limit` bytes."""
    out = bytearray()
    if not data.startswith(_XERIAL):
        _snappy_block(data, out, limit)
        return bytes(out)
    at = _XERIAL_HEADER
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            raise ValueError("a block is cut short")
        _snappy_block(data[at + 4 : at + 4 + size], out, limit)
        at += 4 + size
    return bytes(out)


def _snappy_block(data: bytes, out: bytearray, limit: int) -> None:
    size, at, shift = 0, 0, 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    start, end = len(out), len(out) + size
    if end > limit:
        raise ValueError(f"more than {limit} bytes")
    while at < len(data):
        tag = data[at]
        at += 1
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                length = int.from_bytes(data[at : at + extra], "little")
                at += extra
            length += 1
            _append_literal(data, at, length, out)
            at += length
        else:
            if kind == 1:
                length, distance = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at]
                at += 1
            else:
                width = 2 if kind == 2 else 4
                length, distance = (tag >> 2) + 1, int.from_bytes(data[at : at + width], "little")
                at += width
            _append_match(out, start, distance, length)
        if len(out) > end:
            raise ValueError("a block is longer than it says")
    if len(out) != end:
        raise ValueError("a block is shorter than it says")


def unlz4(data: bytes, limit: int) -> bytes:
    """An LZ4 frame. Raises `ValueError` or `IndexError` for damage and for more than `limit` bytes."""
    if int.from_bytes(data[:4], "little") != _LZ4_MAGIC:
        raise ValueError("no LZ4 frame")
    flags = data[4]
    at = 7 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    trailer = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    out = bytearray()
    while True:
        if at + 4 > len(data):
            raise ValueError("a frame without an end")
        size = int.from_bytes(data[at : at + 4], "little")
        at += 4
        if size == 0:
            return bytes(out)
        stored = size & _LZ4_STORED
        size &= ~_LZ4_STORED
        if at + size > len(data):
            raise ValueError("a block is cut short")
        if stored:
            out += data[at : at + size]
        else:
            _lz4_block(data[at : at + size], out, limit)
        if len(out) > limit:
            raise ValueError(f"more than {limit} bytes")
        at += size + trailer


def _lz4_block(data: bytes, out: bytearray, limit: int) -> None:
    at, end = 0, len(data)
    while at < end:
        token = data[at]
        at += 1
        length = token >> 4
        if length == 15:
            length, at = _lz4_length(data, at, length)
        _append_literal(data, at, length, out)
        at += length
        if at == end:
            return
        distance = data[at] | data[at + 1] << 8
        at += 2
        length = token & 15
        if length == 15:
            length, at = _lz4_length(data, at, length)
        if len(out) + length > limit:
            raise ValueError(f"more than {limit} bytes")
        _append_match(out, 0, distance, length + _MIN_MATCH)


def _lz4_length(data: bytes, at: int, length: int) -> tuple[int, int]:
    while True:
        byte = data[at]
        at += 1
        length += byte
        if byte != 255:
            return length, at


def _append_literal(data: bytes, at: int, length: int, out: bytearray) -> None:
    if at + length > len(data):
        raise ValueError("a literal is cut short")
    out += data[at : at + length]


def _append_match(out: bytearray, start: int, distance: int, length: int) -> None:
    begin = len(out) - distance
    if distance == 0 or begin < start:
        raise ValueError(f"a copy from {distance} bytes back, where {len(out) - start} are")
    if distance >= length:
        out += out[begin : begin + length]
    else:  # it overlaps what it writes: the piece repeats
        out += (out[begin:] * (length // distance + 1))[:length]
