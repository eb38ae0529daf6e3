"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ends, for consumers that look for truncation (KIP-320).

One node leads every partition from the beginning, in one epoch: it ends at the log's end. v3: replica id; v4: flexible.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.reads import leader_epoch_error
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.storage.recovery import LEADER_EPOCH
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 23
MIN_VERSION = 2
MAX_VERSION = 4
LACKS = "nothing"

UNDEFINED = (-1, -1)
"""Epoch and end of an epoch that there never was."""


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("offset_for_leader_epoch", header.api_version)
    topics = tuple(
        module.OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=tuple(_answer(module, node, topic.topic, wanted) for wanted in topic.partitions),
        )
        for topic in request.topics
    )
    return module.OffsetForLeaderEpochResponse(throttle_time=datetime.timedelta(0), topics=topics)


def _answer(module: Any, node: Node, topic: str, wanted: Any) -> Any:
    error, end = _end_of(node, topic, wanted.partition)
    error = error or leader_epoch_error(wanted.current_leader_epoch)
    is_known = error == codes.NONE and wanted.leader_epoch == LEADER_EPOCH
    epoch, end = (LEADER_EPOCH, end) if is_known else UNDEFINED
    return module.EpochEndOffset(
        error_code=ErrorCode(error), partition=wanted.partition, leader_epoch=epoch, end_offset=end
    )


def _end_of(node: Node, topic: str, partition: int) -> tuple[int, int]:
    """An error code, or where the partition ends."""
    if topic == OFFSETS_TOPIC:
        error = node.offsets_topic.check(partition)
        return error, -1 if error else node.offsets_topic.view.end_offset(partition)
    log = node.topics.log(topic, partition)
    return (codes.UNKNOWN_TOPIC_OR_PARTITION, -1) if log is None else (codes.NONE, log.high_watermark)
