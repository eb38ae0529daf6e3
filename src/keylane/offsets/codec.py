"""The offset map in a commit's metadata, byte for byte as the JVM Parallel Consumer writes and reads it.

The idea: metadata = Base64(one magic byte that names the encoding + body), relative to the committed offset. A body
is either a bit an offset (BitSet), or the lengths of the alternating runs of incomplete and complete offsets
(RunLength); each exists with 16-bit (v1) and 32-bit (v2) lengths, plain or as one zstd frame. `docs/offset-map.md` has
the bytes.

What is read is never trusted: decoding costs at most what the metadata's own length and the limits below allow.
"""

from __future__ import annotations

import base64
import binascii
import struct
from array import array
from enum import Enum
from functools import partial
from itertools import cycle
from operator import mul
from typing import TYPE_CHECKING, Literal

import zstandard

from keylane.errors import MetadataError, UnknownMapError, UsageError
from keylane.offsets.tracker import MAX_OFFSET, MAX_SPAN, OffsetMap

if TYPE_CHECKING:
    from collections.abc import Callable

V1_LIMIT = 2**15 - 1
"""The longest length that a v1 encoding can say (int16)."""

MAX_BODY_BYTES = 128 * 1024
"""How far a zstd body may always unfold: about a million offsets of BitSet, 32,768 RunLength v2 runs. What fits the
usual cap of 4,096 characters has some 10 KB."""

MAX_BODY_RATIO = 32
"""How many times its compressed size a zstd body may have above that: for brokers that take longer metadata."""

MAX_WINDOW_BYTES = 8 * 1024 * 1024
"""The most memory that a zstd frame may ask for to be decoded; the JVM's encoder asks for 2 MB."""

BITSET_ZSTD_MAX_SPAN = 2**18
"""The widest map that `encode` also tries as a compressed BitSet (32 KB of bits): beyond, it costs milliseconds."""

_ZSTD_LEVEL = 6
"""5 % smaller than the JVM's level 3, at 0.1 ms for a body."""
_ZSTD_LEAST_BYTES = 10
"""No zstd frame of a body is smaller: magic 4, header 2, block header 3, content 1."""

_SHOWN_CHARACTERS = 40
"""How much of a foreign metadata string an error shows."""


class Encoding(Enum):
    """The encodings that are read and written; `label` is the name in `docs/offset-map.md`, `magic` the first byte."""

    BITSET_V1 = ("BitSet v1", b"l")
    BITSET_V1_ZSTD = ("BitSet v1 zstd", b"a")
    BITSET_V2 = ("BitSet v2", b"o")
    BITSET_V2_ZSTD = ("BitSet v2 zstd", b"s")
    RUN_LENGTH_V1 = ("RunLength v1", b"n")
    RUN_LENGTH_V1_ZSTD = ("RunLength v1 zstd", b"J")
    RUN_LENGTH_V2 = ("RunLength v2", b"e")
    RUN_LENGTH_V2_ZSTD = ("RunLength v2 zstd", b"p")
    BYTE_ARRAY = ("ByteArray", b"L")
    BYTE_ARRAY_ZSTD = ("ByteArray zstd", b"\xee")

    def __init__(self, label: str, magic: bytes) -> None:
        self.label = label
        self.magic = magic
        self.is_zstd = label.endswith("zstd")
        self.is_v1 = "v1" in label
        self.is_bitset = label.startswith("BitSet")
        self.is_written = not label.startswith("ByteArray")
        """ByteArray is read only: no released consumer writes it."""

    @property
    def plain(self) -> Encoding:
        """The same encoding without compression."""
        return Encoding[self.name.removesuffix("_ZSTD")]

    @property
    def zstd(self) -> Encoding:
        """The same encoding with compression."""
        return Encoding[self.plain.name + "_ZSTD"]


def _folded(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()


_BY_MAGIC = {encoding.magic: encoding for encoding in Encoding}
_BY_NAME = {_folded(encoding.label): encoding for encoding in Encoding}
_PLAIN_WRITTEN = [encoding for encoding in Encoding if encoding.is_written and not encoding.is_zstd]
_ENVELOPE_MAGIC = b"X"
"""Of the envelope that the maintained fork of the Parallel Consumer (0.6) plans around a map and data of the user's."""
_FOREIGN_MAGIC = {b"\x01": "Kafka Streams (magic 1)", b"\x02": "Kafka Streams (magic 2)"}


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(offset_map: OffsetMap, encoding: Encoding | str | None = None, *, is_marked: bool = False) -> str:
    """Metadata for a commit of `offset_map.base`, in the smallest encoding, or in the one that is named.

    ASCII, 4 characters for every 3 bytes begun. Empty when nothing from the base on is complete (unless an encoding is
    named). Raises `UsageError` for an encoding that cannot carry the map (v1: a length above 32,767; any: a span above
    2^31 - 1), that is not written (ByteArray), or that does not exist.

    `is_marked` says in it that it is committed beside a leader epoch, where no decoder of maps looks. That may cost up
    to `MARK_BYTES` bytes, and one more incomplete offset at the top.
    """
    if offset_map.span > MAX_SPAN:
        raise UsageError(f"{offset_map!r} spans {offset_map.span} offsets: at most {MAX_SPAN} can be written")
    if encoding is not None:
        data = _named(offset_map, encoding)
    elif offset_map.span:
        data = _smallest(offset_map)
    else:
        data = b""
    if data and is_marked:
        return _marked(data, offset_map)
    return base64.b64encode(data).decode("ascii")


def _named(offset_map: OffsetMap, name: Encoding | str) -> bytes:
    encoding = name if isinstance(name, Encoding) else _BY_NAME.get(_folded(name))
    if encoding is None or not encoding.is_written:
        written = ", ".join(e.label for e in Encoding if e.is_written)
        raise UsageError(f"encoding={name!r}: give one of {written}")
    bodies = _Bodies(offset_map)
    if encoding.is_v1 and (longest := bodies.longest_length(encoding)) > V1_LIMIT:
        raise UsageError(f"encoding={encoding.label!r} carries lengths up to {V1_LIMIT}, not {longest}: use v2")
    body = bodies.build(encoding.plain)
    return encoding.magic + (_compressed(body) if encoding.is_zstd else body)


def _smallest(offset_map: OffsetMap) -> bytes:
    """Builds the smallest plain encoding, whose size is known beforehand, and the zstd ones that might be smaller."""
    bodies = _Bodies(offset_map)
    able = [e for e in _PLAIN_WRITTEN if not e.is_v1 or bodies.longest_length(e) <= V1_LIMIT]
    smallest = min(able, key=bodies.size)
    best = smallest.magic + bodies.build(smallest)
    if len(best) - 1 > _ZSTD_LEAST_BYTES:
        for plain in able:
            if not plain.is_bitset or offset_map.span <= BITSET_ZSTD_MAX_SPAN:
                best = min(best, plain.zstd.magic + _compressed(bodies.build(plain)), key=len)
    return best


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


MapOrigin = Literal["own", "unmarked", "copied"]
"""Who committed a map: keylane, beside the map's leader epoch; software whose maps have no mark (the JVM's Parallel
Consumer, an earlier keylane); or another program that copied a map of keylane's, as mirrors of clusters do."""


def map_origin(metadata: str, leader_epoch: int) -> MapOrigin | None:
    """Of a commit with this leader epoch (-1: none); None for metadata that is no map."""
    if not metadata or not is_map(metadata):
        return None
    if leader_epoch >= 0:
        return "own"
    return "copied" if is_marked(metadata) else "unmarked"


def is_marked(metadata: str) -> bool:
    """Whether `encode` marked this map: it was committed beside a leader epoch. One beside none was copied."""
    text = metadata.rstrip("=")
    spare_bits = 4 ** (len(metadata) - len(text)) - 1
    return len(text) > 1 and spare_bits > 0 and _ALPHABET.find(text[-1]) & spare_bits == 1


def _marked(data: bytes, offset_map: OffsetMap) -> str:
    """Base64 with a 1 in the spare bits of its last character, which no decoder looks at."""
    if len(data) % 3 == 0:  # there are none
        data = _resized(data, offset_map)
    text = base64.b64encode(data).decode("ascii")
    body = text.rstrip("=")
    return body[:-1] + _ALPHABET[_ALPHABET.index(body[-1]) | 1] + "=" * (len(text) - len(body))


def _resized(data: bytes, offset_map: OffsetMap) -> bytes:
    """The same map in one byte less, or in up to `MARK_BYTES` more, no multiple of three."""
    encoding = _BY_MAGIC[data[:1]]
    if encoding.is_zstd:
        return data[:1] + _compressed(_decompressed(data[1:]), checksum=True)
    if not encoding.is_bitset:
        return data + (b"\0\0" if encoding.is_v1 else b"\0\0\0\0")  # one more run, of 0
    if offset_map.span % 8:
        return data[:-1]  # without its pad byte, which readers do not need
    if encoding.is_v1:
        return Encoding.BITSET_V2.magic + _Bodies(offset_map).build(Encoding.BITSET_V2)
    return data[:1] + struct.pack(">i", offset_map.span + 1) + data[5:] + b"\0"  # one more offset, incomplete


class _Bodies:
    """The plain bodies of one map; what several of them need is made once."""

    def __init__(self, offset_map: OffsetMap) -> None:
        self._map = offset_map
        self._lengths = _run_lengths(offset_map)
        self._bits: bytes | None = None

    def longest_length(self, plain: Encoding) -> int:
        """The longest length that the body has to say."""
        return self._map.span if plain.is_bitset else max(self._lengths)

    def size(self, plain: Encoding) -> int:
        width = 2 if plain.is_v1 else 4
        return width + _bitset_bytes(self._map.span) if plain.is_bitset else width * len(self._lengths)

    def build(self, plain: Encoding) -> bytes:
        if plain.is_bitset:
            if self._bits is None:
                self._bits = _bits(self._lengths, self._map.span)
            return struct.pack(">h" if plain.is_v1 else ">i", self._map.span) + self._bits
        return struct.pack(f">{len(self._lengths)}{'h' if plain.is_v1 else 'i'}", *self._lengths)


def _run_lengths(offset_map: OffsetMap) -> list[int]:
    """The alternating runs from the base to the highest completed offset: incomplete, complete, incomplete, ..."""
    lengths: list[int] = []
    position = offset_map.base
    for start, stop in offset_map.incomplete_within(position, offset_map.highest_completed + 1):
        if start > position:
            lengths += (start - position,) if lengths else (0, start - position)
        lengths.append(stop - start)
        position = stop
    if position <= offset_map.highest_completed:
        rest = offset_map.highest_completed + 1 - position
        lengths += (rest,) if lengths else (0, rest)
    return lengths or [0]


def _bitset_bytes(span: int) -> int:
    """A bit an offset, and one pad byte."""
    return (span + 7) // 8 + 1


def _bits(lengths: list[int], span: int) -> bytes:
    """Bit i is in byte i // 8, least significant first; 1 is complete. Built as one binary number, which is linear."""
    runs = map(mul, reversed(lengths), cycle(("1", "0") if len(lengths) % 2 == 0 else ("0", "1")))
    return int("".join(runs) or "0", 2).to_bytes(_bitset_bytes(span), "little")


def _compressed(body: bytes, *, checksum: bool = False) -> bytes:
    """One frame without its content size, as a streaming encoder leaves it."""
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=False, write_checksum=checksum)
    return compressor.compress(body)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode(metadata: str | None, base: int, max_span: int = MAX_SPAN) -> OffsetMap:
    """The map in the metadata of a commit of offset `base`; empty metadata (or None) holds nothing complete above it.

    Raises `MetadataError`, in one line, for what is not an offset map, is another program's (Kafka Streams), is
    damaged, or speaks of more than `max_span` offsets; `UnknownMapError` for what may be a map of another kind. Costs a
    small multiple of the metadata's length and of `MAX_BODY_BYTES`, whatever the metadata claims.
    """
    nothing = OffsetMap(base)
    if not metadata:
        return nothing
    try:
        data = base64.b64decode(metadata, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MetadataError(f"metadata {_shown(metadata)} is not an offset map: not Base64 ({error})") from None
    magic = data[:1]
    if foreign := _FOREIGN_MAGIC.get(magic):
        raise MetadataError(
            f"metadata {_shown(metadata)} is not an offset map: it belongs to {foreign}; use a group of keylane's own"
        )
    encoding = _BY_MAGIC.get(magic)
    if encoding is None:
        envelope = ", which is that of the Parallel Consumer's envelope" if magic == _ENVELOPE_MAGIC else ""
        raise UnknownMapError(
            f"metadata {_shown(metadata)} is not an offset map: unknown magic byte {magic!r}{envelope}"
        )
    try:
        body = _decompressed(data[1:]) if encoding.is_zstd else data[1:]
        return _READERS[encoding.plain](body, base, min(max_span, MAX_OFFSET - base))
    except _Damaged as damage:
        raise MetadataError(f"metadata {_shown(metadata)} ({encoding.label}) is damaged: {damage}") from None


def is_map(metadata: str) -> bool:
    """Whether `decode` takes it for an offset map, as it does empty metadata."""
    try:
        decode(metadata, 0)
    except MetadataError:
        return False
    return True


def encoding_of(metadata: str) -> str | None:
    """The name of the encoding of metadata that `encode` has written; None for empty or other metadata."""
    try:
        encoding = _BY_MAGIC.get(base64.b64decode(metadata[:4], validate=True)[:1])
    except (binascii.Error, ValueError):
        return None
    return None if encoding is None else encoding.label


class _Damaged(Exception):  # noqa: N818 - never leaves this module
    """What is wrong with a body, in words that follow 'is damaged: '."""


def _shown(metadata: str) -> str:
    return repr(metadata if len(metadata) <= _SHOWN_CHARACTERS else metadata[:_SHOWN_CHARACTERS] + "…")


def _decompressed(frame: bytes) -> bytes:
    """The body in one whole zstd frame. Bounded first, then checked for its end: no call of the library does both."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    limit = max(MAX_BODY_BYTES, MAX_BODY_RATIO * len(frame))
    try:
        if len(decompressor.stream_reader(frame).read(limit + 1)) > limit:
            raise _Damaged(f"its zstd frame unfolds to more than {limit} bytes")
        whole = decompressor.decompressobj()
        body = whole.decompress(frame)
    except zstandard.ZstdError as error:
        raise _Damaged(f"its zstd frame cannot be read ({error})") from None
    if not whole.eof:
        raise _Damaged("its zstd frame is cut short")
    if whole.unused_data:
        raise _Damaged(f"{len(whole.unused_data)} bytes follow its zstd frame")
    return body


def _read_bitset(body: bytes, base: int, max_span: int, *, length: struct.Struct) -> OffsetMap:
    if len(body) < length.size:
        raise _Damaged(f"{len(body)} bytes hold no length")
    (span,) = length.unpack_from(body)
    _check_span(span, max_span)
    bits = body[length.size :]
    least, most = span // 8 + 1, (span + 7) // 8 + 1  # early writers left the pad byte out, except after a full byte
    if not least <= len(bits) <= most:
        raise _Damaged(f"{span} offsets need {most} bytes, and it has {len(bits)}")
    number = int.from_bytes(bits, "little")
    if number >> span:
        raise _Damaged(f"bits are set beyond its {span} offsets")
    return _map_of_digits(f"{number:0{span}b}"[::-1] if span else "", base, "0", "1")


def _map_of_digits(digits: str, base: int, incomplete: str, complete: str) -> OffsetMap:
    """The map in which the offset `base + i` has the character `digits[i]`."""
    starts, stops = array("q"), array("q")
    start = digits.find(incomplete)
    while start >= 0:
        stop = digits.find(complete, start)
        if stop < 0:
            stop = len(digits)
        starts.append(base + start)
        stops.append(base + stop)
        start = digits.find(incomplete, stop)
    return OffsetMap.from_runs(base, starts, stops, base + len(digits) - 1)


def _read_run_lengths(body: bytes, base: int, max_span: int, *, letter: str, width: int) -> OffsetMap:
    if len(body) % width:
        raise _Damaged(f"{len(body)} bytes are no whole number of {width}-byte runs")
    lengths = struct.unpack(f">{len(body) // width}{letter}", body)
    if min(lengths, default=0) < 0:
        raise _Damaged(f"it has a run of length {min(lengths)}")
    span = sum(lengths)
    _check_span(span, max_span)
    starts, stops = array("q"), array("q")
    position = base
    for length, is_complete in zip(lengths, cycle((False, True)), strict=False):
        if length and not is_complete:
            if stops and stops[-1] == position:  # a complete run of 0 lay between
                stops[-1] = position + length
            else:
                starts.append(position)
                stops.append(position + length)
        position += length
    return OffsetMap.from_runs(base, starts, stops, base + span - 1)


def _read_byte_array(body: bytes, base: int, max_span: int) -> OffsetMap:
    digits = body.removesuffix(b"\0")  # the pad byte
    _check_span(len(digits), max_span)
    if digits.strip(b"\0\1"):
        raise _Damaged("a byte is neither 0 nor 1")
    return _map_of_digits(digits.decode("ascii"), base, "\0", "\1")


def _check_span(span: int, max_span: int) -> None:
    if span < 0:
        raise _Damaged(f"it speaks of {span} offsets")
    if span > max_span:
        raise _Damaged(f"it speaks of {span} offsets, and at most {max_span} are believed")


_READERS: dict[Encoding, Callable[[bytes, int, int], OffsetMap]] = {
    Encoding.BITSET_V1: partial(_read_bitset, length=struct.Struct(">h")),
    Encoding.BITSET_V2: partial(_read_bitset, length=struct.Struct(">i")),
    Encoding.RUN_LENGTH_V1: partial(_read_run_lengths, letter="h", width=2),
    Encoding.RUN_LENGTH_V2: partial(_read_run_lengths, letter="i", width=4),
    Encoding.BYTE_ARRAY: _read_byte_array,
}
