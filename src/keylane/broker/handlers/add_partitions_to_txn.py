"""AddPartitionsToTxn (24), versions 0-5: make partitions part of a producer's transaction, which begins with the first.

v2: PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before); v3: flexible; v4: many transactions in one request, each of which
may only be asked after, for brokers among themselves (KIP-890). Of a transaction all partitions are added, or none.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.coordinator.transactions.transactional_ids import CLASSIC, EPOCH_A_TRANSACTION, Producer
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from types import ModuleType

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 24
MIN_VERSION = 0
MAX_VERSION = 5
LACKS = "nothing"

_FENCED_VERSION = 2
_BATCH_VERSION = 4


Partition = tuple[str, int]


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    version = header.api_version
    module = response_module("add_partitions_to_txn", version)
    if version >= _BATCH_VERSION:
        results = [
            module.AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=await _results(module, one.topics, await _errors(one, version, node)),
            )
            async for one in in_slices(request.transactions)
        ]
        return module.AddPartitionsToTxnResponse(
            throttle_time=datetime.timedelta(0), error_code=ErrorCode.none, results_by_transaction=tuple(results)
        )
    one = Transaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        request.v3_and_below_topics,
    )
    return module.AddPartitionsToTxnResponse(
        throttle_time=datetime.timedelta(0),
        results_by_topic_v3_and_below=await _results(module, one.topics, await _errors(one, version, node)),
    )


class Transaction(NamedTuple):
    """What requests of one transaction have, as those of many have it for each."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topics: Entity
    verify_only: bool = False


async def _errors(one: Entity, version: int, node: Node) -> dict[Partition, int]:
    names = [
        (topic.name, index) async for topic in in_slices(one.topics) async for index in in_slices(topic.partitions)
    ]
    count_of = node.partition_count if version >= _BATCH_VERSION else node.topics.partition_count
    unknown = {(topic, index) async for topic, index in in_slices(names) if not 0 <= index < (count_of(topic) or 0)}
    if unknown:
        return {
            name: codes.UNKNOWN_TOPIC_OR_PARTITION if name in unknown else codes.OPERATION_NOT_ATTEMPTED
            async for name in in_slices(names)
        }
    producer = Producer(one.producer_id, one.producer_epoch)
    transactions = node.coordinator.transactions
    if one.verify_only:
        found = {
            name: transactions.check_write(one.transactional_id, producer, name) async for name in in_slices(names)
        }
        abortable = codes.TRANSACTION_ABORTABLE
        return {name: abortable if error == codes.INVALID_TXN_STATE else error for name, error in found.items()}
    client_version = EPOCH_A_TRANSACTION if version >= _BATCH_VERSION else CLASSIC
    error = await transactions.add_partitions(one.transactional_id, producer, names, client_version)
    if error == codes.PRODUCER_FENCED and version < _FENCED_VERSION:
        error = codes.INVALID_PRODUCER_EPOCH
    return dict.fromkeys(names, error)


async def _results(module: ModuleType, topics: Entity, errors: dict[Partition, int]) -> tuple[Entity, ...]:
    results = [
        module.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                [
                    module.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=ErrorCode(errors[topic.name, index])
                    )
                    async for index in in_slices(topic.partitions)
                ]
            ),
        )
        async for topic in in_slices(topics)
    ]
    return tuple(results)
