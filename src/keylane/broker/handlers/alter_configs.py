"""AlterConfigs (33), versions 0-2: give topics new configs in place of all that they have; durable before the answer.

v2: flexible. A config that is not in the request goes back to the broker's.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from keylane.broker.config_resources import alter, refuse_nulls
from keylane.broker.topic_settings import check_settings
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.broker.config import BrokerConfig
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 33
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "options of the broker that are given at its start alone (INVALID_REQUEST); __consumer_offsets"


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("alter_configs", header.api_version)
    responses = await alter(request, module.AlterConfigsResourceResponse, node, _changed, is_incremental=False)
    return module.AlterConfigsResponse(throttle_time=datetime.timedelta(0), responses=responses)


def _changed(configs: Any, _settings: Mapping[str, str], _config: BrokerConfig) -> dict[str, str]:
    refuse_nulls(configs)
    return check_settings((config.name, config.value) for config in configs)
