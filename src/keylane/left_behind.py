"""`answer_unless_stopped`: a call that may take long and cannot be cut short, and whose caller may be told to stop.

The idea: a broker that does not answer, a JVM that starts, a database that is away hold their caller inside a C call or
a socket. So the call has a thread of its own, and who is told to stop goes on without its answer.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LOOK_S = 0.05
"""How late a stop may be noticed. It is looked for, as signal handlers make it, which may take no lock."""


class StoppedError(Exception):
    """A stop came before the answer. No error of keylane's: whoever asked for the stop expects it."""


def answer_unless_stopped(call: Callable[[], T], is_stopping: Callable[[], bool], name: str) -> T:
    """What `call` returns or raises; it runs on a thread of this name, which a stop leaves behind: `StoppedError`."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # handed to the caller
            answer.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    while not is_stopping():
        try:
            found = answer.result(LOOK_S)
        except FutureTimeoutError:
            if not answer.done():
                continue
            found = answer.result()  # the call's own error may be a TimeoutError, too
        thread.join()
        return found
    raise StoppedError
