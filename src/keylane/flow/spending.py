"""`Spending`: what a flow's items cost of a budget that others spend, too.

The idea: an item starts once the budget has let it. Until then nothing else starts either, but for what is beyond its
cost: so a large one has its turn. What an item costs is asked for once, however long it waits.

Pure: time is passed in. Thread safety: none; its owner is the flow's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from keylane.errors import UsageError
from keylane.flow.items import Batch
from keylane.flow.outcomes import Failure, NotRun

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from keylane.flow.items import Carried, Item, Unit
    from keylane.flow.outcomes import Outcome


class Spends(Protocol):
    """Who has the budget. Thread safety: any thread."""

    def room(self, now: float) -> int:
        """About how many may start now."""

    def due(self, now: float) -> float:
        """Something waits, and there is no room: when to look again."""

    def spend(self, who: Hashable, amounts: Mapping[str, int], now: float, *, is_attempt: bool = False) -> float | None:
        """Spend it: None; or when to come again. An attempt of a record is one of the calls at once, and further calls
        of its handler belong to it."""

    def end(self, who: Hashable, *, has_run: bool) -> None:
        """What it spent for has ended; where it has not run, others have what it spent."""

    def settle(self, amounts: Mapping[str, int]) -> None:
        """So much more was spent than asked for."""

    def cool_down(self, retry_after_ms: int, since: float) -> None:
        """The service has told a call that began at `since` to wait so long: all wait."""


class Spending:
    """Of one flow."""

    def __init__(
        self, budget: Spends, amounts: Callable[[Any], Mapping[str, int]], view: Callable[[Carried], Carried]
    ) -> None:
        """`amounts` gives what a record costs, or raises `UsageError`; `view` makes the record of a payload."""
        self._budget = budget
        self._amounts = amounts
        self._view = view

    def room(self, now: float) -> int:
        return self._budget.room(now)

    def due(self, now: float) -> float:
        return self._budget.due(now)

    def starts(self, item: Item, now: float) -> float | UsageError | None:
        """Whether it may start, and has spent its cost: None; else when to come again, or why it never may."""
        if item.cost is None:
            try:
                item.cost = self._amounts(self._view(item.payload))
            except UsageError as error:
                return error
        return self._budget.spend((item.source, item.number), item.cost, now, is_attempt=True)

    def heard(self, units: Iterable[Unit]) -> Iterator[Unit]:
        """Workers report these: what was too late, or not begun, has spent nothing."""
        for unit in units:
            if isinstance(unit, Batch):
                for item in unit.items:
                    self._budget.end((item.source, item.number), has_run=_has_run(item.outcome))
            else:
                self._budget.end((unit.source, unit.numbers[0]), has_run=_has_run(unit.outcomes.get(0)))
            yield unit

    def withdrawn(self, unit: Unit) -> None:
        """Workers gave it back."""
        for item in unit.items if isinstance(unit, Batch) else (unit.only_item(),):
            self._budget.end((item.source, item.number), has_run=False)

    def cool_down(self, retry_after_ms: int, since: float) -> None:
        """A call that was handed over at `since` was throttled: all who share the budget wait."""
        self._budget.cool_down(retry_after_ms, since)


def _has_run(outcome: Outcome) -> bool:
    return not (isinstance(outcome, NotRun) or (isinstance(outcome, Failure) and outcome.is_expiry))
