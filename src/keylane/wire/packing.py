"""The compressions of record batches: packed as Java's readers want it, and unpacked piece by piece.

Packing: Java writes Snappy as a stream of blocks behind a header of its own, and reads LZ4 frames of independent blocks
alone, which cramjam's frames are not. So both are put together here, of cramjam's blocks.

Unpacking: a small batch may unpack to a thousand times its size. So whoever needs no more than a piece at a time holds
no more, and can stop at a limit, or do something else between two pieces. The one exception is a Snappy block, which
says how long it is, and is asked before it is unpacked as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cramjam

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES = 128 * 1024
"""Most of a piece that gzip and zstd give; blocks of Snappy and LZ4 are pieces as they come."""

_XERIAL = b"\x82SNAPPY\0"
"""Java's Snappy streams put blocks with their lengths behind a header of their own."""
_XERIAL_HEADER = 16
_XERIAL_VERSIONS = (1).to_bytes(4, "big") * 2
"""Its own, and the oldest that can read it."""
_XERIAL_BLOCK = 32 * 1024

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
"""With a header and a checksum of gzip's."""

_LZ4_MAGIC = bytes.fromhex("04224d18")
_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Version 1, independent blocks of at most 64 KiB, no checksums; and the checksum of these two bytes."""
_LZ4_BLOCK = 64 * 1024
_LZ4_PLAIN = 1 << 31
"""Of a block's length: it is not compressed."""
_LZ4_DEFAULT = 9
"""Kafka's level that stands for the fast compressor; the others are LZ4 HC's."""
_LZ4_HC_MOST = 12
_LZ4_VERSION, _LZ4_VERSION_MASK = 0x40, 0xC0
_LZ4_INDEPENDENT, _LZ4_BLOCK_SUMS, _LZ4_SIZE, _LZ4_SUM, _LZ4_DICTIONARY = 0x20, 0x10, 0x08, 0x04, 0x01
"""Flags of a frame."""
_LZ4_BLOCKS = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
"""What a block unpacks to at most, by what the frame's header calls it."""


_ZSTD_LONGEST_HEADER = 18
"""With its magic number."""
_ZSTD_SKIPPED, _ZSTD_SKIPPED_FIRST = bytes.fromhex("2a4d18"), 5
"""The magic number of a frame that is passed over is 0x184D2A50 to 0x184D2A5F, low byte first."""
_ZSTD_REPEATED = 1
"""A block of one byte, as often as its size says."""


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


def unpack_gzip(data: bytes) -> Iterator[bytes]:
    """Members behind one another; what follows them and is none is passed over, as Java does."""
    import zlib

    at = 0
    while not at or data.startswith(_GZIP_MAGIC, at):
        unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW)
        while not unpacker.eof:
            if at >= len(data):
                raise ValueError("the stream is cut short")
            given = data[at : at + PIECE_BYTES]
            piece = unpacker.decompress(given, PIECE_BYTES)
            at += len(given) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data)
            yield piece


def unpack_zstd(data: bytes) -> Iterator[bytes]:
    """Frames behind one another, block by block (RFC 8878): the library's readers end where the bytes do, and do not
    say whether a frame does. A block unpacks to 128 KiB at most."""
    import zstandard

    at = 0
    while not at or at < len(data):
        head = data[at : at + _ZSTD_LONGEST_HEADER]
        if head[1:4] == _ZSTD_SKIPPED and head[0] >> 4 == _ZSTD_SKIPPED_FIRST:
            at += 8 + int.from_bytes(head[4:8], "little")
            if len(head) < 8 or at > len(data):
                raise ValueError("a frame is cut short")
            continue
        checksum_size = 4 if zstandard.get_frame_parameters(head).has_checksum else 0
        end = at + zstandard.frame_header_size(head)
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        while not unpacker.eof:
            block = int.from_bytes(data[end : end + 3], "little")
            is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
            end += 3 + (1 if kind == _ZSTD_REPEATED else size) + (checksum_size if is_last else 0)
            if end > len(data):
                raise ValueError("a frame is cut short")
            yield unpacker.decompress(data[at:end])
            at = end


def unpack_snappy(data: bytes, limit: int) -> Iterator[bytes]:
    """A block, or a Java stream of them; none is unpacked that makes it more than `limit` bytes."""
    for block in _snappy_blocks(data):
        limit -= cramjam.snappy.decompress_raw_len(block)
        if limit < 0:
            raise ValueError("its blocks say that they unpack to more than the limit")
        yield bytes(cramjam.snappy.decompress_raw(block))


def largest_snappy_block(data: bytes) -> int:
    """What the longest of its blocks says that it unpacks to; 0 for damage, which shows when it is unpacked."""
    try:
        return max(map(cramjam.snappy.decompress_raw_len, _snappy_blocks(data)), default=0)
    except (ValueError, cramjam.DecompressionError):
        return 0


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_XERIAL):
        yield data
        return
    at = _XERIAL_HEADER
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if at + size > len(data):
            raise ValueError("a block is cut short")
        yield data[at : at + size]
        at += size


def unpack_lz4(data: bytes) -> Iterator[bytes]:
    """A frame of independent blocks: Java reads no others. Its checksums are not looked at, since a record batch has
    one of its own."""
    at, most, sum_size, end_size = _lz4_header(data)
    out = bytearray(most)
    while (size := int.from_bytes(data[at : at + 4], "little")) or at + 4 > len(data):
        at += 4
        block = data[at : at + (size & ~_LZ4_PLAIN)]
        at += len(block) + sum_size
        if at > len(data) or len(block) < size & ~_LZ4_PLAIN:
            raise ValueError("a frame is cut short")
        if size & _LZ4_PLAIN:
            yield block
        else:
            yield bytes(memoryview(out)[: cramjam.lz4.decompress_block_into(block, out)])
    if at + end_size > len(data):
        raise ValueError("a frame is cut short")


def _lz4_header(data: bytes) -> tuple[int, int, int, int]:
    """Where its blocks begin, what one unpacks to at most, how many bytes follow each, and how many the last."""
    if not data.startswith(_LZ4_MAGIC) or len(data) < len(_LZ4_HEADER):
        raise ValueError("no frame")
    flags, descriptor = data[len(_LZ4_MAGIC) : len(_LZ4_MAGIC) + 2]
    most = _LZ4_BLOCKS.get(descriptor >> 4)
    if flags & _LZ4_VERSION_MASK != _LZ4_VERSION or flags & _LZ4_DICTIONARY or most is None:
        raise ValueError(f"a frame with the flags {flags:#04x} and {descriptor:#04x}")
    if not flags & _LZ4_INDEPENDENT:
        raise ValueError("a frame whose blocks depend on one another, which Java does not read")
    at = len(_LZ4_HEADER) + (8 if flags & _LZ4_SIZE else 0)
    return at, most, 4 if flags & _LZ4_BLOCK_SUMS else 0, 8 if flags & _LZ4_SUM else 4
