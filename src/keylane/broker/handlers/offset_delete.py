"""OffsetDelete (47), version 0: committed offsets of a group end, durably (KIP-496).

Offsets in topics that live consumers of the group subscribe to are refused one by one (GROUP_SUBSCRIBED_TO_TOPIC), and
so are partitions that do not exist; a group with members of another protocol type is refused whole (NON_EMPTY_GROUP).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import Later, answer_of, failure_of
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.coordinator import DeleteResult

API_KEY = 47
MIN_VERSION = 0
MAX_VERSION = 0
LACKS = "nothing"

Topics = list[tuple[str, list[int]]]


def begin(request: Any, header: RequestHeader, node: Node) -> Any:
    topics = [(topic.name, [one.partition_index for one in topic.partitions]) for topic in request.topics]
    outcome = node.coordinator.delete_offsets(request.group_id, topics)
    if isinstance(outcome, int):
        return _response(header.api_version, outcome, ())
    if outcome.durable is None:
        return _answer(header.api_version, topics, outcome)
    return Later(outcome.durable, lambda: _answer(header.api_version, topics, outcome))


def _answer(version: int, topics: Topics, outcome: DeleteResult) -> Any:
    if failure := failure_of(outcome.durable):
        return _response(version, failure, ())
    return answer_of(
        sum(map(len, outcome.errors)), lambda: _response(version, codes.NONE, _rows(version, topics, outcome))
    )


def _rows(version: int, topics: Topics, outcome: DeleteResult) -> tuple[Any, ...]:
    module = response_module("offset_delete", version)
    return tuple(
        module.OffsetDeleteResponseTopic(
            name=topic,
            partitions=tuple(
                module.OffsetDeleteResponsePartition(partition_index=one, error_code=ErrorCode(code))
                for one, code in zip(partitions, errors, strict=True)
            ),
        )
        for (topic, partitions), errors in zip(topics, outcome.errors, strict=True)
        if partitions  # of one without any nothing is said, as by Apache Kafka
    )


def _response(version: int, error: int, topics: tuple[Any, ...]) -> Any:
    module = response_module("offset_delete", version)
    return module.OffsetDeleteResponse(error_code=ErrorCode(error), throttle_time=datetime.timedelta(0), topics=topics)
