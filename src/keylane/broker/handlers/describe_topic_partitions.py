"""DescribeTopicPartitions (75), version 0: topics with their partitions, in pieces (KIP-966).

Topics come in the order of their names: those of the request, or all. An answer has as many partitions as the request
and `MAX_PARTITIONS` allow, and a cursor with which the next request goes on where it stopped.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.broker.authorized_operations import ON_TOPICS
from keylane.broker.dispatch import in_slices
from keylane.broker.handlers.metadata import NO_LEADER
from keylane.broker.topics import check_topic_name
from keylane.errors import UsageError
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from types import ModuleType
    from uuid import UUID

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 75
MIN_VERSION = 0
MAX_VERSION = 0
LACKS = "nothing"
HAS_LARGE_ANSWERS = True

MAX_PARTITIONS = 2_000
"""Of an answer: Kafka's `max.request.partition.size.limit`."""


class _Found(NamedTuple):
    """A topic that is there."""

    topic_id: UUID
    partition_count: int
    is_internal: bool = False
    owned: frozenset[int] | None = None
    """Partitions that are led here; None for all."""


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("describe_topic_partitions", header.api_version)
    cursor = request.cursor
    start = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    wanted = {topic.name for topic in request.topics}
    if cursor is not None and (start[1] < 0 or (wanted and start[0] not in wanted)):
        names = [topic.name for topic in request.topics]
        return _answer(module, [_error(module, name, codes.INVALID_REQUEST) for name in names], None)
    left = max(min(MAX_PARTITIONS, request.response_partition_limit), 1)
    rows: list[Entity] = []
    async for name in in_slices(sorted(name for name in wanted or node.topic_names() if name >= start[0])):
        if left == 0:
            return _answer(module, rows, (name, 0))
        found = _find(node, name)
        if found is None:
            if wanted:
                rows.append(_error(module, name, _missing(name)))
            continue
        first = start[1] if name == start[0] else 0
        end = min(found.partition_count, first + left)
        rows.append(_topic(module, node, name, found, range(first, end)))
        if end < found.partition_count:
            return _answer(module, rows, (name, end))
        left -= max(end - first, 0)
    return _answer(module, rows, None)


def _find(node: Node, name: str) -> _Found | None:
    offsets = node.offsets_topic
    if name == offsets.name:
        return _Found(offsets.topic_id, offsets.partition_count, is_internal=True, owned=offsets.owned)
    topic = node.topics.get(name)
    return None if topic is None else _Found(topic.topic_id, topic.partition_count)


def _missing(name: str) -> int:
    try:
        check_topic_name(name)
    except UsageError:
        return codes.INVALID_TOPIC_EXCEPTION
    return codes.UNKNOWN_TOPIC_OR_PARTITION


def _answer(module: ModuleType, topics: list[Entity], cursor: tuple[str, int] | None) -> Entity:
    after = None if cursor is None else module.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return module.DescribeTopicPartitionsResponse(
        throttle_time=datetime.timedelta(0), topics=tuple(topics), next_cursor=after
    )


def _error(module: ModuleType, name: str, code: int) -> Entity:
    return module.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode(code), name=name, topic_id=None, partitions=()
    )


def _leader_epoch(node: Node, name: str, index: int) -> int:
    log = node.topics.log(name, index)
    return node.offsets_topic.leader_epoch if log is None else log.leader_epoch


def _topic(module: ModuleType, node: Node, name: str, found: _Found, partitions: range) -> Entity:
    here = (node.node_id,)
    rows = [
        module.DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.none,
            partition_index=index,
            leader_id=node.node_id if found.owned is None or index in found.owned else NO_LEADER,
            leader_epoch=_leader_epoch(node, name, index),
            replica_nodes=here,
            isr_nodes=here,
            eligible_leader_replicas=(),
            last_known_elr=(),
        )
        for index in partitions
    ]
    return module.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=name,
        topic_id=found.topic_id,
        is_internal=found.is_internal,
        partitions=tuple(rows),
        topic_authorized_operations=ON_TOPICS,
    )
