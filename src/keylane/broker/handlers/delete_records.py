"""DeleteRecords (21), versions 0-2: let partitions start at a later offset; durable before the answer.

-1 means the high watermark. v2: flexible. Of a partition that is named more than once, the last offset holds. What lies
below is gone for every reader at once; the files of whole segments are removed, but for those that an undecided
transaction has begun in.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import by_partition, in_slices
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.storage.filesystem import StorageError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 21
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "nothing"

TO_HIGH_WATERMARK = -1
NO_WATERMARK = -1

logger = logger_of("keylane.broker")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("delete_records", header.api_version)
    topics = []
    async for topic, wanted in in_slices((await by_partition(request.topics)).items()):
        partitions = []
        async for index, (*_, last) in in_slices(wanted.items()):
            code, low_watermark = await _delete(node, topic, last)
            partitions.append(
                module.DeleteRecordsPartitionResult(
                    partition_index=index, low_watermark=low_watermark, error_code=ErrorCode(code)
                )
            )
        topics.append(module.DeleteRecordsTopicResult(name=topic, partitions=tuple(partitions)))
    return module.DeleteRecordsResponse(throttle_time=datetime.timedelta(0), topics=tuple(topics))


async def _delete(node: Node, name: str, wanted: Any) -> tuple[int, int]:
    """An error code, and where the partition starts then."""
    if name == OFFSETS_TOPIC:
        return codes.INVALID_TOPIC_EXCEPTION, NO_WATERMARK
    topic = node.topics.get(name)
    log = node.topics.log(name, wanted.partition_index)
    if topic is None or log is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION, NO_WATERMARK
    if not topic.values.is_deleted:
        return codes.POLICY_VIOLATION, NO_WATERMARK
    offset = log.high_watermark if wanted.offset == TO_HIGH_WATERMARK else wanted.offset
    if not 0 <= offset <= log.high_watermark:
        return codes.OFFSET_OUT_OF_RANGE, NO_WATERMARK
    try:
        await log.delete_before(offset)
    except StorageError as error:
        logger.error("records are not deleted: %s", error)  # noqa: TRY400 - one line says it all
        return codes.KAFKA_STORAGE_ERROR, NO_WATERMARK
    return codes.NONE, log.log_start_offset
