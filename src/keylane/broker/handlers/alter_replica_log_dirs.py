"""AlterReplicaLogDirs (34), versions 1-2: move a partition's log to another folder of its broker.

v2: flexible. There is one folder: to stay in it is done, and another one is not there.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 34
MIN_VERSION = 1
MAX_VERSION = 2
LACKS = "nothing"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("alter_replica_log_dirs", header.api_version)
    results = [
        module.AlterReplicaLogDirTopicResult(
            topic_name=topic.name,
            partitions=tuple(
                [
                    module.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=ErrorCode(_code(node, folder.path, topic.name, index))
                    )
                    async for index in in_slices(topic.partitions)
                ]
            ),
        )
        async for folder in in_slices(request.dirs)
        async for topic in in_slices(folder.topics)
    ]
    return module.AlterReplicaLogDirsResponse(throttle_time=datetime.timedelta(0), results=tuple(results))


def _code(node: Node, folder: str, topic: str, partition: int) -> int:
    if folder != node.logs_folder:
        return codes.LOG_DIR_NOT_FOUND
    found = node.topics.get(topic)
    if found is None or not 0 <= partition < found.partition_count:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    return codes.NONE
