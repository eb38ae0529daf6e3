"""Calling the user's handler: which arguments it gets, and what its result or exception means.

Shared by all kinds of workers, so that a handler means the same in a thread and on asyncio.
"""

from __future__ import annotations

import inspect
import math
import time
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from keylane.engine.work import NOT_RUN, Failure, Later
from keylane.errors import Fatal, HandlerError, UsageError
from keylane.records import DecodedRecord, Output, Record, Returned
from keylane.telling import kind_of, number_or_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.engine.lease import Lease
    from keylane.engine.work import Outcome, Unit, Work
    from keylane.records import Message

    NotBefore = Callable[[Record], float | None]

AnyUnit = TypeVar("AnyUnit", bound="Unit")


def outcome_of(result: Any) -> Outcome:
    """What a handler's return value means. A wrong type is a failure that another attempt cannot mend."""
    if result is None:
        return None
    if isinstance(result, Output):
        return (result,)
    if isinstance(result, list | tuple):
        for index, one in enumerate(result):
            if not isinstance(one, Output):
                return _wrong(f"a {type(result).__name__} with {kind_of(one)} at index {index}")
        return result or None
    if isinstance(result, Returned):
        return result
    if inspect.iscoroutine(result):
        result.close()
        return _wrong("a coroutine: declare the handler itself with `async def`")
    return _wrong(kind_of(result))


def returned(result: Any, record: Record) -> Any:
    """A handler's value for a stream: of any type, and with the outputs that it is or lists."""
    decoded = record if isinstance(record, DecodedRecord) else None
    if isinstance(result, Returned):
        return Returned(result.value, result.outputs, decoded)
    if inspect.iscoroutine(result):
        return result
    if isinstance(result, Output):
        return Returned(result, (result,), decoded)
    if isinstance(result, list | tuple) and any(isinstance(one, Output) for one in result):
        return Returned(result, result, decoded) if all(isinstance(one, Output) for one in result) else result
    return Returned(result, (), decoded)


def outcomes_of(result: Any, count: int) -> list[Outcome]:
    """What a batch handler's return value means for each record. A wrong one is a failure of every record."""
    if result is None:
        return [None] * count
    if inspect.iscoroutine(result):
        result.close()
        return [_wrong_batch("a coroutine: declare the handler itself with `async def`")] * count
    if not isinstance(result, list | tuple):
        return [_wrong_batch(kind_of(result))] * count
    if len(result) != count:
        return [_wrong_batch(f"{len(result)} results for {count} records")] * count
    return [failure_of(one) if isinstance(one, Exception) else outcome_of(one) for one in result]


def may_start(unit: Unit) -> bool:
    """Whether all of it may start."""
    if isinstance(unit, list):
        return all(work.assignment.may_start for work in unit)
    return unit.assignment.may_start


def sort_out(take: Callable[[], AnyUnit | None]) -> tuple[list[AnyUnit], list[AnyUnit]]:
    """Take all that waits, up to a None: what may start, and what is of assignments that may start nothing any more."""
    kept_ones: list[AnyUnit] = []
    withdrawn: list[AnyUnit] = []
    with suppress(IndexError, Empty):  # of a deque, of a queue
        while (unit := take()) is not None:
            (kept_ones if may_start(unit) else withdrawn).append(unit)
    return kept_ones, withdrawn


def startable(batch: Sequence[Work], lease: Lease, not_before: NotBefore | None) -> list[Work]:
    """The records of a batch that may start now; the others, and what follows of their shards, get their outcome."""
    holds = monotonic() < lease.until
    kept_back = set()
    for work in batch:
        chain = work.chain
        if not holds or not work.assignment.may_start or (chain is not None and chain in kept_back):
            work.outcome = NOT_RUN
        else:
            work.outcome = None if not_before is None else kept(work.message, not_before)
        if work.outcome is not None and chain is not None:
            kept_back.add(chain)
    return [work for work in batch if work.outcome is None]


def kept(message: Message, not_before: NotBefore) -> Later | Failure | None:
    """When the record is scheduled for later, if it is; `not_before` is the user's."""
    try:
        at_ms = not_before(Record(message))
    except BaseException as error:  # like a handler's
        return failure_of(error)
    if at_ms is None:
        return None
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not math.isfinite(at_ms):
        text = f"not_before returned {number_or_kind(at_ms)}; return milliseconds since the epoch, or None"
        return Failure(HandlerError(text), final=True)
    delay_s = at_ms / 1000 - time.time()
    return Later(delay_s) if delay_s > 0 else None


def give_outcomes(works: Sequence[Work], outcomes: Sequence[Outcome]) -> None:
    for work, outcome in zip(works, outcomes, strict=True):
        work.outcome = outcome


def failure_of(error: BaseException) -> Failure:
    """What an exception from a handler means: a wrong use of keylane is not mended by another attempt."""
    return Failure(error, final=isinstance(error, Fatal | UsageError))


def _wrong(what: str) -> Failure:
    return Failure(HandlerError(f"the handler returned {what}; return None, an Output, or a list of them"), final=True)


def _wrong_batch(what: str) -> Failure:
    return Failure(
        HandlerError(f"the batch handler returned {what}; return None, or a list with one result a record"), final=True
    )
