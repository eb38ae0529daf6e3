"""The bytes of a snapshot: the image of the journal before one of its segments, purely.

A snapshot is a 36-byte header and then chunks, each with its own checksum:

    crc32c u32 | payload length u32 | kind u32 | offsets partition i32 | payload

The first chunk says where each offsets partition, then `__transaction_state` and `__share_group_state`, ended; then
come offsets of open transactions; then committed offsets as columns, chunk by chunk for one offsets partition after the
other; then all other records, by key; then recent tombstones; and the last chunk counts
what there must have been. A snapshot is renamed into place when it is whole, so whatever does not hold in it is damage.

It is *fuzzy*: it is written while commits go on, so it may hold some of what came after its segment began. Replaying
that segment then sets the same keys again, in order, and ends in the same state. docs/storage-format.md has the layout.
"""

from __future__ import annotations

import struct
import sys
from array import array
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from keylane.coordinator.formats import (
    OffsetKey,
    OffsetValue,
    RecordFormatError,
    decode_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from keylane.coordinator.journal.headers import HEADER_SIZE, SNAPSHOT, JournalDamagedError, check_header
from keylane.coordinator.journal.image import Kept, Tombstones
from keylane.coordinator.offsets.rows import Columns
from keylane.coordinator.offsets.store import TopicOffsets
from keylane.coordinator.offsets.transactional import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Sized

    from keylane.coordinator.journal.image import Image
    from keylane.coordinator.offsets.store import OneOffset
    from keylane.coordinator.offsets.transactional import Owner
    from keylane.storage.filesystem import AppendFile

ENDS, OFFSETS, KEPT, TOMBSTONES, END, TRANSACTIONAL = range(1, 7)
"""Kinds of chunks."""
ALL_PARTITIONS = -1
CHUNK_BYTES = 256 * 1024
"""A chunk is closed when its payload has this size or more: some milliseconds of encoding."""

_CHUNK = struct.Struct(">IIIi")
_COVERED = struct.Struct(">IIi")
CHUNK_HEAD_SIZE = _CHUNK.size
_U32 = struct.Struct(">I")
_SECTION = struct.Struct(">HHII")
_ONE_ROW = struct.Struct("<iqqiq")
"""The columns of a section with one offset."""
_BESIDE = struct.Struct(">iqH")
_KEPT = struct.Struct(">iqqII")
_BATCH = struct.Struct(">iqI")
_WAITING = struct.Struct(">iqqII")
_COUNTS = struct.Struct(">QQ")


class Chunk(NamedTuple):
    path: str
    position: int
    kind: int
    partition: int
    payload: bytes


def encode_chunk(kind: int, partition: int, payload: bytes) -> bytes:
    covered = _COVERED.pack(len(payload), kind, partition)
    return b"".join((_U32.pack(crc32c(payload, crc32c(covered))), covered, payload))


def encode_ends(ends: Sequence[int]) -> bytes:
    """Where each offsets partition ended: the offset of the first record behind the snapshot."""
    return encode_chunk(ENDS, ALL_PARTITIONS, struct.pack(f">{len(ends)}q", *ends))


def encode_end(entries: int, chunks: int) -> bytes:
    return encode_chunk(END, ALL_PARTITIONS, _COUNTS.pack(entries, chunks))


def encode_section(group: str, topic: str, offsets: TopicOffsets) -> bytes:
    """The committed offsets of one group in one topic."""
    columns, beside = offsets
    group_bytes, topic_bytes = group.encode(), topic.encode()
    count = len(columns.partitions)
    parts = [_SECTION.pack(len(group_bytes), len(topic_bytes), count, len(beside)), group_bytes, topic_bytes]
    parts += map(_little_endian, columns)
    for partition, (metadata, expires) in beside.items():
        text = metadata.encode()
        parts += (_BESIDE.pack(partition, expires, len(text)), text)
    return b"".join(parts)


def encode_one(group: str, one: OneOffset) -> bytes:
    """The same as a section of one offset, without columns."""
    topic, partition, offset, leader_epoch, timestamp_ms, log_offset = one
    group_bytes, topic_bytes = group.encode(), topic.encode()
    head = _SECTION.pack(len(group_bytes), len(topic_bytes), 1, 0)
    row = _ONE_ROW.pack(partition, offset, timestamp_ms, leader_epoch, log_offset)
    return b"".join((head, group_bytes, topic_bytes, row))


def encode_kept(partition: int, key: bytes, kept: Kept) -> bytes:
    return _KEPT.pack(partition, kept.offset, kept.timestamp_ms, len(key), len(kept.value)) + key + kept.value


def encode_waiting(owner: Owner, key: OffsetKey, waiting: Waiting) -> bytes:
    """An offset of an open transaction."""
    partition, producer_id = owner
    key_bytes, value = encode_offset_key(*key), encode_offset_value(OffsetValue(*waiting.value))
    head = _WAITING.pack(partition, producer_id, waiting.log_offset, len(key_bytes), len(value))
    return head + key_bytes + value


def encode_tombstones(tombstones: Tombstones) -> bytes:
    partition, timestamp_ms, batch = tombstones
    return _BATCH.pack(partition, timestamp_ms, len(batch)) + batch


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def read_chunks(
    file: AppendFile,
    *,
    number: int,
    partitions: int,
    skip: Callable[[JournalDamagedError], None] | None = None,
) -> Iterator[Chunk]:
    """Every chunk, checked. Raises `JournalDamagedError`, also when the last chunk is missing or more follows.

    With `skip`, a chunk whose checksum does not hold is left out, and `skip` is told.
    """
    check_header(file.read(0, HEADER_SIZE), file.path, SNAPSHOT, number=number, partitions=partitions)
    position = HEADER_SIZE
    count = 0
    while True:
        head = file.read(position, _CHUNK.size)
        if len(head) < _CHUNK.size:
            raise JournalDamagedError(file.path, position, f"{len(head)} bytes where the head of a chunk is due")
        crc, length, kind, partition = _CHUNK.unpack(head)
        if length > file.size - position - _CHUNK.size:
            raise JournalDamagedError(
                file.path, position, f"a chunk of {length} bytes, and {file.size - position - _CHUNK.size} are left"
            )
        payload = file.read(position + _CHUNK.size, length)
        if crc32c(payload, crc32c(head[4:])) != crc:
            damage = JournalDamagedError(file.path, position, "the checksum of a chunk does not hold")
            if skip is None:
                raise damage
            skip(damage)
            position += _CHUNK.size + length
            count += 1
            continue
        chunk = Chunk(file.path, position, kind, partition, payload)
        position += _CHUNK.size + length
        if kind == END:
            if position != file.size:
                raise JournalDamagedError(file.path, position, f"{file.size - position} bytes follow the last chunk")
            if _COUNTS.unpack(payload)[1] != count:
                raise JournalDamagedError(file.path, chunk.position, f"{count} chunks, and it counts other ones")
            yield chunk
            return
        count += 1
        yield chunk


def payload_at(file: AppendFile, position: int, length: int) -> bytes:
    """The payload of a chunk that was found before, checked again: what is made of it gets checksums of its own.

    Raises `JournalDamagedError`.
    """
    chunk = file.read(position, CHUNK_HEAD_SIZE + length)
    if len(chunk) < CHUNK_HEAD_SIZE or crc32c(chunk[_U32.size :]) != _U32.unpack_from(chunk)[0]:
        raise JournalDamagedError(file.path, position, "the checksum of a chunk does not hold")
    return chunk[CHUNK_HEAD_SIZE:]


@contextmanager
def _refused_as_damage(chunk: Chunk) -> Iterator[None]:
    """Whatever a chunk holds whose checksum holds: what this release would not have written is damage."""
    try:
        yield
    except Exception as error:
        raise JournalDamagedError(chunk.path, chunk.position, str(error) or type(error).__name__) from error


def load_chunk(chunk: Chunk, image: Image) -> None:
    """Put what a chunk holds into the image. Raises `JournalDamagedError`."""
    with _refused_as_damage(chunk):
        if chunk.kind == OFFSETS:
            for group, topic, kept_offsets in sections(chunk.payload):
                image.store.restore(group, topic, kept_offsets)
        elif chunk.kind == KEPT:
            for partition, key, kept in kept_records(chunk.payload):
                image.kept[partition, key] = kept
        elif chunk.kind == TRANSACTIONAL:
            for row in waiting_offsets(chunk.payload):
                image.transactional.put(*row)
        elif chunk.kind == TOMBSTONES:
            image.tombstones += tombstone_batches(chunk.payload)


def decode_ends(chunk: Chunk) -> list[int]:
    """Raises `JournalDamagedError`."""
    with _refused_as_damage(chunk):
        return list(struct.unpack(f">{len(chunk.payload) // 8}q", chunk.payload))


def decode_entries(chunk: Chunk) -> int:
    """Committed offsets in the snapshot, from its last chunk. Raises `JournalDamagedError`."""
    with _refused_as_damage(chunk):
        entries: int = _COUNTS.unpack(chunk.payload)[0]
    return entries


def _end_of(data: Sized, at: int, size: int) -> int:
    """Where so many bytes end. Raises `ValueError` where there are fewer: a slice would be silently shorter."""
    if size > len(data) - at:
        raise ValueError(f"{size} bytes are due {at} bytes into a chunk's payload, and {len(data) - at} are left")
    return at + size


def sections(payload: bytes) -> Iterator[tuple[str, str, OneOffset | TopicOffsets]]:
    """Group, topic and offsets of each section of a chunk."""
    data = memoryview(payload)
    at = 0
    while at < len(data):
        group_size, topic_size, count, beside_count = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        begin, at = at, _end_of(data, at, group_size)
        group = str(data[begin:at], "utf-8")
        begin, at = at, _end_of(data, at, topic_size)
        topic = str(data[begin:at], "utf-8")
        if count == 1 and not beside_count:
            partition, offset, timestamp_ms, leader_epoch, log_offset = _ONE_ROW.unpack_from(data, at)
            at += _ONE_ROW.size
            yield group, topic, (topic, partition, offset, leader_epoch, timestamp_ms, log_offset)
            continue
        columns = Columns(array("i"), array("q"), array("q"), array("i"), array("q"))
        for column in columns:
            begin, at = at, _end_of(data, at, count * column.itemsize)
            column.frombytes(data[begin:at])
            if sys.byteorder == "big":
                column.byteswap()
        beside: dict[int, tuple[str, int]] = {}
        for _ in range(beside_count):
            partition, expires, size = _BESIDE.unpack_from(data, at)
            at += _BESIDE.size
            begin, at = at, _end_of(data, at, size)
            beside[partition] = (str(data[begin:at], "utf-8"), expires)
        yield group, topic, TopicOffsets(columns, beside)


def kept_records(payload: bytes) -> Iterator[tuple[int, bytes, Kept]]:
    """Offsets partition, key and record of each record of a chunk."""
    at = 0
    while at < len(payload):
        partition, offset, timestamp_ms, key_size, value_size = _KEPT.unpack_from(payload, at)
        at += _KEPT.size
        begin, at = at, _end_of(payload, at, key_size)
        key = payload[begin:at]
        begin, at = at, _end_of(payload, at, value_size)
        yield partition, key, Kept(offset, timestamp_ms, payload[begin:at])


def waiting_offsets(payload: bytes) -> Iterator[tuple[Owner, OffsetKey, Waiting]]:
    """The offsets of open transactions in a chunk. Raises `RecordFormatError`."""
    at = 0
    while at < len(payload):
        partition, producer_id, log_offset, key_size, value_size = _WAITING.unpack_from(payload, at)
        at += _WAITING.size
        begin, at = at, _end_of(payload, at, key_size)
        key = decode_key(payload[begin:at])
        if not isinstance(key, OffsetKey):
            raise RecordFormatError("an offset of a transaction that has no offset's key")
        begin, at = at, _end_of(payload, at, value_size)
        yield (partition, producer_id), key, Waiting(log_offset, decode_offset_value(payload[begin:at]))


def tombstone_batches(payload: bytes) -> Iterator[Tombstones]:
    """The batches of a chunk."""
    at = 0
    while at < len(payload):
        partition, timestamp_ms, size = _BATCH.unpack_from(payload, at)
        at += _BATCH.size
        begin, at = at, _end_of(payload, at, size)
        yield Tombstones(partition, timestamp_ms, payload[begin:at])
