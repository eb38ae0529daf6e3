"""ListPartitionReassignments (46), version 0: there are none, since there is one broker."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 46
MIN_VERSION = 0
MAX_VERSION = 0
LACKS = "nothing"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:  # noqa: ARG001
    return response_module("list_partition_reassignments", header.api_version).ListPartitionReassignmentsResponse(
        throttle_time=datetime.timedelta(0), error_code=ErrorCode.none, error_message=None, topics=()
    )
