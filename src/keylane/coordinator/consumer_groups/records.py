"""The records of consumer groups in `__consumer_offsets` (KIP-848), purely: what they say, and their bytes.

A group is what its records amount to: the last of each key. A change may have the record of a group of the classic
protocol (key version 2): such a group has become a consumer group (None), or this one has become such a group.

The formats are those that Apache Kafka 4.3 writes: group epoch (key version 3), member (5), epoch of the target
assignment (6), target of a member (7), what a member has now (8), resolved regular expression (16). Partition metadata
(4), which it wrote before 4.1, is read and not used.

Sources: `ConsumerGroup*Key/Value.json` of Apache Kafka's group coordinator, and the bytes that 4.3.1 writes; KIP-1251
(assignment epochs), KIP-1263 (time of the assignment).
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import (
    GROUP_KEY_VERSION,
    GroupValue,
    RecordFormatError,
    encode_group_key,
    encode_group_value,
    encode_string,
)
from keylane.wire.primitives import (
    EMPTY_TAGS,
    FieldError,
    FieldReader,
    compact_array_length,
    compact_string,
    int16,
    int32,
    int64,
    unsigned_varint,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Target = dict[uuid.UUID, frozenset[int]]
"""Partitions that a member is to have, by topic id; no topic without a partition."""
Owned = dict[uuid.UUID, dict[int, int]]
"""Partitions that a member has, by topic id, each with the epoch at which it was given."""

GROUP, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, PATTERN = 3, 4, 5, 6, 7, 8, 16
"""Key versions, which are the types of the records."""
CLASSIC_GROUP = GROUP_KEY_VERSION
"""That of a group of the classic protocol."""
TYPES = frozenset({GROUP, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, PATTERN})
_NAMED_TYPES = frozenset({MEMBER, TARGET, CURRENT, PATTERN})
"""Their keys have a name behind the group's: a member id, or the expression."""

NO_CLASSIC_MEMBER = b"\x00"
"""What a member of KIP-848's protocol has in place of a `ClassicMember`."""
_STATE = struct.Struct(">b")
_UUID = struct.Struct(">16s")
STABLE, UNREVOKED, UNRELEASED = range(3)
"""Kafka's MemberState: has what it is to have; is to give partitions back; waits for those that others still have."""


class Group(NamedTuple):
    """The group's epoch: it grows with each change of members, subscriptions or topics."""

    epoch: int
    metadata_hash: int = 0
    """Of the topics that members subscribe to; another one means that they changed. 0 for none."""


class ClassicMember(NamedTuple):
    """What a member says that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata, which is a subscription of the consumer protocol; the first is the one in use."""


class Member(NamedTuple):
    """What a member says of itself."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """Sorted."""
    pattern: str
    """A regular expression for more topics; empty for none."""
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMember | None = None
    """None for a member of KIP-848's protocol."""


class TargetEpoch(NamedTuple):
    """For which epoch of the group the targets were computed, and when."""

    epoch: int
    timestamp_ms: int = 0


class TargetAssignment(NamedTuple):
    """What a member is to have."""

    partitions: Target


class Current(NamedTuple):
    """What a member has, and how far it has come towards its target."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Owned
    revoking: Owned
    """What it was told to give back, and may still use."""


class Pattern(NamedTuple):
    """The topics that a regular expression matched."""

    topics: tuple[str, ...]
    """Sorted."""
    version: int
    timestamp_ms: int


Value = Group | Member | TargetEpoch | TargetAssignment | Current | Pattern | GroupValue


class Record(NamedTuple):
    """A change of a group: this is true from now on, or (None) no longer."""

    kind: int
    name: str
    """A member id or an expression; empty for what a group has one of."""
    value: Value | None


def encode_key(group: str, kind: int, name: str = "") -> bytes:
    key = int16(kind) + encode_string(group)
    return key + encode_string(name) if kind in _NAMED_TYPES else key


def encode_value(value: Value) -> bytes:
    """Version 0 of each."""
    match value:
        case Group(epoch, digest):
            tags = b"\x01\x00\x08" + int64(digest) if digest else EMPTY_TAGS
            return int16(0) + int32(epoch) + tags
        case TargetEpoch(epoch, timestamp):
            tags = b"\x01\x00\x08" + int64(timestamp) if timestamp else EMPTY_TAGS
            return int16(0) + int32(epoch) + tags
        case TargetAssignment(partitions):
            return int16(0) + _encode_target(partitions) + EMPTY_TAGS
        case Current(epoch, previous, state, assigned, revoking):
            head = int16(0) + int32(epoch) + int32(previous) + _STATE.pack(state)
            return b"".join((head, _encode_owned(assigned), _encode_owned(revoking), EMPTY_TAGS))
        case Pattern(topics, version, timestamp):
            return b"".join((int16(0), _encode_strings(topics), int64(version), int64(timestamp), EMPTY_TAGS))
        case Member():
            return b"".join(
                (
                    int16(0),
                    compact_string(value.instance_id),
                    compact_string(value.rack_id),
                    compact_string(value.client_id),
                    compact_string(value.client_host),
                    _encode_strings(value.topics),
                    compact_string(value.pattern),
                    int32(value.rebalance_timeout_ms),
                    compact_string(value.assignor),
                    b"\x01\x00" + _encode_classic(value.classic),
                )
            )
        case GroupValue():
            return encode_group_value(value)


def encode(group: str, record: Record) -> tuple[bytes, bytes | None]:
    """Key and value."""
    key = encode_group_key(group) if record.kind == CLASSIC_GROUP else encode_key(group, record.kind, record.name)
    return key, None if record.value is None else encode_value(record.value)


def decode(key: bytes, value: bytes | None) -> tuple[str, Record] | None:
    """The group and the record; None for a key of another type. Raises `RecordFormatError`."""
    if (kind := int.from_bytes(key[:2], "big")) not in TYPES:
        return None
    try:
        reader = FieldReader(key, 2)
        group = reader.string()
        name = reader.string() if kind in _NAMED_TYPES else ""
        reader.finish()
        return group, Record(kind, name, None if value is None else _decode_value(kind, value))
    except FieldError as error:
        raise RecordFormatError(f"a record of a consumer group (key version {kind}): {error}") from error


def _decode_value(kind: int, data: bytes) -> Value | None:
    reader = FieldReader(data, is_flexible=True)
    version = reader.int16()
    if version != 0:
        raise FieldError(f"version {version}: 0 is read")
    value: Value | None
    match kind:
        case _ if kind == GROUP:
            value = Group(reader.int32(), _tagged_int64(reader))
        case _ if kind == TARGET_EPOCH:
            value = TargetEpoch(reader.int32(), _tagged_int64(reader))
        case _ if kind == MEMBER:
            value = _decode_member(reader)
        case _ if kind == TARGET:
            value = TargetAssignment({topic: frozenset(found) for topic, found in _decode_owned(reader).items()})
        case _ if kind == CURRENT:
            head = reader.int32(), reader.int32(), reader.numbers(_STATE)[0]
            value = Current(*head, _decode_owned(reader), _decode_owned(reader))
            if value.state not in (STABLE, UNREVOKED, UNRELEASED):
                raise FieldError(f"state {value.state} of a member: 0 to 2 are known")
        case _ if kind == PATTERN:
            value = Pattern(_decode_strings(reader), reader.int64(), reader.int64())
        case _:
            return None
    if kind not in (GROUP, TARGET_EPOCH, MEMBER):
        reader.skip_tags()
    if reader.at != len(data):
        raise FieldError(f"{len(data) - reader.at} bytes left over at byte {reader.at}")
    return value


def _decode_member(reader: FieldReader) -> Member:
    fields = reader.nullable_string(), reader.nullable_string(), reader.string(), reader.string()
    topics, pattern = _decode_strings(reader), reader.nullable_string() or ""
    member = Member(*fields, topics, pattern, reader.int32(), reader.nullable_string())
    classic = next((data for tag, data in _tags(reader) if tag == 0), NO_CLASSIC_MEMBER)
    return member if classic == NO_CLASSIC_MEMBER else member._replace(classic=_decode_classic(classic))


def _encode_classic(member: ClassicMember | None) -> bytes:
    """The bytes of the tagged field, with their size."""
    if member is None:
        data = NO_CLASSIC_MEMBER
    else:
        rows = [
            compact_string(name) + unsigned_varint(len(metadata) + 1) + metadata + EMPTY_TAGS
            for name, metadata in member.protocols
        ]
        parts = (int32(member.session_timeout_ms), compact_array_length(len(rows)), *rows, EMPTY_TAGS)
        data = b"\x01" + b"".join(parts)
    return unsigned_varint(len(data)) + data


def _decode_classic(data: bytes) -> ClassicMember:
    reader = FieldReader(data, 1, is_flexible=True)
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in reader.items():
        protocols.append((reader.string(), reader.sized_bytes()))
        reader.skip_tags()
    reader.finish()
    return ClassicMember(session_timeout_ms, tuple(protocols))


def _encode_strings(texts: tuple[str, ...]) -> bytes:
    return compact_array_length(len(texts)) + b"".join(map(compact_string, texts))


def _decode_strings(reader: FieldReader) -> tuple[str, ...]:
    return tuple(reader.string() for _ in reader.items())


def _encode_target(partitions: Mapping[uuid.UUID, frozenset[int]]) -> bytes:
    rows = [
        topic.bytes + compact_array_length(len(ones)) + b"".join(map(int32, sorted(ones))) + EMPTY_TAGS
        for topic, ones in partitions.items()
    ]
    return compact_array_length(len(rows)) + b"".join(rows)


def _encode_owned(partitions: Owned) -> bytes:
    rows = []
    for topic, ones in partitions.items():
        epochs = compact_array_length(len(ones)) + b"".join(int32(ones[one]) for one in sorted(ones))
        tags = b"\x01\x00" + unsigned_varint(len(epochs)) + epochs
        rows.append(topic.bytes + compact_array_length(len(ones)) + b"".join(map(int32, sorted(ones))) + tags)
    return compact_array_length(len(rows)) + b"".join(rows)


def _decode_owned(reader: FieldReader) -> Owned:
    """Without epochs, as before 4.3 and in targets, each has 0."""
    found: Owned = {}
    for _ in reader.items():
        topic = uuid.UUID(bytes=reader.numbers(_UUID)[0])  # type: ignore[arg-type]
        ones = [reader.int32() for _ in reader.items()]
        epochs = [0] * len(ones)
        for tag, data in _tags(reader):
            if tag == 0:
                inner = FieldReader(data, is_flexible=True)
                epochs = [inner.int32() for _ in inner.items()]
        if len(epochs) != len(ones):
            raise FieldError(f"{len(epochs)} assignment epochs of {len(ones)} partitions")
        found[topic] = dict(zip(ones, epochs, strict=True))
    return found


def _tags(reader: FieldReader) -> list[tuple[int, bytes]]:
    """Tagged fields: number and bytes."""
    return [(reader.unsigned(), reader.take(reader.unsigned())) for _ in range(reader.unsigned())]


def _tagged_int64(reader: FieldReader) -> int:
    return next((int.from_bytes(data, "big", signed=True) for tag, data in _tags(reader) if tag == 0), 0)
