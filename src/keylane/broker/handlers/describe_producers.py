"""DescribeProducers (61), version 0: who writes to a partition, and since where a transaction is open (KIP-664)."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.broker.topics import check_legal_name
from keylane.errors import UsageError
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 61
MIN_VERSION = 0
MAX_VERSION = 0
LACKS = "producers of __consumer_offsets"

COORDINATOR_EPOCH = 0


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("describe_producers", header.api_version)
    topics = [
        module.TopicResponse(
            name=topic.name,
            partitions=tuple(
                [_partition(module, node, topic.name, index) async for index in in_slices(topic.partition_indexes)]
            ),
        )
        async for topic in in_slices(request.topics)
    ]
    return module.DescribeProducersResponse(throttle_time=datetime.timedelta(0), topics=tuple(topics))


def _refusal(topic: str, index: int) -> tuple[int, str]:
    """Why there is no such partition."""
    try:
        check_legal_name(topic)
    except UsageError as error:
        return codes.INVALID_TOPIC_EXCEPTION, str(error)
    return codes.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{index} does not exist"


def _partition(module: Any, node: Node, topic: str, index: int) -> Any:
    log = node.topics.log(topic, index)
    producers = [] if log is None else log.producers()
    code, message = (codes.NONE, None) if log is not None else _refusal(topic, index)
    return module.PartitionResponse(
        partition_index=index,
        error_code=ErrorCode(code),
        error_message=message,
        active_producers=tuple(
            module.ProducerState(
                producer_id=one.producer_id,
                producer_epoch=one.epoch,
                last_sequence=one.last_sequence,
                last_timestamp=one.last_append_ms,
                coordinator_epoch=COORDINATOR_EPOCH,
                current_txn_start_offset=one.transaction_start,
            )
            for one in producers
        ),
    )
