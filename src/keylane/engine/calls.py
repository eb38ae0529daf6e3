"""Calling the user's handler: which arguments it gets, and what its result or exception means.

Shared by all kinds of workers, so that a handler means the same in a thread and on asyncio.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from keylane.engine.work import Failure
from keylane.errors import Fatal, HandlerError, UsageError
from keylane.records import Output, Returned

if TYPE_CHECKING:
    from keylane.engine.work import Outcome

_SHOWN_CHARACTERS = 80
"""How much of a wrong return value an error shows."""


def outcome_of(result: Any) -> Outcome:
    """What a handler's return value means. A wrong type is a failure that another attempt cannot mend."""
    if result is None:
        return None
    if isinstance(result, Output):
        return (result,)
    if isinstance(result, list | tuple):
        for index, one in enumerate(result):
            if not isinstance(one, Output):
                return _wrong(f"a {type(result).__name__} with {_shown(one)} at index {index}")
        return result or None
    if isinstance(result, Returned):
        return result
    if inspect.iscoroutine(result):
        result.close()
        return _wrong("a coroutine: declare the handler itself with `async def`")
    return _wrong(_shown(result))


def returned(result: Any) -> Any:
    """A handler's value for a stream: of any type, and with the outputs that it is or lists."""
    if isinstance(result, Returned) or inspect.iscoroutine(result):
        return result
    if isinstance(result, Output):
        return Returned(result, (result,))
    if isinstance(result, list | tuple) and any(isinstance(one, Output) for one in result):
        return Returned(result, result) if all(isinstance(one, Output) for one in result) else result
    return Returned(result)


def failure_of(error: BaseException) -> Failure:
    """What an exception from a handler means: a wrong use of keylane is not mended by another attempt."""
    return Failure(error, final=isinstance(error, Fatal | UsageError))


def _wrong(what: str) -> Failure:
    return Failure(HandlerError(f"the handler returned {what}; return None, an Output, or a list of them"), final=True)


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "…"
    return f"{type(value).__name__} {text}"
