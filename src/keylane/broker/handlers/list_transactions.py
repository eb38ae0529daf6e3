"""ListTransactions (66), version 0: every transactional id, or those in one of these states or of these producers
(KIP-664)."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.coordinator.transactions.states import State
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 66
MIN_VERSION = 0
MAX_VERSION = 0
LACKS = "filters by duration and by pattern (versions 1 and 2)"


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    module = response_module("list_transactions", header.api_version)
    known = {state.title for state in State}
    wanted = set(request.state_filters)
    producers = set(request.producer_id_filters)
    transactions = node.coordinator.transactions
    rows = [
        module.TransactionState(
            transactional_id=name, producer_id=found.producer_id, transaction_state=found.state.title
        )
        for name, found in transactions.ids
        if (not wanted or found.state.title in wanted) and (not producers or found.producer_id in producers)
    ]
    return module.ListTransactionsResponse(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(transactions.refusal),
        unknown_state_filters=tuple(sorted(wanted - known)),
        transaction_states=() if transactions.refusal != codes.NONE else tuple(rows),
    )
