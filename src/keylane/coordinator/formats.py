"""The bytes of `__consumer_offsets`, purely, in Apache Kafka's own formats (4.x: the coordinator record schemas): keys,
values, and a commit as the records of one batch.

A key opens with its type: 0 or 1 a committed offset (group, topic, partition), 2 the metadata of a group. A value opens
with its version; no value is a tombstone. What is written here: offset keys of type 1 with values of version 3 (version
1 when the commit carries its own expiry, as Kafka does), and group values of version 3. All older ones are read, and
the newer, flexible version 4 too; its topic id is skipped, since topics are known by name here.

A commit of a thousand partitions is a thousand records that differ in four numbers. Held as columns (one array a
field), they become bytes without a step for each (`keylane.wire.columns`); this is what makes large commits cheap. The
bytes are those that `keylane.wire.batches.encode_batch` makes of the same keys and values.

Sources: `OffsetCommitKey/Value.json` and `GroupMetadataKey/Value.json` of Apache Kafka's group coordinator.
"""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from keylane.errors import DataFolderError
from keylane.wire.batches import CRC_START, MAGIC, NONE, PREFIX_SIZE, compress
from keylane.wire.columns import FEW_ROWS, as_array, write_rows
from keylane.wire.primitives import FieldError, FieldReader, read_varint, varint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OFFSETS_TOPIC = "__consumer_offsets"
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1

TRANSACTION_STATE = -1
"""The partition number of `__transaction_state` in the journal; those of `__consumer_offsets` are 0 and up."""
SHARE_STATE = -2
"""That of `__share_group_state`."""


def journal_partitions(offsets_partitions: int) -> tuple[int, ...]:
    """All that the journal has, in the order in which snapshots tell of them."""
    return (*range(offsets_partitions), TRANSACTION_STATE, SHARE_STATE)


OFFSET_KEY_VERSION = 1
OFFSET_VALUE_VERSION = 3
EXPIRING_OFFSET_VALUE_VERSION = 1
GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3
MAX_VALUE_VERSION = 4
FIRST_FLEXIBLE_VERSION = 4

MAX_STRING_BYTES = 32_767
"""A string's length is an int16."""
MAX_NAME_BYTES = MAX_STRING_BYTES - 64
"""Names end up in records, whose strings have an int16 length; the rest is for what a member id adds to its prefix."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_OFFSET_HEAD = struct.Struct(">hqih")
_EXPIRING_HEAD = struct.Struct(">hqh")
_TWO_TIMES = struct.Struct(">qq")


class RecordFormatError(DataFolderError):
    """A key or value that is not one of Kafka's coordinator records."""


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group: str


class UnknownKey(NamedTuple):
    """A key type of newer software (consumer, share or streams groups): kept in the log, not interpreted."""

    version: int


class OffsetValue(NamedTuple):
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP


class MemberValue(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberValue, ...]


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, wrapping as a signed 32-bit integer."""
    units: bytes | tuple[int, ...]
    if text.isascii():
        units = text.encode()
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(data) // 2}H", data)
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=65_536)
def partition_for(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds `group` (Kafka's `Utils.abs`: abs of the smallest int is 0)."""
    value = java_string_hash(group)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


def fits(name: str) -> bool:
    """Whether a record can hold this name."""
    return len(name) <= MAX_NAME_BYTES // 4 or len(name.encode()) <= MAX_NAME_BYTES


def encode_string(text: str) -> bytes:
    """int16 length and UTF-8. Raises `ValueError` for a text that this length cannot say."""
    data = text.encode()
    if len(data) > MAX_STRING_BYTES:
        raise ValueError(f"a string of {len(data)} bytes: at most {MAX_STRING_BYTES} fit a record")
    return _I16.pack(len(data)) + data


def _encode_nullable(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else encode_string(text)


def _encode_bytes(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


@lru_cache(maxsize=65_536)
def offset_key_prefix(group: str, topic: str) -> bytes:
    """An offset key without its last four bytes, the partition."""
    return _I16.pack(OFFSET_KEY_VERSION) + encode_string(group) + encode_string(topic)


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    return offset_key_prefix(group, topic) + _I32.pack(partition)


def encode_group_key(group: str) -> bytes:
    return _I16.pack(GROUP_KEY_VERSION) + encode_string(group)


def encode_offset_value(value: OffsetValue) -> bytes:
    """Version 3; version 1, which has no leader epoch, when the value carries an expiry (only old requests do)."""
    metadata = value.metadata.encode()
    if value.expire_timestamp_ms != NO_TIMESTAMP:
        head = _EXPIRING_HEAD.pack(EXPIRING_OFFSET_VALUE_VERSION, value.offset, len(metadata))
        return head + metadata + _TWO_TIMES.pack(value.commit_timestamp_ms, value.expire_timestamp_ms)
    head = _OFFSET_HEAD.pack(OFFSET_VALUE_VERSION, value.offset, value.leader_epoch, len(metadata))
    return head + metadata + _I64.pack(value.commit_timestamp_ms)


def encode_group_value(value: GroupValue) -> bytes:
    parts = [
        _I16.pack(GROUP_VALUE_VERSION),
        encode_string(value.protocol_type),
        _I32.pack(value.generation),
        _encode_nullable(value.protocol),
        _encode_nullable(value.leader),
        _I64.pack(value.state_timestamp_ms),
        _I32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            encode_string(member.member_id),
            _encode_nullable(member.group_instance_id),
            encode_string(member.client_id),
            encode_string(member.client_host),
            _I32.pack(member.rebalance_timeout_ms),
            _I32.pack(member.session_timeout_ms),
            _encode_bytes(member.subscription),
            _encode_bytes(member.assignment),
        )
    return b"".join(parts)


def is_offset_key(key: bytes) -> bool:
    """Whether a key is that of a committed offset."""
    return key.startswith((b"\0\0", b"\0\1"))


def decode_key(key: bytes) -> OffsetKey | GroupKey | UnknownKey:
    """Raises `RecordFormatError` for bytes that are no coordinator key."""
    reader = FieldReader(key)
    try:
        version = reader.int16()
        if version in (0, OFFSET_KEY_VERSION):
            name: OffsetKey | GroupKey = OffsetKey(reader.string(), reader.string(), reader.int32())
        elif version == GROUP_KEY_VERSION:
            name = GroupKey(reader.string())
        else:
            return UnknownKey(version)
        reader.finish()
    except FieldError as error:
        raise _wrong("key", error) from error
    return name


def decode_offset_key_prefix(prefix: bytes) -> tuple[str, str]:
    """Group and topic of an offset key of type 1 without its partition. Raises `RecordFormatError`."""
    try:
        group_end = 4 + _I16.unpack_from(prefix, 2)[0]
        topic = prefix[group_end + 2 :]
        if group_end >= 4 and len(topic) == _I16.unpack_from(prefix, group_end)[0]:
            return prefix[4:group_end].decode(), topic.decode()
    except (struct.error, UnicodeDecodeError):
        pass
    name = decode_key(prefix + bytes(4))  # says what is wrong with it
    raise RecordFormatError(f"{name} instead of an offset's key")


def decode_offset_value(value: bytes) -> OffsetValue:
    """Versions 0 to 4. Raises `RecordFormatError`."""
    reader = FieldReader(value)
    try:
        version = _read_version(reader)
        offset = reader.int64()
        leader_epoch = reader.int32() if version >= 3 else NO_LEADER_EPOCH
        metadata = reader.string()
        committed = reader.int64()
        expires = reader.int64() if version == 1 else NO_TIMESTAMP
        reader.finish()
    except FieldError as error:
        raise _wrong("offset value", error) from error
    return OffsetValue(offset, leader_epoch, metadata, committed, expires)


def decode_group_value(value: bytes) -> GroupValue:
    """Versions 0 to 4. Raises `RecordFormatError`."""
    reader = FieldReader(value)
    try:
        version = _read_version(reader)
        protocol_type = reader.string()
        generation = reader.int32()
        protocol = reader.nullable_string()
        leader = reader.nullable_string()
        state_timestamp = reader.int64() if version >= 2 else NO_TIMESTAMP
        members = tuple(_read_member(reader, version) for _ in reader.items())
        reader.finish()
    except FieldError as error:
        raise _wrong("group value", error) from error
    return GroupValue(protocol_type, generation, protocol, leader, state_timestamp, members)


def read_topics(subscription: bytes) -> frozenset[str]:
    """The topics of a consumer's subscription, with which it begins in every version (Kafka's consumer protocol).

    Raises `RecordFormatError`.
    """
    reader = FieldReader(subscription)
    try:
        reader.int16()  # the version
        return frozenset(reader.string() for _ in reader.items())
    except FieldError as error:
        raise _wrong("subscription", error) from error


def _wrong(what: str, error: FieldError) -> RecordFormatError:
    return RecordFormatError(f"a coordinator {what}: {error}")


def _read_version(reader: FieldReader) -> int:
    version = reader.int16()
    if not 0 <= version <= MAX_VALUE_VERSION:
        raise FieldError(f"version {version}: 0 to {MAX_VALUE_VERSION} are read")
    reader.go_on(is_flexible=version >= FIRST_FLEXIBLE_VERSION)
    return version


def _read_member(reader: FieldReader, version: int) -> MemberValue:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance = reader.int32() if version >= 1 else -1
    session = reader.int32()
    member = MemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        # Version 0 knew one timeout only; Kafka reads it as both.
        session if rebalance < 0 else rebalance,
        session,
        reader.sized_bytes(),
        reader.sized_bytes(),
    )
    reader.skip_tags()
    return member


# --- commits ---


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
    base_sequence: int = -1


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
    """The record batch that a reader of the offsets partition sees, compressed if that makes it smaller.

    In two pieces: what stands before the bytes that its checksum covers, and these. Without `last_offset_delta` its
    records follow each other without a gap.
    """
    body, count, timestamp, _, attributes, producer_id, epoch, sequence = records
    last = count - 1 if last_offset_delta is None else last_offset_delta
    if codec != NONE:
        packed = compress(codec, body)
        body, codec = (packed, codec) if len(packed) < len(body) else (body, NONE)
    covered = _COVERED.pack(attributes | codec, last, timestamp, timestamp, producer_id, epoch, sequence, count) + body
    length = CRC_START - PREFIX_SIZE + len(covered)
    return _BEFORE_ATTRIBUTES.pack(base_offset, length, 0, MAGIC, crc32c(covered)), covered
