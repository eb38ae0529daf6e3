"""DescribeCluster (60), versions 0-2: the broker, which is all of the cluster (KIP-700).

v1: endpoint type; there are brokers (1) and no controllers of their own (2); v2: brokers that are fenced, and there
are none (KIP-1073).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.authorized_operations import NOT_ASKED, ON_THE_CLUSTER
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.wire.versions import Entity

API_KEY = 60
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "controllers as endpoints (MISMATCHED_ENDPOINT_TYPE)"

BROKERS, CONTROLLERS = 1, 2


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    return answer(request, header, [(node.node_id, node.host, node.port)], node.node_id, node.cluster_id)


def answer(
    request: Entity, header: RequestHeader, nodes: Iterable[tuple[int, str, int]], controller_id: int, cluster_id: str
) -> Entity:
    """With these nodes' ids, hosts and ports."""
    module = response_module("describe_cluster", header.api_version)
    asked = getattr(request, "endpoint_type", BROKERS)
    code, message = codes.NONE, None
    if asked == CONTROLLERS:
        code, message = codes.MISMATCHED_ENDPOINT_TYPE, "this is a broker: it tells of brokers (1) only"
    elif asked != BROKERS:
        code, message = codes.UNSUPPORTED_ENDPOINT_TYPE, f"endpoint type {asked}: give 1, for brokers"
    is_known = code == codes.NONE
    brokers = tuple(
        entity(module.DescribeClusterBroker, broker_id=node_id, host=host, port=port, rack=None, is_fenced=False)
        for node_id, host, port in nodes
    )
    return entity(
        module.DescribeClusterResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(code),
        error_message=message,
        endpoint_type=BROKERS,
        cluster_id=cluster_id,
        controller_id=controller_id,
        brokers=brokers if is_known else (),
        cluster_authorized_operations=(
            ON_THE_CLUSTER if is_known and request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
