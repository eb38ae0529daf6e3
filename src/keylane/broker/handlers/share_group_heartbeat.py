"""ShareGroupHeartbeat (76), version 1: a member of a share group joins, is there, or leaves, and learns what it reads
(KIP-932). Answered when what it changes is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.broker.handlers.consumer_group_heartbeat import response
from keylane.coordinator.share_groups.protocol import HeartbeatRequest
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 76
MIN_VERSION = 1
MAX_VERSION = 1
LACKS = "nothing"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("share_group_heartbeat", header.api_version)
    answer = await node.coordinator.share_heartbeat(
        HeartbeatRequest(
            request.group_id,
            request.member_id,
            request.member_epoch,
            header.client_id or "",
            f"/{header.client_host}",
            request.rack_id,
            request.subscribed_topic_names,
        )
    )
    return response(module, module.ShareGroupHeartbeatResponse, answer)
