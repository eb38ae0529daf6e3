"""FindCoordinator (10), versions 0-4: who coordinates a group: this node, or nobody that it knows of.

v1: key types, error messages; v3: flexible; v4: many keys (KIP-699).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 10
MIN_VERSION = 0
MAX_VERSION = 4
LACKS = "share groups (INVALID_REQUEST)"

GROUP = 0
TRANSACTION = 1


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    module = response_module("find_coordinator", version)
    key_type = GROUP if version == 0 else request.key_type
    keys = request.coordinator_keys if version >= 4 else (request.key,)
    found = [_find(key, key_type, node) for key in keys]
    if version >= 4:
        coordinators = tuple(module.Coordinator(**values) for values in found)
        return module.FindCoordinatorResponse(throttle_time=datetime.timedelta(0), coordinators=coordinators)
    return entity(module.FindCoordinatorResponse, throttle_time=datetime.timedelta(0), **found[0])


def _find(key: str, key_type: int, node: Node) -> dict[str, Any]:
    error, message = _check(key, key_type, node)
    is_found = error == codes.NONE
    return {
        "key": key,
        "node_id": node.node_id if is_found else -1,
        "host": node.host if is_found else "",
        "port": node.port if is_found else -1,
        "error_code": ErrorCode(error),
        "error_message": message,
    }


def _check(key: str, key_type: int, node: Node) -> tuple[int, str | None]:
    if key_type == TRANSACTION:
        return codes.NONE, None
    if key_type != GROUP:
        return codes.INVALID_REQUEST, f"key type {key_type}: groups (0) and transactions (1) have a coordinator here"
    if not node.coordinator.owns(key):
        return codes.COORDINATOR_NOT_AVAILABLE, (
            f"group {key!r}: this node does not own its offsets partition (keylane.owned.offsets.partitions)"
        )
    # An empty group id has a coordinator too: simple consumers of old clients use it.
    return codes.NONE, None
