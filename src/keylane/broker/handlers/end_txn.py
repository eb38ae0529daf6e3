"""EndTxn (26), versions 0-3: commit or abort a producer's transaction.

It is answered when the decision is durable; markers follow, and until they are written the producer's next request is
told CONCURRENT_TRANSACTIONS.

v2: PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before); v3: flexible.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.wire import codes
from keylane.wire.versions import response_type

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 26
MIN_VERSION = 0
MAX_VERSION = 3
LACKS = "a new epoch with every transaction (transactions V2, KIP-890)"

_FENCED_VERSION = 2


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    producer = Producer(request.producer_id, request.producer_epoch)
    transactions = node.coordinator.transactions
    error = await transactions.end(request.transactional_id, producer, committed=request.committed)
    if error == codes.PRODUCER_FENCED and header.api_version < _FENCED_VERSION:
        error = codes.INVALID_PRODUCER_EPOCH
    return response_type("end_txn", header.api_version)(
        throttle_time=datetime.timedelta(0), error_code=ErrorCode(error)
    )
