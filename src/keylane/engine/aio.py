"""Workers on one asyncio loop, for handlers that are coroutine functions.

The idea: a thread of its own runs the loop; a batch of work enters it with one `call_soon_threadsafe`, and each
record is a task. All that is handed over is in handlers at once, so nothing waits here and nothing has to be
withdrawn.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, suppress
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


class AsyncioWorkers:
    """One thread with an asyncio loop, a task a record.

    Thread safety: `submit`, `cancel` and `close` are the loop's (the engine's); everything else runs on the asyncio
    loop.
    """

    may_queue = False

    def __init__(self, pipeline: Pipeline, report: Callable[[Any], None], name: str) -> None:
        self.concurrency = pipeline.max_concurrency
        self._handler = pipeline.handler
        self._takes_context = takes_context(pipeline.handler)
        self._resource_factory = pipeline.resource
        self._resource: Any = None
        self._report = report
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None
        self._waiting: list[Work] | None = []
        """Work that came before the resource was there; None once it is."""
        self._tasks: dict[Work, asyncio.Task[None]] = {}
        self._begun: dict[Work, Context | None] = {}
        """The tasks that have begun. One that has not must not be cancelled: it would end without a report."""
        self._closing = False
        self._close_error: BaseException | None = None
        self._thread = threading.Thread(target=self._run_loop, name=f"{name}-asyncio", daemon=True)

    def start(self) -> None:
        """Returns once the loop runs, so that `submit` has somewhere to go; the resource may still be on its way."""
        self._thread.start()
        self._ready.wait()

    def submit(self, works: Sequence[Work]) -> None:
        assert self._loop is not None, "submit before start"
        self._loop.call_soon_threadsafe(self._begin, works)

    def withdraw(self) -> list[Work]:
        return []

    def cancel(self) -> None:
        assert self._loop is not None, "cancel before start"
        self._loop.call_soon_threadsafe(self._cancel_unwanted)

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
            waiting, self._waiting = self._waiting or [], None
            self._begin(waiting)
            await self._end.wait()
            await self._end_tasks()
            try:
                await stack.aclose()
            except BaseException as error:  # handed back by close()
                self._close_error = error

    def _begin(self, works: Sequence[Work]) -> None:
        if self._waiting is not None:
            self._waiting += works
            return
        create, tasks, run = asyncio.get_running_loop().create_task, self._tasks, self._run
        for work in works:
            tasks[work] = create(run(work))

    async def _run(self, work: Work) -> None:
        try:
            if not work.assignment.may_start or self._closing:
                work.outcome = NOT_RUN
            elif self._takes_context:
                context = self._begun[work] = Context(self._resource, work.attempt)
                result = await self._handler(Record(work.message), context)
                work.outcome = None if result is None else outcome_of(result)
            else:
                self._begun[work] = None
                result = await self._handler(Record(work.message))
                work.outcome = None if result is None else outcome_of(result)
        except GeneratorExit:  # the interpreter ends: there is nobody to report to
            raise
        except asyncio.CancelledError as error:
            ours = self._closing or not work.assignment.wanted
            work.outcome = NOT_RUN if ours else failure_of(error)
        except BaseException as error:  # a handler's failure, whatever it is, must not end the loop
            work.outcome = failure_of(error)
        del self._tasks[work]
        self._begun.pop(work, None)
        self._report(work)

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
