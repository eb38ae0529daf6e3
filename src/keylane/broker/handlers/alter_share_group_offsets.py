"""AlterShareGroupOffsets (91), version 0: where a share group without members goes on (KIP-932). Of all deliveries
before nothing is left: the records count as never given out. A group that is not there yet is begun by it.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    import uuid

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 91
MIN_VERSION = 0
MAX_VERSION = 0
LACKS = "nothing"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("alter_share_group_offsets", header.api_version)
    share, group = node.coordinator.share, request.group_id
    error = node.coordinator.check_movable_share_group(group)
    if error != codes.NONE or share is None:
        return _answer(module, error, ())
    starts: dict[uuid.UUID, tuple[str, dict[int, int]]] = {}
    rows = []
    async for topic in in_slices(request.topics):
        topic_id, count = node.topics.topic_id(topic.topic_name), node.topics.partition_count(topic.topic_name) or 0
        results = []
        async for one in in_slices(topic.partitions):
            is_there = topic_id is not None and 0 <= one.partition_index < count and one.start_offset >= 0
            code = codes.NONE if is_there else codes.UNKNOWN_TOPIC_OR_PARTITION
            if is_there and topic_id is not None:
                _, offsets = starts.setdefault(topic_id, (topic.topic_name, {}))
                offsets[one.partition_index] = one.start_offset
            results.append(
                module.AlterShareGroupOffsetsResponsePartition(
                    partition_index=one.partition_index, error_code=ErrorCode(code), error_message=None
                )
            )
        rows.append(
            module.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=topic_id, partitions=tuple(results)
            )
        )
    error = await share.move(group, starts) if starts else codes.NONE
    return _answer(module, error, () if error else tuple(rows))


def _answer(module: Entity, error: int, rows: tuple[Entity, ...]) -> Entity:
    return module.AlterShareGroupOffsetsResponse(
        throttle_time=datetime.timedelta(0), error_code=ErrorCode(error), error_message=None, responses=rows
    )
