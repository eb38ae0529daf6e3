"""Worker threads, for handlers that are plain functions.

The idea: one queue that all threads take from, one record, chain of records or batch at a time. Its `get` is a C call
that costs less than a tenth of a microsecond while work is there. The loop may hand over more than there are threads;
what waits in the queue is not in a handler, and can be withdrawn.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from queue import SimpleQueue
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any

from keylane.engine.calls import failure_of, give_outcomes, kept, outcome_of, outcomes_of, startable, take_back
from keylane.engine.latency import Meter, merged
from keylane.engine.lease import Lease
from keylane.engine.ports import WorkersClosed, WorkersFailed
from keylane.engine.work import NOT_RUN
from keylane.errors import UsageError
from keylane.options import takes_context
from keylane.records import Context, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.engine.latency import Histogram
    from keylane.engine.work import Outcome, Unit, Work
    from keylane.options import Pipeline

logger = logging.getLogger("keylane.engine")


class ThreadWorkers:
    """N threads that run a function. The first of them enters the pipeline's resource, and is the last to leave.

    Thread safety: `submit`, `withdraw`, `cancel` and `close` are the loop's; `report` is called from the threads.
    """

    may_queue = True
    elastic = False

    def __init__(self, pipeline: Pipeline, report: Callable[[Any], None], name: str) -> None:
        self.concurrency = min(pipeline.threads, pipeline.most_concurrent)
        self.lease = Lease()
        self._handler = pipeline.handler
        self._takes_context = takes_context(pipeline.handler)
        self._not_before = pipeline.not_before
        self._resource_factory = pipeline.resource
        self._resource: Any = None
        self._report = report
        self._queue: SimpleQueue[Unit | None] = SimpleQueue()
        self._running: list[tuple[Work, Context | None] | None] = [None] * self.concurrency
        """What each thread is at; written by that thread alone."""
        self._meters = [Meter() for _ in range(self.concurrency)]
        self._deadline: float | None = None
        self._close_error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"{name}-worker-{slot}", daemon=True)
            for slot in range(1, self.concurrency)
        ]
        self._first = threading.Thread(target=self._lead, name=f"{name}-worker-0", daemon=True)

    def start(self) -> None:
        self._first.start()

    def resize(self, concurrency: int) -> None:
        """There are as many threads as there are."""

    def submit(self, units: Sequence[Unit]) -> None:
        put = self._queue.put
        for unit in units:
            put(unit)

    def withdraw(self) -> list[Unit]:
        """Take back what no thread has begun and whose assignment may start nothing any more."""
        return take_back(self._queue)

    def cancel(self) -> None:
        """Tell handlers whose result can no longer count."""
        for running in self._running:
            if running and running[1] and not running[0].assignment.wanted:
                running[1].cancelled = True

    def latency(self) -> Histogram:
        return merged(self._meters)

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
        take, report, measured, run = self._queue.get, self._report, self._meters[slot].add, self._runner(slot)
        unmeasured = left_out = 0  # records still to leave out, and left out since the last that was measured
        while (unit := take()) is not None:
            if isinstance(unit, list):
                self._run_batch(slot, unit)
                report(unit)
                continue
            chain = unit.chain
            for work in (unit,) if chain is None else chain.works:
                if unmeasured:
                    unmeasured -= 1
                    outcome = work.outcome = run(work)
                else:
                    start_ns = perf_counter_ns()
                    outcome = work.outcome = run(work)
                    unmeasured = left_out = measured(perf_counter_ns() - start_ns, left_out)
                report(work)
                if outcome is not None:
                    break

    def _runner(self, slot: int) -> Callable[[Work], Outcome]:
        """Runs a record on the thread of this slot. A closure, because what it closes over costs less to look up than
        attributes: a handler may take less time than that."""
        handler, lease, running, not_before = self._handler, self.lease, self._running, self._not_before
        resource = self._resource if self._takes_context else None
        takes_context = self._takes_context

        def run(work: Work) -> Outcome:
            if not work.assignment.may_start or monotonic() >= lease.until:
                return NOT_RUN
            if not_before is not None and (outcome := kept(work, not_before)) is not None:
                return outcome
            try:
                if takes_context:
                    context = Context(resource, work.attempt)
                    running[slot] = (work, context)
                    result = handler(Record(work.message), context)
                else:
                    running[slot] = (work, None)
                    result = handler(Record(work.message))
                return None if result is None else outcome_of(result)
            except BaseException as error:  # a handler's failure, whatever it is, must not end the thread
                return failure_of(error)
            finally:
                running[slot] = None

        return run

    def _run_batch(self, slot: int, batch: list[Work]) -> None:
        works = startable(batch, self.lease, self._not_before)
        if not works:
            return
        records = [Record(work.message) for work in works]
        start_ns = perf_counter_ns()
        try:
            if self._takes_context:
                context = Context(self._resource, works[0].attempt)
                self._running[slot] = (works[0], context)
                result = self._handler(records, context)
            else:
                self._running[slot] = (works[0], None)
                result = self._handler(records)
            give_outcomes(works, outcomes_of(result, len(works)))
        except BaseException as error:  # as above
            give_outcomes(works, [failure_of(error)] * len(works))
        finally:
            self._meters[slot].add(perf_counter_ns() - start_ns)
            self._running[slot] = None


def _sync_resource(resource: Any) -> Any:
    if hasattr(resource, "__enter__"):
        return resource
    if hasattr(resource, "__aenter__"):
        raise UsageError(
            f"resource={resource!r} is an async context manager, but the handler is a plain function: "
            "make the handler `async def`, or the resource a plain context manager"
        )
    raise UsageError(f"resource returned {resource!r}: return a context manager (contextlib.contextmanager makes one)")
