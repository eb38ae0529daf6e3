"""OffsetCommit (8), versions 2-9: store a member's offsets, all or nothing, durably.

v2-4: retention time, which is honoured; v6: leader epoch; v7: static members; v8: flexible; v9: GROUP_ID_NOT_FOUND. A
partition that is unknown, or whose metadata is too large, is refused alone; the others are committed.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.broker.dispatch import Later
from keylane.coordinator.commits import TopicCommit
from keylane.coordinator.offset_service import CommitRequest
from keylane.wire import codes
from keylane.wire.encoders_groups import (
    COMMIT_FLEXIBLE_VERSION,
    CommittedTopic,
    encode_offset_commit,
    encode_one_commit,
)
from keylane.wire.requests import decode_offset_commit
from keylane.wire.versions import request_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.commits import KnownCommit
    from keylane.coordinator.offset_service import CommitResult
    from keylane.storage.group_sync import Round
    from keylane.wire.requests import OffsetCommit
    from keylane.wire.versions import RequestSchema

API_KEY = 8
MIN_VERSION = 2
MAX_VERSION = 9
LACKS = "member epochs (KIP-848)"


class _Tail(NamedTuple):
    """How a request for one partition without metadata ends, counted from its end: offset, leader epoch, then only
    lengths that are null or zero, and no tagged fields."""

    start: int
    end: int
    ends: frozenset[bytes]


_TAILS = {
    7: _Tail(-14, -2, frozenset({b"\0\0", b"\xff\xff"})),
    8: _Tail(-16, -4, frozenset({b"\0\0\0\0", b"\1\0\0\0"})),
    9: _Tail(-16, -4, frozenset({b"\0\0\0\0", b"\1\0\0\0"})),
}
_OFFSET_AND_EPOCH = struct.Struct(">qi")


@functools.cache
def schema(version: int) -> RequestSchema:
    """kio's, with a decoder of our own."""
    flags = request_schema("offset_commit", version)
    return flags._replace(read=lambda frame, position: (decode_offset_commit(version, frame, position), 0))


class _Known(NamedTuple):
    """A commit that comes again, and its answer but for the correlation id."""

    commit: KnownCommit
    answer_head: bytes
    answer_rest: bytes


def recognise(frame: bytes, node: Node, *, alone: bool) -> Later | bytes | None:
    """A commit of one partition without metadata, of which all but offset and leader epoch came before. One that comes
    alone does not wait for others to share its sync."""
    tail = _TAILS.get(frame[3])
    if tail is None or frame[tail.end :] not in tail.ends:
        return None
    known: _Known | None = node.known_requests.get(frame[:4] + frame[8 : tail.start])
    if known is None:
        return None
    offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(frame, len(frame) + tail.start)
    if alone and node.coordinator.commit_known_now(known.commit, offset, leader_epoch):
        return known.answer_head + frame[4:8] + known.answer_rest
    durable = node.coordinator.commit_known(known.commit, offset, leader_epoch)
    return None if durable is None else Later(durable, functools.partial(_known_answer, known, frame[4:8], durable))


def remember(frame: bytes, request: OffsetCommit, node: Node) -> None:
    tail = _TAILS.get(frame[3])
    if tail is None or frame[tail.end :] not in tail.ends or len(request.topics) != 1:
        return
    if len(request.topics[0].partitions) != 1:
        return
    commit = node.coordinator.know(_commit_request(request, frame[3]))
    if commit is not None:
        body = encode_one_commit(commit.api_version, commit.topic, commit.partition)
        rest = b"\0" + body if commit.api_version >= COMMIT_FLEXIBLE_VERSION else body
        known = _Known(commit, (len(rest) + 4).to_bytes(4, "big"), rest)
        node.known_requests.remember(frame[:4] + frame[8 : tail.start], known)


def _known_answer(known: _Known, correlation_id: bytes, durable: Round) -> bytes:
    if durable.exception() is None:
        return known.answer_head + correlation_id + known.answer_rest
    commit = known.commit
    row = CommittedTopic(commit.topic, [commit.partition], [codes.KAFKA_STORAGE_ERROR])
    body = b"".join(encode_offset_commit(commit.api_version, [row]))
    rest = b"\0" + body if commit.api_version >= COMMIT_FLEXIBLE_VERSION else body
    return (len(rest) + 4).to_bytes(4, "big") + correlation_id + rest


def _commit_request(request: OffsetCommit, version: int) -> CommitRequest:
    return CommitRequest(
        request.group,
        [TopicCommit(*columns) for columns in request.topics],
        request.member_id,
        request.instance_id,
        request.generation,
        request.retention_ms,
        version,
    )


def begin(request: OffsetCommit, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    wanted = _commit_request(request, version)
    topics = wanted.topics
    result = node.coordinator.commit(wanted)
    if isinstance(result, int):
        return encode_offset_commit(version, _refused(topics, result))
    if result.durable is None:
        return _answer(version, topics, result)
    return Later(result.durable, lambda: _answer(version, topics, result))


def _answer(version: int, topics: Sequence[TopicCommit], result: CommitResult) -> bytes | list[bytes]:
    """The answer, when the commit is durable or has failed."""
    if result.durable is not None and result.durable.exception() is not None:
        return encode_offset_commit(version, _refused(topics, codes.KAFKA_STORAGE_ERROR))
    if len(topics) == 1 and result.errors[0] is None and len(topics[0].partitions) == 1:
        return encode_one_commit(version, topics[0].topic, topics[0].partitions[0])
    rows = [CommittedTopic(topic[0], topic[1], errors) for topic, errors in zip(topics, result.errors, strict=True)]
    return encode_offset_commit(version, rows)


def _refused(topics: Sequence[TopicCommit], error: int) -> list[CommittedTopic]:
    return [CommittedTopic(topic[0], topic[1], [error] * len(topic[1])) for topic in topics]
