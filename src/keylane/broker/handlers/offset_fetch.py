"""OffsetFetch (9), versions 1-10: the committed offsets of a group.

v2: null topics mean all of the group, and an error for the whole; v5: leader epoch; v6: flexible; v7: require_stable
(an offset that an open transaction may change is UNSTABLE_OFFSET_COMMIT); v8: many groups; v9: member id and epoch
(KIP-848); v10: topics by id (KIP-516), where one that no topic has is UNKNOWN_TOPIC_ID and comes last.
A known partition without a commit has offset -1 and no error; an unknown one has -1 and UNKNOWN_TOPIC_OR_PARTITION.

Requests and responses are read and written by hand, as columns. A request that comes again is not even decoded
(`SHORT_WAY`).
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from uuid import UUID

from keylane.broker.dispatch import ROWS_AT_ONCE, Later, ShortWay, after, failure_of, in_pieces, prepared
from keylane.broker.topics import NO_TOPIC_ID
from keylane.coordinator.offset_service import FetchedTopic, nothing_fetched
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.columns import FEW_ROWS, as_array, read_column, write_rows
from keylane.wire.primitives import (
    EMPTY_TAGS,
    MAX_ITEMS,
    FieldReader,
    ItemCount,
    array_length,
    compact_array_length,
    compact_string,
    int16,
    int32,
    string,
)
from keylane.wire.versions import request_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keylane.broker.dispatch import Preparation, RequestHeader, Steps
    from keylane.broker.node import Node
    from keylane.storage.shared_sync import Round
    from keylane.wire.versions import RequestSchema

API_KEY = 9
MIN_VERSION = 1
MAX_VERSION = 10
LACKS = "nothing"

FIRST_NULL_TOPICS_VERSION = 2
GROUP_ERROR_VERSION = 2
THROTTLE_VERSION = 3
EPOCH_VERSION = 5
FLEXIBLE_VERSION = 6
REQUIRE_STABLE_VERSION = 7
MANY_GROUPS_VERSION = 8
MEMBER_EPOCH_VERSION = 9
TOPIC_ID_VERSION = 10
NO_MEMBER = (None, -1)

T = TypeVar("T")
NONE_REFUSED: Mapping[str, int] = {}


@functools.cache
def schema(version: int) -> RequestSchema:
    """kio's, with a decoder of our own."""
    flags = request_schema("offset_fetch", version)
    return flags._replace(
        read=lambda frame, position, max_items=MAX_ITEMS: (decode(version, frame, position, max_items), 0)
    )


def begin(request: Sequence[OffsetFetch], header: RequestHeader, node: Node) -> Any:
    return _confirmed(request, node, lambda refused: _begin_confirmed(request, header.api_version, node, refused))


def _begin_confirmed(
    request: Sequence[OffsetFetch], version: int, node: Node, refused: Mapping[str, int]
) -> list[bytes] | Preparation:
    """At once, or in slices where much is asked for: of a commit that is made meanwhile it may tell a part. Each slice
    is encoded and forgotten: all at once would take long to free."""
    if len(request) == 1 and sum(1 + len(partitions) for _, partitions in request[0].topics or ()) <= ROWS_AT_ONCE:
        return _answer(request, version, node, refused)
    parts = [_head(version, len(request))]

    def fetch_each() -> Steps:
        for asked in request:
            count, error, rows = 0, codes.NONE, []
            for topics in (None,) if asked.topics is None else in_pieces(asked.topics):
                piece = _fetch(asked._replace(topics=topics), version, node, refused)
                count, error = count + len(piece.topics), error or piece.error
                rows.append(_encode_topics(version, piece))
                yield None
            parts.extend((_group_head(version, asked.group, count), *rows, _group_end(version, error)))
        parts.append(_end(version))

    found: list[bytes] | Preparation = prepared(fetch_each(), lambda: parts)
    return found


def _confirmed(request: Sequence[OffsetFetch], node: Node, answer: Callable[[Mapping[str, int]], T]) -> T | Later:
    """What `answer` gives, once it is sure that nobody else has changed what it tells. It is told of groups for which
    that failed, with error codes."""
    if not node.coordinator.must_confirm:
        return answer(NONE_REFUSED)
    refused: dict[str, int] = {}
    waits: dict[str, Round] = {}
    for asked in request:
        try:
            confirmed = node.coordinator.confirm(asked.group)
        except StorageError as error:
            refused[asked.group] = error.code
        else:
            if confirmed is not None:
                waits[asked.group] = confirmed
    if not waits:
        return answer(refused)

    def finish() -> T:
        failed = {group: code for group, one in waits.items() if (code := failure_of(one))}
        return answer(refused | failed)

    found: T | Later = after(list(waits.values()), finish)
    return found


def _answer(request: Sequence[OffsetFetch], version: int, node: Node, refused: Mapping[str, int]) -> list[bytes]:
    return encode(version, [_fetch(asked, version, node, refused) for asked in request])


def _fetch(asked: OffsetFetch, version: int, node: Node, refused: Mapping[str, int]) -> FetchedGroup:
    if version >= TOPIC_ID_VERSION:
        return _fetch_by_id(asked, node, refused)
    group, topics, require_stable, member = asked
    names = cast("Sequence[tuple[str, Sequence[int]]] | None", topics)
    found = refused.get(group) or node.coordinator.fetch(group, names, require_stable=require_stable, member=member)
    if not isinstance(found, int):
        return FetchedGroup(group, codes.NONE, found)
    # A version that cannot name the error once names it at every partition.
    named = names or () if version < GROUP_ERROR_VERSION else ()
    rows = [nothing_fetched(topic, ones, found) for topic, ones in named]
    return FetchedGroup(group, found, rows)


def _fetch_by_id(asked: OffsetFetch, node: Node, refused: Mapping[str, int]) -> FetchedGroup:
    group, topics, require_stable, member = asked
    ids: list[UUID] = []
    names: list[tuple[str, Sequence[int]]] | None = None
    unknown: list[tuple[UUID, Sequence[int]]] = []
    if topics is not None:
        names = []
        for topic_id, partitions in topics:
            assert isinstance(topic_id, UUID)
            name = node.topic_name(topic_id)
            if name is None:
                unknown.append((topic_id, partitions))
            else:
                ids.append(topic_id)
                names.append((name, partitions))
    found = refused.get(group) or node.coordinator.fetch(group, names, require_stable=require_stable, member=member)
    if isinstance(found, int):
        return FetchedGroup(group, found, ())
    if names is None:
        ids = [node.topic_id(topic) or NO_TOPIC_ID for topic, *_ in found]
    rows = [*found, *(nothing_fetched("", ones, codes.UNKNOWN_TOPIC_ID) for _, ones in unknown)]
    return FetchedGroup(group, codes.NONE, rows, [*ids, *(topic_id for topic_id, _ in unknown)])


# --- the request ---


class OffsetFetch(NamedTuple):
    """One group of a request."""

    group: str
    topics: Sequence[tuple[str | UUID, Sequence[int]]] | None
    """Names, or ids from version 10 on; None for all that the group has."""
    require_stable: bool
    """Of the whole request: offsets that an open transaction may change are refused (KIP-447)."""
    member: tuple[str | None, int] = NO_MEMBER
    """Who asks, and its epoch (KIP-848)."""


def decode(version: int, data: bytes, at: int, max_items: int = MAX_ITEMS) -> list[OffsetFetch]:
    """The groups of the request's body, which begins at `at`. Raises `ValueError` and `TooManyItemsError`.

    In version 1, which has no null, no topic at all means every one.
    """
    reader = FieldReader(data, at, is_flexible=version >= FLEXIBLE_VERSION, count=ItemCount(max_items))
    if version >= MANY_GROUPS_VERSION:
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
    member = (reader.nullable_string(), reader.int32()) if version >= MEMBER_EPOCH_VERSION else NO_MEMBER
    topics = _read_topics(reader, version)
    reader.skip_tags()
    return OffsetFetch(group, topics, require_stable=False, member=member)


def _read_topics(reader: FieldReader, version: int) -> Sequence[tuple[str | UUID, Sequence[int]]] | None:
    if version >= FIRST_NULL_TOPICS_VERSION:
        before = reader.at
        if reader.count() == -1:
            return None
        reader.at = before
    topics: list[tuple[str | UUID, Sequence[int]]] = []
    for _ in reader.items():
        topic = reader.uuid() if version >= TOPIC_ID_VERSION else reader.string()
        count = len(reader.items())
        if 4 * count > len(reader.data) - reader.at:
            raise ValueError(f"{count} partitions in {len(reader.data) - reader.at} bytes")
        partitions = read_column(reader.data, reader.at, 4, count, "i")
        reader.at += 4 * count
        reader.skip_tags()
        topics.append((topic, partitions))
    return topics or (None if version < FIRST_NULL_TOPICS_VERSION else [])


# --- the response ---


class FetchedGroup(NamedTuple):
    group: str
    error: int
    topics: Sequence[FetchedTopic]
    ids: Sequence[UUID] = ()
    """Theirs, from version 10 on."""


_ROW_WITHOUT_EPOCH = struct.pack(">iqhh", 0, 0, 0, 0)
"""Partition, offset, no metadata, no error."""
_ROW = struct.pack(">iqihh", 0, 0, 0, 0, 0)
_FLEXIBLE_ROW = struct.pack(">iqibhb", 0, 0, 0, 1, 0, 0)
"""The length of an empty compact string is 1; and no tagged fields."""
_OFFSET = struct.Struct(">iq")


def encode(version: int, groups: Sequence[FetchedGroup]) -> list[bytes]:
    """The response's body, in parts; of one group before version 8.

    Version 1 has no place for the group's error: it must stand at each partition.
    """
    parts = [_head(version, len(groups))]
    for group in groups:
        rows = _encode_topics(version, group)
        parts += (_group_head(version, group.group, len(group.topics)), rows, _group_end(version, group.error))
    return [*parts, _end(version)]


def _head(version: int, group_count: int) -> bytes:
    head = int32(0) if version >= THROTTLE_VERSION else b""
    return head + compact_array_length(group_count) if version >= MANY_GROUPS_VERSION else head


def _group_head(version: int, group: str, topic_count: int) -> bytes:
    head = compact_string(group) if version >= MANY_GROUPS_VERSION else b""
    return head + (compact_array_length if version >= FLEXIBLE_VERSION else array_length)(topic_count)


def _group_end(version: int, error: int) -> bytes:
    end = int16(error) if version >= GROUP_ERROR_VERSION else b""
    return end + EMPTY_TAGS if version >= MANY_GROUPS_VERSION else end


def _end(version: int) -> bytes:
    return EMPTY_TAGS if version >= FLEXIBLE_VERSION else b""


def _encode_topics(version: int, group: FetchedGroup) -> bytes:
    parts: list[bytes] = []
    for at, topic in enumerate(group.topics):
        _append_fetched(parts, version, topic, group.ids[at] if group.ids else topic.topic)
    return b"".join(parts)


def _append_fetched(parts: list[bytes], version: int, fetched: FetchedTopic, named: str | UUID) -> None:
    is_flexible = version >= FLEXIBLE_VERSION
    _, (partitions, offsets, epochs, metadata), errors = fetched
    count = len(partitions)
    parts.append(named.bytes if isinstance(named, UUID) else (compact_string if is_flexible else string)(named))
    parts.append((compact_array_length if is_flexible else array_length)(count))
    if metadata is not None or count < FEW_ROWS:
        _append_each(parts, version, fetched)
    else:
        row = _FLEXIBLE_ROW if is_flexible else _ROW if version >= EPOCH_VERSION else _ROW_WITHOUT_EPOCH
        columns = {0: as_array("i", partitions), 4: as_array("q", offsets)}
        if version >= EPOCH_VERSION:
            columns[12] = as_array("i", epochs)
        if errors is not None:
            columns[len(row) - (3 if is_flexible else 2)] = as_array("h", errors)
        parts.append(write_rows(row, count, columns))
    if is_flexible:
        parts.append(EMPTY_TAGS)


def _append_each(parts: list[bytes], version: int, fetched: FetchedTopic) -> None:
    is_flexible = version >= FLEXIBLE_VERSION
    write_string = compact_string if is_flexible else string
    _, (partitions, offsets, epochs, texts), errors = fetched
    metadata = texts or ("",) * len(partitions)
    for row, (partition, offset, text) in enumerate(zip(partitions, offsets, metadata, strict=True)):
        parts.append(_OFFSET.pack(partition, offset))
        if version >= EPOCH_VERSION:
            parts.append(int32(epochs[row]))
        parts.append(write_string(text))
        parts.append(int16(0 if errors is None else errors[row]))
        if is_flexible:
            parts.append(EMPTY_TAGS)


# --- the short way ---

MAX_KNOWN_BYTES = 8_192
"""A request for 2,000 partitions."""
_OFFSET_AND_EPOCH_SIZE = 12
_TAIL_SIZE = 9
"""Of an answer for one partition, from version 8 on: no metadata, error, and the group's error and tagged fields."""


class _One(NamedTuple):
    """A fetch of one partition, and its answer up to the offset and from behind the leader epoch on."""

    group: str
    topic: str
    topic_id: UUID | None
    """In place of the name."""
    partition: int
    answer_size: bytes
    answer_head: bytes
    answer_tail: bytes


class _Known(NamedTuple):
    version: int
    request: Sequence[OffsetFetch]
    one: _One | None


def _key(frame: bytes) -> bytes | None:
    """Every byte behind the correlation id."""
    return frame[8:] if len(frame) <= MAX_KNOWN_BYTES else None


def _know(frame: bytes, request: Sequence[OffsetFetch], node: Node) -> _Known:  # noqa: ARG001
    return _Known(frame[3], request, _one(frame[3], request))


def _one(version: int, request: Sequence[OffsetFetch]) -> _One | None:
    if version < MANY_GROUPS_VERSION or len(request) != 1:
        return None
    group, topics, _, member = request[0]
    if member != NO_MEMBER or topics is None or len(topics) != 1 or len(topics[0][1]) != 1:
        return None
    topic, partitions = topics[0]
    topic_id = topic if isinstance(topic, UUID) else None
    row, ids = nothing_fetched(str(topic), partitions), () if topic_id is None else (topic_id,)
    answer = EMPTY_TAGS + b"".join(encode(version, [FetchedGroup(group, codes.NONE, [row], ids)]))
    head, tail = answer[: -_OFFSET_AND_EPOCH_SIZE - _TAIL_SIZE], answer[-_TAIL_SIZE:]
    return _One(group, str(topic), topic_id, partitions[0], int32(len(answer) + 4), head, tail)


def _answer_known(known: _Known, frame: bytes, node: Node) -> bytes | Later:
    if not node.coordinator.must_confirm:
        return _tell_known(known, frame, node)
    return _confirmed(known.request, node, lambda refused: _tell_known(known, frame, node, refused))


def _tell_known(known: _Known, frame: bytes, node: Node, refused: Mapping[str, int] = NONE_REFUSED) -> bytes:
    version, request, one = known
    if one is not None and not refused:
        group, topic, topic_id, partition, size, head, tail = one
        name = topic if topic_id is None else node.topic_name(topic_id)
        found = None if name is None else node.coordinator.fetch_known(group, name, partition)
        if found is not None:
            return b"".join((size, frame[4:8], head, found, tail))
    parts = _answer(request, version, node, refused)
    if version >= FLEXIBLE_VERSION:
        parts.insert(0, EMPTY_TAGS)
    body = b"".join(parts)
    return b"".join((int32(len(body) + 4), frame[4:8], body))


SHORT_WAY = ShortWay(begin, _key, _know, _answer_known)
