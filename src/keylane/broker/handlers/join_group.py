"""JoinGroup (11), versions 0-9: become a member, and wait for the group's next generation.

v1: rebalance timeout; v4: a new member is told its id first (KIP-394); v5: static members (KIP-345); v6: flexible;
v7: protocol type, and a null protocol where there is none; v8: reason; v9: skip_assignment (KIP-814).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.coordinator.groups.protocol import JoinRequest
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.groups.protocol import JoinAnswer

API_KEY = 11
MIN_VERSION = 0
MAX_VERSION = 9
LACKS = "nothing"
MAY_POLL = True

KNOWN_MEMBER_ID_VERSION = 4
NULLABLE_PROTOCOL_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9
_MILLISECOND = datetime.timedelta(milliseconds=1)


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    session_timeout_ms = request.session_timeout // _MILLISECOND
    join = JoinRequest(
        request.member_id,
        getattr(request, "group_instance_id", None),
        header.client_id or "",
        f"/{header.client_host}",
        session_timeout_ms,
        # Version 0 knew one timeout for both.
        max(request.rebalance_timeout // _MILLISECOND, 0) if version >= 1 else session_timeout_ms,
        request.protocol_type,
        tuple([(protocol.name, protocol.metadata) async for protocol in in_slices(request.protocols)]),
        requires_known_member_id=version >= KNOWN_MEMBER_ID_VERSION,
        can_skip_assignment=version >= SKIP_ASSIGNMENT_VERSION,
    )
    return _response(version, await node.coordinator.join(request.group_id, join))


def _response(version: int, answer: JoinAnswer) -> Any:
    module = response_module("join_group", version)
    members = tuple(
        entity(
            module.JoinGroupResponseMember,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata,
        )
        for member in answer.members
    )
    protocol = answer.protocol
    return entity(
        module.JoinGroupResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(answer.error),
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol if version >= NULLABLE_PROTOCOL_VERSION else protocol or "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=members,
    )
