"""FindCoordinator (10), versions 0-6: who coordinates a group: this node, or nobody that it knows of.

v1: key types, error messages; v3: flexible; v4: many keys (KIP-699); v5: errors of transactions (KIP-890); v6:
partitions of share groups (KIP-932).
"""

from __future__ import annotations

import base64
import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 10
MIN_VERSION = 0
MAX_VERSION = 6
LACKS = "nothing"

GROUP = 0
TRANSACTION = 1
SHARE = 2
SHARE_VERSION = 6
"""The first that knows it."""
UUID_BYTES = 16


class Found(NamedTuple):
    """Who coordinates something, or why nobody does."""

    error: int
    message: str | None
    node_id: int = -1
    host: str = ""
    port: int = -1


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    def find(key: str, key_type: int) -> Found:
        error, message = _check(key, key_type, header.api_version, node)
        return Found(error, message) if error else Found(error, message, node.node_id, node.host, node.port)

    return await answer(request, header, find)


async def answer(request: Entity, header: RequestHeader, find: Callable[[str, int], Found]) -> Entity:
    """With what `find` says to each key and the type of the keys."""
    version = header.api_version
    module = response_module("find_coordinator", version)
    key_type = GROUP if version == 0 else request.key_type
    keys = request.coordinator_keys if version >= 4 else (request.key,)
    found = [_values(key, find(key, key_type)) async for key in in_slices(keys)]
    if version >= 4:
        coordinators = [module.Coordinator(**values) async for values in in_slices(found)]
        return module.FindCoordinatorResponse(throttle_time=datetime.timedelta(0), coordinators=tuple(coordinators))
    return entity(module.FindCoordinatorResponse, throttle_time=datetime.timedelta(0), **found[0])


def _values(key: str, found: Found) -> dict[str, Any]:
    error, message, node_id, host, port = found
    return {
        "key": key,
        "node_id": node_id,
        "host": host,
        "port": port,
        "error_code": ErrorCode(error),
        "error_message": message,
    }


def _check(key: str, key_type: int, version: int, node: Node) -> tuple[int, str | None]:
    if key_type == TRANSACTION:
        return codes.NONE, None
    if key_type == SHARE and version >= SHARE_VERSION:
        if not is_share_key(key):
            return codes.INVALID_REQUEST, f"key {key!r}: a partition of a share group is group:topic id:partition"
        return codes.NONE, None
    if key_type != GROUP:
        return codes.INVALID_REQUEST, (
            f"key type {key_type} in version {version}: groups (0), transactions (1) and, from version {SHARE_VERSION} "
            f"on, partitions of share groups ({SHARE}) have a coordinator"
        )
    if not node.coordinator.owns(key):
        return codes.COORDINATOR_NOT_AVAILABLE, (
            f"group {key!r}: this node does not own its offsets partition (keylane.owned.offsets.partitions)"
        )
    # An empty group id has a coordinator too: simple consumers of old clients use it.
    return codes.NONE, None


def is_share_key(key: str) -> bool:
    """Whether it is `group:topic id:partition`; a group's id may have colons."""
    group, topic_id, partition = ["", "", *key.rsplit(":", 2)][-3:]
    try:
        int(partition)
        is_id = len(base64.b64decode(f"{topic_id}==", altchars=b"-_", validate=True)) == UUID_BYTES
    except ValueError:
        return False
    return bool(group) and is_id
