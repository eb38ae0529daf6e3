"""ShareGroupDescribe (77), version 1: state, epochs and members of share groups (KIP-932)."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.authorized_operations import NOT_ASKED, ON_GROUPS
from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.share_groups.protocol import MemberDescription
    from keylane.wire.versions import Entity

API_KEY = 77
MIN_VERSION = 1
MAX_VERSION = 1
LACKS = "nothing"
HAS_LARGE_ANSWERS = True


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("share_group_describe", header.api_version)
    operations = ON_GROUPS if request.include_authorized_operations else NOT_ASKED
    groups = [_describe(group, node, module, operations) async for group in in_slices(request.group_ids)]
    return module.ShareGroupDescribeResponse(throttle_time=datetime.timedelta(0), groups=tuple(groups))


def _describe(group_id: str, node: Node, module: Entity, operations: int) -> Entity:
    group = node.coordinator.describe_share_group(group_id)
    return module.DescribedGroup(
        error_code=ErrorCode(group.error),
        error_message=group.message,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=tuple(_member(member, node, module) for member in group.members),
        authorized_operations=operations if group.error == codes.NONE else NOT_ASKED,
    )


def _member(member: MemberDescription, node: Node, module: Entity) -> Entity:
    rows = tuple(
        module.TopicPartitions(topic_id=topic, topic_name=node.topics.name_of(topic), partitions=tuple(sorted(ones)))
        for topic, ones in member.assigned.items()
    )
    return module.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        assignment=module.Assignment(topic_partitions=rows),
    )
