"""DescribeAcls (29), versions 1-3: there are no ACLs, which is said as Apache Kafka says it without an authorizer."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 29
MIN_VERSION = 1
MAX_VERSION = 3
LACKS = "ACLs (SECURITY_DISABLED)"

NO_ACLS = "this broker has no ACLs: whoever logs in may do everything"


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:  # noqa: ARG001
    return response_module("describe_acls", header.api_version).DescribeAclsResponse(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(codes.SECURITY_DISABLED),
        error_message=NO_ACLS,
        resources=(),
    )
