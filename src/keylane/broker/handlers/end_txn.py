"""EndTxn (26), versions 0-5: commit or abort a producer's transaction.

It is answered when the decision is durable; markers follow, and until they are written the producer's next request is
told CONCURRENT_TRANSACTIONS.

v2: PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before); v3: flexible; v5: the answer has the producer id and the epoch of
the next transaction, so that what comes late of this one is refused (KIP-890).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.coordinator.transaction_service import ProducerAnswer
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.wire import codes
from keylane.wire.versions import entity, response_type

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 26
MIN_VERSION = 0
MAX_VERSION = 5
LACKS = "nothing"

_FENCED_VERSION = 2
_NEXT_EPOCH_VERSION = 5


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    producer = Producer(request.producer_id, request.producer_epoch)
    transactions = node.coordinator.transactions
    name, committed = request.transactional_id, request.committed
    if header.api_version >= _NEXT_EPOCH_VERSION:
        answer = await transactions.end_to_next_epoch(name, producer, committed=committed)
    else:
        answer = ProducerAnswer(await transactions.end(name, producer, committed=committed))
    error = answer.error
    if error == codes.PRODUCER_FENCED and header.api_version < _FENCED_VERSION:
        error = codes.INVALID_PRODUCER_EPOCH
    return entity(
        response_type("end_txn", header.api_version),
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(error),
        producer_id=answer.producer.producer_id,
        producer_epoch=answer.producer.epoch,
    )
