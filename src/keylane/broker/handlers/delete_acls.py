"""DeleteAcls (31), versions 1-3: there are no ACLs; each filter is refused."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.handlers.describe_acls import NO_ACLS
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 31
MIN_VERSION = 1
MAX_VERSION = 3
LACKS = "ACLs (SECURITY_DISABLED)"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:  # noqa: ARG001
    module = response_module("delete_acls", header.api_version)
    refused = module.DeleteAclsFilterResult(
        error_code=ErrorCode(codes.SECURITY_DISABLED), error_message=NO_ACLS, matching_acls=()
    )
    return module.DeleteAclsResponse(
        throttle_time=datetime.timedelta(0), filter_results=tuple(refused for _ in request.filters)
    )
