"""DescribeClientQuotas (48), versions 0-1: there are no quotas, so every filter that is one finds none.

v1: flexible. What is no filter is refused as by Apache Kafka (KIP-546).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 48
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "quotas: there are none"

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, ANY = range(3)
"""Kafka's match types: this name, the default entity, or any name."""


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:  # noqa: ARG001
    module = response_module("describe_client_quotas", header.api_version)
    code, message = _check(request.components)
    return module.DescribeClientQuotasResponse(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(code),
        error_message=message,
        entries=() if code == codes.NONE else None,
    )


def _check(components: Sequence[Entity]) -> tuple[int, str | None]:
    """What is wrong with a filter: an error code, and a sentence."""
    kinds = [component.entity_type for component in components]
    for component in components:
        kind, match_type = component.entity_type, component.match_type
        if not kind:
            return codes.INVALID_REQUEST, "an entity type that is empty: give user, client-id or ip"
        if kinds.count(kind) > 1:
            return codes.INVALID_REQUEST, f"entity type {kind!r} is in the filter {kinds.count(kind)} times"
        if kind not in (USER, CLIENT_ID, IP):
            return codes.UNSUPPORTED_VERSION, f"entity type {kind!r}: give user, client-id or ip"
        if match_type not in (EXACT, DEFAULT, ANY) or (match_type == EXACT) is (component.match is None):
            return codes.INVALID_REQUEST, f"match type {match_type} of {kind!r}: 0 needs a name, and 1 and 2 have none"
    if IP in kinds and len(kinds) > 1:
        return codes.INVALID_REQUEST, "entity type 'ip' stands alone in a filter"
    return codes.NONE, None
