"""`handler_timeout_ms`: what becomes of an attempt that takes too long.

The idea: a coroutine can be cancelled, so its handler is wrapped in a timeout, and the attempt fails. A thread cannot
be ended: `Watch` notes when each of its handlers began, and tells the loop which are over their time. They keep their
key, because they may still do something.
"""

from __future__ import annotations

import asyncio
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.errors import HandlerError
from keylane.options import takes_context
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.records import Context, Record

logger = logger_of("keylane.flow")

CHECKS = 10
"""How often a thread's handler is looked at within its time."""


class HandlerTimeoutError(HandlerError):
    """An attempt took longer than `handler_timeout_ms`."""


def in_time(handler: Callable[..., Any], timeout_s: float) -> Callable[..., Any]:
    """The coroutine function `handler`, cancelled after `timeout_s`; the attempt then fails."""
    takes = takes_context(handler)

    async def call(what: Any, context: Context) -> Any:
        context.limit(monotonic() + timeout_s)
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                return await (handler(what, context) if takes else handler(what))
        except TimeoutError:
            if scope.expired():
                raise HandlerTimeoutError(f"the handler took longer than {timeout_s * 1000:.0f} ms") from None
            raise

    return call


class Watch:
    """Knows the handlers that run in threads, and how long.

    Thread safety: `call` is the workers'; `check` and `next_check` are the loop's.
    """

    def __init__(self, handler: Callable[..., Any], timeout_s: float) -> None:
        self._handler = handler
        self._takes_context = takes_context(handler)
        self._timeout_s = timeout_s
        self._running: dict[int, tuple[Any, Context, float]] = {}
        """By thread, with the end of its time; written by that thread alone."""
        self._named: set[int] = set()
        """Handlers that were over their time when last looked at, by the identity of their context."""
        self.next_check = monotonic() + timeout_s / CHECKS

    def call(self, what: Any, context: Context) -> Any:
        """The watched handler."""
        until = monotonic() + self._timeout_s
        context.limit(until)
        slot = threading.get_ident()
        self._running[slot] = (what, context, until)
        try:
            return self._handler(what, context) if self._takes_context else self._handler(what)
        finally:
            del self._running[slot]

    def check(self, now: float) -> int:
        """How many handlers are over their time. Each of them is told, and named in the log, once."""
        self.next_check = now + self._timeout_s / CHECKS
        over = [(what, context) for what, context, until in list(self._running.values()) if until <= now]
        for what, context in over:
            if id(context) not in self._named:
                context.cancel()
                logger.error(
                    "%s has been in its handler for more than %.0f ms; a thread cannot be ended, so its key waits",
                    _name(what),
                    self._timeout_s * 1000,
                )
        self._named = {id(context) for _, context in over}
        return len(over)


def _name(what: Record | list[Record]) -> str:
    """How logs name a record, or a batch by its first."""
    first = what[0] if isinstance(what, list) else what
    return f"{first.topic}-{first.partition}@{first.offset}"
