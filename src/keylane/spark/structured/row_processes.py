"""`RowProcesses`: a function of rows in worker processes of one Spark task, for functions that compute.

The idea: to the engine it is a function that threads call; each call borrows one of the engine's worker processes, so
an attempt that takes too long, or at the end of a batch, is ended by killing its process.
"""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import _create_row

from keylane.errors import InternalError, WorkerProcessError
from keylane.flow.outcomes import Failure
from keylane.flow.workers.calls import Function, as_it_is
from keylane.flow.workers.cargo import pack
from keylane.flow.workers.processes import END_S, WorkerProcess
from keylane.flow.workers.timeouts import HandlerTimeoutError
from keylane.options import takes_context
from keylane.records import Returned
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Row

    from keylane.records import Context


class RowProcesses:
    """Has as many processes as threads call it at once.

    Raises `UsageError` when the function cannot be pickled. Thread safety: any thread.
    """

    def __init__(
        self, function: Callable[..., Any], resource: Callable[[], Any] | None, timeout_s: float | None
    ) -> None:
        self._cargo = pack(Function(_OfRow(function), as_it_is, as_it_is, _no_batch, resource), "worker processes")
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._closed = False

    def __call__(self, row: Row, context: Context) -> Any:
        """What the function returned. Raises what it raised; `HandlerTimeoutError` when it took longer than it may, and
        `WorkerProcessError` when its process died."""
        process = self._borrow()
        alive = False
        try:
            value = pickle.dumps((list(row.__fields__), tuple(row)))
            process.send([(False, True, context.attempt, [value])])
            outcome: Any = process.answer(self._timeout_s).outcomes[0]
            alive = True
        except (EOFError, OSError):
            ended = process.ended()
            if process.timed_out:
                took_ms = (self._timeout_s or 0) * 1000
                text = f"the handler took longer than {took_ms:.0f} ms; its process was ended"
                raise HandlerTimeoutError(text) from None
            raise WorkerProcessError(f"{ended} while it ran this row") from None
        finally:
            self._give_back(process, alive=alive)
        if isinstance(outcome, Failure):
            raise outcome.error
        if not isinstance(outcome, Returned):
            raise InternalError(f"a worker process answered {kind_of(outcome)}")
        return outcome.value

    def kill(self) -> None:
        """Any thread: end what runs, and start nothing more."""
        with self._lock:
            self._closed = True
            for process in self._busy:
                process.kill()

    def close(self) -> None:
        """End all; those that are idle leave their resource first."""
        self.kill()
        while self._idle:
            self._idle.pop().end(END_S)

    def _borrow(self) -> WorkerProcess:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None:
            process = WorkerProcess(self._cargo)
        with self._lock:
            closed = self._closed
            if not closed:
                self._busy.add(process)
        if closed:
            self._give_back(process, alive=True)
            raise WorkerProcessError("the worker processes are closed")
        return process

    def _give_back(self, process: WorkerProcess, *, alive: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            kept = alive and not self._closed
            if kept:
                self._idle.append(process)
        if not kept:
            process.ended()


def _no_batch(_: Any, count: int) -> list[Any]:
    raise InternalError(f"{count} rows went to a worker process in a batch")


class _OfRow:
    """The user's function as the handler of a worker process."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._takes = takes_context(function)

    def __call__(self, data: bytes, context: Context) -> Returned:
        names, values = pickle.loads(data)
        row = _create_row(names, values)
        return Returned(self._function(row, context) if self._takes else self._function(row), ())
