"""OffsetCommit (8), versions 2-9: store a member's offsets, all or nothing, durably.

v2-4: retention time, which is honoured; v6: leader epoch; v7: static members; v8: flexible; v9: GROUP_ID_NOT_FOUND. A
partition that is unknown, or whose metadata is too large, is refused alone; the others are committed.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from keylane.broker.dispatch import Later
from keylane.coordinator import codes
from keylane.coordinator.commits import TopicCommit
from keylane.coordinator.offset_service import CommitRequest
from keylane.wire.encoders_groups import CommittedTopic, encode_offset_commit, encode_one_commit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.offset_service import CommitResult

API_KEY = 8
MIN_VERSION = 2
MAX_VERSION = 9
LACKS = "member epochs (KIP-848)"

LEADER_EPOCH_VERSION = 6
STATIC_MEMBERS_VERSION = 7
_MILLISECOND = datetime.timedelta(milliseconds=1)


def begin(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    topics = [_columns(topic, version) for topic in request.topics]
    result = node.coordinator.commit(
        CommitRequest(
            request.group_id,
            topics,
            request.member_id,
            request.group_instance_id if version >= STATIC_MEMBERS_VERSION else None,
            request.generation_id_or_member_epoch,
            request.retention_time // _MILLISECOND if version <= 4 else -1,
            version,
        )
    )
    if isinstance(result, int):
        return encode_offset_commit(version, _refused(topics, result))
    if result.durable is None:
        return _answer(version, topics, result)
    return Later(result.durable, lambda: _answer(version, topics, result))


def _answer(version: int, topics: Sequence[TopicCommit], result: CommitResult) -> bytes | list[bytes]:
    """The answer, when the commit is durable or has failed."""
    if result.durable is not None and result.durable.exception() is not None:
        return encode_offset_commit(version, _refused(topics, codes.KAFKA_STORAGE_ERROR))
    if len(topics) == 1 and result.errors[0] is None and len(topics[0].partitions) == 1:
        return encode_one_commit(version, topics[0].topic, topics[0].partitions[0])
    rows = [CommittedTopic(topic[0], topic[1], errors) for topic, errors in zip(topics, result.errors, strict=True)]
    return encode_offset_commit(version, rows)


def _columns(topic: Any, version: int) -> TopicCommit:
    partitions = topic.partitions
    has_epochs = version >= LEADER_EPOCH_VERSION
    if len(partitions) == 1:
        (only,) = partitions
        epoch = only.committed_leader_epoch if has_epochs else -1
        metadata = only.committed_metadata
        return TopicCommit(
            topic.name, [only.partition_index], [only.committed_offset], [epoch], [metadata] if metadata else None
        )
    has_metadata = any(partition.committed_metadata for partition in partitions)
    return TopicCommit(
        topic.name,
        [partition.partition_index for partition in partitions],
        [partition.committed_offset for partition in partitions],
        [p.committed_leader_epoch for p in partitions] if has_epochs else [-1] * len(partitions),
        [p.committed_metadata or "" for p in partitions] if has_metadata else None,
    )


def _refused(topics: Sequence[TopicCommit], error: int) -> list[CommittedTopic]:
    return [CommittedTopic(topic[0], topic[1], [error] * len(topic[1])) for topic in topics]
