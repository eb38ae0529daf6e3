"""ConsumerGroupHeartbeat (68), versions 0-1: a member joins, is there, or leaves, and learns what it has (KIP-848).

v1: a regular expression for topics, and members make their ids themselves. Answered when what it changes is durable.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.coordinator.consumer_groups.protocol import HeartbeatRequest
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable
    from types import ModuleType

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.consumer_groups.protocol import HeartbeatAnswer
    from keylane.coordinator.share_groups.protocol import HeartbeatAnswer as ShareHeartbeatAnswer
    from keylane.wire.versions import Entity

API_KEY = 68
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "nothing"

OWN_ID_VERSION = 1
_MILLISECOND = datetime.timedelta(milliseconds=1)


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("consumer_group_heartbeat", header.api_version)
    owned: dict[uuid.UUID, frozenset[int]] | None = None
    if request.topic_partitions is not None:
        owned = {
            row.topic_id: frozenset(row.partitions)
            async for row in in_slices(request.topic_partitions)
            if row.topic_id is not None
        }
    answer = await node.coordinator.consumer_heartbeat(
        HeartbeatRequest(
            request.group_id,
            request.member_id,
            request.member_epoch,
            header.client_id or "",
            f"/{header.client_host}",
            request.instance_id,
            request.rack_id,
            request.rebalance_timeout // _MILLISECOND,
            request.subscribed_topic_names,
            getattr(request, "subscribed_topic_regex", None),
            request.server_assignor,
            owned,
            makes_own_id=header.api_version >= OWN_ID_VERSION,
        )
    )
    return response(module, module.ConsumerGroupHeartbeatResponse, answer)


def response(
    module: ModuleType, response_of: Callable[..., Entity], answer: HeartbeatAnswer | ShareHeartbeatAnswer
) -> Entity:
    """What a member is told, whichever kind its group is of."""
    assignment = None
    if answer.assignment is not None:
        given = tuple(
            module.TopicPartitions(topic_id=topic, partitions=tuple(sorted(ones)))
            for topic, ones in answer.assignment.items()
        )
        assignment = module.Assignment(topic_partitions=given)
    return response_of(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(answer.error),
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval=answer.interval_ms * _MILLISECOND,
        assignment=assignment,
    )
