"""ListConfigResources (74), versions 0-1: what has configs, by its type (KIP-1142).

v0: ListClientMetricsResources (KIP-714), of which there are none; v1: topics, the broker, its loggers, and groups that
have configs of their own; those of some types, or of all.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.config_resources import BROKER, GROUP, TOPIC
from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 74
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "nothing"

BROKER_LOGGER, CLIENT_METRICS = 8, 16
_TYPES = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("list_config_resources", header.api_version)
    wanted = (set(request.resource_types) or set(_TYPES)) if header.api_version else {CLIENT_METRICS}
    is_known = wanted <= set(_TYPES)
    rows = [
        module.ConfigResource(resource_name=name, resource_type=kind)
        for kind in _TYPES
        if is_known and kind in wanted
        async for name in in_slices(_names(node, kind))
    ]
    return module.ListConfigResourcesResponse(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(codes.NONE if is_known else codes.UNSUPPORTED_VERSION),
        config_resources=tuple(rows),
    )


def _names(node: Node, kind: int) -> list[str]:
    if kind == TOPIC:
        return node.topic_names()
    if kind == GROUP:
        return node.group_configs.groups()
    return [] if kind == CLIENT_METRICS else [str(node.node_id)]
