"""Metadata (3), versions 0-13: the broker, and the topics with their partitions, all led by it.

v1: null means all topics, empty none (v0: empty means all); v4: a client may forbid that topics are made; v8:
authorized operations; v9: flexible; v10: topic ids in answers; v12: topics may be asked for by id; v13: an error of the
whole, which is never one here. A topic that is made here is durable before it is answered, so there is no
LEADER_NOT_AVAILABLE to retry on.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.authorized_operations import NOT_ASKED, ON_THE_CLUSTER, ON_TOPICS
from keylane.broker.dispatch import in_slices
from keylane.broker.topics import NewTopic, check_topic_name, metric_name
from keylane.errors import UsageError
from keylane.storage.filesystem import StorageError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 3
MIN_VERSION = 0
MAX_VERSION = 13
LACKS = "nothing"
HAS_LARGE_ANSWERS = True

NO_LEADER = -1
FIRST_WITH_TOPIC_IDS = 12
"""The schema has ids in requests from version 10 on; Kafka takes them from 12 on."""

logger = logger_of("keylane.broker")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    module = response_module("metadata", version)
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        topics = [
            _found(module, node, name) async for name in in_slices(node.topics.names()) if node.topics.exists(name)
        ]
        if node.offsets_topic.is_listed:
            topics.append(_offsets_topic(module, node))
    else:
        may_create = node.config.auto_create_topics_enable and (version < 4 or request.allow_auto_topic_creation)
        each_once = dict.fromkeys(wanted)  # as by Apache Kafka
        refused = await _create(node, each_once) if may_create else {}
        topics = [
            _error(module, "", topic.topic_id, codes.INVALID_REQUEST)
            if (topic.name is None or getattr(topic, "topic_id", None)) and version < FIRST_WITH_TOPIC_IDS
            else _topic(module, node, topic, refused)
            async for topic in in_slices(each_once)
        ]
    if getattr(request, "include_topic_authorized_operations", False):
        topics = [dataclasses.replace(topic, topic_authorized_operations=ON_TOPICS) for topic in topics]
    is_cluster_asked = getattr(request, "include_cluster_authorized_operations", False)
    broker = entity(module.MetadataResponseBroker, node_id=node.node_id, host=node.host, port=node.port)
    return entity(
        module.MetadataResponse,
        throttle_time=datetime.timedelta(0),
        brokers=(broker,),
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        topics=tuple(topics),
        error_code=ErrorCode.none,
        cluster_authorized_operations=ON_THE_CLUSTER if is_cluster_asked else NOT_ASKED,
    )


def _topic(module: Any, node: Node, wanted: Any, refused: Mapping[str, int]) -> Any:
    """`refused`: why topics could not be made."""
    topic_id = getattr(wanted, "topic_id", None) or None
    is_by_id = topic_id is not None or wanted.name is None  # Java's clients send the name "" beside an id
    if (node.offsets_topic.topic_id == topic_id) if is_by_id else (node.offsets_topic.name == wanted.name):
        return _offsets_topic(module, node)
    if is_by_id:
        name = node.topics.name_of(topic_id)
        if name is None:
            return _error(module, None, topic_id, codes.UNKNOWN_TOPIC_ID)
        return _found(module, node, name)
    try:
        check_topic_name(wanted.name)
    except UsageError:
        return _error(module, wanted.name, None, codes.INVALID_TOPIC_EXCEPTION)
    if not node.topics.exists(wanted.name):
        return _error(module, wanted.name, None, refused.get(wanted.name, codes.UNKNOWN_TOPIC_OR_PARTITION))
    return _found(module, node, wanted.name)


async def _create(node: Node, wanted: Iterable[Any]) -> dict[str, int]:
    """`auto.create.topics.enable`: all that are not there, in one write; an error code for each that was not made."""
    refused: dict[str, int] = {}
    new: dict[str, str] = {}
    """Names by how metrics name them."""
    async for topic in in_slices(wanted):
        name = topic.name
        if getattr(topic, "topic_id", None) or not _may_be_made(node, name):
            continue
        if node.topics.colliding(name) is not None or new.setdefault(metric_name(name), name) != name:
            refused[name] = codes.INVALID_TOPIC_EXCEPTION
    if not new:
        return refused
    made: Mapping[str, object]
    try:
        made = await node.topics.create_all([NewTopic(name, node.config.num_partitions, {}) for name in new.values()])
    except StorageError as error:
        made = dict.fromkeys(new.values(), error)
    for name, one in made.items():
        # One that exists by now was made by another client, or is being deleted.
        if isinstance(one, StorageError):
            logger.error("topic %s cannot be made: %s", name, one)
            refused[name] = codes.KAFKA_STORAGE_ERROR
    return refused


def _may_be_made(node: Node, name: str | None) -> bool:
    if name is None or node.topics.exists(name):
        return False
    try:
        check_topic_name(name)
    except UsageError:
        return False
    return True


def _error(module: Any, name: str | None, topic_id: UUID | None, code: int) -> Any:
    return entity(module.MetadataResponseTopic, error_code=ErrorCode(code), name=name, topic_id=topic_id, partitions=())


def _found(module: Any, node: Node, name: str) -> Any:
    topic = node.topics.get(name)
    assert topic is not None
    epochs = [log.leader_epoch for log in topic.logs]
    return _topic_entity(module, node, name, topic.topic_id, epochs, is_internal=False)


def _offsets_topic(module: Any, node: Node) -> Any:
    topic = node.offsets_topic
    epochs = [topic.leader_epoch] * topic.partition_count
    return _topic_entity(module, node, topic.name, topic.topic_id, epochs, is_internal=True, owned=topic.owned)


def _topic_entity(
    module: Any,
    node: Node,
    name: str,
    topic_id: UUID,
    epochs: Sequence[int],
    *,
    is_internal: bool,
    owned: frozenset[int] | None = None,
) -> Any:
    """`epochs`: the leader epoch of each partition; `owned`: partitions that are led here; None for all."""
    here = (node.node_id,)
    partitions = [
        entity(
            module.MetadataResponsePartition,
            error_code=ErrorCode(codes.NONE if owned is None or index in owned else codes.LEADER_NOT_AVAILABLE),
            partition_index=index,
            leader_id=node.node_id if owned is None or index in owned else NO_LEADER,
            leader_epoch=epoch,
            replica_nodes=here,
            isr_nodes=here,
        )
        for index, epoch in enumerate(epochs)
    ]
    return entity(
        module.MetadataResponseTopic,
        error_code=ErrorCode.none,
        name=name,
        topic_id=topic_id,
        is_internal=is_internal,
        partitions=tuple(partitions),
    )
