"""TxnOffsetCommit (28), versions 0-6: store offsets that take effect when the producer's transaction is committed.

v2: leader epoch; v3: flexible, with the consumer's generation and member, checked as for any commit (KIP-447); v4:
TRANSACTION_ABORTABLE where the group was not added (INVALID_TXN_STATE before); v5: the group is added here (KIP-890);
v6: topics by id (KIP-1319), where one that no topic has is UNKNOWN_TOPIC_ID alone. Metadata is kept as it came.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import answer_of, in_slices
from keylane.coordinator.formats import OFFSETS_TOPIC, TopicCommit, partition_for
from keylane.coordinator.offset_service import CommitRequest
from keylane.coordinator.transactions.transactional_ids import EPOCH_A_TRANSACTION, Producer
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.offset_service import CommitResult

API_KEY = 28
MIN_VERSION = 0
MAX_VERSION = 6
LACKS = "nothing"

_LEADER_EPOCH_VERSION = 2
_MEMBER_VERSION = 3
_ABORTABLE_VERSION = 4
_ADDING_VERSION = 5
_TOPIC_ID_VERSION = 6


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    has_ids = version >= _TOPIC_ID_VERSION
    names = [node.topic_name(topic.topic_id) if has_ids else topic.name async for topic in in_slices(request.topics)]
    known = [
        _columns(name, topic, version)
        async for name, topic in in_slices(zip(names, request.topics, strict=True))
        if name is not None
    ]
    errors = iter(await _store(known, request, version, node))
    refused = [
        next(errors) if name is not None else [codes.UNKNOWN_TOPIC_ID] * len(topic.partitions)
        async for name, topic in in_slices(zip(names, request.topics, strict=True))
    ]
    count = sum(map(len, refused))
    return answer_of(count, lambda: _response(version, request.topics, refused))


async def _store(topics: Sequence[TopicCommit], request: Any, version: int, node: Node) -> list[Sequence[int]]:
    """An error for each partition."""
    if not topics and version >= _TOPIC_ID_VERSION:
        return []
    if not request.group_id:
        return [[codes.INVALID_GROUP_ID] * len(topic.partitions) for topic in topics]
    member = ("", None, -1)
    if version >= _MEMBER_VERSION:
        member = (request.member_id, request.group_instance_id, request.generation_id)
    result: int | CommitResult = codes.NONE
    producer = Producer(request.producer_id, request.producer_epoch)
    if version >= _ADDING_VERSION:
        group = (OFFSETS_TOPIC, partition_for(request.group_id, node.offsets_topic.partition_count))
        result = await node.coordinator.transactions.add_partitions(
            request.transactional_id, producer, [group], EPOCH_A_TRANSACTION
        )
    if result == codes.NONE:
        result = node.coordinator.commit_in_transaction(
            CommitRequest(request.group_id, topics, *member), request.transactional_id, producer
        )
    if isinstance(result, int):
        error = result
        if error == codes.PRODUCER_FENCED:  # as by Apache Kafka: the producer may begin anew (KIP-588)
            error = codes.INVALID_PRODUCER_EPOCH
        elif error == codes.INVALID_TXN_STATE and version >= _ABORTABLE_VERSION:
            error = codes.TRANSACTION_ABORTABLE
        return [[error] * len(topic.partitions) for topic in topics]
    if result.durable is not None:
        try:
            await result.durable
        except StorageError:
            return [[codes.KAFKA_STORAGE_ERROR] * len(topic.partitions) for topic in topics]
    return [found or [codes.NONE] * len(topic.partitions) for topic, found in zip(topics, result.errors, strict=True)]


def _columns(name: str, topic: Any, version: int) -> TopicCommit:
    partitions = topic.partitions
    has_epochs = version >= _LEADER_EPOCH_VERSION
    return TopicCommit(
        name,
        [one.partition_index for one in partitions],
        [one.committed_offset for one in partitions],
        [one.committed_leader_epoch if has_epochs else -1 for one in partitions],
        [one.committed_metadata or "" for one in partitions],
    )


def _response(version: int, topics: Sequence[Any], errors: Sequence[Sequence[int]]) -> Any:
    module = response_module("txn_offset_commit", version)
    answers = tuple(
        entity(
            module.TxnOffsetCommitResponseTopic,
            name=getattr(topic, "name", None),
            topic_id=getattr(topic, "topic_id", None),
            partitions=tuple(
                module.TxnOffsetCommitResponsePartition(
                    partition_index=one.partition_index, error_code=ErrorCode(error)
                )
                for one, error in zip(topic.partitions, found, strict=True)
            ),
        )
        for topic, found in zip(topics, errors, strict=True)
    )
    return module.TxnOffsetCommitResponse(throttle_time=datetime.timedelta(0), topics=answers)
