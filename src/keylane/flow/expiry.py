"""`expires_ms`: an item that is too late is not started, and a call that runs knows until when its result is wanted.

The idea: it is a handler around the handler, like `around`, so every kind of workers has it, and a flow without it has
nothing. A store of exactly once is outside of it: what was processed before is not too late when it comes again.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.errors import ExpiredError, Fatal, UsageError
from keylane.options import is_coroutine_function, takes_context
from keylane.telling import number_or_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keylane.options import Flow
    from keylane.records import Context, Record

    Handler = Callable[..., Any]
    Seen = Any
    """An item as the handler gets it: a record or a row."""
    UntilMs = Callable[[Seen], float | None]
    """Until when it may start, in milliseconds since the epoch; None: for ever."""
    Result = Any
    """What a handler has returned."""

LONGEST = 20
"""Digits of a time in a header."""


def expiring(handler: Handler, flow: Flow) -> Handler:
    """`handler` for what is not too late, as `flow.expires_ms` says."""
    until_ms = _until(flow.expires_ms)
    takes = takes_context(handler)

    def call(what: Seen, context: Context) -> Result:
        with _narrowed(context, _left_s(until_ms(what))):
            return handler(what, context) if takes else handler(what)

    async def call_async(what: Seen, context: Context) -> Result:
        with _narrowed(context, _left_s(until_ms(what))):
            return await (handler(what, context) if takes else handler(what))

    def call_batch(items: list[Seen], context: Context) -> Result:
        wanted, late, left_s = _told_apart(items, until_ms)
        if not wanted:
            return late
        with _narrowed(context, left_s):
            return _merged(handler(wanted, context) if takes else handler(wanted), late)

    async def call_batch_async(items: list[Seen], context: Context) -> Result:
        wanted, late, left_s = _told_apart(items, until_ms)
        if not wanted:
            return late
        with _narrowed(context, left_s):
            return _merged(await (handler(wanted, context) if takes else handler(wanted)), late)

    if is_coroutine_function(handler):
        return call_async if flow.batch is None else call_batch_async
    return call if flow.batch is None else call_batch


def _until(expires_ms: int | str | UntilMs | None) -> UntilMs:
    """As a function of the item."""
    if isinstance(expires_ms, str):
        name = expires_ms
        return lambda record: _of_header(record, name)
    if isinstance(expires_ms, int):
        age_ms = expires_ms
        return lambda record: None if record.timestamp_ms < 0 else record.timestamp_ms + age_ms
    assert expires_ms is not None, "nothing expires"
    return expires_ms


def _of_header(record: Record, name: str) -> int | None:
    """The last header of this name. Raises `Fatal` for one that has no time."""
    values = [value for one, value in record.headers if one == name]
    if not values or values[-1] is None:
        return None
    text = values[-1].strip()
    if len(text) > LONGEST or not text.isdigit():
        raise Fatal(f"its header {name!r} is no time in milliseconds since the epoch: have its producer send digits")
    return int(text)


def _left_s(at_ms: object) -> float | None:
    """Seconds until then. Raises `ExpiredError` when it is past, and `UsageError` for what is no time."""
    if at_ms is None:
        return None
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not -math.inf < at_ms < math.inf:
        raise UsageError(
            f"the function expires_ms returned {number_or_kind(at_ms)}: return milliseconds since the epoch, or None"
        )
    left_ms = at_ms - time.time() * 1000
    if left_ms <= 0:
        raise ExpiredError(f"its time was over {-left_ms:,.0f} ms before its turn came, so it was not started")
    return left_ms / 1000


@contextmanager
def _narrowed(context: Context, left_s: float | None) -> Iterator[None]:
    """The call is to know that it has this long, and the next one of the same context is not."""
    before = context.deadline
    context.limit(_deadline(left_s, before))
    try:
        yield
    finally:
        context.limit(before)


def _deadline(left_s: float | None, before: float | None) -> float | None:
    """When both are over: that of the time limit, and so many seconds from now."""
    if left_s is None:
        return before
    at = monotonic() + left_s
    return at if before is None else min(at, before)


def _told_apart(items: Sequence[Seen], until_ms: UntilMs) -> tuple[list[Seen], list[Exception | None], float | None]:
    """Of a batch what may start; by item, why it does not; and for how many seconds somebody wants a result."""
    wanted: list[Seen] = []
    late: list[Exception | None] = []
    longest: float = 0.0
    for item in items:
        try:
            left_s = _left_s(until_ms(item))
        except Exception as error:  # this item's alone
            late.append(error)
        else:
            wanted.append(item)
            late.append(None)
            longest = max(longest, math.inf if left_s is None else left_s)
    return wanted, late, None if longest == math.inf else longest


def _merged(result: Result, late: Sequence[Exception | None]) -> Result:
    """What the handler has returned for those that it got, in their places among all."""
    if not any(late):
        return result
    count = late.count(None)
    if result is None:
        result = [None] * count
    if not isinstance(result, list | tuple) or len(result) != count:
        return result  # left to the engine to refuse
    results = iter(result)
    return [next(results) if error is None else error for error in late]
