"""`context.budget`: what a call really took of its pipeline's budget, and what further calls of its handler take.

The idea: it is a handler around the handler, so that a pipeline without a budget has nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from keylane.options import is_coroutine_function, takes_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from keylane.flow.spending import Spends
    from keylane.limits import Cost
    from keylane.records import Context


class CallBudget:
    """Of one attempt, in the process that has the consumer."""

    __slots__ = ("_cost", "_known", "_records", "_spends")

    def __init__(self, spends: Spends, cost: Cost, records: Sequence[Any]) -> None:
        self._spends = spends
        self._cost = cost
        self._records = records
        self._known: dict[str, int] | None = None
        """What was asked for, or settled since."""

    def settle(self, **amounts: float) -> None:
        """What the call really took, by unit, all of it. What that is more than its cost makes a debt of the budget;
        what is less is not given back. A failed attempt's counts, too. Raises `UsageError` for a unit that the budget
        does not have."""
        if self._known is None:
            self._known = {}
            for record in self._records:
                for unit, amount in self._cost.amounts(record).items():
                    self._known[unit] = self._known.get(unit, 0) + amount
        more = {}
        for unit, amount in self._cost.budget.counted(amounts).items():
            known = self._known.get(unit, 0)
            more[unit] = max(0, amount - known)
            self._known[unit] = max(known, amount)
        self._spends.settle(more)

    def take(self, **amounts: float) -> Taking:
        """`async with` it, or `with` in a thread, around a further call of the same handler: it begins once the budget
        lets it. Raises `UsageError` for a cost that is never let through."""
        return Taking(self._spends, self._cost.budget.amounts(amounts))


class Taking:
    """A further call that waits for its turn. It is made within what runs already."""

    __slots__ = ("_amounts", "_spends")

    def __init__(self, spends: Spends, amounts: dict[str, int]) -> None:
        self._spends = spends
        self._amounts = amounts

    def _wait_s(self) -> float | None:
        """Until it is looked at again; None: it is let."""
        now = time.monotonic()
        due = self._spends.spend(self, self._amounts, now)
        return None if due is None else max(0.001, due - now)

    def __enter__(self) -> None:
        while (wait_s := self._wait_s()) is not None:
            time.sleep(wait_s)

    async def __aenter__(self) -> None:
        while (wait_s := self._wait_s()) is not None:  # noqa: ASYNC110 - a time is waited for, which nobody tells
            await asyncio.sleep(wait_s)

    def __exit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._spends.end(self, has_run=True)

    async def __aexit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._spends.end(self, has_run=True)


def budgeted(handler: Callable[..., Any], spends: Spends, cost: Cost, *, of_batches: bool) -> Callable[..., Any]:
    """The same handler, whose context has a budget."""
    if not takes_context(handler):
        return handler

    def begin(what: Any, context: Context) -> None:
        context.spend_of(CallBudget(spends, cost, what if of_batches else (what,)))

    def call(what: Any, context: Context) -> Any:
        begin(what, context)
        return handler(what, context)

    async def call_async(what: Any, context: Context) -> Any:
        begin(what, context)
        return await handler(what, context)

    return call_async if is_coroutine_function(handler) else call
