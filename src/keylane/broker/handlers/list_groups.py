"""ListGroups (16), versions 0-5: all groups, also those that only ever committed.

v3: flexible; v4: filter by state, and the state (KIP-518); v5: filter by type, and the type (KIP-848).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.wire.versions import entity, response_module, response_type

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 16
MIN_VERSION = 0
MAX_VERSION = 5
LACKS = "nothing"
HAS_LARGE_ANSWERS = True


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    states = {name.lower() async for name in in_slices(getattr(request, "states_filter", ()))}
    types = {name.lower() async for name in in_slices(getattr(request, "types_filter", ()))}
    error, listed = node.coordinator.list_groups(states, types)
    module = response_module("list_groups", header.api_version)
    groups = [
        entity(
            module.ListedGroup,
            group_id=group.group,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.group_type,
        )
        async for group in in_slices(listed)
    ]
    return answer(header.api_version, error, groups)


def answer(version: int, error: int, groups: Iterable[Entity]) -> Entity:
    """With these groups."""
    return entity(
        response_type("list_groups", version),
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(error),
        groups=tuple(groups),
    )
