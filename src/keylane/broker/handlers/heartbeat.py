"""Heartbeat (12), versions 0-4: a member is alive, and learns of rebalances.

v3: static members; v4: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.wire.primitives import EMPTY_TAGS, int16, int32

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 12
MIN_VERSION = 0
MAX_VERSION = 4
LACKS = "nothing"

THROTTLE_VERSION = 1
FLEXIBLE_VERSION = 4


def begin(request: Any, header: RequestHeader, node: Node) -> bytes:
    instance_id = getattr(request, "group_instance_id", None)
    error = node.coordinator.heartbeat(request.group_id, request.member_id, instance_id, request.generation_id)
    return encode(header.api_version, error)


def encode(version: int, error: int) -> bytes:
    """The response's body."""
    body = int16(error) if version < THROTTLE_VERSION else int32(0) + int16(error)
    return body + EMPTY_TAGS if version >= FLEXIBLE_VERSION else body
