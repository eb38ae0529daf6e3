"""When a failed item runs again (exponential backoff with jitter, or a function), and the schedule of what waits.

Time is passed in, and so is the source of randomness.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.foreign_errors import MAX_WAIT_MS, line_of, retry_after_ms
from keylane.options import DEFAULT_DELAY_MS
from keylane.telling import number_or_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.flow.items import Item, Source
    from keylane.options import Retries


def delay_s(retries: Retries, attempt: int, error: BaseException, seen: Any, random: Callable[[], float]) -> float:
    """Seconds to wait after the failed `attempt` (the first is 1): what the error asks for (`keylane.RetryAfter`), or
    what `retries` say. `seen` is the item as user code sees it; `random` gives floats from 0 to 1.

    Raises `UsageError` when the user's own function gives no delay.
    """
    asked_ms = retry_after_ms(error)
    if asked_ms is not None:
        return asked_ms / 1000
    if not callable(retries.delay_ms):
        return backoff_s(retries, attempt, random)
    try:
        wait_ms = retries.delay_ms(attempt, error, seen)
    except BaseException as raised:  # whatever it is, it must not end the loop
        raise UsageError(f"the function Retries.delay_ms raised {line_of(raised)}; mend it") from raised
    if isinstance(wait_ms, bool) or not isinstance(wait_ms, int | float) or not 0 <= wait_ms < float("inf"):
        raise UsageError(
            f"the function Retries.delay_ms returned {number_or_kind(wait_ms)}: return milliseconds, at least 0"
        )
    return min(wait_ms, MAX_WAIT_MS) / 1000


def backoff_s(retries: Retries, attempt: int, random: Callable[[], float]) -> float:
    """The exponential delay with jitter after the failed `attempt`."""
    first_ms = DEFAULT_DELAY_MS if callable(retries.delay_ms) else retries.delay_ms
    try:
        full_ms = min(first_ms * retries.multiplier ** (attempt - 1), retries.max_delay_ms)
    except OverflowError:  # far beyond any limit
        full_ms = retries.max_delay_ms
    return full_ms * (1 - retries.jitter * random()) / 1000


class Schedule:
    """What waits for a time (its next attempt, what it is scheduled for, its key's rate), earliest first."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, item: Item, due: float) -> None:
        heapq.heappush(self._heap, (due, next(self._order), item))

    def take_out(self, source: Source, number: int) -> Item | None:
        """It waits here no more; None, if it did not."""
        found = next((entry for entry in self._heap if entry[2].number == number and entry[2].source is source), None)
        if found is None:
            return None
        self._heap.remove(found)
        heapq.heapify(self._heap)
        return found[2]

    def __iter__(self) -> Iterator[tuple[float, Item]]:
        """What waits, and until when, in any order."""
        return ((due, item) for due, _, item in self._heap)

    @property
    def next_due(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[Item]:
        """What is due at `now`, and still belongs to an open source."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            item = heapq.heappop(self._heap)[2]
            if item.source.wanted:
                due.append(item)
        return due

    def forget_closed(self) -> None:
        """Drop the items of closed sources, so that they do not wait here for their turn."""
        self._heap = [entry for entry in self._heap if entry[2].source.wanted]
        heapq.heapify(self._heap)
