"""AlterPartitionReassignments (45), versions 0-1: every partition is on this broker, and can be on no other.

To ask for what is so already is no error; there is never a reassignment to cancel. v1: whether another number of
replicas is allowed (KIP-860), which one broker cannot give.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 45
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "nothing"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("alter_partition_reassignments", header.api_version)
    topics = [
        module.ReassignableTopicResponse(
            name=topic.name,
            partitions=tuple(
                [
                    module.ReassignablePartitionResponse(
                        partition_index=one.partition_index, error_code=ErrorCode(code), error_message=message
                    )
                    async for one in in_slices(topic.partitions)
                    for code, message in [_outcome(node, topic.name, one)]
                ]
            ),
        )
        async for topic in in_slices(request.topics)
    ]
    return entity(
        module.AlterPartitionReassignmentsResponse,
        throttle_time=datetime.timedelta(0),
        allow_replication_factor_change=getattr(request, "allow_replication_factor_change", True),
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(topics),
    )


def _outcome(node: Node, topic: str, wanted: Entity) -> tuple[int, str | None]:
    name = f"{topic}-{wanted.partition_index}"
    if not 0 <= wanted.partition_index < (node.partition_count(topic) or 0):
        return codes.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name} does not exist"
    if wanted.replicas is None:
        return codes.NO_REASSIGNMENT_IN_PROGRESS, f"partition {name} is not being reassigned"
    if tuple(wanted.replicas) != (node.node_id,):
        return (
            codes.INVALID_REPLICA_ASSIGNMENT,
            f"partition {name}: replicas {list(wanted.replicas)}: give [{node.node_id}], the only broker",
        )
    return codes.NONE, None
