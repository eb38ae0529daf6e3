"""SyncGroup (14), versions 0-5: the leader gives the assignments of a generation, and every member gets its own.

v3: static members; v4: flexible; v5: protocol type and name (KIP-559).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.coordinator.groups.protocol import SyncAnswer, SyncRequest
from keylane.wire import codes
from keylane.wire.versions import entity, response_type

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 14
MIN_VERSION = 0
MAX_VERSION = 5
LACKS = "nothing"
MAY_POLL = True

PROTOCOL_VERSION = 5
"""From here on a member has to name the group's protocol."""


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    sync = SyncRequest(
        request.member_id,
        getattr(request, "group_instance_id", None),
        request.generation_id,
        getattr(request, "protocol_type", None),
        getattr(request, "protocol_name", None),
        {one.member_id: one.assignment async for one in in_slices(request.assignments)},
    )
    if header.api_version >= PROTOCOL_VERSION and None in (sync.protocol_type, sync.protocol):
        answer = SyncAnswer(codes.INCONSISTENT_GROUP_PROTOCOL)
    else:
        answer = await node.coordinator.sync(request.group_id, sync)
    return entity(
        response_type("sync_group", header.api_version),
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(answer.error),
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )
