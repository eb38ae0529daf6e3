"""IncrementalAlterConfigs (44), versions 0-1: set, delete, append to or subtract from single configs (KIP-339).

v1: flexible. All changes of a resource are durable, and in effect, before the answer; or none is.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker import codes
from keylane.broker.configs import TOPIC, ConfigError, change_topic, check_each_once, check_resource, find_topic
from keylane.broker.topic_settings import FIXED, HONOURED, check_settings, policies, setting
from keylane.errors import UsageError
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 44
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "changes of the broker's options while it runs (INVALID_REQUEST); __consumer_offsets"

SET, DELETE, APPEND, SUBTRACT = range(4)
_NAMES = ("SET", "DELETE", "APPEND", "SUBTRACT")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("incremental_alter_configs", header.api_version)
    repeated = check_each_once((each.resource_type, each.resource_name) for each in request.resources)
    responses = []
    for resource in request.resources:
        code, message = codes.NONE, None
        try:
            await _alter(resource, node, repeated, validate_only=request.validate_only)
        except ConfigError as error:
            code, message = error.code, str(error)
        responses.append(
            module.AlterConfigsResourceResponse(
                error_code=ErrorCode(code),
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return module.IncrementalAlterConfigsResponse(throttle_time=datetime.timedelta(0), responses=tuple(responses))


async def _alter(resource: Any, node: Node, repeated: set[tuple[int, str]], *, validate_only: bool) -> None:
    kind, name = resource.resource_type, resource.resource_name
    check_resource(node, kind, name, (config.name for config in resource.configs), repeated)
    if kind != TOPIC:
        return
    settings = dict(find_topic(node, name))
    missing = sorted(each.name for each in resource.configs if each.value is None and each.config_operation != DELETE)
    if missing:
        raise ConfigError(codes.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")
    for config in resource.configs:
        try:
            _apply(config, settings, node)
        except UsageError as error:
            raise ConfigError(codes.INVALID_CONFIG, str(error)) from error
    await change_topic(node, name, settings, validate_only=validate_only)


def _apply(config: Any, settings: dict[str, str], node: Node) -> None:
    """One change. Raises `UsageError` and `ConfigError`."""
    name, operation = config.name, config.config_operation
    if operation not in range(len(_NAMES)):
        raise ConfigError(codes.INVALID_REQUEST, f"Unknown operation type {operation} for config {name}")
    if operation == DELETE:
        if name not in HONOURED and name not in FIXED:
            check_settings([(name, "")])
        settings.pop(name, None)
        return
    value = config.value
    if operation in (APPEND, SUBTRACT):
        if name not in HONOURED or HONOURED[name].kind != "LIST":
            raise UsageError(f"Can't {_NAMES[operation]} to key {name} because its type is not LIST.")
        items = policies(setting(settings, name, node.config))
        given = policies(value)
        items = (
            [*items, *(each for each in given if each not in items)]
            if operation == APPEND
            else [each for each in items if each not in given]
        )
        value = ",".join(items)
    settings.update(check_settings([(name, value)]))
