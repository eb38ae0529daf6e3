"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ends, for consumers that look for truncation (KIP-320).

Each start of the broker is an epoch of all its partitions (docs/adr/0124). v3: replica id; v4: flexible.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.broker.reads import leader_epoch_error
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.storage.epochs import UNDEFINED, EpochHistory
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 23
MIN_VERSION = 2
MAX_VERSION = 4
LACKS = "nothing"


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("offset_for_leader_epoch", header.api_version)
    topics = [
        module.OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=tuple(
                [_answer(module, node, topic.topic, wanted) async for wanted in in_slices(topic.partitions)]
            ),
        )
        async for topic in in_slices(request.topics)
    ]
    return module.OffsetForLeaderEpochResponse(throttle_time=datetime.timedelta(0), topics=tuple(topics))


def _answer(module: Any, node: Node, topic: str, wanted: Any) -> Any:
    error, (epoch, end) = _end_of(node, topic, wanted)
    return module.EpochEndOffset(
        error_code=ErrorCode(error), partition=wanted.partition, leader_epoch=epoch, end_offset=end
    )


def _end_of(node: Node, topic: str, wanted: Any) -> tuple[int, tuple[int, int]]:
    """An error code, and the epoch with its end."""
    if topic == OFFSETS_TOPIC:
        offsets = node.offsets_topic
        error = offsets.check(wanted.partition) or leader_epoch_error(wanted.current_leader_epoch, offsets.leader_epoch)
        if error:
            return error, UNDEFINED
        return codes.NONE, EpochHistory().end_of(wanted.leader_epoch, offsets.view.end_offset(wanted.partition))
    log = node.topics.log(topic, wanted.partition)
    if log is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION, UNDEFINED
    error = leader_epoch_error(wanted.current_leader_epoch, log.leader_epoch)
    return error, UNDEFINED if error else log.end_of_epoch(wanted.leader_epoch)
