"""The records of share groups (KIP-932), purely: what they say, and their bytes.

Of the group, in `__consumer_offsets`: member (key version 10), epoch (11), epoch of the target assignment (12), target
of a member (13), what a member has (14), and the topics that the group has a place in (15). Of each partition of such a
topic, in `__share_group_state`: how far the group has got (`encode_state`). Apache Kafka writes changes of that in
records of their own (key version 1) until the next whole one; here each is whole.

The formats are those that Apache Kafka 4.3 writes. Sources: `ShareGroup*Key/Value.json` of its group coordinator,
`ShareSnapshotKey/Value.json` of its share coordinator, and the bytes that 4.3.1 writes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import RecordFormatError, encode_string
from keylane.coordinator.share_groups.partition import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE, Batch, State
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
    import uuid
    from collections.abc import Mapping

Assigned = dict["uuid.UUID", frozenset[int]]
"""Partitions by topic id; no topic without a partition."""

MEMBER, GROUP, TARGET_EPOCH, TARGET, CURRENT, TOPICS = range(10, 16)
"""Key versions, which are the types of the records."""
TYPES = frozenset(range(MEMBER, TOPICS + 1))
_NAMED_TYPES = frozenset({MEMBER, TARGET, CURRENT})
"""Their keys have a member id behind the group's."""
STATE_KEY_VERSION = 0

_NO_LEADER_EPOCH = 0
_STABLE = b"\0"
"""The one state of a member."""
_BATCH = struct.Struct(">qqbh")


class Member(NamedTuple):
    """What a member says of itself."""

    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """Sorted."""


class Group(NamedTuple):
    """The group's epoch: it grows with each change of members, subscriptions or topics."""

    epoch: int
    metadata_hash: int = 0
    """Of the topics that members subscribe to; 0 for none."""


class TargetEpoch(NamedTuple):
    """For which epoch of the group the targets were computed, and when."""

    epoch: int
    timestamp_ms: int = 0


class Target(NamedTuple):
    """What a member is to read."""

    partitions: Assigned


class Current(NamedTuple):
    """What a member was told to read."""

    epoch: int
    previous_epoch: int
    partitions: Assigned


class PlacedTopic(NamedTuple):
    """A topic in which the group has a place."""

    name: str
    partitions: frozenset[int]


class Topics(NamedTuple):
    """All of them."""

    by_id: dict[uuid.UUID, PlacedTopic]


Value = Member | Group | TargetEpoch | Target | Current | Topics


class Record(NamedTuple):
    """A change of a group: this is true from now on, or (None) no longer."""

    kind: int
    name: str
    """A member id; empty for what a group has one of."""
    value: Value | None


class Place(NamedTuple):
    """A partition as a group sees it."""

    group: str
    topic_id: uuid.UUID
    partition: int


def encode_key(group: str, kind: int, name: str = "") -> bytes:
    key = int16(kind) + encode_string(group)
    return key + encode_string(name) if kind in _NAMED_TYPES else key


def encode(group: str, record: Record) -> tuple[bytes, bytes | None]:
    """Key and value."""
    value = None if record.value is None else int16(0) + _encode_value(record.value)
    return encode_key(group, record.kind, record.name), value


def _encode_value(value: Value) -> bytes:
    match value:
        case Member(rack_id, client_id, client_host, topics):
            texts = b"".join(map(compact_string, (rack_id, client_id, client_host)))
            return texts + compact_array_length(len(topics)) + b"".join(map(compact_string, topics)) + EMPTY_TAGS
        case Group(epoch, digest):
            return int32(epoch) + int64(digest) + EMPTY_TAGS
        case TargetEpoch(epoch, timestamp_ms):
            return int32(epoch) + (b"\x01\x00\x08" + int64(timestamp_ms) if timestamp_ms else EMPTY_TAGS)
        case Target(partitions):
            return _encode_assigned(partitions) + EMPTY_TAGS
        case Current(epoch, previous, partitions):
            return int32(epoch) + int32(previous) + _STABLE + _encode_assigned(partitions) + EMPTY_TAGS
        case Topics(by_id):
            rows = [
                topic.bytes + compact_string(name) + _encode_partitions(ones) + EMPTY_TAGS
                for topic, (name, ones) in by_id.items()
            ]
            none = compact_array_length(0)
            return none + compact_array_length(len(rows)) + b"".join(rows) + none + EMPTY_TAGS


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
        raise RecordFormatError(f"a record of a share group (key version {kind}): {error}") from error


def _decode_value(kind: int, data: bytes) -> Value:
    reader = _versioned(data)
    value: Value
    match kind:
        case _ if kind == MEMBER:
            texts = reader.nullable_string(), reader.string(), reader.string()
            value = Member(*texts, tuple(reader.string() for _ in reader.items()))
        case _ if kind == GROUP:
            value = Group(reader.int32(), reader.int64())
        case _ if kind == TARGET_EPOCH:
            epoch = reader.int32()
            tags = {reader.unsigned(): reader.take(reader.unsigned()) for _ in range(reader.unsigned())}
            value = TargetEpoch(epoch, int.from_bytes(tags.get(0, b"")))
        case _ if kind == TARGET:
            value = Target(_decode_assigned(reader))
        case _ if kind == CURRENT:
            epochs = reader.int32(), reader.int32()
            reader.take(len(_STABLE))
            value = Current(*epochs, _decode_assigned(reader))
        case _:
            value = Topics(_decode_topics(reader) | _decode_topics(reader))
            for _ in reader.items():  # those that are being deleted
                reader.uuid()
                reader.string()
                reader.skip_tags()
    if kind != TARGET_EPOCH:
        reader.skip_tags()
    if reader.at != len(data):
        raise FieldError(f"{len(data) - reader.at} bytes left over at byte {reader.at}")
    return value


def encode_state_key(place: Place) -> bytes:
    return int16(STATE_KEY_VERSION) + encode_string(place.group) + place.topic_id.bytes + int32(place.partition)


def decode_state_key(key: bytes) -> Place:
    """Raises `RecordFormatError`."""
    try:
        reader = FieldReader(key)
        version = reader.int16()
        if version != STATE_KEY_VERSION:
            raise FieldError(f"key version {version}: {STATE_KEY_VERSION} is read")
        place = Place(reader.string(), reader.uuid(), reader.int32())
        if reader.at != len(key):
            raise FieldError(f"{len(key) - reader.at} bytes left over at byte {reader.at}")
    except FieldError as error:
        raise RecordFormatError(f"a key of a share group's state: {error}") from error
    return place


def encode_state(state: State, now_ms: int) -> bytes:
    """A whole one. The count of those that are done is left out by Kafka where it is not known, and never here."""
    rows = b"".join(_BATCH.pack(*batch) + EMPTY_TAGS for batch in state.batches)
    return b"".join(
        (
            int16(0),
            int32(0),
            int32(state.epoch),
            int32(_NO_LEADER_EPOCH),
            int64(state.start),
            int64(now_ms),
            int64(now_ms),
            compact_array_length(len(state.batches)),
            rows,
            b"\x01\x00\x04",
            int32(state.done),
        )
    )


def decode_state(data: bytes) -> State:
    """Raises `RecordFormatError`."""
    try:
        reader = _versioned(data)
        reader.int32()
        epoch = reader.int32()
        reader.int32()
        start = reader.int64()
        reader.int64()
        reader.int64()
        batches = []
        for _ in reader.items():
            batch = Batch(*reader.numbers(_BATCH))
            if batch.state not in (AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED):
                raise FieldError(f"state {batch.state} of records: 0, 2, 3 and 4 are known")
            batches.append(batch)
            reader.skip_tags()
        reader.finish()
    except FieldError as error:
        raise RecordFormatError(f"a share group's state: {error}") from error
    return State(start, epoch, tuple(batches))


def _versioned(data: bytes) -> FieldReader:
    reader = FieldReader(data, is_flexible=True)
    version = reader.int16()
    if version != 0:
        raise FieldError(f"version {version}: 0 is read")
    return reader


def _encode_partitions(ones: frozenset[int]) -> bytes:
    return compact_array_length(len(ones)) + b"".join(map(int32, sorted(ones)))


def _encode_assigned(partitions: Mapping[uuid.UUID, frozenset[int]]) -> bytes:
    rows = [topic.bytes + _encode_partitions(ones) + EMPTY_TAGS for topic, ones in partitions.items()]
    return unsigned_varint(len(rows) + 1) + b"".join(rows)


def _decode_assigned(reader: FieldReader) -> Assigned:
    found: Assigned = {}
    for _ in reader.items():
        topic = reader.uuid()
        found[topic] = frozenset(reader.int32() for _ in reader.items())
        reader.skip_tags()
    return found


def _decode_topics(reader: FieldReader) -> dict[uuid.UUID, PlacedTopic]:
    found = {}
    for _ in reader.items():
        topic, name = reader.uuid(), reader.string()
        found[topic] = PlacedTopic(name, frozenset(reader.int32() for _ in reader.items()))
        reader.skip_tags()
    return found
