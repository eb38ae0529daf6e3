"""ListTransactions (66), versions 0-2: every transactional id, or those in one of these states or of these producers
(KIP-664).

v1: those that have been open for longer than so many milliseconds (KIP-994), and those that never were; v2: those that
an expression matches as a whole (KIP-1152).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from keylane.broker.dispatch import in_slices
from keylane.coordinator.patterns import PatternError, matcher
from keylane.coordinator.transactions.states import State
from keylane.wire import codes
from keylane.wire.versions import response_module

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node

API_KEY = 66
MIN_VERSION = 0
MAX_VERSION = 2
LACKS = "nothing"


async def handle(request: Any, header: RequestHeader, node: Node) -> Any:
    known = {state.title for state in State}
    wanted = set(request.state_filters)
    unknown = [one async for one in in_slices(wanted) if one not in known]
    producers = set(request.producer_id_filters)
    least_ms, pattern = getattr(request, "duration_filter", -1), getattr(request, "transactional_id_pattern", None)
    transactions = node.coordinator.transactions
    error = transactions.refusal
    matches = None
    try:
        matches = matcher(pattern) if pattern else None
    except PatternError:
        error = codes.INVALID_REGULAR_EXPRESSION
    now_ms = node.clock()
    rows = [
        response_module("list_transactions", header.api_version).TransactionState(
            transactional_id=name, producer_id=found.producer_id, transaction_state=found.state.title
        )
        async for name, found in in_slices(list(transactions.ids))
        if (not wanted or found.state.title in wanted)
        and (not producers or found.producer_id in producers)
        and (least_ms < 0 or now_ms - found.started_ms > least_ms)
        and (matches is None or matches(name))
    ]
    return answer(header.api_version, () if error != codes.NONE else rows, error, unknown)


def answer(version: int, rows: Iterable[Any], error: int = codes.NONE, unknown_states: Iterable[str] = ()) -> Any:
    """With these transactions."""
    return response_module("list_transactions", version).ListTransactionsResponse(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(error),
        unknown_state_filters=tuple(unknown_states),
        transaction_states=tuple(rows),
    )
