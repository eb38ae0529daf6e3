"""LeaveGroup (13), versions 0-5: members leave, or an administrator removes static ones.

v3: many members at once, by member id or by group instance id (KIP-345); v4: flexible; v5: reason.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.coordinator.groups.protocol import Leaver
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 13
MIN_VERSION = 0
MAX_VERSION = 5
LACKS = "nothing"

MANY_MEMBERS_VERSION = 3
MEMBERS_AT_ONCE = 1_000
"""A step, in a millisecond; more leave as by several requests."""


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    module = response_module("leave_group", version)
    if version < MANY_MEMBERS_VERSION:
        error, left = await node.coordinator.leave(request.group_id, [Leaver(request.member_id, None)])
        return _response(module, left[0].error if left else error, ())
    members: list[Any] = []
    async for start in in_slices(range(0, len(request.members) or 1, MEMBERS_AT_ONCE)):
        leavers = [
            Leaver(member.member_id, member.group_instance_id)
            for member in request.members[start : start + MEMBERS_AT_ONCE]
        ]
        error, left = await node.coordinator.leave(request.group_id, leavers)
        members += [
            module.MemberResponse(
                member_id=member.member_id, group_instance_id=member.instance_id, error_code=ErrorCode(member.error)
            )
            async for member in in_slices(left)
        ]
        if error != codes.NONE:
            break
    return _response(module, error, members)


def _response(module: Any, error: int, members: Sequence[Any]) -> Any:
    return entity(
        module.LeaveGroupResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(error),
        members=tuple(members),
    )
