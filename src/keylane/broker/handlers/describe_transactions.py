"""DescribeTransactions (65), version 0: the state of transactional ids (KIP-664)."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.transactions.transactional_ids import Transaction

API_KEY = 65
MIN_VERSION = 0
MAX_VERSION = 0
LACKS = "nothing"

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("describe_transactions", header.api_version)
    transactions = node.coordinator.transactions
    states = []
    async for name in in_slices(request.transactional_ids):
        found = None if transactions.refusal else transactions.ids.get(name)
        error = transactions.refusal or (codes.NONE if found else codes.TRANSACTIONAL_ID_NOT_FOUND)
        states.append(_state(module, name, error if name else codes.INVALID_REQUEST, found))
    return module.DescribeTransactionsResponse(throttle_time=datetime.timedelta(0), transaction_states=tuple(states))


def _state(module: Any, name: str, error: int, found: Transaction | None) -> Any:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(found.partitions) if found else ():
        by_topic.setdefault(topic, []).append(index)
    started_ms = found.started_ms if found else 0
    return module.TransactionState(
        error_code=ErrorCode(error),
        transactional_id=name,
        transaction_state=found.state.title if found else "",
        transaction_timeout=datetime.timedelta(milliseconds=found.timeout_ms if found else 0),
        transaction_start_time=_EPOCH + datetime.timedelta(milliseconds=started_ms),
        producer_id=found.producer_id if found else 0,
        producer_epoch=found.epoch if found else 0,
        topics=tuple(module.TopicData(topic=topic, partitions=tuple(rows)) for topic, rows in by_topic.items()),
    )
