"""DescribeGroups (15), versions 0-6: a group's state, protocol and members.

v3: authorized operations; v4: group instance ids; v5: flexible; v6: a group that is not known is an error (KIP-1043),
and before it is Dead, without one.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.authorized_operations import NOT_ASKED, ON_GROUPS
from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 15
MIN_VERSION = 0
MAX_VERSION = 6
NOT_FOUND_VERSION = 6
"""The first in which an unknown group is an error."""
LACKS = "nothing"
HAS_LARGE_ANSWERS = True


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("describe_groups", header.api_version)
    operations = ON_GROUPS if getattr(request, "include_authorized_operations", False) else NOT_ASKED
    tells = header.api_version >= NOT_FOUND_VERSION
    groups = [_describe(group, node, module, operations, tells=tells) async for group in in_slices(request.groups)]
    return entity(module.DescribeGroupsResponse, throttle_time=datetime.timedelta(0), groups=tuple(groups))


def _describe(group_id: str, node: Node, module: Any, operations: int, *, tells: bool) -> Any:
    """Of a group that is not known `tells` says whether that is an error."""
    error, group = node.coordinator.describe(group_id)
    is_known = error == codes.NONE
    is_absent = tells and is_known and group.absent is not None
    if is_absent:
        error = codes.GROUP_ID_NOT_FOUND
    members = tuple(
        entity(
            module.DescribedGroupMember,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in group.members
    )
    return entity(
        module.DescribedGroup,
        error_code=ErrorCode(error),
        error_message=group.absent if is_absent else None,
        group_id=group_id,
        group_state=group.state if is_known else "",
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=members if is_known else (),
        authorized_operations=operations if error == codes.NONE else NOT_ASKED,
    )
