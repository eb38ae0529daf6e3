"""IncrementalAlterConfigs (44), versions 0-1: set, delete, append to or subtract from single configs (KIP-339).

v1: flexible. All changes of a resource are durable, and in effect, before the answer; or none is. To DELETE what is not
set is no error, whatever its name, as in Apache Kafka: tools copy all configs of a topic.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from keylane.broker.config_resources import APPEND, DELETE, SUBTRACT, ConfigError, alter, combined, refuse_nulls
from keylane.broker.topic_settings import check_settings, known_setting
from keylane.broker.topic_values import setting
from keylane.errors import UsageError
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.broker.config import BrokerConfig
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 44
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "options of the broker that are given at its start alone (INVALID_REQUEST); __consumer_offsets"

_NAMES = ("SET", "DELETE", "APPEND", "SUBTRACT")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("incremental_alter_configs", header.api_version)
    responses = await alter(request, module.AlterConfigsResourceResponse, node, _changed, is_incremental=True)
    return module.IncrementalAlterConfigsResponse(throttle_time=datetime.timedelta(0), responses=responses)


def _changed(configs: Any, settings: Mapping[str, str], config: BrokerConfig) -> dict[str, str]:
    refuse_nulls(each for each in configs if each.config_operation != DELETE)
    changed = dict(settings)
    for each in configs:
        _apply(each, changed, config)
    return changed


def _apply(change: Any, settings: dict[str, str], config: BrokerConfig) -> None:
    """One change. Raises `UsageError` and `ConfigError`."""
    name, operation = change.name, change.config_operation
    if operation not in range(len(_NAMES)):
        raise ConfigError(codes.INVALID_REQUEST, f"Unknown operation type {operation} for config {name}")
    if operation == DELETE:
        settings.pop(name, None)
        return
    value = change.value
    if operation in (APPEND, SUBTRACT):
        known = known_setting(name)
        if known is None or known.kind != "LIST":
            raise UsageError(f"Can't {_NAMES[operation]} to key {name} because its type is not LIST.")
        value = combined(operation, setting(settings, name, config), value)
    settings.update(check_settings([(name, value)]))
