"""Worker threads, for handlers that are plain functions.

The idea: one queue that all threads take from, one record at a time. Its `get` is a C call that costs less than a tenth
of a microsecond while work is there, so batching would gain nothing and could put a quick record behind a slow one. The
loop may hand over more than there are threads; what waits in the queue is not in a handler, and can be withdrawn.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.engine.calls import failure_of, outcome_of
from keylane.engine.ports import WorkersClosed, WorkersFailed
from keylane.engine.work import NOT_RUN
from keylane.errors import UsageError
from keylane.options import takes_context
from keylane.records import Context, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.engine.work import Work
    from keylane.options import Pipeline

logger = logging.getLogger("keylane.engine")


class ThreadWorkers:
    """N threads that run a function. The first of them enters the pipeline's resource, and is the last to leave.

    Thread safety: `submit`, `withdraw`, `cancel` and `close` are the loop's; `report` is called from the threads.
    """

    may_queue = True

    def __init__(self, pipeline: Pipeline, report: Callable[[Any], None], name: str) -> None:
        self.concurrency = min(pipeline.threads, pipeline.max_concurrency)
        self._handler = pipeline.handler
        self._takes_context = takes_context(pipeline.handler)
        self._resource_factory = pipeline.resource
        self._resource: Any = None
        self._report = report
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._running: list[tuple[Work, Context | None] | None] = [None] * self.concurrency
        """What each thread is at; written by that thread alone."""
        self._deadline: float | None = None
        self._close_error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"{name}-worker-{slot}", daemon=True)
            for slot in range(1, self.concurrency)
        ]
        self._first = threading.Thread(target=self._lead, name=f"{name}-worker-0", daemon=True)

    def start(self) -> None:
        self._first.start()

    def submit(self, works: Sequence[Work]) -> None:
        put = self._queue.put
        for work in works:
            put(work)

    def withdraw(self) -> list[Work]:
        """Take back what no thread has begun and whose assignment may start nothing any more."""
        kept: list[Work] = []
        withdrawn: list[Work] = []
        try:
            while (work := self._queue.get_nowait()) is not None:
                (kept if work.assignment.may_start else withdrawn).append(work)
        except Empty:
            pass
        self.submit(kept)
        return withdrawn

    def cancel(self) -> None:
        """Tell handlers whose result can no longer count."""
        for running in self._running:
            if running and running[1] and not running[0].assignment.wanted:
                running[1].cancelled = True

    def close(self, timeout_s: float) -> WorkersClosed:
        """End the threads and leave the resource; wait for handlers that still run for at most `timeout_s`."""
        self._deadline = monotonic() + timeout_s
        for _ in range(self.concurrency):
            self._queue.put(None)
        if self._first.ident is not None:
            self._first.join(timeout_s + 1)
        names = tuple(running[0].name for running in self._running if running)
        return WorkersClosed(still_running=names, error=self._close_error)

    def _lead(self) -> None:
        """The first thread: enter the resource, serve beside the others, leave the resource after them."""
        with ExitStack() as stack:
            try:
                if self._resource_factory is not None:
                    self._resource = stack.enter_context(_sync_resource(self._resource_factory()))
                for thread in self._threads:
                    thread.start()
            except BaseException as error:  # reported: the consumer stops with it
                self._report(WorkersFailed(error))
                return
            self._serve(0)
            for thread in self._threads:
                assert self._deadline is not None, "threads only end by close()"
                thread.join(max(0.0, self._deadline - monotonic()))
            try:
                stack.close()
            except BaseException as error:  # handed back by close()
                self._close_error = error

    def _serve(self, slot: int) -> None:
        take, report, running, handler = self._queue.get, self._report, self._running, self._handler
        takes, resource = self._takes_context, self._resource
        while (work := take()) is not None:
            if not work.assignment.may_start:
                work.outcome = NOT_RUN
                report(work)
                continue
            try:
                if takes:
                    context = Context(resource, work.attempt)
                    running[slot] = (work, context)
                    result = handler(Record(work.message), context)
                else:
                    running[slot] = (work, None)
                    result = handler(Record(work.message))
                work.outcome = None if result is None else outcome_of(result)
            except BaseException as error:  # a handler's failure, whatever it is, must not end the thread
                work.outcome = failure_of(error)
            running[slot] = None
            report(work)


def _sync_resource(resource: Any) -> Any:
    if hasattr(resource, "__enter__"):
        return resource
    if hasattr(resource, "__aenter__"):
        raise UsageError(
            f"resource={resource!r} is an async context manager, but the handler is a plain function: "
            "make the handler `async def`, or the resource a plain context manager"
        )
    raise UsageError(f"resource returned {resource!r}: return a context manager (contextlib.contextmanager makes one)")
