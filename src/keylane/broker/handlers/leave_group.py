"""LeaveGroup (13), versions 0-5: members leave, or an administrator removes static ones.

v3: many members at once, by member id or by group instance id (KIP-345); v4: flexible; v5: reason.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.coordinator.groups.protocol import Leaver
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 13
MIN_VERSION = 0
MAX_VERSION = 5
LACKS = "nothing"

MANY_MEMBERS_VERSION = 3


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    module = response_module("leave_group", version)
    if version >= MANY_MEMBERS_VERSION:
        leavers = [Leaver(member.member_id, member.group_instance_id) async for member in in_slices(request.members)]
    else:
        leavers = [Leaver(request.member_id, None)]
    error, left = await node.coordinator.leave(request.group_id, leavers)
    if version < MANY_MEMBERS_VERSION and left:
        error = left[0].error
    members = []
    if version >= MANY_MEMBERS_VERSION:
        members = [
            module.MemberResponse(
                member_id=member.member_id, group_instance_id=member.instance_id, error_code=ErrorCode(member.error)
            )
            async for member in in_slices(left)
        ]
    return entity(
        module.LeaveGroupResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(error),
        members=tuple(members),
    )
