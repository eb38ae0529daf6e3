"""Worker threads, for plain functions.

The idea: one deque that all threads take from, one call or batch at a time, so that nothing waits behind a slow one
while a thread is free. A thread that finds the deque empty sleeps until it is woken. The loop may hand over more than
there are threads; what waits in the deque does not run, and can be withdrawn.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.flow.items import Batch, sources_of
from keylane.flow.outcomes import NOT_RUN
from keylane.flow.workers import Meter, Running, WorkersClosed, WorkersFailed, merged, places
from keylane.flow.workers.calls import failure_of, give_outcomes, sort_out, startable
from keylane.flow.workers.tuning import HOST
from keylane.options import takes_context
from keylane.records import Context
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.flow.items import Unit
    from keylane.flow.outcomes import Outcome
    from keylane.flow.workers import Histogram, Lease
    from keylane.flow.workers.calls import Function

logger = logger_of("keylane.flow")


class ThreadWorkers:
    """N threads that run a function. The first of them enters the resource, and is the last to leave.

    Thread safety: `submit`, `withdraw`, `cancel` and `close` are the loop's; `report` is called from the threads.
    """

    may_queue = True
    elastic = False

    def __init__(
        self, function: Function, concurrency: int, report: Callable[[object], None], name: str, lease: Lease
    ) -> None:
        self.concurrency = concurrency
        self._lease = lease
        self._function = function
        self._takes_context = takes_context(function.call)
        self._resource: Any = None
        self._report = report
        self._waiting: deque[Unit] = deque()
        """What was handed over and no thread has begun; each call on it is atomic."""
        self._wake: SimpleQueue[bool] = SimpleQueue()
        """One for each thread that is to look whether something waits; False: to end."""
        self._units: list[Unit | None] = [None] * self.concurrency
        self._running: list[Any] = [None] * self.concurrency
        """The payload that each thread is at, None between two units."""
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
        """Take back what no thread has begun and whose source may begin nothing any more."""
        kept_ones, withdrawn = sort_out(self._waiting.popleft)
        self.submit(kept_ones)
        return withdrawn

    def cancel(self) -> None:
        """Tell calls whose result can no longer count."""
        for unit, context in zip(self._units, self._contexts, strict=True):
            if unit is not None and context and not any(one.wanted for one in sources_of(unit)):
                context.cancel()

    def running(self) -> Sequence[Running]:
        threads = [self._first, *self._threads]
        return [
            Running(sources_of(unit)[0], payload, self._began[slot], partial(_where, threads[slot]))
            for slot, (unit, payload) in enumerate(zip(self._units, self._running, strict=True))
            if unit is not None and payload is not None
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
        names = tuple(call.name for call in self.running())
        return WorkersClosed(still_running=names, error=self._close_error)

    def _lead(self) -> None:
        """The first thread: enter the resource, serve beside the others, leave the resource after them."""
        with ExitStack() as stack:
            try:
                if self._function.resource is not None:
                    self._resource = stack.enter_context(_sync_resource(self._function.resource()))
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

    def _serve(self, slot: int) -> None:  # noqa: C901 - flat, as it says
        """Run what waits, until the end.

        Flat, and on local names: what is done here between two calls of the function holds the interpreter's lock, and
        all threads that want to go on wait for that.
        """
        HOST.keep_time(self.concurrency)
        call, view, outcome_of = self._function.call, self._function.view, self._function.outcome_of
        kept = None if self._function.not_before is None else self._function.kept
        takes_context, measured = self._takes_context, self._meters[slot].add
        lease, units, running, report = self._lease, self._units, self._running, self._report
        began, next_unit, is_to_go_on = self._began, self._waiting.popleft, self._wake.get
        resource, contexts = self._resource, self._contexts
        unmeasured = left_out = 0
        while True:
            try:
                unit = next_unit()
            except IndexError:
                running[slot] = None
                if not is_to_go_on():
                    return
                continue
            running[slot] = None
            units[slot] = unit
            if isinstance(unit, Batch):
                self._run_batch(slot, unit)
                report(unit)
                continue
            source, attempt = unit.source, unit.attempt
            for index, payload in enumerate(unit.begin(monotonic())):
                began[slot] = now = monotonic()
                running[slot] = payload
                start_ns = 0 if unmeasured else perf_counter_ns()
                outcome: Outcome = None
                if not source.may_begin or now >= lease.until:
                    outcome = NOT_RUN
                elif kept is None or (outcome := kept(payload)) is None:
                    try:
                        seen = payload if view is None else view(payload)
                        if takes_context:
                            contexts[slot] = context = Context(resource, attempt)
                            outcome = call(seen, context)
                        else:
                            outcome = call(seen)
                        if outcome is not None:
                            outcome = outcome_of(outcome)
                    except BaseException as error:  # a function's failure, whatever it is, must not end the thread
                        outcome = failure_of(error)
                if unmeasured:
                    unmeasured -= 1
                else:
                    unmeasured = left_out = measured(perf_counter_ns() - start_ns, left_out)
                if outcome is not None:
                    unit.note(index, outcome)
                    if unit.ordered:
                        break
            unit.took_s = monotonic() - unit.began
            report(unit)

    def _run_batch(self, slot: int, batch: Batch) -> None:
        function = self._function
        items = startable(batch, self._lease, function)
        if not items:
            return
        self._began[slot] = monotonic()
        self._running[slot] = items[0].payload
        seen = [function.seen(item.payload) for item in items]
        start_ns = perf_counter_ns()
        try:
            if self._takes_context:
                context = self._contexts[slot] = Context(self._resource, items[0].attempt)
                result = function.call(seen, context)
            else:
                result = function.call(seen)
            give_outcomes(items, function.outcomes_of(result, len(items)))
        except BaseException as error:  # as above
            give_outcomes(items, [failure_of(error, is_shared=len(items) > 1)] * len(items))
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
