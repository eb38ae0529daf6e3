"""DescribeConfigs (32), versions 1-4: the configs of topics, groups and of the broker, and where each comes from.

v1: sources and synonyms (KIP-226); v3: types and documentation; v4: flexible. Configs that a request names and that do
not exist are left out, as by Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.config_resources import Config, ConfigError, describe
from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.primitives import EMPTY_TAGS, array_length, compact_array_length, int32
from keylane.wire.versions import encode_response, entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 32
MIN_VERSION = 1
MAX_VERSION = 4
LACKS = "resources other than topics, brokers and groups (INVALID_REQUEST)"
HAS_LARGE_ANSWERS = True
MAY_POLL = True

FLEXIBLE_VERSION = 4
MOST_BYTES = 64 * 1024 * 1024
"""Of an answer: the configs of 20,000 topics and more. A request of a few megabytes could ask for gigabytes."""


async def handle(request: Any, header: RequestHeader, node: Node) -> list[bytes]:
    """The response's body. Each resource is encoded as soon as it is described: its bytes take a part of the memory."""
    module = response_module("describe_configs", header.api_version)
    is_flexible = header.api_version >= FLEXIBLE_VERSION
    write_length = compact_array_length if is_flexible else array_length
    parts = [int32(0) + write_length(len(request.resources))]
    size = 0
    async for resource in in_slices(request.resources):
        result = _result(module, resource, request, node, has_room=size < MOST_BYTES)
        parts.append(encode_response(result))
        size += len(parts[-1])
    parts.append(EMPTY_TAGS if is_flexible else b"")
    return parts


def _result(module: Any, resource: Any, request: Any, node: Node, *, has_room: bool) -> Any:
    code, message, configs = codes.NONE, None, ()
    try:
        if not has_room:
            raise ConfigError(
                codes.INVALID_REQUEST,
                f"the answer has {MOST_BYTES} bytes already: describe fewer than {len(request.resources)} resources",
            )
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
