"""ConditionalCommit (27500), version 0, keylane's own: set offsets to x if, and only if, they are y; all or nothing.

The layout is in `keylane.wire.conditional_commit`. It is listed in ApiVersions, so that a client can tell; a tagged
field of OffsetCommit would be ignored elsewhere, and commit unconditionally.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.broker.dispatch import Later, failure_of
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.offset_service import CommitRequest
from keylane.storage.filesystem import NoRoomError
from keylane.wire import codes
from keylane.wire.conditional_commit import API_KEY as API_KEY
from keylane.wire.conditional_commit import (
    OUTCOME_UNKNOWN,
    VERSION,
    Outcome,
    Request,
    Response,
    encode_response,
    read_request,
)
from keylane.wire.versions import RequestSchema

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.offset_service import ConditionalResult
    from keylane.storage.shared_sync import Round

MIN_VERSION = VERSION
MAX_VERSION = VERSION
LACKS = "nothing"


def schema(version: int) -> RequestSchema:
    assert version == VERSION
    return RequestSchema(read_request, is_flexible=False, has_flexible_response_header=False)


def begin(request: Request, header: RequestHeader, node: Node) -> bytes | Later:  # noqa: ARG001
    commit = CommitRequest(
        request.group_id,
        [
            TopicCommit(
                topic,
                [one.partition for one in rows],
                [one.offset for one in rows],
                [one.leader_epoch for one in rows],
                [one.metadata or "" for one in rows] if any(one.metadata for one in rows) else None,
            )
            for topic, rows in request.topics
        ],
        request.member_id,
        request.group_instance_id,
        request.generation_id,
    )
    expected = [[one.expected for one in rows] for _, rows in request.topics]
    result = node.coordinator.commit_if(commit, expected)
    if isinstance(result, int):
        return encode_response(Response(result))
    if result.durable is None:
        return _answer(request, result)
    return Later(result.durable, lambda: _answer(request, result))


def _answer(request: Request, result: ConditionalResult) -> bytes:
    if failure := failure_of(result.durable):
        is_undone = result.error != codes.NONE or _left_nothing(result.durable)
        return encode_response(Response(failure if is_undone else OUTCOME_UNKNOWN))
    topics = [
        (topic, [Outcome(one.partition, *found) for one, *found in zip(rows, errors, current, strict=True)])
        for (topic, rows), errors, current in zip(request.topics, result.errors, result.current, strict=True)
    ]
    return encode_response(Response(result.error, topics))


def _left_nothing(durable: Round | None) -> bool:
    """Whether a round that failed took back what it had written: where a disk is full, and nowhere else."""
    return durable is not None and isinstance(durable.exception(), NoRoomError)
