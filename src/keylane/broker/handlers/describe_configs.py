"""DescribeConfigs (32), versions 1-4: the configs of topics, groups and of the broker, and where each comes from.

v1: sources and synonyms (KIP-226); v3: types and documentation; v4: flexible. Configs that a request names and that do
not exist are left out, as by Apache Kafka.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.config_resources import Config, ConfigError, describe
from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 32
MIN_VERSION = 1
MAX_VERSION = 4
LACKS = "resources other than topics, brokers and groups (INVALID_REQUEST)"
HAS_LARGE_ANSWERS = True


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("describe_configs", header.api_version)
    results = [_result(module, resource, request, node) async for resource in in_slices(request.resources)]
    return module.DescribeConfigsResponse(throttle_time=datetime.timedelta(0), results=tuple(results))


def _result(module: Any, resource: Any, request: Any, node: Node) -> Any:
    code, message, configs = codes.NONE, None, ()
    try:
        found = describe(node, resource.resource_type, resource.resource_name)
        wanted = resource.configuration_keys
        configs = tuple(_config(module, config, request) for config in found if not wanted or config.name in wanted)
    except ConfigError as error:
        code, message = error.code, str(error)
    return module.DescribeConfigsResult(
        error_code=ErrorCode(code),
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _config(module: Any, config: Config, request: Any) -> Any:
    synonyms = config.synonyms if request.include_synonyms else ()
    return entity(
        module.DescribeConfigsResourceResult,
        name=config.name,
        value=config.value,
        read_only=config.is_read_only,
        config_source=config.source,
        is_sensitive=config.value is None,
        synonyms=tuple(
            module.DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source) for one in synonyms
        ),
        config_type=config.kind,
        documentation=config.about if getattr(request, "include_documentation", False) else None,
    )
