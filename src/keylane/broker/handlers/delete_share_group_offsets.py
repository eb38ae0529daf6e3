"""DeleteShareGroupOffsets (92), version 0: a share group without members forgets topics, as if it had never read them
(KIP-932).
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

API_KEY = 92
MIN_VERSION = 0
MAX_VERSION = 0
LACKS = "nothing"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("delete_share_group_offsets", header.api_version)
    share, group = node.coordinator.share, request.group_id
    error = node.coordinator.check_empty_share_group(group)
    if error != codes.NONE or share is None:
        return _answer(module, error, ())
    rows, gone = [], []
    async for topic in in_slices(request.topics):
        topic_id = node.topics.topic_id(topic.topic_name)
        if topic_id is not None:
            gone.append(topic_id)
        code = codes.NONE if topic_id is not None else codes.UNKNOWN_TOPIC_OR_PARTITION
        rows.append(
            module.DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=topic_id, error_code=ErrorCode(code), error_message=None
            )
        )
    error = await share.drop(group, gone)
    return _answer(module, error, () if error else tuple(rows))


def _answer(module: Entity, error: int, rows: tuple[Entity, ...]) -> Entity:
    return module.DeleteShareGroupOffsetsResponse(
        throttle_time=datetime.timedelta(0), error_code=ErrorCode(error), error_message=None, responses=rows
    )
