"""OffsetCommit (8), versions 2-9: store a member's offsets, all or nothing, durably.

v2-4: retention time, which is honoured; v6: leader epoch; v7: static members; v8: flexible; v9: GROUP_ID_NOT_FOUND. A
partition that is unknown, or whose metadata is too large, is refused alone; the others are committed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from keylane.broker.dispatch import Later
from keylane.coordinator.formats.commit_batch import TopicCommit
from keylane.coordinator.offset_service import CommitRequest
from keylane.wire import codes
from keylane.wire.encoders_groups import (
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
    from keylane.coordinator.offset_service import CommitResult
    from keylane.wire.requests import OffsetCommit
    from keylane.wire.versions import RequestSchema

API_KEY = 8
MIN_VERSION = 2
MAX_VERSION = 9
LACKS = "member epochs (KIP-848)"


@functools.cache
def schema(version: int) -> RequestSchema:
    """kio's, with a decoder of our own."""
    flags = request_schema("offset_commit", version)
    return flags._replace(read=lambda frame, position: (decode_offset_commit(version, frame, position), 0))


def commit_request(request: OffsetCommit, version: int) -> CommitRequest:
    """What the coordinator is asked for."""
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
    wanted = commit_request(request, version)
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
