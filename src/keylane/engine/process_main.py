"""A worker process: `python -m keylane.engine.process_main FD PARENT`, started by `keylane.engine.processes`.

The idea: one thread reads what the parent sends, so that the end of the parent is seen while a handler runs; the main
thread runs the handler and answers record by record, so that the parent knows what it was at when it dies.

On the socket, frame by frame: in come the cargo (`keylane.engine.cargo`), then lists of hand-overs, then an empty
frame for the end; out come `READY` or an error, then an `Answer` a record or batch, and at the end what leaving the
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
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from keylane.engine import places
from keylane.engine.calls import failure_of, outcome_of, outcomes_of
from keylane.engine.tuning import HOST
from keylane.engine.work import Failure
from keylane.errors import HandlerError
from keylane.records import Context, PlainMessage, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.engine.work import Outcome
    from keylane.records import Message

READY = b"ready"

PlainRecord = tuple[Any, ...]
"""A record as `marshal` takes it: the fields of `PlainMessage`."""
HandOver = tuple[bool, int, list[PlainRecord]]
"""Whether it is a batch (else a chain), the attempt, and the records."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a record, or each record of a batch, came to."""

    outcomes: list[Outcome]
    took_ns: int


def plain(message: Message) -> PlainRecord:
    headers = message.headers()
    return (
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(headers) if headers else (),
        message.timestamp(),
        message.leader_epoch(),
    )


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
            handler, takes_context, resource = pickle.loads(connection.recv_bytes())
            value = None if resource is None else stack.enter_context(resource())
        except BaseException as error:
            connection.send_bytes(dumped(error))
            return
        connection.send_bytes(READY)
        waiting: SimpleQueue[list[HandOver] | None] = SimpleQueue()
        threading.Thread(target=read, args=(connection, waiting), daemon=True).start()
        while (handed_over := waiting.get()) is not None:
            for is_batch, attempt, records in handed_over:
                views = [Record(PlainMessage(*record)) for record in records]
                context = (Context(value, attempt),) if takes_context else ()
                if is_batch:
                    answer(connection, lambda: handler(views, *context), views)  # noqa: B023 - called here
                    continue
                for record in views:
                    if answer(connection, lambda: handler(record, *context), None) is not None:  # noqa: B023
                        break
        try:
            stack.close()
        except BaseException as error:
            connection.send_bytes(dumped(error))
        else:
            connection.send_bytes(dumped(None))


def read(connection: Connection, waiting: SimpleQueue[list[HandOver] | None]) -> None:
    """Everything that the parent sends; its end ends this process, whatever the handler is at."""
    try:
        while frame := connection.recv_bytes():
            waiting.put(marshal.loads(frame))
        waiting.put(None)
    except (EOFError, OSError):
        os._exit(1)


def answer(connection: Connection, call: Callable[[], Any], batch: list[Record] | None) -> Outcome:
    """Run the handler and send what came of it; a record's outcome is returned."""
    start_ns = perf_counter_ns()
    try:
        result = call()
        outcomes = [outcome_of(result)] if batch is None else outcomes_of(result, len(batch))
    except BaseException as error:  # a handler's failure, whatever it is, must not end the process
        failure = failure_of(error)
        failure.places = places.of_traceback(error.__traceback__)
        outcomes = [failure] * (1 if batch is None else len(batch))
    connection.send_bytes(dumped(Answer(outcomes, perf_counter_ns() - start_ns)))
    return outcomes[0]


def dumped(value: Any) -> bytes:
    """Pickled; errors that cannot travel become one that says what they were."""
    try:
        data = pickle.dumps(value)
        pickle.loads(data)  # some errors pickle, and cannot be made again
    except Exception:
        if isinstance(value, Answer):
            return pickle.dumps(Answer([_portable(outcome) for outcome in value.outcomes], value.took_ns))
        return pickle.dumps(_stand_in(value))
    return data


def _portable(outcome: Outcome) -> Outcome:
    try:
        pickle.loads(pickle.dumps(outcome))
    except Exception as unpicklable:
        if isinstance(outcome, Failure):
            failure = Failure(_stand_in(outcome.error), final=outcome.final)
            failure.places = outcome.places
            return failure
        return Failure(HandlerError(f"what the handler returned cannot leave its process: {unpicklable}"), final=True)
    return outcome


def _stand_in(error: BaseException) -> HandlerError:
    text = "".join(traceback.format_exception_only(error)).strip()
    return HandlerError(f"{text} (an error that cannot be pickled)")


if __name__ == "__main__":
    from keylane.engine import process_main  # by its name, so that what is pickled here is known there

    process_main.main()
