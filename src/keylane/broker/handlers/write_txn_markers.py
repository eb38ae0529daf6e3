"""WriteTxnMarkers (27), versions 1-2: end a producer's transaction in single partitions, whatever its coordinator says.

That is what `kafka-transactions.sh abort` sends for one that hangs. v2: the version of transactions, for brokers among
themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 27
MIN_VERSION = 1
MAX_VERSION = 2
LACKS = "epochs of coordinators: there is one"


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("write_txn_markers", header.api_version)
    markers = [
        module.WritableTxnMarkerResult(
            producer_id=marker.producer_id,
            topics=tuple([await _topic(module, node, marker, topic) async for topic in in_slices(marker.topics)]),
        )
        async for marker in in_slices(request.markers)
    ]
    return module.WriteTxnMarkersResponse(markers=tuple(markers))


async def _topic(module: Any, node: Node, marker: Any, topic: Any) -> Any:
    partitions = [
        module.WritableTxnMarkerPartitionResult(
            partition_index=index, error_code=ErrorCode(await _write(node, marker, topic.name, index))
        )
        async for index in in_slices(topic.partition_indexes)
    ]
    return module.WritableTxnMarkerTopicResult(name=topic.name, partitions=tuple(partitions))


async def _write(node: Node, marker: Any, topic: str, index: int) -> int:
    count = node.partition_count(topic)
    if count is None or not 0 <= index < count:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    producer = Producer(marker.producer_id, marker.producer_epoch)
    return await node.coordinator.transactions.write_marker(
        producer, (topic, index), committed=marker.transaction_result
    )
