"""ElectLeaders (43), versions 0-2: every partition is led by this broker, so no election is needed.

v1: the kind of election, and an error of the whole; v2: flexible. All partitions (null) are answered by their topics
alone, since those that need no election are not named.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 43
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "nothing"

PREFERRED, UNCLEAN = 0, 1


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    module = response_module("elect_leaders", header.api_version)
    kind = getattr(request, "election_type", PREFERRED)
    is_known = kind in (PREFERRED, UNCLEAN)
    wanted: list[tuple[str, Sequence[int]]]
    if request.topic_partitions is None:
        wanted = [(name, ()) for name in node.topic_names()] if is_known else []
    else:
        wanted = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    results = [
        module.ReplicaElectionResult(
            topic=topic,
            partition_result=tuple(
                [
                    module.PartitionResult(partition_id=index, error_code=ErrorCode(code), error_message=message)
                    async for index in in_slices(partitions)
                    for code, message in [_outcome(node, topic, index) if is_known else _no_such_kind(kind)]
                ]
            ),
        )
        async for topic, partitions in in_slices(wanted)
    ]
    return entity(
        module.ElectLeadersResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(codes.NONE if is_known else codes.INVALID_REQUEST),
        replica_election_results=tuple(results),
    )


def _outcome(node: Node, topic: str, partition: int) -> tuple[int, str | None]:
    if not 0 <= partition < (node.partition_count(topic) or 0):
        return codes.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{partition} does not exist"
    return codes.ELECTION_NOT_NEEDED, f"partition {topic}-{partition} is led by broker {node.node_id}, the only one"


def _no_such_kind(kind: int) -> tuple[int, str]:
    return codes.INVALID_REQUEST, f"election type {kind}: give {PREFERRED} (preferred) or {UNCLEAN} (unclean)"
