"""AlterConfigs (33), versions 0-2: give topics new configs in place of all that they have; durable before the answer.

v2: flexible. A config that is not in the request goes back to the broker's.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker import codes
from keylane.broker.configs import TOPIC, ConfigError, change_topic, check_each_once, check_resource, find_topic
from keylane.broker.topic_settings import check_settings
from keylane.errors import UsageError
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 33
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "changes of the broker's options while it runs (INVALID_REQUEST); __consumer_offsets"


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("alter_configs", header.api_version)
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
    return module.AlterConfigsResponse(throttle_time=datetime.timedelta(0), responses=tuple(responses))


async def _alter(resource: Any, node: Node, repeated: set[tuple[int, str]], *, validate_only: bool) -> None:
    kind, name = resource.resource_type, resource.resource_name
    check_resource(node, kind, name, (config.name for config in resource.configs), repeated)
    if kind != TOPIC:
        return
    find_topic(node, name)
    missing = sorted(config.name for config in resource.configs if config.value is None)
    if missing:
        raise ConfigError(codes.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")
    try:
        settings = check_settings((config.name, config.value) for config in resource.configs)
    except UsageError as error:
        raise ConfigError(codes.INVALID_CONFIG, str(error)) from error
    await change_topic(node, name, settings, validate_only=validate_only)
