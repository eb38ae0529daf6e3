"""One commit as columns, and as the records of one batch.

A commit of a thousand partitions is a thousand records that differ in four numbers. Held as columns (one array a
field), they become bytes without a step for each (`keylane.wire.columns`); this is what makes large commits cheap. The
bytes are those that `keylane.wire.batches.encode_batch` makes of the same keys and values.
"""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from keylane.coordinator.formats.consumer_offsets import (
    NO_TIMESTAMP,
    OFFSET_VALUE_VERSION,
    OffsetValue,
    encode_offset_value,
    offset_key_prefix,
)
from keylane.wire.batches import CRC_START, MAGIC, NONE, PREFIX_SIZE, compress
from keylane.wire.columns import FEW_ROWS, as_array, write_rows
from keylane.wire.primitives import read_varint, varint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class TopicCommit(NamedTuple):
    """What one commit says of one topic: columns of equal length, in the order of the request."""

    topic: str
    partitions: Sequence[int]
    offsets: Sequence[int]
    leader_epochs: Sequence[int]
    metadata: Sequence[str] | None
    """None when every one is empty, the usual case."""


class Records(NamedTuple):
    """The records of one batch to append: all become durable, or none."""

    body: bytes
    record_count: int
    timestamp_ms: int
    pairs: Sequence[tuple[bytes, bytes | None]] = ()
    """Keys and values, but for those of commits: who appends a commit puts it into the store by itself."""
    attributes: int = 0
    """Of the batch: transactional, control."""
    producer_id: int = -1
    producer_epoch: int = -1


CACHED_VARINTS = 8_192
"""Offset deltas and lengths below this are looked up: as many as take at most two bytes."""

_RUN_ENDS = (64, 8_192, 1 << 20, 1 << 62)
"""Offset deltas below these take one, two, three bytes and more."""
_VARINTS = [varint(value) for value in range(CACHED_VARINTS)]
_ONE_BYTE_DELTAS = array("B", [byte for (byte,) in _VARINTS[:64]])
_TWO_BYTE_DELTAS = array("H", [int.from_bytes(data, "big") for data in _VARINTS])
"""Offset deltas as numbers that are written as the bytes of a varint; from 64 on they take two."""

TOMBSTONE = b"\x01"
"""A value of length -1."""

_NO_TIME_DELTA = b"\0\0"
"""The record's attributes (none are defined) and its timestamp delta: all records of a batch share one timestamp."""

_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_VALUE_SIZE = 24
"""An offset value of version 3 without metadata: version, offset, leader epoch, metadata length, timestamp."""
_VALUE_HEAD = _VARINTS[_VALUE_SIZE] + OFFSET_VALUE_VERSION.to_bytes(2, "big")
_ONE = struct.Struct(">qihqb")
"""From the offset to the end of a record without metadata."""


def _varints(first: int, count: int) -> list[bytes]:
    """Numbers that follow each other."""
    end = first + count
    return _VARINTS[first:end] if end <= CACHED_VARINTS else [varint(value) for value in range(first, end)]


def encode_record(delta: int, key: bytes, value: bytes | None) -> bytes:
    """One record of a batch, at `delta` behind the batch's base offset; None is a tombstone."""
    middle = varint(delta) + varint(len(key)) + key
    tail = TOMBSTONE if value is None else varint(len(value)) + value
    return b"".join((varint(len(middle) + len(tail) + 3), _NO_TIME_DELTA, middle, tail, b"\0"))


def encode_records(pairs: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int) -> Records:
    """Any keys and values as the records of one batch."""
    parts = [encode_record(delta, key, value) for delta, (key, value) in enumerate(pairs)]
    return Records(b"".join(parts), len(parts), timestamp_ms, pairs)


def encode_commit(
    group: str, topics: Iterable[TopicCommit], timestamp_ms: int, expire_timestamp_ms: int = NO_TIMESTAMP
) -> Records:
    """The records of one commit, one an offset, all with one commit timestamp."""
    parts: list[bytes] = []
    delta = 0
    for commit in topics:
        if commit.metadata is not None or expire_timestamp_ms != NO_TIMESTAMP:
            prefix = offset_key_prefix(group, commit.topic)
            _encode_each(parts, prefix, delta, commit, timestamp_ms, expire_timestamp_ms)
        elif len(commit.partitions) == 1:
            partition, offset, epoch = commit.partitions[0], commit.offsets[0], commit.leader_epochs[0]
            parts.append(_one_prefix(group, commit.topic, partition, delta))
            parts.append(_ONE.pack(offset, epoch, 0, timestamp_ms, 0))
        else:
            _encode_columns(parts, offset_key_prefix(group, commit.topic), delta, commit, timestamp_ms)
        delta += len(commit.partitions)
    return Records(b"".join(parts), delta, timestamp_ms)


def known_record_head(group: str, topic: str, partition: int) -> bytes:
    """A record without metadata that stands alone in its batch, up to its offset."""
    return _one_prefix(group, topic, partition, 0)


def encode_known(record_head: bytes, offset: int, leader_epoch: int, timestamp_ms: int) -> Records:
    """The records of a commit of one partition without metadata: the bytes that `encode_commit` makes."""
    return Records(record_head + _ONE.pack(offset, leader_epoch, 0, timestamp_ms, 0), 1, timestamp_ms)


def _head_and_key(prefix: bytes, delta_size: int) -> tuple[bytes, bytes]:
    """What stands before and after the offset delta in a record without metadata."""
    key_size = len(prefix) + 4
    key = varint(key_size) + prefix
    size = len(_NO_TIME_DELTA) + delta_size + len(key) + 4 + 1 + _VALUE_SIZE + 1
    return varint(size) + _NO_TIME_DELTA, key


@lru_cache(maxsize=16_384)
def _one_prefix(group: str, topic: str, partition: int, delta: int) -> bytes:
    """A record without metadata up to its offset: the same for every commit of a partition."""
    step = varint(delta)
    head, key = _head_and_key(offset_key_prefix(group, topic), len(step))
    return b"".join((head, step, key, _I32.pack(partition), _VALUE_HEAD))


MAX_RUN = 256
"""Records in one `pack`: enough to make its cost vanish, and it bounds the size of a cached format."""


@lru_cache(maxsize=128)
def _columns_format(head: int, delta: int, key: int, count: int) -> struct.Struct:
    return struct.Struct(">" + f"{head}s{delta}s{key}si{len(_VALUE_HEAD)}sqi11s" * count)


_FIELDS = 8


def run_limit(delta: int) -> int:
    """How many records from `delta` on have offset deltas that take the same number of bytes."""
    return next(end for end in _RUN_ENDS if delta < end) - delta


class Run(NamedTuple):
    """Records of one topic that follow each other in a batch, without metadata."""

    group_and_topic: bytes
    """The key of each of them without its last four bytes."""
    delta: int
    partitions: list[int]
    offsets: list[int]
    leader_epochs: list[int]
    timestamp_ms: int
    end: int
    """Where in the batch the next record begins."""


def decode_run(batch: bytes, at: int, left: int) -> Run | None:
    """What `_encode_columns` made, from the record at `at` on, of which `left` are left; None for any other record.

    Raises `IndexError` for a batch that ends too early.
    """
    _, position = read_varint(batch, at)
    delta, key_at = read_varint(batch, position + 2)
    key_size, position = read_varint(batch, key_at)
    key_end = position + key_size
    size = key_end + len(_VALUE_HEAD) + _ONE.size - at
    count = min(left, run_limit(delta), MAX_RUN, (len(batch) - at) // size)
    if count < 1 or batch[key_end : key_end + len(_VALUE_HEAD)] != _VALUE_HEAD:
        return None
    head = batch[at : key_at - len(varint(delta))]
    key = batch[key_at : key_end - 4]
    fields = _columns_format(len(head), len(varint(delta)), len(key), count).unpack_from(batch, at)
    tail = fields[7]
    if tail[:2] != b"\0\0" or tail[-1] or head[-2:] != _NO_TIME_DELTA:
        return None
    wanted = (head, None, key, None, _VALUE_HEAD, None, None, tail)
    for column, value in enumerate(wanted):
        if value is not None and fields[column : count * _FIELDS : _FIELDS].count(value) < count:
            # The run ends before: up to the first record that differs.
            count = next(row for row in range(count) if fields[column + row * _FIELDS] != value)
    end = count * _FIELDS
    if list(fields[1:end:_FIELDS]) != _varints(delta, count):
        return None
    return Run(
        key[len(varint(key_size)) :],
        delta,
        list(fields[3:end:_FIELDS]),
        list(fields[5:end:_FIELDS]),
        list(fields[6:end:_FIELDS]),
        _I64.unpack_from(tail, 2)[0],
        at + count * size,
    )


def _encode_columns(parts: list[bytes], prefix: bytes, delta: int, commit: TopicCommit, timestamp_ms: int) -> None:
    """Runs of records whose offset deltas take the same number of bytes: those of a run have one size."""
    partitions, offsets = as_array("i", commit.partitions), as_array("q", commit.offsets)
    epochs = as_array("i", commit.leader_epochs)
    value = _VALUE_HEAD + _ONE.pack(0, 0, 0, timestamp_ms, 0)
    start, total = 0, len(partitions)
    while start < total:
        first = delta + start
        end = min(total, start + run_limit(first))
        deltas = _ONE_BYTE_DELTAS if first < len(_ONE_BYTE_DELTAS) else _TWO_BYTE_DELTAS
        if first >= CACHED_VARINTS or end - start < FEW_ROWS:
            rest = TopicCommit(commit.topic, partitions[start:end], offsets[start:end], epochs[start:end], None)
            _encode_each(parts, prefix, first, rest, timestamp_ms, NO_TIMESTAMP)
        else:
            head, key = _head_and_key(prefix, deltas.itemsize)
            key_at = len(head) + deltas.itemsize
            partition_at = key_at + len(key)
            offset_at = partition_at + 4 + len(_VALUE_HEAD)
            columns = {
                len(head): deltas[first : first + end - start],
                partition_at: partitions[start:end],
                offset_at: offsets[start:end],
                offset_at + 8: epochs[start:end],
            }
            row = b"".join((head, bytes(deltas.itemsize), key, bytes(4), value))
            parts.append(write_rows(row, end - start, columns))
        start = end


def _encode_each(
    parts: list[bytes],
    prefix: bytes,
    delta: int,
    commit: TopicCommit,
    timestamp_ms: int,
    expire_timestamp_ms: int,
) -> None:
    metadata = commit.metadata or ("",) * len(commit.partitions)
    rows = zip(commit.partitions, commit.offsets, commit.leader_epochs, metadata, strict=True)
    for step, (partition, offset, epoch, text) in enumerate(rows, delta):
        value = encode_offset_value(OffsetValue(offset, epoch, text, timestamp_ms, expire_timestamp_ms))
        parts.append(encode_record(step, prefix + _I32.pack(partition), value))


_COVERED = struct.Struct(">hiqqqhii")
_BEFORE_ATTRIBUTES = struct.Struct(">qiibI")


def encode_batch(
    records: Records, base_offset: int, last_offset_delta: int | None = None, codec: int = NONE
) -> tuple[bytes, bytes]:
    """The record batch that a reader of the offsets partition sees: without a sequence number, and compressed if that
    makes it smaller.

    In two pieces: what stands before the bytes that its checksum covers, and these. Without `last_offset_delta` its
    records follow each other without a gap.
    """
    body, count, timestamp, _, attributes, producer_id, epoch = records
    last = count - 1 if last_offset_delta is None else last_offset_delta
    if codec != NONE:
        packed = compress(codec, body)
        body, codec = (packed, codec) if len(packed) < len(body) else (body, NONE)
    covered = _COVERED.pack(attributes | codec, last, timestamp, timestamp, producer_id, epoch, -1, count) + body
    length = CRC_START - PREFIX_SIZE + len(covered)
    return _BEFORE_ATTRIBUTES.pack(base_offset, length, 0, MAGIC, crc32c(covered)), covered
