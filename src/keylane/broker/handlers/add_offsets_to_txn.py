"""AddOffsetsToTxn (25), versions 0-4: offsets of a group will be committed in a producer's transaction.

The group's partition of `__consumer_offsets` becomes part of it, and gets a marker in the end.

v2: PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before); v3: flexible. Producers of transactions V2 (KIP-890) send
TxnOffsetCommit alone.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.coordinator.formats import OFFSETS_TOPIC, partition_for
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.wire import codes
from keylane.wire.versions import response_type

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 25
MIN_VERSION = 0
MAX_VERSION = 4
LACKS = "nothing"

_FENCED_VERSION = 2


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    partition = partition_for(request.group_id, node.offsets_topic.partition_count)
    error = await node.coordinator.transactions.add_partitions(
        request.transactional_id, Producer(request.producer_id, request.producer_epoch), [(OFFSETS_TOPIC, partition)]
    )
    if error == codes.PRODUCER_FENCED and header.api_version < _FENCED_VERSION:
        error = codes.INVALID_PRODUCER_EPOCH
    return response_type("add_offsets_to_txn", header.api_version)(
        throttle_time=datetime.timedelta(0), error_code=ErrorCode(error)
    )
