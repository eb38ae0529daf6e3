"""OffsetDelete (47), version 0: committed offsets of a group end, durably (KIP-496).

Offsets in topics that live consumers of the group subscribe to are refused one by one (GROUP_SUBSCRIBED_TO_TOPIC), and
so are partitions that do not exist; a group with members of another protocol type is refused whole (NON_EMPTY_GROUP).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import ROWS_AT_ONCE, after, answer_of, failure_of, in_pieces, prepared
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader, Steps
    from keylane.broker.node import Node
    from keylane.storage.shared_sync import Round

API_KEY = 47
MIN_VERSION = 0
MAX_VERSION = 0
LACKS = "nothing"


def begin(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    errors: list[int] = []
    rounds: list[Round] = []
    refusals: list[int] = []

    def delete_each() -> Steps:
        """Fills these: an error for each partition, what to wait for, and why the group is refused."""
        asked = ((topic.name, [one.partition_index for one in topic.partitions]) for topic in request.topics)
        for number, piece in enumerate(in_pieces(asked, ROWS_AT_ONCE)):
            outcome = node.coordinator.delete_offsets(request.group_id, piece, is_begun=number > 0)
            if isinstance(outcome, int):
                refusals.append(outcome)
                return
            errors.extend(code for row in outcome.errors for code in row)
            if outcome.durable is not None:
                rounds.append(outcome.durable)
            yield None

    def answer() -> Any:
        error = next(filter(None, (*refusals, *map(failure_of, rounds))), codes.NONE)
        if error != codes.NONE:
            return _response(version, error, ())
        return answer_of(len(errors), lambda: _response(version, codes.NONE, _rows(version, request, errors)))

    return prepared(delete_each(), lambda: after(rounds, answer))


def _rows(version: int, request: Any, errors: Sequence[int]) -> tuple[Any, ...]:
    module = response_module("offset_delete", version)
    left = iter(errors)
    return tuple(
        module.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=tuple(
                module.OffsetDeleteResponsePartition(
                    partition_index=one.partition_index, error_code=ErrorCode(next(left))
                )
                for one in topic.partitions
            ),
        )
        for topic in request.topics
        if topic.partitions  # of one without any nothing is said, as by Apache Kafka
    )


def _response(version: int, error: int, topics: tuple[Any, ...]) -> Any:
    module = response_module("offset_delete", version)
    return module.OffsetDeleteResponse(error_code=ErrorCode(error), throttle_time=datetime.timedelta(0), topics=topics)
