"""DescribeQuorum (55), versions 0-2: this broker is its own controller, and the only voter (KIP-595).

v1: times of the replicas; v2: error messages, directory ids, and the voters' listeners, of which there are none. The
topics are kept in one file that is replaced as a whole, so there is no metadata log: its offsets are told as 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from types import ModuleType

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 55
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "a metadata log (its offsets are 0); listeners of controllers"

TOPIC, PARTITION = "__cluster_metadata", 0


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("describe_quorum", header.api_version)
    asked = [(topic.topic_name, [one.partition_index for one in topic.partitions[:2]]) for topic in request.topics[:2]]
    is_known = asked == [(TOPIC, [PARTITION])]
    topics = [
        module.TopicData(
            topic_name=topic.topic_name,
            partitions=tuple(
                [
                    _partition(module, node) if is_known else _unknown(module, one.partition_index)
                    async for one in in_slices(topic.partitions)
                ]
            ),
        )
        async for topic in in_slices(request.topics)
    ]
    nodes = (module.Node(node_id=node.node_id, listeners=()),) if is_known and hasattr(module, "Node") else ()
    return entity(
        module.DescribeQuorumResponse, error_code=ErrorCode.none, error_message="", topics=tuple(topics), nodes=nodes
    )


def _partition(module: ModuleType, node: Node) -> Entity:
    now = node.clock()
    voter = entity(
        module.ReplicaState,
        replica_id=node.node_id,
        replica_directory_id=None,
        log_end_offset=0,
        last_fetch_timestamp=now,
        last_caught_up_timestamp=now,
    )
    return entity(
        module.PartitionData,
        partition_index=PARTITION,
        error_code=ErrorCode.none,
        error_message="",
        leader_id=node.node_id,
        leader_epoch=node.leader_epoch,
        high_watermark=0,
        current_voters=(voter,),
        observers=(),
    )


def _unknown(module: ModuleType, partition: int) -> Entity:
    return entity(
        module.PartitionData,
        partition_index=partition,
        error_code=ErrorCode(codes.UNKNOWN_TOPIC_OR_PARTITION),
        error_message=f"give partition {PARTITION} of {TOPIC}, and no other",
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=(),
        observers=(),
    )
