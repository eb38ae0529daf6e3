"""ConsumerGroupDescribe (69), versions 0-1: state, epochs and members of consumer groups of KIP-848.

v1: the protocol of each member. A group of the classic protocol is not found here: DescribeGroups has it.
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
    import uuid
    from collections.abc import Iterable, Mapping

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 69
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "nothing"
HAS_LARGE_ANSWERS = True

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("consumer_group_describe", header.api_version)
    operations = ON_GROUPS if getattr(request, "include_authorized_operations", False) else NOT_ASKED
    groups = [_describe(group, node, module, operations) async for group in in_slices(request.group_ids)]
    return module.ConsumerGroupDescribeResponse(throttle_time=datetime.timedelta(0), groups=tuple(groups))


def _describe(group_id: str, node: Node, module: Any, operations: int) -> Any:
    group = node.coordinator.describe_consumer_group(group_id)
    members = tuple(
        entity(
            module.Member,
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.topics,
            subscribed_topic_regex=member.pattern,
            assignment=_assignment(member.assigned, node, module),
            target_assignment=_assignment(member.target, node, module),
            member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
        )
        for member in group.members
    )
    return module.DescribedGroup(
        error_code=ErrorCode(group.error),
        error_message=group.message,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=members,
        authorized_operations=operations if group.error == codes.NONE else NOT_ASKED,
    )


def _assignment(partitions: Mapping[uuid.UUID, Iterable[int]], node: Node, module: Any) -> Any:
    """Without topics that are gone, as by Kafka: they have no name any more."""
    named = ((topic, node.topics.name_of(topic), sorted(ones)) for topic, ones in partitions.items())
    rows = tuple(
        module.TopicPartitions(topic_id=topic, topic_name=name, partitions=tuple(ones))
        for topic, name, ones in named
        if name is not None
    )
    return module.Assignment(topic_partitions=rows)
