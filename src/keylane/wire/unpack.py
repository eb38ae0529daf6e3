"""Snappy and LZ4, unpacked by cramjam and never beyond a limit: for the few batches that the broker has to look into.

The idea: cramjam allocates what the compressed bytes ask for, so it is never left to choose. A Snappy block says how
long it is, and is asked before it is unpacked. An LZ4 frame need not say, and a small one unpacks to 255 times its
size: so it is written into memory of the limit's size, of which the system gives only the pages that are touched.
"""

from __future__ import annotations

import mmap

import cramjam

_XERIAL = b"\x82SNAPPY\0"
"""Java's Snappy streams put blocks with their lengths behind a header of their own."""
_XERIAL_HEADER = 16


def unsnappy(data: bytes, limit: int) -> bytes:
    """A block, or a Java stream of them. Raises `ValueError` for damage and for more than `limit` bytes."""
    if not data.startswith(_XERIAL):
        return _snappy_block(data, limit)
    out, at = bytearray(), _XERIAL_HEADER
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            raise ValueError("a block is cut short")
        out += _snappy_block(data[at + 4 : at + 4 + size], limit - len(out))
        at += 4 + size
    return bytes(out)


def _snappy_block(data: bytes, limit: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data) > limit:
            raise ValueError(f"more than {limit} bytes")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from None


def unlz4(data: bytes, limit: int) -> bytes:
    """An LZ4 frame. Raises `ValueError` for damage and for more than `limit` bytes."""
    with mmap.mmap(-1, limit + 1) as out:
        try:
            size = cramjam.lz4.decompress_into(data, out)
        except cramjam.DecompressionError as error:
            raise ValueError(f"more than {limit} bytes, or damaged: {error}") from None
        if size > limit:
            raise ValueError(f"more than {limit} bytes")
        return out[:size]
