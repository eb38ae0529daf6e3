"""Keys and values of `__consumer_offsets`, in Apache Kafka's own formats (4.x: the coordinator record schemas).

A key opens with its type: 0 or 1 a committed offset (group, topic, partition), 2 the metadata of a group. A value opens
with its version; no value is a tombstone. What is written here: offset keys of type 1 with values of version 3 (version
1 when the commit carries its own expiry, as Kafka does), and group values of version 3. All older ones are read, and
the newer, flexible version 4 too; its topic id is skipped, since topics are known by name here.

Sources: `OffsetCommitKey/Value.json` and `GroupMetadataKey/Value.json` of Apache Kafka's group coordinator.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from keylane.errors import DataFolderError
from keylane.wire.primitives import FieldError, FieldReader

NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1

TRANSACTION_STATE = -1
"""The partition number of `__transaction_state` in the journal; those of `__consumer_offsets` are 0 and up."""

OFFSET_KEY_VERSION = 1
OFFSET_VALUE_VERSION = 3
EXPIRING_OFFSET_VALUE_VERSION = 1
GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3
MAX_VALUE_VERSION = 4
FIRST_FLEXIBLE_VERSION = 4

MAX_STRING_BYTES = 32_767
"""A string's length is an int16."""

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
    reader.is_flexible = version >= FIRST_FLEXIBLE_VERSION
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
