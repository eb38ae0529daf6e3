"""Calling the user's function: `Function`, what workers run; and what a call and its exception mean.

Shared by all kinds of workers, so that a function means the same in a thread, on asyncio and in a process.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from keylane.errors import HandlerError, InternalError, KeylaneError, StoreError
from keylane.flow.items import sources_of
from keylane.flow.outcomes import NOT_RUN, Failure, Later
from keylane.foreign_errors import MAX_WAIT_MS, is_final, is_one_of, line_of
from keylane.telling import number_or_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.flow.items import Batch, Carried, Item, Unit
    from keylane.flow.outcomes import Outcome
    from keylane.flow.workers import Lease
    from keylane.flow.workers.places import Place

    NotBefore = Callable[[Any], float | None]

AnyUnit = TypeVar("AnyUnit", bound="Unit")
Same = TypeVar("Same")


def as_it_is(value: Same) -> Same:
    return value


@dataclass(frozen=True, slots=True)
class Function:
    """What workers run, and what it means."""

    call: Callable[..., Any]
    """One or two positional arguments: an item as user code sees it (a list of them for a batch), and a context."""
    view: Callable[[Carried], Any] | None
    """Makes of a payload what the call gets; None: it gets the payload."""
    outcome_of: Callable[[Outcome], Outcome]
    """What a value means that it returned, which is not None."""
    outcomes_of: Callable[[Outcome, int], Sequence[Outcome]]
    """What it means for each of so many items that a call for a batch returned this."""
    resource: Callable[[], Any] | None = None
    """Makes a context manager, entered once where it runs; its value is in the context."""
    not_before: NotBefore | None = None
    """The earliest time for an item, in milliseconds since the epoch."""
    departs: Callable[[Carried], Any] = as_it_is
    """Makes of a payload what travels to a worker process: values that `marshal` takes."""
    arrives: Callable[[Any], Any] = as_it_is
    """Makes of that, there, what user code sees."""

    def seen(self, payload: Carried) -> Any:
        """What the call gets."""
        return payload if self.view is None else self.view(payload)

    def kept(self, payload: Carried) -> Later | Failure | None:
        """When the item is scheduled for later, if it is."""
        if self.not_before is None:
            return None
        try:
            at_ms = self.not_before(self.seen(payload))
        except BaseException as error:  # like the function's
            return failure_of(error)
        if at_ms is None:
            return None
        if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not -math.inf < at_ms < math.inf:
            text = f"not_before returned {number_or_kind(at_ms)}; return milliseconds since the epoch, or None"
            return Failure(HandlerError(text), final=True)
        now_ms = time.time() * 1000
        if at_ms <= now_ms:
            return None
        return Later((min(at_ms, now_ms + MAX_WAIT_MS) - now_ms) / 1000)  # it is asked again then


def sort_out(pop: Callable[[], AnyUnit | None]) -> tuple[list[AnyUnit], list[AnyUnit]]:
    """Pop all that waits, up to a None: what may begin, and what is of sources that may begin nothing any more."""
    kept_ones: list[AnyUnit] = []
    withdrawn: list[AnyUnit] = []
    with suppress(IndexError, Empty):  # of a deque, of a queue
        while (unit := pop()) is not None:
            (kept_ones if all(one.may_begin for one in sources_of(unit)) else withdrawn).append(unit)
    return kept_ones, withdrawn


def startable(batch: Batch, lease: Lease, function: Function) -> list[Item]:
    """The items of a batch that may start now; the others, and what follows of their shards, get their outcome."""
    holds = monotonic() < lease.until
    kept_back = set()
    for item in batch.items:
        together = item.chain
        if not holds or not item.source.may_begin or (together is not None and together in kept_back):
            item.came_to(NOT_RUN)
        else:
            item.came_to(function.kept(item.payload))
        if item.outcome is not None and together is not None:
            kept_back.add(together)
    return [item for item in batch.items if item.outcome is None]


def give_outcomes(items: Sequence[Item], outcomes: Sequence[Outcome]) -> None:
    for item, outcome in zip(items, outcomes, strict=True):
        item.came_to(outcome)


def failure_of(error: BaseException, places: Sequence[Place] = (), *, is_shared: bool = False) -> Failure:
    """What an exception from the function means: a wrong use of keylane is not mended by another attempt, and a store
    that is not the one ends the run, as does a defect of keylane."""
    halts = is_one_of(error, StoreError) or is_one_of(error, InternalError)
    return Failure(error, final=is_final(error), halts=halts, places=places, is_shared=is_shared)


def as_told(error: BaseException) -> BaseException:
    """What a run that ended with this raises: what is not an error of ours is told as a defect."""
    if isinstance(error, KeylaneError) or not isinstance(error, Exception):
        return error
    made = InternalError(f"the engine failed: {line_of(error)}")
    made.__cause__ = error
    return made


def resource_error(what: str, error: BaseException) -> BaseException:
    """What a run ends with whose resource could not be made, or closed."""
    if isinstance(error, KeylaneError | InternalError):
        return error
    made = HandlerError(f"the pipeline's resource {what}: {line_of(error)}")
    made.__cause__ = error
    return made
