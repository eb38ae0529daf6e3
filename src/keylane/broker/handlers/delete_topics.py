"""DeleteTopics (20), versions 1-6: delete topics with their records, and their offsets in every group, durably.

v4: flexible; v5: error messages; v6: by name or by topic id. A topic that is named more than once stays, with an
INVALID_REQUEST.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import counted, in_slices
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.storage.filesystem import StorageError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 20
MIN_VERSION = 1
MAX_VERSION = 6
LACKS = "nothing"

logger = logger_of("keylane.broker")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    module = response_module("delete_topics", version)
    wanted: Iterator[tuple[str | None, UUID | None]]
    if version >= 6:
        wanted = ((topic.name, topic.topic_id) for topic in request.topics)
    else:
        wanted = ((name, None) for name in request.topic_names)
    counts = await counted(wanted)
    by_both = {
        name: topic_id
        async for (one, topic_id), count in in_slices(counts.items())
        if count == 1 and one is None and topic_id is not None
        if counts[name := node.topics.name_of(topic_id), None] == 1 and name is not None
    }
    results = []
    async for (name, topic_id), count in in_slices(counts.items()):
        if name is None and count == 1 and node.topics.name_of(topic_id) in by_both:
            continue  # it is refused by its name
        if count > 1:
            found_name, found_id, code, message = _repeated(name, topic_id, count)
        elif topic_id is None and name in by_both:
            found_name, found_id, code, message = _by_both(name, by_both[name])
        else:
            found_name, found_id, code, message = await _delete(name, topic_id, node)
        results.append(
            entity(
                module.DeletableTopicResult,
                name=found_name,
                topic_id=found_id,
                error_code=ErrorCode(code),
                error_message=message,
            )
        )
    return module.DeleteTopicsResponse(throttle_time=datetime.timedelta(0), responses=tuple(results))


Deleted = tuple["str | None", "UUID | None", int, "str | None"]
"""Name, id, error code and sentence."""


def _repeated(name: str | None, topic_id: UUID | None, count: int) -> Deleted:
    return name, topic_id, codes.INVALID_REQUEST, f"topic {topic_id or repr(name)} is in the request {count} times"


def _by_both(name: str | None, topic_id: UUID | None) -> Deleted:
    return name, topic_id, codes.INVALID_REQUEST, f"topic {name!r} is in the request by its name and by its id"


async def _delete(name: str | None, topic_id: UUID | None, node: Node) -> Deleted:
    if (name is None) == (topic_id is None):
        return name, topic_id, codes.INVALID_REQUEST, "give either the topic's name or its id"
    if name is None:
        name = node.topics.name_of(topic_id)
        if name is None:
            return None, topic_id, codes.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}"
    if name == OFFSETS_TOPIC:
        return name, None, codes.INVALID_TOPIC_EXCEPTION, f"{OFFSETS_TOPIC} is the broker's own and cannot be deleted"
    found_id = node.topics.topic_id(name)
    if found_id is None:
        return name, None, codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
    try:
        await node.topics.delete(name, node.coordinator.delete_topic_offsets)
    except KeyError:
        return name, None, codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist any more"
    except StorageError as error:
        logger.error("topic %s is not wholly deleted: %s", name, error)  # noqa: TRY400 - one line says it all
        return name, found_id, codes.KAFKA_STORAGE_ERROR, str(error)
    return name, found_id, codes.NONE, None
