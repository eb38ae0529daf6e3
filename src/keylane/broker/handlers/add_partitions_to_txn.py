"""AddPartitionsToTxn (24), versions 0-3: make partitions part of a producer's transaction, which begins with the first.

v2: PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before); v3: flexible. All partitions are added, or none.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 24
MIN_VERSION = 0
MAX_VERSION = 3
LACKS = "many transactions in one request and transactions V2 (KIP-890)"

_FENCED_VERSION = 2


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    topics = [(topic.name, list(topic.partitions)) for topic in request.v3_and_below_topics]
    names = [(topic, index) for topic, partitions in topics for index in partitions]
    unknown = {(topic, index) for topic, index in names if not 0 <= index < (node.topics.partition_count(topic) or 0)}
    if unknown:
        errors = {
            name: codes.UNKNOWN_TOPIC_OR_PARTITION if name in unknown else codes.OPERATION_NOT_ATTEMPTED
            for name in names
        }
    else:
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        transactions = node.coordinator.transactions
        error = await transactions.add_partitions(request.v3_and_below_transactional_id, producer, names)
        if error == codes.PRODUCER_FENCED and version < _FENCED_VERSION:
            error = codes.INVALID_PRODUCER_EPOCH
        errors = dict.fromkeys(names, error)
    return _response(version, topics, errors)


def _response(version: int, topics: list[tuple[str, list[int]]], errors: dict[tuple[str, int], int]) -> Any:
    module = response_module("add_partitions_to_txn", version)
    results = tuple(
        module.AddPartitionsToTxnTopicResult(
            name=topic,
            results_by_partition=tuple(
                module.AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=ErrorCode(errors[topic, index])
                )
                for index in partitions
            ),
        )
        for topic, partitions in topics
    )
    return module.AddPartitionsToTxnResponse(throttle_time=datetime.timedelta(0), results_by_topic_v3_and_below=results)
