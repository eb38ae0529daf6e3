"""Snappy and LZ4 by cramjam: packed as Java's readers want it, and never unpacked beyond a limit.

Packing: Java writes Snappy as a stream of blocks behind a header of its own, and reads LZ4 frames of independent blocks
alone, which cramjam's frames are not. So both are put together here, of cramjam's blocks.

Unpacking: cramjam allocates what the compressed bytes ask for, so it is never left to choose. A Snappy block says how
long it is, and is asked before it is unpacked. An LZ4 frame need not say, and a small one unpacks to 255 times its
size: so it is written into memory of the limit's size, of which the system gives only the pages that are touched.
"""

from __future__ import annotations

import mmap
from typing import Any

import cramjam

_XERIAL = b"\x82SNAPPY\0"
"""Java's Snappy streams put blocks with their lengths behind a header of their own."""
_XERIAL_HEADER = 16
_XERIAL_VERSIONS = (1).to_bytes(4, "big") * 2
"""Its own, and the oldest that can read it."""
_XERIAL_BLOCK = 32 * 1024

_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Version 1, independent blocks of at most 64 KiB, no checksums; and the checksum of these two bytes."""
_LZ4_BLOCK = 64 * 1024
_LZ4_PLAIN = 1 << 31
"""Of a block's length: it is not compressed."""
_LZ4_DEFAULT = 9
"""Kafka's level that stands for the fast compressor; the others are LZ4 HC's."""
_LZ4_HC_MOST = 12


def snappy(data: bytes) -> bytes:
    """A Java stream of blocks."""
    blocks: list[bytes] = []
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK]))
        blocks += (len(block).to_bytes(4, "big"), block)
    return b"".join((_XERIAL, _XERIAL_VERSIONS, *blocks))


def lz4(data: bytes, level: int | None = None) -> bytes:
    """A frame; `level`: Kafka's, 1 to 17."""
    how: dict[str, Any] = {"mode": "default"}
    if level not in (None, _LZ4_DEFAULT):
        how = {"mode": "high_compression", "compression": min(level, _LZ4_HC_MOST)}
    blocks: list[bytes] = []
    for at in range(0, len(data), _LZ4_BLOCK):
        plain = data[at : at + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False, **how))
        size = len(block)
        if size >= len(plain):
            block, size = plain, len(plain) | _LZ4_PLAIN
        blocks += (size.to_bytes(4, "little"), block)
    return b"".join((_LZ4_HEADER, *blocks, bytes(4)))


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
