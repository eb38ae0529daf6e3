"""DescribeShareGroupOffsets (90), versions 0-1: from where on a share group has records that are not done (KIP-932).

v1: how many there are (KIP-1226). A group that is not there has begun nowhere, which is no error.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.coordinator.share_groups.partition import NOT_BEGUN, State
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncIterator, Mapping, Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 90
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "nothing"
HAS_LARGE_ANSWERS = True

NO_LAG = -1


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("describe_share_group_offsets", header.api_version)
    groups = [await _group(group, module, node) async for group in in_slices(request.groups)]
    return module.DescribeShareGroupOffsetsResponse(throttle_time=datetime.timedelta(0), groups=tuple(groups))


async def _group(asked: Entity, module: Entity, node: Node) -> Entity:
    name, share = asked.group_id, node.coordinator.share
    error = node.coordinator.check_share_group(name)
    is_there = error == codes.NONE
    if error == codes.GROUP_ID_NOT_FOUND:
        error = codes.NONE
    rows: list[Entity] = []
    if error == codes.NONE and share is not None:
        there = share.offsets(name) if is_there else {}
        if asked.topics is None:
            rows = [
                await _topic(title, topic, states, module, node)
                async for topic, (title, states) in in_slices(list(there.items()))
            ]
        else:
            async for one in in_slices(asked.topics):
                topic = node.topics.topic_id(one.topic_name)
                _, known = there.get(topic, ("", {})) if topic is not None else ("", {})
                wanted = one.partitions or list(known)
                states = {index: known.get(index, State()) async for index in in_slices(wanted)}
                rows.append(await _topic(one.topic_name, topic, states, module, node))
    return module.DescribeShareGroupOffsetsResponseGroup(
        group_id=name,
        topics=tuple(rows),
        error_code=ErrorCode(error),
        error_message=None,
    )


async def _topic(name: str, topic: uuid.UUID | None, states: Mapping[int, State], module: Entity, node: Node) -> Entity:
    partitions = [one async for one in _partitions(name, list(states.items()), module, node)]
    return module.DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic, partitions=tuple(partitions))


async def _partitions(
    name: str, states: Sequence[tuple[int, State]], module: Entity, node: Node
) -> AsyncIterator[Entity]:
    async for index, state in in_slices(states):
        log = node.topics.log(name, index)
        lag = NO_LAG
        if state.start != NOT_BEGUN and log is not None:
            lag = max(log.high_watermark - max(state.start, log.log_start_offset) - state.done, 0)
        yield entity(
            module.DescribeShareGroupOffsetsResponsePartition,
            partition_index=index,
            start_offset=state.start,
            leader_epoch=0,
            lag=lag,
            error_code=ErrorCode.none,
            error_message=None,
        )
