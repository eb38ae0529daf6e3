"""ListOffsets (2), versions 1-11: where a partition starts and ends, and offsets by time.

v2: isolation level (a reader of committed records is told of those below the last stable offset); v4: leader epochs;
v6: flexible; v7: the record with the latest timestamp (-3); v8: the earliest offset that is stored locally (-4), which
here is the earliest; v9: the latest in tiered storage (-5), and v11: the earliest that is to be moved there (-6): there
is no tiered storage, so there is neither; v10: a timeout, for tiered storage too. A partition that is named more than
once is INVALID_REQUEST, and in the answer once.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import by_partition, in_slices
from keylane.broker.offsets_topic import OffsetsTopic
from keylane.broker.reads import leader_epoch_error
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.errors import PeerError
from keylane.storage.log_view import OffsetAndTimestamp
from keylane.storage.recovery import DamagedBatchError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.storage.log_view import LogView

API_KEY = 2
MIN_VERSION = 1
MAX_VERSION = 11
LACKS = "look-ups by time in __consumer_offsets"

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_MAX_TIMESTAMP_VERSION = 7
_EARLIEST_LOCAL_VERSION = 8
_TIERED_VERSIONS = {LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""Of what is asked, the version from which on it may be."""
_READ_COMMITTED = 1

logger = logger_of("keylane.broker")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("list_offsets", header.api_version)
    committed_only = getattr(request, "isolation_level", 0) == _READ_COMMITTED
    topics = []
    async for topic, wanted in in_slices((await by_partition(request.topics)).items()):
        partitions = []
        async for index, (partition, *more) in in_slices(wanted.items()):
            code, found = codes.INVALID_REQUEST, NOT_FOUND
            if not more:
                code, found = await _look_up(node, topic, partition, header.api_version)
            if committed_only and code == codes.NONE:
                found = _stable(node.topics.log(topic, index), partition.timestamp, found)
            partitions.append(
                entity(
                    module.ListOffsetsPartitionResponse,
                    partition_index=index,
                    error_code=ErrorCode(code),
                    timestamp=found.timestamp_ms,
                    offset=found.offset,
                    leader_epoch=_epoch_at(node, topic, partition, found.offset),
                )
            )
        topics.append(module.ListOffsetsTopicResponse(name=topic, partitions=tuple(partitions)))
    return entity(module.ListOffsetsResponse, throttle_time=datetime.timedelta(0), topics=tuple(topics))


NOT_FOUND = OffsetAndTimestamp(-1, -1)


def _stable(log: LogView | None, timestamp: int, found: OffsetAndTimestamp) -> OffsetAndTimestamp:
    """What a reader of committed records is told instead."""
    if log is None or found.offset < log.stable_offset or timestamp in (EARLIEST, EARLIEST_LOCAL):
        return found
    return OffsetAndTimestamp(log.stable_offset, -1) if timestamp == LATEST else NOT_FOUND


def _epoch_at(node: Node, topic: str, wanted: Any, offset: int) -> int:
    """The leader epoch of what was found; of the log's end it is the present one."""
    if offset < 0:
        return -1
    log = node.topics.log(topic, wanted.partition_index)
    return OffsetsTopic.leader_epoch if log is None else log.epochs.epoch_at(offset)


async def _look_up(node: Node, topic: str, wanted: Any, version: int) -> tuple[int, OffsetAndTimestamp]:
    if topic == OFFSETS_TOPIC:
        return _look_up_offsets_topic(node.offsets_topic, wanted)
    log = node.topics.log(topic, wanted.partition_index)
    if log is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION, NOT_FOUND
    code = leader_epoch_error(getattr(wanted, "current_leader_epoch", -1), log.leader_epoch)
    if code != codes.NONE:
        return code, NOT_FOUND
    timestamp = wanted.timestamp
    if timestamp == LATEST:
        return codes.NONE, OffsetAndTimestamp(log.high_watermark, -1)
    if timestamp == EARLIEST or (timestamp == EARLIEST_LOCAL and version >= _EARLIEST_LOCAL_VERSION):
        return codes.NONE, OffsetAndTimestamp(log.log_start_offset, -1)
    try:
        if timestamp == MAX_TIMESTAMP and version >= _MAX_TIMESTAMP_VERSION:
            return codes.NONE, await log.latest_timestamp() or NOT_FOUND
        if version >= _TIERED_VERSIONS.get(timestamp, version + 1):
            return codes.NONE, NOT_FOUND
        if timestamp < 0:
            return codes.UNSUPPORTED_VERSION, NOT_FOUND
        return codes.NONE, await log.offset_for_timestamp(timestamp) or NOT_FOUND
    except DamagedBatchError:  # logged when it was found
        return codes.CORRUPT_MESSAGE, NOT_FOUND
    except (OSError, PeerError) as error:
        logger.error("%s: %s", log.folder, error)  # noqa: TRY400 - one line says it all
        return codes.KAFKA_STORAGE_ERROR, NOT_FOUND


def _look_up_offsets_topic(topic: OffsetsTopic, wanted: Any) -> tuple[int, OffsetAndTimestamp]:
    partition = wanted.partition_index
    code = topic.check(partition)
    if code != codes.NONE:
        return code, NOT_FOUND
    if wanted.timestamp == LATEST:
        return codes.NONE, OffsetAndTimestamp(topic.view.end_offset(partition), -1)
    if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
        return codes.NONE, OffsetAndTimestamp(0, -1)
    return codes.UNSUPPORTED_VERSION, NOT_FOUND
