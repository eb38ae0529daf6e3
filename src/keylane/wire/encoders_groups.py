"""Hand-written encoders of the hot group responses: OffsetCommit, OffsetFetch, Heartbeat.

They take columns, one for each field of all partitions of a topic, and write them as rows without a step for each
partition, unless there is metadata. Each layout is tested against kio's own readers.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from keylane.wire.columns import FEW_ROWS, as_array, write_rows
from keylane.wire.encoders import (
    EMPTY_TAGS,
    array_length,
    compact_array_length,
    compact_string,
    int16,
    int32,
    string,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMIT_FLEXIBLE_VERSION = 8
FETCH_FLEXIBLE_VERSION = 6
FETCH_MANY_GROUPS_VERSION = 8
HEARTBEAT_FLEXIBLE_VERSION = 4

NO_THROTTLE = int32(0)


class CommittedTopic(NamedTuple):
    """The outcome of a commit in one topic."""

    topic: str
    partitions: Sequence[int]
    errors: Sequence[int] | None
    """One code a partition; None when all is well."""


class FetchedOffsets(NamedTuple):
    """Committed offsets of one topic."""

    topic: str
    partitions: Sequence[int]
    offsets: Sequence[int]
    leader_epochs: Sequence[int]
    metadata: Sequence[str] | None
    """None when every one is empty."""
    errors: Sequence[int] | None
    """One code a partition; None when all is well."""


class FetchedGroup(NamedTuple):
    group: str
    error: int
    topics: Sequence[FetchedOffsets]


@lru_cache(maxsize=16_384)
def encode_one_commit(version: int, topic: str, partition: int) -> bytes:
    """The body of an OffsetCommit response for one partition and no error: the same for every commit of it."""
    return b"".join(encode_offset_commit(version, [CommittedTopic(topic, (partition,), None)]))


def encode_offset_commit(version: int, topics: Sequence[CommittedTopic]) -> list[bytes]:
    """The body of an OffsetCommit response, versions 2 to 9."""
    is_flexible = version >= COMMIT_FLEXIBLE_VERSION
    write_length = compact_array_length if is_flexible else array_length
    write_string = compact_string if is_flexible else string
    tags = EMPTY_TAGS if is_flexible else b""
    parts = [NO_THROTTLE] if version >= 3 else []
    parts.append(write_length(len(topics)))
    for topic, partitions, errors in topics:
        columns = {0: as_array("i", partitions)}
        if errors is not None:
            columns[4] = as_array("h", errors)
        rows = write_rows(bytes(6) + tags, len(partitions), columns)
        parts += (write_string(topic), write_length(len(partitions)), rows, tags)
    parts.append(tags)
    return parts


def encode_offset_fetch(version: int, groups: Sequence[FetchedGroup]) -> list[bytes]:
    """The body of an OffsetFetch response, versions 1 to 9; one group before version 8.

    Version 1 has no place for the group's error: it must stand at each partition.
    """
    is_flexible = version >= FETCH_FLEXIBLE_VERSION
    parts = [NO_THROTTLE] if version >= 3 else []
    if version >= FETCH_MANY_GROUPS_VERSION:
        parts.append(compact_array_length(len(groups)))
    for group in groups:
        if version >= FETCH_MANY_GROUPS_VERSION:
            parts.append(compact_string(group.group))
        parts.append((compact_array_length if is_flexible else array_length)(len(group.topics)))
        for topic in group.topics:
            _append_fetched(parts, version, topic)
        if version >= 2:
            parts.append(int16(group.error))
        if version >= FETCH_MANY_GROUPS_VERSION:
            parts.append(EMPTY_TAGS)
    if is_flexible:
        parts.append(EMPTY_TAGS)
    return parts


def _append_fetched(parts: list[bytes], version: int, fetched: FetchedOffsets) -> None:
    is_flexible = version >= FETCH_FLEXIBLE_VERSION
    count = len(fetched.partitions)
    parts.append((compact_string if is_flexible else string)(fetched.topic))
    parts.append((compact_array_length if is_flexible else array_length)(count))
    if fetched.metadata is not None or count < FEW_ROWS:
        _append_each(parts, version, fetched)
    else:
        row = _FLEXIBLE_ROW if is_flexible else _ROW if version >= EPOCH_VERSION else _ROW_WITHOUT_EPOCH
        columns = {0: as_array("i", fetched.partitions), 4: as_array("q", fetched.offsets)}
        if version >= EPOCH_VERSION:
            columns[12] = as_array("i", fetched.leader_epochs)
        if fetched.errors is not None:
            columns[len(row) - (3 if is_flexible else 2)] = as_array("h", fetched.errors)
        parts.append(write_rows(row, count, columns))
    if is_flexible:
        parts.append(EMPTY_TAGS)


EPOCH_VERSION = 5
_ROW_WITHOUT_EPOCH = struct.pack(">iqhh", 0, 0, 0, 0)
"""Partition, offset, no metadata, no error."""
_ROW = struct.pack(">iqihh", 0, 0, 0, 0, 0)
_FLEXIBLE_ROW = struct.pack(">iqibhb", 0, 0, 0, 1, 0, 0)
"""The length of an empty compact string is 1; and no tagged fields."""
_OFFSET = struct.Struct(">iq")


def _append_each(parts: list[bytes], version: int, fetched: FetchedOffsets) -> None:
    is_flexible = version >= FETCH_FLEXIBLE_VERSION
    write_string = compact_string if is_flexible else string
    metadata = fetched.metadata or ("",) * len(fetched.partitions)
    for row, (partition, offset, text) in enumerate(zip(fetched.partitions, fetched.offsets, metadata, strict=True)):
        parts.append(_OFFSET.pack(partition, offset))
        if version >= EPOCH_VERSION:
            parts.append(int32(fetched.leader_epochs[row]))
        parts.append(write_string(text))
        parts.append(int16(0 if fetched.errors is None else fetched.errors[row]))
        if is_flexible:
            parts.append(EMPTY_TAGS)


def encode_heartbeat(version: int, error: int) -> bytes:
    """The body of a Heartbeat response, versions 0 to 4."""
    body = int16(error) if version == 0 else NO_THROTTLE + int16(error)
    return body + EMPTY_TAGS if version >= HEARTBEAT_FLEXIBLE_VERSION else body
