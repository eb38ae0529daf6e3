"""InitProducerId (22), versions 0-4: an id for an idempotent producer, never given before.

v2: flexible; v3: the producer may send the id and epoch it had (KIP-360), which a producer without a transactional id
exchanges for a new id, as in Apache Kafka. Transactional ids are refused: transactions are not offered yet.
"""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker import codes
from keylane.storage.filesystem import StorageError
from keylane.wire.versions import response_type

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 22
MIN_VERSION = 0
MAX_VERSION = 4
LACKS = "transactional ids (refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED)"

logger = logging.getLogger("keylane.broker")


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    if request.transactional_id is not None:
        logger.warning(
            "client %s asks for transactional.id %s: this broker offers no transactions",
            header.client_id,
            request.transactional_id,
        )
        return _response(header.api_version, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        producer_id = await node.producer_ids.take()
    except StorageError as error:
        logger.error("%s", error)  # noqa: TRY400 - one line says it all
        return _response(header.api_version, codes.KAFKA_STORAGE_ERROR)
    return _response(header.api_version, codes.NONE, producer_id, 0)


def _response(version: int, code: int, producer_id: int = -1, producer_epoch: int = -1) -> Any:
    return response_type("init_producer_id", version)(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(code),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
