"""Workers on one asyncio loop, for handlers that are coroutine functions.

The idea: a thread of its own runs the loop; what is handed over enters it with one `call_soon_threadsafe`, and each
record (chain of records, batch) is a task. The engine may hand over more than runs at once: a task that ends starts the
next by itself, without a turn of the engine's loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import AsyncExitStack, suppress
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any

from keylane.engine.calls import failure_of, give_outcomes, kept, may_start, outcome_of, outcomes_of, startable
from keylane.engine.latency import Meter
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


class AsyncioWorkers:
    """One thread with an asyncio loop, a task a record.

    Thread safety: `submit`, `cancel` and `close` are the loop's (the engine's); everything else runs on the asyncio
    loop.
    """

    may_queue = True
    elastic = True

    def __init__(self, pipeline: Pipeline, report: Callable[[Any], None], name: str) -> None:
        self.concurrency = pipeline.max_concurrency
        self.lease = Lease()
        self._handler = pipeline.handler
        self._takes_context = takes_context(pipeline.handler)
        self._not_before = pipeline.not_before
        self._resource_factory = pipeline.resource
        self._resource: Any = None
        self._report = report
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None
        self._waiting: deque[Unit] = deque()
        """What was handed over and has no task yet. Both loops take from it; each call is atomic."""
        self._is_ready = False
        """Whether the resource is there."""
        self._tasks: dict[Work, asyncio.Task[None]] = {}
        self._begun: dict[Work, Context | None] = {}
        """The tasks that have begun. One that has not must not be cancelled: it would end without a report."""
        self._meter = Meter()
        self._unmeasured = self._left_out = 0
        """Records still to leave out of the meter, and left out since the last that was measured."""
        self._closing = False
        self._close_error: BaseException | None = None
        self._thread = threading.Thread(target=self._run_loop, name=f"{name}-asyncio", daemon=True)

    def start(self) -> None:
        """Returns once the loop runs, so that `submit` has somewhere to go; the resource may still be on its way."""
        self._thread.start()
        self._ready.wait()

    def resize(self, concurrency: int) -> None:
        self.concurrency = concurrency
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin)

    def submit(self, units: Sequence[Unit]) -> None:
        assert self._loop is not None, "submit before start"
        self._waiting.extend(units)
        self._loop.call_soon_threadsafe(self._begin)

    def withdraw(self) -> list[Unit]:
        """Take back what has no task and whose assignment may start nothing any more."""
        kept: list[Unit] = []
        withdrawn: list[Unit] = []
        try:
            while True:
                unit = self._waiting.popleft()
                (kept if may_start(unit) else withdrawn).append(unit)
        except IndexError:  # nothing is left
            pass
        if kept:
            self.submit(kept)
        return withdrawn

    def cancel(self) -> None:
        assert self._loop is not None, "cancel before start"
        self._loop.call_soon_threadsafe(self._cancel_unwanted)

    def latency(self) -> Histogram:
        return self._meter.histogram()

    def close(self, timeout_s: float) -> WorkersClosed:
        """Cancel what still runs, leave the resource, end the loop; waits for at most `timeout_s`."""
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has ended by itself: its resource could not be made
                self._loop.call_soon_threadsafe(self._finish)
            self._thread.join(timeout_s)
        names = tuple(work.name for work in list(self._tasks)) if self._thread.is_alive() else ()
        return WorkersClosed(still_running=names, error=self._close_error)

    # --- on the asyncio loop ---

    def _run_loop(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._ready.set()
        async with AsyncExitStack() as stack:
            try:
                if self._resource_factory is not None:
                    self._resource = await _enter(stack, self._resource_factory())
            except BaseException as error:  # reported: the consumer stops with it
                self._report(WorkersFailed(error))
                return
            self._is_ready = True
            self._begin()
            await self._end.wait()
            await self._end_tasks()
            try:
                await stack.aclose()
            except BaseException as error:  # handed back by close()
                self._close_error = error

    def _begin(self) -> None:
        """Start what waits, as far as there is room."""
        if not self._is_ready:
            return
        create, waiting, tasks = asyncio.get_running_loop().create_task, self._waiting, self._tasks
        try:
            while len(tasks) < self.concurrency:
                unit = waiting.popleft()
                work = unit[0] if isinstance(unit, list) else unit
                tasks[work] = create(self._run_batch(unit) if isinstance(unit, list) else self._run(unit))
        except IndexError:  # nothing is left
            pass

    async def _run(self, first: Work) -> None:
        for work in (first,) if first.chain is None else first.chain.works:
            if self._unmeasured:
                self._unmeasured -= 1
                self._left_out += 1
                outcome = work.outcome = await self._outcome(first, work)
            else:
                start_ns = perf_counter_ns()
                outcome = work.outcome = await self._outcome(first, work)
                left_out, self._left_out = self._left_out, 0
                self._unmeasured = self._meter.add(perf_counter_ns() - start_ns, left_out)
            self._report(work)
            if outcome is not None:
                break
        self._ended(first)

    async def _run_batch(self, batch: list[Work]) -> None:
        if works := startable(batch, self.lease, self._not_before):
            give_outcomes(works, await self._outcomes(batch[0], works))
        self._report(batch)
        self._ended(batch[0])

    def _ended(self, first: Work) -> None:
        del self._tasks[first]
        self._begun.pop(first, None)
        if self._waiting:
            self._begin()

    async def _outcome(self, first: Work, work: Work) -> Outcome:
        """Run the handler on a record. `first` is what its task is known by."""
        if not work.assignment.may_start or self._closing or monotonic() >= self.lease.until:
            return NOT_RUN
        if self._not_before is not None and (outcome := kept(work, self._not_before)) is not None:
            return outcome
        try:
            if self._takes_context:
                context = self._begun[first] = Context(self._resource, work.attempt)
                result = await self._handler(Record(work.message), context)
            else:
                self._begun[first] = None
                result = await self._handler(Record(work.message))
            return None if result is None else outcome_of(result)
        except GeneratorExit:  # the interpreter ends: there is nobody to report to
            raise
        except asyncio.CancelledError as error:
            return NOT_RUN if self._closing or not work.assignment.wanted else failure_of(error)
        except BaseException as error:  # a handler's failure, whatever it is, must not end the loop
            return failure_of(error)

    async def _outcomes(self, first: Work, works: list[Work]) -> Sequence[Outcome]:
        """Run the handler on a batch, as above."""
        if self._closing:
            return [NOT_RUN] * len(works)
        records = [Record(work.message) for work in works]
        start_ns = perf_counter_ns()
        try:
            if self._takes_context:
                context = self._begun[first] = Context(self._resource, works[0].attempt)
                return outcomes_of(await self._handler(records, context), works)
            self._begun[first] = None
            return outcomes_of(await self._handler(records), works)
        except GeneratorExit:
            raise
        except asyncio.CancelledError as error:
            ours = self._closing
            return [NOT_RUN if ours or not work.assignment.wanted else failure_of(error) for work in works]
        except BaseException as error:
            return [failure_of(error)] * len(works)
        finally:
            self._meter.add(perf_counter_ns() - start_ns)

    def _cancel_unwanted(self) -> None:
        self._cancel_tasks([work for work in self._begun if not work.assignment.wanted])

    def _cancel_tasks(self, works: list[Work]) -> None:
        for work in works:
            if context := self._begun[work]:
                context.cancelled = True
            self._tasks[work].cancel()

    def _finish(self) -> None:
        self._closing = True
        if self._end is not None:
            self._end.set()

    async def _end_tasks(self) -> None:
        self._cancel_tasks(list(self._begun))
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))


async def _enter(stack: AsyncExitStack, resource: Any) -> Any:
    """Enter an async or a plain context manager."""
    if hasattr(resource, "__aenter__"):
        return await stack.enter_async_context(resource)
    if hasattr(resource, "__enter__"):
        return stack.enter_context(resource)
    raise UsageError(
        f"resource returned {resource!r}: return a context manager (contextlib.asynccontextmanager makes one)"
    )
