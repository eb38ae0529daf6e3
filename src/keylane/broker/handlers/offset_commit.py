"""OffsetCommit (8), versions 2-10: store a member's offsets, all or nothing, durably.

v2-4: retention time, which is honoured; v6: leader epoch; v7: static members; v8: flexible; v9: member epochs
(KIP-848: its members are told UNSUPPORTED_VERSION below), GROUP_ID_NOT_FOUND; v10: topics by id (KIP-516), where one
that no topic has is UNKNOWN_TOPIC_ID. A partition that is unknown, or whose metadata is too large, is refused alone;
the others are committed.

Requests and responses are read and written by hand, as columns: kio makes an object of each partition, and takes 13 µs
for the response of one. A commit of one partition without metadata that comes again with another offset is not even
decoded (`SHORT_WAY`).
"""

from __future__ import annotations

import functools
import struct
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from keylane.broker.dispatch import Later, ShortWay, answer_of, failure_of, prepared
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.offset_service import CommitRequest, CommitResult
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
    int32,
    string,
)
from keylane.wire.versions import request_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader, Steps
    from keylane.broker.node import Node
    from keylane.coordinator.offset_service import KnownCommit
    from keylane.storage.shared_sync import Round
    from keylane.wire.versions import RequestSchema

API_KEY = 8
MIN_VERSION = 2
MAX_VERSION = 10
LACKS = "nothing"

THROTTLE_VERSION = 3
LAST_RETENTION_VERSION = 4
LEADER_EPOCH_VERSION = 6
STATIC_MEMBERS_VERSION = 7
FLEXIBLE_VERSION = 8
GROUP_ID_NOT_FOUND_VERSION = 9
MEMBER_EPOCH_VERSION = 9
TOPIC_ID_VERSION = 10
IDS_AT_ONCE = 1_000


@functools.cache
def schema(version: int) -> RequestSchema:
    """kio's, with a decoder of our own."""
    flags = request_schema("offset_commit", version)
    return flags._replace(
        read=lambda frame, position, max_items=MAX_ITEMS: (decode(version, frame, position, max_items), 0)
    )


def begin(request: CommitRequest | CommitById, header: RequestHeader, node: Node) -> Any:
    if isinstance(request, CommitById):
        return _begin_by_id(request, header.api_version, node)
    version, topics = header.api_version, request.topics
    result = node.coordinator.commit(request)
    if isinstance(result, int):
        is_old = result == codes.GROUP_ID_NOT_FOUND and version < GROUP_ID_NOT_FOUND_VERSION
        return _refuse(version, topics, codes.ILLEGAL_GENERATION if is_old else result)
    if result.durable is None:
        return _answer(version, topics, result)
    return Later(result.durable, lambda: _answer(version, topics, result))


def _answer(version: int, topics: Sequence[TopicCommit], result: CommitResult) -> Any:
    """The answer, when the commit is durable or has failed."""
    if failure := failure_of(result.durable):
        return _refuse(version, topics, failure)
    if len(topics) == 1 and result.errors[0] is None and len(topics[0].partitions) == 1:
        return _encode_one(version, topics[0].topic, topics[0].partitions[0])
    return answer_of(len(topics), lambda: encode(version, _rows(topics, result)))


def _rows(topics: Sequence[TopicCommit], result: CommitResult) -> list[CommittedTopic]:
    return [CommittedTopic(topic[0], topic[1], errors) for topic, errors in zip(topics, result.errors, strict=True)]


def _refuse(version: int, topics: Sequence[TopicCommit], error: int) -> Any:
    return answer_of(
        len(topics),
        lambda: encode(version, [CommittedTopic(topic[0], topic[1], [error] * len(topic[1])) for topic in topics]),
    )


def _begin_by_id(request: CommitById, version: int, node: Node) -> Any:
    """As by Apache Kafka, topics that nobody knows are refused before the group is looked at, and alone."""
    names: list[str | None] = []
    return prepared(_look_up(request.ids, node, names), lambda: _commit_by_id(request, version, node, names))


def _look_up(ids: Sequence[UUID], node: Node, names: list[str | None]) -> Steps:
    """Fills `names`."""
    for start in range(0, len(ids), IDS_AT_ONCE):
        names += [node.topic_name(topic_id) for topic_id in ids[start : start + IDS_AT_ONCE]]
        yield None


def _commit_by_id(request: CommitById, version: int, node: Node, names: Sequence[str | None]) -> Any:
    commit, ids = request
    known = [topic._replace(topic=name) for topic, name in zip(commit.topics, names, strict=True) if name is not None]
    result: int | CommitResult = CommitResult((), None)
    if known:
        result = node.coordinator.commit(commit._replace(topics=known))

    def answer() -> Any:
        return answer_of(len(ids), lambda: _answer_by_id(version, request, names, result))

    durable = None if isinstance(result, int) else result.durable
    return answer() if durable is None else Later(durable, answer)


def _answer_by_id(
    version: int, request: CommitById, names: Sequence[str | None], result: int | CommitResult
) -> list[bytes]:
    """The answer, when the commit is durable or has failed; `result` has the topics with a name."""
    error = result if isinstance(result, int) else failure_of(result.durable)
    errors = iter(() if isinstance(result, int) else result.errors)
    rows = []
    for topic, topic_id, name in zip(request.commit.topics, request.ids, names, strict=True):
        found = next(errors, None) if name is not None else None
        code = codes.UNKNOWN_TOPIC_ID if name is None else error
        rows.append(CommittedTopic(topic_id, topic.partitions, [code] * len(topic.partitions) if code else found))
    return encode(version, rows)


# --- the request ---

_OFFSET_AND_EPOCH = struct.Struct(">qi")
_ROW = struct.Struct(">iqi")
_ROW_WITHOUT_EPOCH = struct.Struct(">iq")
_PARTITION, _OFFSETS, _EPOCHS = 0, 4, 12
"""Where these columns begin in a row."""
_Columns = tuple["Sequence[int]", "Sequence[int]", "Sequence[int]", "Sequence[str] | None"]


class CommitById(NamedTuple):
    """A request that gives topics by their ids: `commit` names none of its topics."""

    commit: CommitRequest
    ids: Sequence[UUID]


def decode(version: int, data: bytes, at: int, max_items: int = MAX_ITEMS) -> CommitRequest | CommitById:
    """The request's body, which begins at `at`. Raises `ValueError` and `TooManyItemsError`."""
    reader = FieldReader(data, at, is_flexible=version >= FLEXIBLE_VERSION, count=ItemCount(max_items))
    group, generation, member_id = reader.string(), reader.int32(), reader.string()
    instance_id = reader.nullable_string() if version >= STATIC_MEMBERS_VERSION else None
    retention_ms = reader.int64() if version <= LAST_RETENTION_VERSION else -1
    has_ids = version >= TOPIC_ID_VERSION
    ids, topics = [], []
    for _ in reader.items():
        if has_ids:
            ids.append(reader.uuid())
        topics.append(
            _read_topic(reader, "" if has_ids else reader.string(), has_epochs=version >= LEADER_EPOCH_VERSION)
        )
    reader.skip_tags()
    has_epochs = version >= MEMBER_EPOCH_VERSION
    commit = CommitRequest(group, topics, member_id, instance_id, generation, retention_ms, has_epochs)
    return CommitById(commit, ids) if has_ids else commit


def _read_topic(reader: FieldReader, topic: str, *, has_epochs: bool) -> TopicCommit:
    count = len(reader.items())
    columns = _read_plain(reader, count, has_epochs=has_epochs) or _read_each(reader, count, has_epochs=has_epochs)
    reader.skip_tags()
    return TopicCommit(topic, *columns)


def _read_plain(reader: FieldReader, count: int, *, has_epochs: bool) -> _Columns | None:
    """All partitions at once, if none has metadata; else None, and nothing is read."""
    data, at = reader.data, reader.at
    width = _ROW.size if has_epochs else _ROW_WITHOUT_EPOCH.size
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
            partition, offset, epoch = reader.numbers(_ROW)
        else:
            partition, offset = reader.numbers(_ROW_WITHOUT_EPOCH)
        partitions.append(partition)
        offsets.append(offset)
        epochs.append(epoch)
        metadata.append(reader.nullable_string() or "")
        reader.skip_tags()
    return partitions, offsets, epochs, metadata if any(metadata) else None


# --- the response ---


class CommittedTopic(NamedTuple):
    """The outcome of a commit in one topic, as the request has it."""

    topic: str | UUID
    partitions: Sequence[int]
    errors: Sequence[int] | None
    """One code a partition; None when all is well."""


def encode(version: int, topics: Sequence[CommittedTopic]) -> list[bytes]:
    """The response's body, in parts."""
    is_flexible = version >= FLEXIBLE_VERSION
    write_length = compact_array_length if is_flexible else array_length
    write_string = compact_string if is_flexible else string
    tags = EMPTY_TAGS if is_flexible else b""
    parts = [int32(0)] if version >= THROTTLE_VERSION else []
    parts.append(write_length(len(topics)))
    for topic, partitions, errors in topics:
        columns = {0: as_array("i", partitions)}
        if errors is not None:
            columns[4] = as_array("h", errors)
        rows = write_rows(bytes(6) + tags, len(partitions), columns)
        named = topic.bytes if isinstance(topic, UUID) else write_string(topic)
        parts += (named, write_length(len(partitions)), rows, tags)
    parts.append(tags)
    return parts


@functools.lru_cache(maxsize=16_384)
def _encode_one(version: int, topic: str | UUID, partition: int, error: int | None = None) -> bytes:
    """The body for one partition: the same for every commit of it."""
    return b"".join(encode(version, [CommittedTopic(topic, (partition,), None if error is None else (error,))]))


# --- the short way ---


class _Tail(NamedTuple):
    """How a commit of one partition without metadata ends, counted from its end: offset, leader epoch, then only
    lengths that are null or zero, and no tagged fields."""

    start: int
    end: int
    ends: frozenset[bytes]


_TAILS = {
    7: _Tail(-14, -2, frozenset({b"\0\0", b"\xff\xff"})),
    8: _Tail(-16, -4, frozenset({b"\0\0\0\0", b"\1\0\0\0"})),
    9: _Tail(-16, -4, frozenset({b"\0\0\0\0", b"\1\0\0\0"})),
    10: _Tail(-16, -4, frozenset({b"\0\0\0\0", b"\1\0\0\0"})),
}


class _Known(NamedTuple):
    """A commit that comes again, and its answer but for the correlation id."""

    version: int
    commit: KnownCommit
    named: str | UUID
    """The topic, as the request has it."""
    answer_head: bytes
    answer_rest: bytes


def _key(frame: bytes) -> bytes | None:
    """All but API, correlation id, offset and leader epoch, if it is a commit of one partition without metadata."""
    tail = _TAILS.get(frame[3])
    if tail is None or frame[tail.end :] not in tail.ends:
        return None
    return frame[8 : tail.start]


def _know(frame: bytes, request: CommitRequest | CommitById, node: Node) -> _Known | None:
    named: str | UUID | None = None
    if isinstance(request, CommitById):
        request, ids = request
        named = ids[0] if len(ids) == 1 else None
        name = node.topic_name(named)
        if name is None:
            return None
        request = request._replace(topics=[request.topics[0]._replace(topic=name)])
    commit = node.coordinator.know(request)
    if commit is None:
        return None
    named = named or commit.topic
    return _Known(frame[3], commit, named, *_whole_answer(frame[3], named, commit.partition))


def _whole_answer(version: int, named: str | UUID, partition: int, error: int | None = None) -> tuple[bytes, bytes]:
    """The frame before the correlation id, and behind it."""
    body = _encode_one(version, named, partition, error)
    rest = EMPTY_TAGS + body if version >= FLEXIBLE_VERSION else body
    return int32(len(rest) + 4), rest


def _begin_known(known: _Known, frame: bytes, node: Node) -> Later | None:
    if isinstance(known.named, UUID) and node.topic_name(known.named) is None:
        return None  # it was deleted, and another topic may have its name
    offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(frame, len(frame) + _TAILS[known.version].start)
    durable = node.coordinator.commit_known(known.commit, offset, leader_epoch)
    return None if durable is None else Later(durable, functools.partial(_answer_known, known, frame[4:8], durable))


def _answer_known(known: _Known, correlation_id: bytes, durable: Round) -> bytes:
    """The answer, when the commit is durable or has failed."""
    failure = failure_of(durable)
    if not failure:
        return known.answer_head + correlation_id + known.answer_rest
    head, rest = _whole_answer(known.version, known.named, known.commit.partition, failure)
    return head + correlation_id + rest


SHORT_WAY = ShortWay(begin, _key, _know, _begin_known)
