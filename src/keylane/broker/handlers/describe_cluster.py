"""DescribeCluster (60), versions 0-1: the broker, which is all of the cluster (KIP-700).

v1: endpoint type; there are brokers (1) and no controllers of their own (2).
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

API_KEY = 60
MIN_VERSION = 0
MAX_VERSION = 1
LACKS = "authorized operations (there are no ACLs); controllers as endpoints (UNSUPPORTED_ENDPOINT_TYPE)"

BROKERS = 1


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("describe_cluster", header.api_version)
    asked = getattr(request, "endpoint_type", BROKERS)
    is_known = asked == BROKERS
    broker = module.DescribeClusterBroker(broker_id=node.node_id, host=node.host, port=node.port, rack=None)
    return entity(
        module.DescribeClusterResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(codes.NONE if is_known else codes.UNSUPPORTED_ENDPOINT_TYPE),
        error_message=None if is_known else f"endpoint type {asked}: this cluster has brokers ({BROKERS}) only",
        endpoint_type=asked,
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        brokers=(broker,) if is_known else (),
    )
