"""CreateTopics (19), versions 2-7: make topics, durably, before the answer.

v4: -1 partitions or replicas mean the broker's default; v5: flexible, the answer has counts and configs; v7: topic ids.
Every topic config of Apache Kafka is taken; some are kept without effect (docs/adr/0118).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.config_resources import topic_configs
from keylane.broker.dispatch import counted, in_slices
from keylane.broker.topic_settings import KEPT, check_settings
from keylane.broker.topics import MAX_PARTITIONS, NewTopic, check_topic_name, collision, metric_name
from keylane.errors import UsageError
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.broker.topic_files import Topic

API_KEY = 19
MIN_VERSION = 2
MAX_VERSION = 7
LACKS = f"replication (factor 1 or -1 only); what is kept without effect: {', '.join(KEPT)}"

DEFAULT = -1
"""Partitions or replicas: as many as the broker's default."""


class _RefusedError(Exception):
    """A topic cannot be made: error code and sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    module = response_module("create_topics", version)
    counts = await counted(topic.name for topic in request.topics)
    plans: dict[str, NewTopic | _RefusedError] = {}
    planned: dict[str, str] = {}
    """Names by how metrics name them."""
    async for wanted in in_slices(request.topics):
        name, count = wanted.name, counts[wanted.name]
        if count > 1:
            plans[name] = _RefusedError(codes.INVALID_REQUEST, f"topic {name!r} is in the request {count} times")
            continue
        try:
            plan = _plan(wanted, node)
            if (other := planned.setdefault(metric_name(name), name)) != name:
                raise _RefusedError(codes.INVALID_TOPIC_EXCEPTION, collision(name, other))
            plans[name] = plan
        except _RefusedError as error:
            plans[name] = error
    made = {} if request.validate_only else await _create(plans.values(), node)
    results = [_result(module, name, plan, made.get(name), node) async for name, plan in in_slices(plans.items())]
    return module.CreateTopicsResponse(throttle_time=datetime.timedelta(0), topics=tuple(results))


def _plan(wanted: Any, node: Node) -> NewTopic:
    """What to make. Raises `_RefusedError`."""
    try:
        check_topic_name(wanted.name)
    except UsageError as error:
        raise _RefusedError(codes.INVALID_TOPIC_EXCEPTION, str(error)) from error
    if node.topics.exists(wanted.name):
        raise _RefusedError(codes.TOPIC_ALREADY_EXISTS, f"topic {wanted.name!r} already exists")
    other = node.topics.colliding(wanted.name)
    if other is not None:
        raise _RefusedError(codes.INVALID_TOPIC_EXCEPTION, collision(wanted.name, other))
    partition_count = _assigned(wanted, node) if wanted.assignments else _counted(wanted, node)
    try:
        settings = check_settings((config.name, config.value) for config in wanted.configs)
    except UsageError as error:
        raise _RefusedError(codes.INVALID_CONFIG, str(error)) from error
    return NewTopic(wanted.name, partition_count, settings)


def _counted(wanted: Any, node: Node) -> int:
    if wanted.replication_factor not in (1, DEFAULT):
        raise _RefusedError(
            codes.INVALID_REPLICATION_FACTOR,
            f"replication factor {wanted.replication_factor} for topic {wanted.name!r}: this broker is one node; "
            "give 1 or -1",
        )
    count: int = node.config.num_partitions if wanted.num_partitions == DEFAULT else wanted.num_partitions
    if not 1 <= count <= MAX_PARTITIONS:
        raise _RefusedError(
            codes.INVALID_PARTITIONS,
            f"{wanted.num_partitions} partitions for topic {wanted.name!r}: give 1 to {MAX_PARTITIONS}, or -1",
        )
    return count


def _assigned(wanted: Any, node: Node) -> int:
    if wanted.num_partitions != DEFAULT or wanted.replication_factor != DEFAULT:
        raise _RefusedError(
            codes.INVALID_REQUEST,
            f"topic {wanted.name!r}: give either assignments, or numbers of partitions and replicas",
        )
    count = len(wanted.assignments)
    if count > MAX_PARTITIONS:
        raise _RefusedError(
            codes.INVALID_PARTITIONS, f"{count} partitions for topic {wanted.name!r}: give at most {MAX_PARTITIONS}"
        )
    if sorted(assignment.partition_index for assignment in wanted.assignments) != list(range(count)):
        raise _RefusedError(
            codes.INVALID_REPLICA_ASSIGNMENT,
            f"topic {wanted.name!r}: assign the partitions 0 to {count - 1}, each once",
        )
    if any(tuple(assignment.broker_ids) != (node.node_id,) for assignment in wanted.assignments):
        raise _RefusedError(
            codes.INVALID_REPLICA_ASSIGNMENT,
            f"topic {wanted.name!r}: assign every partition to broker {node.node_id}, the only one",
        )
    return count


async def _create(plans: Iterable[NewTopic | _RefusedError], node: Node) -> dict[str, Topic | _RefusedError]:
    wanted = [plan for plan in plans if isinstance(plan, NewTopic)]
    try:
        made = await node.topics.create_all(wanted)
    except StorageError as error:
        return {plan.name: _RefusedError(codes.KAFKA_STORAGE_ERROR, str(error)) for plan in wanted}
    found: dict[str, Topic | _RefusedError] = {}
    for name, one in made.items():
        if isinstance(one, FileExistsError):
            found[name] = _RefusedError(codes.TOPIC_ALREADY_EXISTS, str(one))
        elif isinstance(one, StorageError):
            found[name] = _RefusedError(codes.KAFKA_STORAGE_ERROR, str(one))
        else:
            found[name] = one
    return found


def _result(
    module: Any, name: str, plan: NewTopic | _RefusedError, topic: Topic | _RefusedError | None, node: Node
) -> Any:
    """Of one topic; `topic` is None where it was only to be checked."""
    if isinstance(plan, _RefusedError):
        return _refused(module, name, plan)
    if isinstance(topic, _RefusedError):
        return _refused(module, name, topic)
    configs: tuple[Any, ...] = ()
    if hasattr(module, "CreatableTopicConfigs"):
        configs = tuple(
            module.CreatableTopicConfigs(
                name=each.name, value=each.value, read_only=False, config_source=each.source, is_sensitive=False
            )
            for each in topic_configs(plan.settings, node.broker_configs)
        )
    return entity(
        module.CreatableTopicResult,
        name=name,
        topic_id=None if topic is None else topic.topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=plan.partition_count,
        replication_factor=1,
        configs=configs,
    )


def _refused(module: Any, name: str, error: _RefusedError) -> Any:
    return entity(
        module.CreatableTopicResult,
        name=name,
        topic_id=None,
        error_code=ErrorCode(error.code),
        error_message=str(error),
        configs=None,
    )
