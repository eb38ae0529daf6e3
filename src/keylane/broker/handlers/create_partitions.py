"""CreatePartitions (37), versions 0-3: give topics more partitions, durably, before the answer (KIP-195).

`count` is the number of partitions that the topic has then. v2: flexible.
"""

from __future__ import annotations

import datetime
from collections import Counter
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.broker.topics import MAX_PARTITIONS
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.storage.filesystem import StorageError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 37
MIN_VERSION = 0
MAX_VERSION = 3
LACKS = "nothing"

logger = logger_of("keylane.broker")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("create_partitions", header.api_version)
    counts = Counter(topic.name for topic in request.topics)
    results = []
    async for wanted in in_slices({topic.name: topic for topic in request.topics}.values()):
        if counts[wanted.name] > 1:
            code, message = codes.INVALID_REQUEST, f"topic {wanted.name!r} is in the request more than once"
        else:
            code, message = await _grow(wanted, node, validate_only=request.validate_only)
        results.append(
            module.CreatePartitionsTopicResult(
                name=wanted.name, error_code=ErrorCode(code), error_message=message or None
            )
        )
    return module.CreatePartitionsResponse(throttle_time=datetime.timedelta(0), results=tuple(results))


async def _grow(wanted: Any, node: Node, *, validate_only: bool) -> tuple[int, str]:
    """An error code, and a sentence."""
    code, message = _check(wanted, node)
    if code != codes.NONE or validate_only:
        return code, message
    try:
        await node.topics.add_partitions(wanted.name, wanted.count)
    except KeyError:
        return codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {wanted.name!r} does not exist any more"
    except ValueError as error:
        return codes.INVALID_PARTITIONS, str(error)
    except StorageError as error:
        logger.error("topic %s has no new partitions: %s", wanted.name, error)  # noqa: TRY400 - one line says it all
        return codes.KAFKA_STORAGE_ERROR, str(error)
    return codes.NONE, ""


def _check(wanted: Any, node: Node) -> tuple[int, str]:
    name = wanted.name
    if name == OFFSETS_TOPIC:
        return codes.INVALID_TOPIC_EXCEPTION, f"{OFFSETS_TOPIC} is the broker's own: its partitions are a setting"
    count = node.topics.partition_count(name)
    if count is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
    if not count < wanted.count <= MAX_PARTITIONS:
        return codes.INVALID_PARTITIONS, (
            f"{wanted.count} partitions for topic {name!r}, which has {count}: give more than that, and at most "
            f"{MAX_PARTITIONS}"
        )
    rows = [(node.node_id,)] * (wanted.count - count)
    if wanted.assignments is not None and [tuple(one.broker_ids) for one in wanted.assignments] != rows:
        return codes.INVALID_REPLICA_ASSIGNMENT, (
            f"topic {name!r}: assign each of the {len(rows)} new partitions to broker {node.node_id}, the only one"
        )
    return codes.NONE, ""
