"""`around`: a context manager of the user's around each attempt, inside of which the handler runs.

The idea: it is a handler around the handler, and nothing is nearer to the user's: a store's transaction, a
deserializer, the time limit and the span are outside of it. So what it raises is a failed attempt, and what it commits
is committed before the record counts as processed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.flow.expiry import expiring
from keylane.options import is_coroutine_function, takes_context
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.options import Flow
    from keylane.records import Context

    Handler = Callable[..., Any]
    Seen = Any
    """What the handler gets: a record or a row, or a list of them."""


def handler_of(flow: Flow) -> Handler:
    """The flow's handler, inside of what its `around` makes, for what is not too late; itself without either."""
    handler = flow.handler if flow.around is None else _inside(flow.handler, flow.around)
    return handler if flow.expires_ms is None else expiring(handler, flow)


def _inside(handler: Handler, around: Callable[..., Any]) -> Handler:
    takes, around_takes = takes_context(handler), takes_context(around)

    def make(what: Seen, context: Context) -> Any:
        made = around(what, context) if around_takes else around(what)
        if hasattr(made, "__enter__") or hasattr(made, "__aenter__"):
            return made
        raise UsageError(
            f"around returned {kind_of(made)}: return a context manager (contextlib.contextmanager makes one)"
        )

    def call(what: Seen, context: Context) -> Any:
        made = make(what, context)
        if not hasattr(made, "__enter__"):
            raise UsageError(
                "around returned an async context manager, but the handler is a plain function: make the handler "
                "`async def`, or give a plain context manager"
            )
        with made as value:
            context.enter(value)
            return handler(what, context) if takes else handler(what)

    async def call_async(what: Seen, context: Context) -> Any:
        made = make(what, context)
        if hasattr(made, "__aenter__"):
            async with made as value:
                context.enter(value)
                return await (handler(what, context) if takes else handler(what))
        with made as value:
            context.enter(value)
            return await (handler(what, context) if takes else handler(what))

    return call_async if is_coroutine_function(handler) else call
