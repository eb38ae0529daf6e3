"""AlterClientQuotas (49), versions 0-1: no quota is kept, so none is taken; to remove one is no error.

v1: flexible. What names no entity is refused as by Apache Kafka (KIP-546).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.broker.handlers.describe_client_quotas import CLIENT_ID, IP, USER
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 49
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "quotas: to set one is INVALID_REQUEST"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:  # noqa: ARG001
    module = response_module("alter_client_quotas", header.api_version)
    rows = []
    async for entry in in_slices(request.entries):
        code, message = _outcome(entry)
        entities = tuple(
            module.EntityData(entity_type=one.entity_type, entity_name=one.entity_name) for one in entry.entity
        )
        rows.append(module.EntryData(error_code=ErrorCode(code), error_message=message, entity=entities))
    return module.AlterClientQuotasResponse(throttle_time=datetime.timedelta(0), entries=tuple(rows))


def _outcome(entry: Entity) -> tuple[int, str | None]:
    kinds = [one.entity_type for one in entry.entity]
    if not kinds or not set(kinds) <= {USER, CLIENT_ID, IP} or (IP in kinds and len(kinds) > 1):
        return codes.INVALID_REQUEST, f"entity types {kinds}: give user, client-id or both, or ip alone"
    keys = [one.key for one in entry.ops]
    if len(set(keys)) < len(keys):
        return codes.INVALID_REQUEST, f"quotas {keys}: name each once"
    kept = [one.key for one in entry.ops if not one.remove]
    if kept:
        return codes.INVALID_REQUEST, f"quotas {kept}: this broker keeps none; bound what clients do at the clients"
    return codes.NONE, None
