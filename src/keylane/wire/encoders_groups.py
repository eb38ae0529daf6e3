"""Hand-written encoders of the hot group responses: OffsetCommit, OffsetFetch, Heartbeat.

They take columns: one list a field, for all partitions of a topic. A topic with many partitions is packed in a few
calls of `struct` with one long format. Each layout is tested against kio's own readers.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

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

MAX_RUN = 256
"""Partitions in one `pack`: enough to make its cost vanish, and it bounds the size of a cached format."""


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


@lru_cache(maxsize=128)
def _rows_format(row: str, count: int) -> struct.Struct:
    return struct.Struct(">" + row * count)


def _pack_rows(parts: list[bytes], row: str, columns: Sequence[Sequence[int] | int]) -> None:
    """Rows of a fixed format; a column is one number a row, or one number for all of them."""
    total = len(columns[0])  # type: ignore[arg-type]  # the first column is never a constant
    width = len(columns)
    for start in range(0, total, MAX_RUN):
        end = min(total, start + MAX_RUN)
        fields = [0] * (width * (end - start))
        for at, column in enumerate(columns):
            if not isinstance(column, int):
                fields[at::width] = column[start:end]
            elif column:
                fields[at::width] = [column] * (end - start)
        parts.append(_rows_format(row, end - start).pack(*fields))


@lru_cache(maxsize=16_384)
def encode_one_commit(version: int, topic: str, partition: int) -> bytes:
    """The body of an OffsetCommit response for one partition and no error: the same for every commit of it."""
    return b"".join(encode_offset_commit(version, [CommittedTopic(topic, (partition,), None)]))


def encode_offset_commit(version: int, topics: Sequence[CommittedTopic]) -> list[bytes]:
    """The body of an OffsetCommit response, versions 2 to 9."""
    is_flexible = version >= COMMIT_FLEXIBLE_VERSION
    write_length = compact_array_length if is_flexible else array_length
    write_string = compact_string if is_flexible else string
    parts = [NO_THROTTLE] if version >= 3 else []
    parts.append(write_length(len(topics)))
    for topic, partitions, errors in topics:
        parts.append(write_string(topic))
        parts.append(write_length(len(partitions)))
        if is_flexible:
            _pack_rows(parts, "ihb", (partitions, errors or 0, 0))
            parts.append(EMPTY_TAGS)
        else:
            _pack_rows(parts, "ih", (partitions, errors or 0))
    if is_flexible:
        parts.append(EMPTY_TAGS)
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


EMPTY_COMPACT_STRING = 1
"""A compact string's length plus one."""


def _append_fetched(parts: list[bytes], version: int, fetched: FetchedOffsets) -> None:
    is_flexible = version >= FETCH_FLEXIBLE_VERSION
    partitions = fetched.partitions
    parts.append((compact_string if is_flexible else string)(fetched.topic))
    parts.append((compact_array_length if is_flexible else array_length)(len(partitions)))
    errors = fetched.errors or 0
    if fetched.metadata is not None:
        _append_each(parts, version, fetched)
    elif is_flexible:
        columns = (partitions, fetched.offsets, fetched.leader_epochs, EMPTY_COMPACT_STRING, errors, 0)
        _pack_rows(parts, "iqibhb", columns)
    elif version >= 5:
        _pack_rows(parts, "iqihh", (partitions, fetched.offsets, fetched.leader_epochs, 0, errors))
    else:
        _pack_rows(parts, "iqhh", (partitions, fetched.offsets, 0, errors))
    if is_flexible:
        parts.append(EMPTY_TAGS)


_OFFSET = struct.Struct(">iq")


def _append_each(parts: list[bytes], version: int, fetched: FetchedOffsets) -> None:
    is_flexible = version >= FETCH_FLEXIBLE_VERSION
    write_string = compact_string if is_flexible else string
    assert fetched.metadata is not None
    for row, (partition, offset, text) in enumerate(
        zip(fetched.partitions, fetched.offsets, fetched.metadata, strict=True)
    ):
        parts.append(_OFFSET.pack(partition, offset))
        if version >= 5:
            parts.append(int32(fetched.leader_epochs[row]))
        parts.append(write_string(text))
        parts.append(int16(0 if fetched.errors is None else fetched.errors[row]))
        if is_flexible:
            parts.append(EMPTY_TAGS)


def encode_heartbeat(version: int, error: int) -> bytes:
    """The body of a Heartbeat response, versions 0 to 4."""
    body = int16(error) if version == 0 else NO_THROTTLE + int16(error)
    return body + EMPTY_TAGS if version >= HEARTBEAT_FLEXIBLE_VERSION else body
