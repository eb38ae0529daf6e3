"""Worker threads, for handlers that are plain functions.

The idea: one deque that all threads take from, one record, chain of records or batch at a time, so that nothing waits
behind a slow one while a thread is free. A thread that finds the deque empty sleeps until it is woken. The loop may
hand over more than there are threads; what waits in the deque is not in a handler, and can be withdrawn.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import ExitStack
from functools import partial
from itertools import islice
from queue import SimpleQueue
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any

from keylane.engine import places
from keylane.engine.calls import failure_of, give_outcomes, kept, outcome_of, outcomes_of, sort_out, startable
from keylane.engine.latency import Meter, merged
from keylane.engine.lease import Lease
from keylane.engine.ports import Running, WorkersClosed, WorkersFailed
from keylane.engine.tuning import HOST
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
        self._waiting: deque[Unit] = deque()
        """What was handed over and no thread has begun; each call on it is atomic."""
        self._wake: SimpleQueue[bool] = SimpleQueue()
        """One for each thread that is to look whether something waits; False: to end."""
        self._running: list[Work | None] = [None] * self.concurrency
        self._contexts: list[Context | None] = [None] * self.concurrency
        """What each thread is at; written by that thread alone."""
        self._began = [0.0] * self.concurrency
        """When it began with that. Written before `_running`, and read after it: never the time of an earlier one."""
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
        self._waiting.extend(units)
        for _ in range(min(len(units), self.concurrency - self._wake.qsize())):
            self._wake.put(True)

    def withdraw(self) -> Sequence[Unit]:
        """Take back what no thread has begun and whose assignment may start nothing any more."""
        kept_ones, withdrawn = sort_out(self._waiting.popleft)
        self.submit(kept_ones)
        return withdrawn

    def cancel(self) -> None:
        """Tell handlers whose result can no longer count."""
        for work, context in zip(self._running, self._contexts, strict=True):
            if work and context and not work.assignment.wanted:
                context.cancelled = True

    def running(self) -> Sequence[Running]:
        threads = [self._first, *self._threads]
        return [
            Running(work.message, self._began[slot], partial(_where, threads[slot]))
            for slot, work in enumerate(self._running)
            if work is not None
        ]

    def latency(self) -> Histogram:
        return merged(self._meters)

    def close(self, timeout_s: float) -> WorkersClosed:
        """End the threads and leave the resource; wait for handlers that still run for at most `timeout_s`."""
        self._deadline = monotonic() + timeout_s
        for _ in range(self.concurrency):
            self._wake.put(False)
        if self._first.ident is not None:
            self._first.join(timeout_s + 1)
        names = tuple(work.name for work in self._running if work is not None)
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
        """Run what waits, until the end: records, and those of a chain one after another up to one that does not end
        well.

        Flat, and on local names: what is done here between handlers holds the interpreter's lock, and all threads that
        want to go on wait for that.
        """
        HOST.keep_time(self.concurrency)
        handler, takes_context, not_before, new = self._handler, self._takes_context, self._not_before, object.__new__
        lease, running, report, measured = self.lease, self._running, self._report, self._meters[slot].add
        began, take, is_to_go_on = self._began, self._waiting.popleft, self._wake.get
        unmeasured = left_out = 0
        while True:
            try:
                unit = take()
            except IndexError:
                running[slot] = None
                if not is_to_go_on():
                    return
                continue
            if isinstance(unit, list):
                self._run_batch(slot, unit)
                report(unit)
                continue
            work: Work | None = unit
            following = None if unit.chain is None else islice(unit.chain.works, 1, None)
            assignment = unit.assignment
            while work is not None:
                began[slot] = now = monotonic()
                running[slot] = work
                message = work.message
                start_ns = 0 if unmeasured else perf_counter_ns()
                outcome: Outcome = None
                if not assignment.may_start or now >= lease.until:
                    outcome = NOT_RUN
                elif not_before is None or (outcome := kept(message, not_before)) is None:
                    try:
                        record = new(Record)  # a call of `__init__` would take twice as long
                        record._message = message  # noqa: SLF001 - a record of ours
                        result = (
                            handler(record, self._context(slot, work.attempt)) if takes_context else handler(record)
                        )
                        if result is not None:
                            outcome = outcome_of(result)
                    except BaseException as error:  # a handler's failure, whatever it is, must not end the thread
                        outcome = failure_of(error)
                work.outcome = outcome
                if unmeasured:
                    unmeasured -= 1
                else:
                    unmeasured = left_out = measured(perf_counter_ns() - start_ns, left_out)
                report(work)
                work = None if following is None or outcome is not None else next(following, None)

    def _context(self, slot: int, attempt: int) -> Context:
        context = self._contexts[slot] = Context(self._resource, attempt)
        return context

    def _run_batch(self, slot: int, batch: list[Work]) -> None:
        works = startable(batch, self.lease, self._not_before)
        if not works:
            return
        self._began[slot] = monotonic()
        self._running[slot] = works[0]
        records = [Record(work.message) for work in works]
        start_ns = perf_counter_ns()
        try:
            if self._takes_context:
                result = self._handler(records, self._context(slot, works[0].attempt))
            else:
                result = self._handler(records)
            give_outcomes(works, outcomes_of(result, len(works)))
        except BaseException as error:  # as above
            give_outcomes(works, [failure_of(error)] * len(works))
        finally:
            self._meters[slot].add(perf_counter_ns() - start_ns)


def _where(thread: threading.Thread) -> str:
    return f"{places.text_of(places.of_thread(thread.ident))} in thread {thread.name}"


def _sync_resource(resource: Any) -> Any:
    if hasattr(resource, "__enter__"):
        return resource
    if hasattr(resource, "__aenter__"):
        raise UsageError(
            f"resource={resource!r} is an async context manager, but the handler is a plain function: "
            "make the handler `async def`, or the resource a plain context manager"
        )
    raise UsageError(f"resource returned {resource!r}: return a context manager (contextlib.contextmanager makes one)")
