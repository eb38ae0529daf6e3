"""Hand-written decoders of the hot group requests: OffsetCommit and OffsetFetch, into columns.

kio makes an object of each partition; a commit of a thousand partitions is read here column by column, if no partition
of it has metadata. Each layout is tested against kio's own writers.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

from keylane.wire.columns import FEW_ROWS, read_column
from keylane.wire.encoders_groups import COMMIT_FLEXIBLE_VERSION, FETCH_FLEXIBLE_VERSION, FETCH_MANY_GROUPS_VERSION
from keylane.wire.field_reader import FieldReader

if TYPE_CHECKING:
    from collections.abc import Sequence

LEADER_EPOCH_VERSION = 6
STATIC_MEMBERS_VERSION = 7
LAST_RETENTION_VERSION = 4
REQUIRE_STABLE_VERSION = 7
MEMBER_EPOCH_VERSION = 9
FIRST_NULL_TOPICS_VERSION = 2

_OFFSET_AND_EPOCH = struct.Struct(">iqi")
_OFFSET = struct.Struct(">iq")


class CommittedPartitions(NamedTuple):
    """What an OffsetCommit says of one topic, as columns."""

    topic: str
    partitions: Sequence[int]
    offsets: Sequence[int]
    leader_epochs: Sequence[int]
    metadata: Sequence[str] | None
    """None when every one is null or empty."""


class OffsetCommit(NamedTuple):
    group: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int
    """-1 when the request names none."""
    topics: list[CommittedPartitions]


class OffsetFetch(NamedTuple):
    """One group of a request."""

    group: str
    topics: Sequence[tuple[str, Sequence[int]]] | None
    """None for all that the group has."""
    require_stable: bool
    """Of the whole request: offsets that an open transaction may change are refused (KIP-447)."""


def decode_offset_commit(version: int, data: bytes, at: int) -> OffsetCommit:
    """The body of an OffsetCommit request, versions 2 to 9, which begins at `at`. Raises `ValueError`."""
    reader = FieldReader(data, at, is_flexible=version >= COMMIT_FLEXIBLE_VERSION)
    group, generation, member_id = reader.string(), reader.int32(), reader.string()
    instance_id = reader.nullable_string() if version >= STATIC_MEMBERS_VERSION else None
    retention_ms = reader.int64() if version <= LAST_RETENTION_VERSION else -1
    topics = [_read_topic(reader, version) for _ in reader.items()]
    reader.skip_tags()
    return OffsetCommit(group, generation, member_id, instance_id, retention_ms, topics)


def _read_topic(reader: FieldReader, version: int) -> CommittedPartitions:
    topic, count = reader.string(), len(reader.items())
    has_epochs = version >= LEADER_EPOCH_VERSION
    columns = _read_plain(reader, count, has_epochs=has_epochs) or _read_each(reader, count, has_epochs=has_epochs)
    reader.skip_tags()
    return CommittedPartitions(topic, *columns)


_Columns = tuple["Sequence[int]", "Sequence[int]", "Sequence[int]", "Sequence[str] | None"]
_PARTITION, _OFFSETS, _EPOCHS = 0, 4, 12
"""Where these columns begin in a row."""


def _read_plain(reader: FieldReader, count: int, *, has_epochs: bool) -> _Columns | None:
    """All partitions at once, if none has metadata; else None, and nothing is read."""
    data, at = reader.data, reader.at
    width = _OFFSET_AND_EPOCH.size if has_epochs else _OFFSET.size
    size = width + 2
    end = at + count * size
    if count < FEW_ROWS or end > len(data):
        return None
    # A row with metadata or tagged fields makes no difference before it: all rows until there were read as they are.
    if reader.is_flexible:
        if data[at + width + 1 : end : size].strip(b"\0") or max(data[at + width : end : size]) > 1:
            return None
    elif max(read_column(data, at + width, size, count, "h")) > 0:
        return None
    reader.at = end
    return (
        read_column(data, at + _PARTITION, size, count, "i"),
        read_column(data, at + _OFFSETS, size, count, "q"),
        read_column(data, at + _EPOCHS, size, count, "i") if has_epochs else array("i", [-1]) * count,
        None,
    )


def _read_each(reader: FieldReader, count: int, *, has_epochs: bool) -> _Columns:
    partitions, offsets, epochs, metadata = [], [], [], []
    epoch = -1
    for _ in range(count):
        if has_epochs:
            partition, offset, epoch = reader.numbers(_OFFSET_AND_EPOCH)
        else:
            partition, offset = reader.numbers(_OFFSET)
        partitions.append(partition)
        offsets.append(offset)
        epochs.append(epoch)
        metadata.append(reader.nullable_string() or "")
        reader.skip_tags()
    return partitions, offsets, epochs, metadata if any(metadata) else None


def decode_offset_fetch(version: int, data: bytes, at: int) -> list[OffsetFetch]:
    """The body of an OffsetFetch request, versions 1 to 9, which begins at `at`: its groups. Raises `ValueError`.

    In version 1, which has no null, no topic at all means every one.
    """
    reader = FieldReader(data, at, is_flexible=version >= FETCH_FLEXIBLE_VERSION)
    if version >= FETCH_MANY_GROUPS_VERSION:
        groups = [_read_group(reader, version) for _ in reader.items()]
    else:
        groups = [OffsetFetch(reader.string(), _read_topics(reader, version), require_stable=False)]
    if version >= REQUIRE_STABLE_VERSION:
        if data[reader.at]:
            groups = [group._replace(require_stable=True) for group in groups]
        reader.at += 1
    reader.skip_tags()
    return groups


def _read_group(reader: FieldReader, version: int) -> OffsetFetch:
    group = reader.string()
    if version >= MEMBER_EPOCH_VERSION:
        reader.nullable_string()
        reader.int32()
    topics = _read_topics(reader, version)
    reader.skip_tags()
    return OffsetFetch(group, topics, require_stable=False)


def _read_topics(reader: FieldReader, version: int) -> Sequence[tuple[str, Sequence[int]]] | None:
    if version >= FIRST_NULL_TOPICS_VERSION:
        before = reader.at
        if reader.count() == -1:
            return None
        reader.at = before
    topics = []
    for _ in reader.items():
        topic, count = reader.string(), len(reader.items())
        if 4 * count > len(reader.data) - reader.at:
            raise ValueError(f"{count} partitions in {len(reader.data) - reader.at} bytes")
        partitions = read_column(reader.data, reader.at, 4, count, "i")
        reader.at += 4 * count
        reader.skip_tags()
        topics.append((topic, partitions))
    return topics or (None if version < FIRST_NULL_TOPICS_VERSION else [])
