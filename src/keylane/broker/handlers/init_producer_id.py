"""InitProducerId (22), versions 0-5: an id for an idempotent producer, or the next epoch of a transactional id.

v2: flexible; v3: the producer may send the id and epoch it had (KIP-360), which a producer without a transactional id
exchanges for a new id, as in Apache Kafka; v4: PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.coordinator.transactions.transactional_ids import NO_EPOCH, NO_PRODUCER_ID, Producer
from keylane.storage.filesystem import StorageError
from keylane.telling import logger_of
from keylane.wire import codes
from keylane.wire.versions import response_type

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 22
MIN_VERSION = 0
MAX_VERSION = 5
LACKS = "two-phase commit (KIP-939)"

_KNOWN_PRODUCER_VERSION = 3
_FENCED_VERSION = 4
_MILLISECOND = datetime.timedelta(milliseconds=1)

logger = logger_of("keylane.broker")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    version = header.api_version
    known = None
    if version >= _KNOWN_PRODUCER_VERSION:
        known = Producer(request.producer_id, request.producer_epoch)
        if (known.producer_id == NO_PRODUCER_ID) is not (known.epoch == NO_EPOCH):
            return _response(version, codes.INVALID_REQUEST)
        known = None if known.producer_id == NO_PRODUCER_ID else known
    if request.transactional_id is not None:
        return await _init_transactional(request, version, known, node)
    if not node.coordinator.transactions.is_loaded:  # which ids are in use is not known yet
        return _response(version, codes.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        producer_id = await node.producer_ids.new_id()
    except StorageError as error:
        logger.error("%s", error)  # noqa: TRY400 - one line says it all
        return _response(version, codes.KAFKA_STORAGE_ERROR)
    return _response(version, codes.NONE, Producer(producer_id, 0))


async def _init_transactional(request: Any, version: int, known: Producer | None, node: Node) -> Any:
    error, producer = await node.coordinator.transactions.init_producer_id(
        request.transactional_id, request.transaction_timeout // _MILLISECOND, known
    )
    if error == codes.PRODUCER_FENCED and version < _FENCED_VERSION:
        error = codes.INVALID_PRODUCER_EPOCH
    return _response(version, error, producer)


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_EPOCH)


def _response(version: int, code: int, producer: Producer = NO_PRODUCER) -> Any:
    return response_type("init_producer_id", version)(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(code),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )
