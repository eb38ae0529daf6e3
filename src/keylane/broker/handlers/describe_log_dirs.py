"""DescribeLogDirs (35), versions 1-5: the folder with the logs, its disk, and how large each partition is.

v2: flexible; v3: an error of the whole; v4: the disk's bytes, all and free (KIP-827); v5: whether the folder is closed
to new partitions, which it never is.
"""

from __future__ import annotations

import asyncio
import datetime
import shutil
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 35
MIN_VERSION = 1
MAX_VERSION = 5
LACKS = "__consumer_offsets, which is a view of the coordinator's journal"
HAS_LARGE_ANSWERS = True

logger = logger_of("keylane.broker")


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("describe_log_dirs", header.api_version)
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {
            (one.topic, index) async for one in in_slices(request.topics) async for index in in_slices(one.partitions)
        }
    code, total, free = codes.NONE, -1, -1
    try:
        disk = await asyncio.get_running_loop().run_in_executor(node.executor, shutil.disk_usage, node.logs_folder)
        total, free = disk.total, disk.free
    except OSError as error:
        logger.error("%s: %s", node.logs_folder, error)  # noqa: TRY400 - one line says it all
        code = codes.KAFKA_STORAGE_ERROR
    topics = [
        module.DescribeLogDirsTopic(name=name, partitions=tuple(partitions))
        async for name in in_slices(node.topics.names())
        if (partitions := [one async for one in in_slices(_partitions(module, node, name, wanted))])
    ]
    result = entity(
        module.DescribeLogDirsResult,
        error_code=ErrorCode(code),
        log_dir=node.logs_folder,
        topics=tuple(topics) if code == codes.NONE else (),
        total_bytes=total,
        usable_bytes=free,
        is_cordoned=False,
    )
    return entity(
        module.DescribeLogDirsResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode.none,
        results=(result,),
    )


def _partitions(module: Any, node: Node, name: str, wanted: set[tuple[str, int]] | None) -> Iterator[Any]:
    """Each partition of a topic, if it is there: those that are wanted, or (None) all."""
    topic = node.topics.get(name)
    for index, log in enumerate(() if topic is None else topic.logs):
        if wanted is None or (name, index) in wanted:
            yield module.DescribeLogDirsPartition(
                partition_index=index, partition_size=log.size, offset_lag=0, is_future_key=False
            )
