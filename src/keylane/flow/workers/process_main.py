"""A worker process: `python -m keylane.flow.workers.process_main FD PARENT`, started by `WorkerProcess`.

The idea: one thread reads what the parent sends, so that the end of the parent is seen while a handler runs; the main
thread runs the handler and answers item by item, so that the parent knows what it was at when it dies.

On the socket, frame by frame: in come the cargo (`keylane.flow.workers.cargo`), then lists of hand-overs, then an empty
frame for the end; out come `READY` or an error, then an `Answer` an item or batch, and at the end what leaving the
resource raised. The end of the socket without the empty frame is the end of the parent.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from keylane.flow.workers import places
from keylane.flow.workers.calls import failure_of
from keylane.flow.workers.crossing import Answer, packed, packed_error
from keylane.flow.workers.tuning import HOST
from keylane.foreign_errors import UnloadedError, class_of, text_of
from keylane.options import takes_context
from keylane.records import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.flow.outcomes import Outcome
    from keylane.flow.workers.calls import Function

READY = b"ready"

HandOver = tuple[bool, bool, int, list[Any]]
"""Whether it is a batch; else, whether it ends with the first item that is not simply through; the attempt; what
`Function.departs` made of the payloads."""


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    end_with(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        serve(connection)


def end_with(parent: int) -> None:
    """Have the kernel end this process with its parent, where it can: the thread that reads sees it too, but not while
    a handler in C holds the interpreter."""
    HOST.end_with_parent()
    if os.getppid() != parent:  # it went before that
        os._exit(1)


def serve(connection: Connection) -> None:
    with contextlib.ExitStack() as stack:
        try:
            sys.path[:] = pickle.loads(connection.recv_bytes())
            function: Function = pickle.loads(connection.recv_bytes())
            value = None if function.resource is None else stack.enter_context(function.resource())
        except BaseException as error:
            connection.send_bytes(dumped(error))
            return
        connection.send_bytes(READY)
        waiting: SimpleQueue[list[HandOver] | None] = SimpleQueue()
        threading.Thread(target=read, args=(connection, waiting), daemon=True).start()
        takes = takes_context(function.call)
        while (handed_over := waiting.get()) is not None:
            for is_batch, ends_early, attempt, departed in handed_over:
                seen = [function.arrives(one) for one in departed]
                context = (Context(value, attempt),) if takes else ()
                if is_batch:
                    answer(connection, lambda: _of_batch(function, seen, context), len(seen))  # noqa: B023 - called here
                    continue
                for one in seen:
                    outcome = answer(connection, lambda: [_of_one(function, one, context)])  # noqa: B023 - as above
                    if ends_early and outcome is not None:
                        break
        try:
            stack.close()
        except BaseException as error:
            connection.send_bytes(dumped(error))
        else:
            connection.send_bytes(dumped(None))


def _of_one(function: Function, seen: Any, context: tuple[Context, ...]) -> Outcome:
    result = function.call(seen, *context)
    return None if result is None else function.outcome_of(result)


def _of_batch(function: Function, seen: list[Any], context: tuple[Context, ...]) -> Sequence[Outcome]:
    return function.outcomes_of(function.call(seen, *context), len(seen))


def read(connection: Connection, waiting: SimpleQueue[list[HandOver] | None]) -> None:
    """Everything that the parent sends; its end ends this process, whatever the handler is at."""
    try:
        while frame := connection.recv_bytes():
            waiting.put(marshal.loads(frame))
        waiting.put(None)
    except (EOFError, OSError):
        os._exit(1)


def answer(connection: Connection, call: Callable[[], Sequence[Outcome]], count: int = 1) -> Outcome:
    """Run the function on so many items and send what came of it; the first one's outcome is returned."""
    start_ns = perf_counter_ns()
    try:
        outcomes = call()
    except BaseException as error:  # a failure, whatever it is, must not end the process
        outcomes = [failure_of(error, places.of_traceback(error.__traceback__), is_shared=count > 1)] * count
    connection.send_bytes(packed(Answer(outcomes, perf_counter_ns() - start_ns)))
    return outcomes[0]


def dumped(error: BaseException | None) -> bytes:
    """What kept the process from being ready, or leaving its resource raised; empty, if nothing did."""
    if error is None:
        return b""
    stand_in = UnloadedError(class_of(error), text_of(error))
    return pickle.dumps((stand_in, packed_error(error)))


if __name__ == "__main__":
    from keylane.flow.workers import process_main  # by its name, so that what is pickled here is known there

    process_main.main()
