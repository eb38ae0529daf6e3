"""Kafka's record batch, format v2: read its header, check it, patch its offset, write and decode small ones.

The broker passes batches through as bytes: it reads the 61 bytes of the header, never the records, and writes only
the two fields that the checksum leaves out (base offset and leader epoch). Records are encoded and decoded here for
what the broker itself stores (group offsets) and for look-ups by timestamp.

Source: KIP-98, https://kafka.apache.org/documentation/#recordbatch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from keylane.errors import PeerError
from keylane.wire.primitives import read_varint, varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
LENGTH_OFFSET = 8
MAGIC_OFFSET = 16
CRC_START = 21
"""The checksum covers everything from the attributes on."""
PREFIX_SIZE = 12
"""Base offset and length, which the length field does not count."""
MAGIC = 2

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40
"""The base timestamp is the time from which compaction may remove the batch's tombstones, or its marker (KIP-534)."""
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

MAX_DECODED_BYTES = 256 * 1024 * 1024
"""A compressed batch that unpacks to more is refused, so that a small hostile one cannot take all memory."""

_PREFIX = struct.Struct(">qi")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_ATTRIBUTES = struct.Struct(">qiibI")


class BatchError(PeerError):
    """Bytes that are not a whole, sound record batch."""


class UnsupportedMagicError(BatchError):
    """A message set of format 0 or 1 (before Kafka 0.11), or an unknown one."""


class UnsupportedCodecError(BatchError):
    """Records in a compression that is not known."""


class BatchHeader(NamedTuple):
    """The header of one batch; `length` is the whole batch in bytes (the length field plus 12)."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """From when on tombstones, or the marker, may go; None when compaction has not seen the batch yet."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None


class NewRecord(NamedTuple):
    """A record to encode; its timestamp is the batch's plus `timestamp_delta_ms`."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp_delta_ms: int = 0


class BatchRecord(NamedTuple):
    """A decoded record."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def _unsupported_magic(magic: int) -> str:
    return f"message format {magic}: only record batches (format 2, Kafka 0.11 and newer) are taken"


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch that starts at `position`, unchecked but for its length. Raises `BatchError`."""
    if len(buffer) - position < HEADER_SIZE:
        if len(buffer) - position > MAGIC_OFFSET and buffer[position + MAGIC_OFFSET] in (0, 1):
            raise UnsupportedMagicError(_unsupported_magic(buffer[position + MAGIC_OFFSET]))
        raise BatchError(f"a record batch header takes {HEADER_SIZE} bytes, and {len(buffer) - position} are left")
    fields = HEADER.unpack_from(buffer, position)
    if fields[3] != MAGIC:
        raise UnsupportedMagicError(_unsupported_magic(fields[3]))
    if fields[1] < HEADER_SIZE - PREFIX_SIZE:
        raise BatchError(f"record batch length {fields[1]} is shorter than its header")
    return BatchHeader(fields[0], fields[1] + PREFIX_SIZE, *fields[2:])


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the checksum of the batch at `position`, which must be there whole, holds."""
    return crc32c(memoryview(buffer)[position + CRC_START : position + header.length]) == header.crc


def batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every whole batch in `buffer`; a cut-off batch at the end is left out, as consumers do."""
    position = 0
    while len(buffer) - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        if position + header.length > len(buffer):
            return
        yield position, header
        position += header.length


def fetched_batches(data: bytes, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """The same for what a fetch from `position` brought, without the batches before it. Raises `BatchError` for one
    that is damaged."""
    for at, header in batches(data):
        if header.next_offset <= position:
            continue
        if not check_crc(data, at, header):
            raise BatchError(f"the checksum of the batch at offset {header.base_offset} does not hold")
        yield at, header


def with_timestamp_type(batch: bytes, header: BatchHeader, append_time_ms: int | None) -> tuple[bytes, BatchHeader]:
    """The batch as a topic keeps it: with the broker's time (LogAppendTime), or, for None, with the producer's."""
    attributes = header.attributes & ~TIMESTAMP_TYPE_MASK
    latest = header.max_timestamp
    if append_time_ms is not None:
        attributes |= TIMESTAMP_TYPE_MASK
        latest = append_time_ms
    return _framed(header._replace(attributes=attributes, max_timestamp=latest), memoryview(batch)[HEADER_SIZE:])


def _framed(header: BatchHeader, body: Buffer) -> tuple[bytes, BatchHeader]:
    """The batch of this header, but for its checksum, which is that of the body."""
    covered = _AFTER_CRC.pack(*header[5:])
    crc = crc32c(body, crc32c(covered))
    prefix = _BEFORE_ATTRIBUTES.pack(header.base_offset, header.length - PREFIX_SIZE, header.leader_epoch, MAGIC, crc)
    return b"".join((prefix, covered, body)), header._replace(crc=crc)


def encode_batch(
    records: Sequence[NewRecord],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    partition_leader_epoch: int = 0,
) -> bytes:
    """One uncompressed batch of at least one record. Raises `ValueError` for none, and for a codec in `attributes`."""
    if not records:
        raise ValueError("a record batch holds at least one record")
    if attributes & CODEC_MASK:
        raise ValueError(f"attributes={attributes}: batches are written uncompressed")
    body = bytearray()
    for index, record in enumerate(records):
        _append_record(body, index, record)
    latest = timestamp_ms + max(record.timestamp_delta_ms for record in records)
    count = len(records)
    covered = _AFTER_CRC.pack(
        attributes, count - 1, timestamp_ms, latest, producer_id, producer_epoch, base_sequence, count
    )
    length = HEADER_SIZE - PREFIX_SIZE + len(body)
    crc = crc32c(body, crc32c(covered))
    return b"".join((_BEFORE_ATTRIBUTES.pack(base_offset, length, partition_leader_epoch, MAGIC, crc), covered, body))


def rebuild_batch(header: BatchHeader, records: Sequence[BatchRecord], delete_horizon_ms: int | None) -> bytes:
    """The batch with only these of its records, at their offsets; its offsets and sequence numbers span as many as
    before. Without records it belongs to no transaction. It is compressed as it was."""
    attributes = header.attributes & ~DELETE_HORIZON_MASK
    base_timestamp, latest = header.base_timestamp, header.max_timestamp
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_MASK
        base_timestamp = delete_horizon_ms
    if not records:
        attributes, base_timestamp, latest = 0, -1, -1
    elif not attributes & TIMESTAMP_TYPE_MASK:
        latest = max(record.timestamp_ms for record in records)
    body = bytearray()
    for record in records:
        new = NewRecord(record.key, record.value, record.headers, record.timestamp_ms - base_timestamp)
        _append_record(body, record.offset - header.base_offset, new)
    packed = compress(attributes & CODEC_MASK, bytes(body))
    covered = _AFTER_CRC.pack(attributes, header.last_offset_delta, base_timestamp, latest, *header[9:12], len(records))
    length = HEADER_SIZE - PREFIX_SIZE + len(packed)
    crc = crc32c(packed, crc32c(covered))
    prefix = _BEFORE_ATTRIBUTES.pack(header.base_offset, length, header.leader_epoch, MAGIC, crc)
    return b"".join((prefix, covered, packed))


def recompressed(batch: bytes, header: BatchHeader, codec: int, level: int | None) -> tuple[bytes, BatchHeader]:
    """The batch in another compression. Raises `BatchError` for records that cannot be unpacked."""
    packed = compress(codec, decompress(header.codec, batch[HEADER_SIZE:]), level)
    attributes = (header.attributes & ~CODEC_MASK) | codec
    return _framed(header._replace(length=HEADER_SIZE + len(packed), attributes=attributes), packed)


def filler(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """An empty batch that stands for offsets without records, so that a log has no gaps."""
    covered = _AFTER_CRC.pack(0, last_offset - base_offset, -1, -1, -1, -1, -1, 0)
    length = HEADER_SIZE - PREFIX_SIZE
    return _BEFORE_ATTRIBUTES.pack(base_offset, length, leader_epoch, MAGIC, crc32c(covered)) + covered


MAX_FILLER_SPAN = 2**31 - 1
"""Offsets that one empty batch can stand for: its last offset delta is an int32."""


def decode_records(batch: Buffer, position: int = 0) -> list[BatchRecord]:
    """The records of one whole batch. Raises `BatchError` for damage."""
    header = read_header(batch, position)
    end = position + header.length
    if end > len(batch):
        raise BatchError(f"a record batch of {header.length} bytes, and {len(batch) - position} are left")
    body = decompress(header.codec, bytes(memoryview(batch)[position + HEADER_SIZE : end]))
    records = []
    at = 0
    try:
        for _ in range(header.record_count):
            record, at = _read_record(body, at, header)
            records.append(record)
    except IndexError:
        raise BatchError(f"the records of the batch at offset {header.base_offset} end too early") from None
    except ValueError as error:
        raise BatchError(f"{error} in the records of the batch at offset {header.base_offset}") from None
    if at != len(body):
        raise BatchError(
            f"{len(body) - at} bytes are left behind the records of the batch at offset {header.base_offset}"
        )
    return records


NONE, GZIP, SNAPPY, LZ4, ZSTD = CODECS
OFFSETS_CODECS = (NONE, GZIP, ZSTD)
"""Those in which the coordinator writes its own batches (docs/adr/0027)."""


def compress(codec: int, body: bytes, level: int | None = None) -> bytes:
    """The records of a batch in one of `CODECS`; Kafka's default level is that of the compression."""
    if codec == GZIP:
        import zlib

        packer = zlib.compressobj(-1 if level is None else level, wbits=31)
        return packer.compress(body) + packer.flush()
    if codec in (SNAPPY, LZ4):
        from keylane.wire.packing import lz4, snappy

        return snappy(body) if codec == SNAPPY else lz4(body, level)
    if codec == ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(3 if level is None else level).compress(body)
    assert codec == NONE, codec
    return body


def decompress(codec: int, body: bytes) -> bytes:
    """The records of a batch. Raises `BatchError` for damage, and `UnsupportedCodecError` for an unknown codec."""
    return body if codec == NONE else b"".join(unpacked(codec, body))


def unpacked(codec: int, body: bytes, limit: int = MAX_DECODED_BYTES) -> Iterator[bytes]:
    """The same in pieces. More than `limit` bytes are an error as soon as they are more."""
    if codec == NONE:
        yield body
        return
    if codec not in CODECS:
        raise UnsupportedCodecError(f"compression {codec} is not known")
    left = limit
    try:
        for piece in _unpack(codec, body, limit):
            left -= len(piece)
            if left < 0:
                raise BatchError(f"{CODECS[codec]} records unpack to more than {limit} bytes")
            yield piece
    except BatchError:
        raise
    except Exception as error:
        raise BatchError(f"{CODECS[codec]} records cannot be unpacked: {error}") from error


def _unpack(codec: int, body: bytes, limit: int) -> Iterator[bytes]:
    from keylane.wire import packing

    if codec == SNAPPY:
        return packing.unpack_snappy(body, limit)
    return {GZIP: packing.unpack_gzip, LZ4: packing.unpack_lz4, ZSTD: packing.unpack_zstd}[codec](body)


def _append_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # zigzag of -1
        return
    out += varint(len(value))
    out += value


def _append_record(out: bytearray, offset_delta: int, record: NewRecord) -> None:
    body = bytearray(1)  # the record's attributes: none are defined
    body += varint(record.timestamp_delta_ms)
    body += varint(offset_delta)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    body += varint(len(record.headers))
    for name, value in record.headers:
        _append_bytes(body, name)
        _append_bytes(body, value)
    out += varint(len(body))
    out += body


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size == -1:
        return None, at
    if size < -1 or at + size > len(data):
        raise BatchError(f"a field of {size} bytes in a record, and {len(data) - at} are left")
    return data[at : at + size], at + size


def _read_record(data: bytes, at: int, header: BatchHeader) -> tuple[BatchRecord, int]:
    size, at = read_varint(data, at)
    end = at + size
    at += 1  # attributes
    timestamp_delta, at = read_varint(data, at)
    offset_delta, at = read_varint(data, at)
    key, at = _read_bytes(data, at)
    value, at = _read_bytes(data, at)
    count, at = read_varint(data, at)
    headers = []
    for _ in range(count):
        name, at = _read_bytes(data, at)
        if name is None:
            raise BatchError("a record header without a name")
        content, at = _read_bytes(data, at)
        headers.append((name, content))
    if at != end:
        raise BatchError(f"a record that says {size} bytes and holds {size + at - end}")
    timestamp = (
        header.max_timestamp if header.attributes & TIMESTAMP_TYPE_MASK else header.base_timestamp + timestamp_delta
    )
    return BatchRecord(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), at
