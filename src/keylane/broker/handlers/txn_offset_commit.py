"""TxnOffsetCommit (28), versions 0-3: store offsets that take effect when the producer's transaction is committed.

v2: leader epoch; v3: flexible, with the consumer's generation and member, checked as for any commit (KIP-447).
Metadata is kept as it came.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.offset_service import CommitRequest
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 28
MIN_VERSION = 0
MAX_VERSION = 3
LACKS = "transactions V2 (KIP-890)"

_LEADER_EPOCH_VERSION = 2
_MEMBER_VERSION = 3


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    topics = [_columns(topic, version) for topic in request.topics]
    member = ("", None, -1)
    if version >= _MEMBER_VERSION:
        member = (request.member_id, request.group_instance_id, request.generation_id)
    result = node.coordinator.commit_in_transaction(
        CommitRequest(request.group_id, topics, *member),
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
    )
    if isinstance(result, int):
        # As by Apache Kafka: the producer that was fenced may begin anew (KIP-588).
        error = codes.INVALID_PRODUCER_EPOCH if result == codes.PRODUCER_FENCED else result
        return _response(version, topics, [[error] * len(topic.partitions) for topic in topics])
    errors = [found or [codes.NONE] * len(topic.partitions) for topic, found in zip(topics, result.errors, strict=True)]
    if result.durable is not None:
        try:
            await result.durable
        except StorageError:
            errors = [[codes.KAFKA_STORAGE_ERROR] * len(topic.partitions) for topic in topics]
    return _response(version, topics, errors)


def _columns(topic: Any, version: int) -> TopicCommit:
    partitions = topic.partitions
    has_epochs = version >= _LEADER_EPOCH_VERSION
    return TopicCommit(
        topic.name,
        [one.partition_index for one in partitions],
        [one.committed_offset for one in partitions],
        [one.committed_leader_epoch if has_epochs else -1 for one in partitions],
        [one.committed_metadata or "" for one in partitions],
    )


def _response(version: int, topics: Sequence[TopicCommit], errors: Sequence[Sequence[int]]) -> Any:
    module = response_module("txn_offset_commit", version)
    answers = tuple(
        module.TxnOffsetCommitResponseTopic(
            name=topic.topic,
            partitions=tuple(
                module.TxnOffsetCommitResponsePartition(partition_index=index, error_code=ErrorCode(error))
                for index, error in zip(topic.partitions, found, strict=True)
            ),
        )
        for topic, found in zip(topics, errors, strict=True)
    )
    return module.TxnOffsetCommitResponse(throttle_time=datetime.timedelta(0), topics=answers)
