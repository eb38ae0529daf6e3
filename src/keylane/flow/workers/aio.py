"""Workers on one asyncio loop, for coroutine functions.

The idea: a thread of its own runs the loop; what is handed over enters it with one `call_soon_threadsafe`. A task takes
one call or batch after another, and keeps the first in which the function suspends; then the next task takes on. So
there are as many tasks as calls that wait for something, and one that does not costs none. The loop may hand over more
than runs at once: it waits here, without a turn of that loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from contextlib import AsyncExitStack, suppress
from functools import partial
from time import monotonic, perf_counter_ns
from types import coroutine
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.flow.items import Batch, sources_of
from keylane.flow.outcomes import NOT_RUN
from keylane.flow.workers import Meter, Running, WorkersClosed, WorkersFailed, places
from keylane.flow.workers.calls import failure_of, give_outcomes, sort_out, startable
from keylane.flow.workers.tuning import HOST
from keylane.options import takes_context
from keylane.records import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    from keylane.flow.items import Call, Carried, Item, Source, Unit
    from keylane.flow.outcomes import Outcome
    from keylane.flow.work import Why
    from keylane.flow.workers import Histogram, Lease
    from keylane.flow.workers.calls import Function

TURN = 100
"""Calls that one task takes before it lets the others of the loop run."""


class _Begun:
    """A call that has suspended. Thread safety: the loop makes it, and any thread may read it."""

    __slots__ = ("context", "handling", "payload", "since", "source")

    def __init__(self, source: Source, payload: Carried, context: Context | None, since: float, handling: Any) -> None:
        self.source = source
        self.payload = payload
        """Of a batch, the first's."""
        self.context = context
        self.since = since
        self.handling = handling

    @property
    def name(self) -> str:
        return self.source.name_of(self.payload.offset())

    @property
    def why(self) -> Why:
        """What it waits for, where it says so."""
        return "running" if self.context is None else self.context.why

    @property
    def has_ended(self) -> bool:
        """Whether its coroutine is through; the next one of its hand-over may run already."""
        return getattr(self.handling, "cr_frame", self) is None


class AsyncioWorkers:
    """One thread with an asyncio loop, a task for each call that suspends.

    Thread safety: `submit`, `cancel` and `close` are the loop's (the engine's); everything else runs on the asyncio
    loop.
    """

    may_queue = True
    elastic = True

    def __init__(
        self, function: Function, concurrency: int, report: Callable[[object], None], name: str, lease: Lease
    ) -> None:
        self.concurrency = concurrency
        self._lease = lease
        self._function = function
        self._takes_context = takes_context(function.call)
        self._resource: Any = None
        self._report = report
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None
        self._waiting: deque[Unit] = deque()
        """What was handed over and has no task yet. Both loops take from it; each call is atomic."""
        self._is_ready = False
        """Whether the resource is there."""
        self._context = contextvars.Context()
        """What each task begins with: what the resource has set, and nothing of the record that lets another begin."""
        self._tasks: dict[Unit, asyncio.Task[None]] = {}
        self._begun: dict[Unit, _Begun] = {}
        """The calls that have suspended, as the tasks: only these can be cancelled."""
        self._coming = 0
        """Tasks that are about to take what waits."""
        self._at: tuple[Source, Carried] | None = None
        """Source and payload of the call that began last; None while none has that is not through."""
        self._at_since = 0.0
        """When it began. Written before `_at`."""
        self._meter = Meter()
        self._unmeasured = self._left_out = 0
        """Items still to leave out of the meter, and how many it was told to leave out."""
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
        if len(self._tasks) < self.concurrency:  # otherwise a task looks for more once it has left `_tasks`
            self._loop.call_soon_threadsafe(self._begin)

    def withdraw(self) -> Sequence[Unit]:
        """Take back what has no task and whose source may begin nothing any more."""
        kept_ones, withdrawn = sort_out(self._waiting.popleft)
        if kept_ones:
            self.submit(kept_ones)
        return withdrawn

    def cancel(self) -> None:
        assert self._loop is not None, "cancel before start"
        self._loop.call_soon_threadsafe(self._cancel_unwanted)

    def running(self) -> Sequence[Running]:
        at = self._at
        since = self._at_since
        begun = [one for one in list(self._begun.values()) if not one.has_ended]
        calls = [
            Running(one.source, one.payload, one.since, partial(self._where, one.handling), one.why) for one in begun
        ]
        if at is not None and all(one.payload is not at[1] for one in begun):  # it has not suspended yet
            calls.append(Running(*at, since, self._where))
        return calls

    def _where(self, handling: Any = None) -> str:
        """What a handler that has suspended waits for; of one that runs, what the thread of the loop is at."""
        if handling is not None and not getattr(handling, "cr_running", False):
            return f"{places.text_of(places.of_coroutine(handling))}, which awaits"
        return f"{places.text_of(places.of_thread(self._thread.ident))} in thread {self._thread.name}"

    def ask(self, answered: Callable[[], None]) -> None:
        """See `keylane.flow.workers.blocked.Watched`."""
        assert self._loop is not None, "watched before start"
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(answered)

    def blocker(self) -> tuple[str, Sequence[places.Place]]:
        assert self._loop is not None, "watched before start"
        task, at = asyncio.current_task(self._loop), self._at
        coroutine = None if task is None else getattr(task.get_coro(), "__qualname__", "")
        what = "a callback" if task is None else f"{coroutine} in task {task.get_name()}"
        of_task = [one.name for unit, one in list(self._begun.items()) if self._tasks.get(unit) is task]
        if of_task:
            what = of_task[0]
        elif at is not None and coroutine == self._take.__qualname__:  # a call that has not suspended yet
            what = at[0].name_of(at[1].offset())
        return what, places.of_thread(self._thread.ident)

    def latency(self) -> Histogram:
        return self._meter.histogram()

    def close(self, timeout_s: float) -> WorkersClosed:
        """Cancel what still runs, leave the resource, end the loop; waits for at most `timeout_s`."""
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has ended by itself: its resource could not be made
                self._loop.call_soon_threadsafe(self._finish)
            self._thread.join(timeout_s)
        names = tuple(call.name for call in self.running()) if self._thread.is_alive() else ()
        return WorkersClosed(still_running=names, error=self._close_error)

    # --- on the asyncio loop ---

    def _run_loop(self) -> None:
        HOST.keep_time()
        with asyncio.Runner(loop_factory=HOST.new_event_loop) as runner:
            loop = runner.get_loop()
            main = loop.create_task(self._main())
            while not main.done():
                with suppress(SystemExit, KeyboardInterrupt):  # of a task of the user's: who awaits it has it, too
                    loop.run_until_complete(main)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._ready.set()
        async with AsyncExitStack() as stack:
            try:
                if self._function.resource is not None:
                    self._resource = await _enter(stack, self._function.resource())
            except BaseException as error:  # reported: the consumer stops with it
                self._report(WorkersFailed(error))
                return
            self._context = contextvars.copy_context()
            self._is_ready = True
            self._begin()
            await self._end.wait()
            await self._end_tasks()
            try:
                await stack.aclose()
            except BaseException as error:  # handed back by close()
                self._close_error = error

    def _begin(self, most: int = 1) -> None:
        """Let up to `most` more tasks take what waits, as far as there is room."""
        if not self._is_ready:
            return
        room = min(len(self._waiting), self.concurrency - len(self._tasks)) - self._coming
        for _ in range(min(most, room)):
            self._coming += 1
            asyncio.get_running_loop().create_task(self._take(), context=self._context.copy())

    async def _take(self) -> None:
        """Run what waits, one after another. While a handler suspends, other tasks take on; afterwards so does this
        one."""
        self._coming -= 1
        task = asyncio.current_task()
        assert task is not None
        for _ in range(TURN):
            if len(self._tasks) >= self.concurrency:
                break
            try:
                unit = self._waiting.popleft()
            except IndexError:
                break
            if isinstance(unit, Batch):
                await self._run_batch(task, unit)
            else:
                await self._run(task, unit)
            if self._tasks.pop(unit, None) is not None:
                del self._begun[unit]
                if task.cancelling():
                    break
        self._at = None
        self._begin()

    async def _run(self, task: asyncio.Task[Any], unit: Call) -> None:  # noqa: C901 - flat, as it says
        """Run a call's items one after another. Flat: the function may take less time than one more call."""
        function, source, attempt = self._function, unit.source, unit.attempt
        call, view = function.call, function.view
        for index, payload in enumerate(unit.begin(monotonic())):
            start_ns = 0
            if self._unmeasured:
                self._unmeasured -= 1
            else:
                start_ns = perf_counter_ns()
            outcome: Outcome = None
            now = monotonic()
            if not source.may_begin or self._closing or now >= self._lease.until:
                outcome = NOT_RUN
            elif function.not_before is None or (outcome := function.kept(payload)) is None:
                self._at_since = now
                self._at = (source, payload)
                context = None
                try:
                    seen = payload if view is None else view(payload)
                    if self._takes_context:
                        context = Context(self._resource, attempt)
                        handling = call(seen, context)
                    else:
                        handling = call(seen)
                    try:
                        waits_for = handling.send(None)
                    except StopIteration as done:
                        outcome = done.value
                    except GeneratorExit as error:  # the function's own: nobody has closed this coroutine yet
                        raise _own_exit() from error
                    else:
                        self._has_suspended(task, unit, _Begun(source, payload, context, now, handling))
                        outcome = await _rest(handling, waits_for)
                    if outcome is not None:
                        outcome = function.outcome_of(outcome)
                except GeneratorExit:  # the interpreter ends: there is nobody to report to
                    raise
                except BaseException as error:  # a failure, whatever it is, must not end the loop
                    outcome = self._failed(source, error)
            if start_ns:
                self._measure(start_ns)
            if outcome is not None:
                unit.note(index, outcome)
                if unit.ordered:
                    break
        unit.took_s = monotonic() - unit.began
        self._report(unit)

    def _measure(self, start_ns: int) -> None:
        left_out = self._left_out - self._unmeasured
        self._unmeasured = self._left_out = self._meter.add(perf_counter_ns() - start_ns, left_out)

    def _failed(self, source: Source, error: BaseException, *, is_shared: bool = False) -> Outcome:
        """What an exception means; a cancellation may be ours."""
        if isinstance(error, asyncio.CancelledError) and (self._closing or not source.wanted):
            return NOT_RUN
        return failure_of(error, is_shared=is_shared)

    async def _run_batch(self, task: asyncio.Task[Any], batch: Batch) -> None:
        if items := startable(batch, self._lease, self._function):
            give_outcomes(items, await self._outcomes(task, batch, items))
        self._report(batch)

    async def _outcomes(self, task: asyncio.Task[Any], batch: Batch, items: list[Item]) -> Sequence[Outcome]:
        """Run the function on a batch, as above."""
        if self._closing:
            return [NOT_RUN] * len(items)
        function, first = self._function, items[0]
        self._at_since = monotonic()
        self._at = (first.source, first.payload)
        seen = [function.seen(item.payload) for item in items]
        context = Context(self._resource, first.attempt) if self._takes_context else None
        start_ns = perf_counter_ns()
        try:
            handling = function.call(seen, context) if context is not None else function.call(seen)
            self._has_suspended(task, batch, _Begun(first.source, first.payload, context, self._at_since, handling))
            return function.outcomes_of(await _whole(handling), len(items))
        except GeneratorExit:
            raise
        except BaseException as error:
            return [self._failed(item.source, error, is_shared=len(items) > 1) for item in items]
        finally:
            self._meter.add(perf_counter_ns() - start_ns)

    def _has_suspended(self, task: asyncio.Task[Any], unit: Unit, begun: _Begun) -> None:
        """`task` belongs to this hand-over from now on: two others take what waits, so that many calls that suspend
        have begun after few turns of the loop."""
        self._begun[unit] = begun
        if unit not in self._tasks:
            self._tasks[unit] = task
            if len(self._tasks) < self.concurrency:
                self._begin(2)

    def _cancel_unwanted(self) -> None:
        self._cancel_tasks([unit for unit in self._begun if not any(one.wanted for one in sources_of(unit))])

    def _cancel_tasks(self, units: list[Unit]) -> None:
        for unit in units:
            if context := self._begun[unit].context:
                context.cancel()
            self._tasks[unit].cancel()

    def _finish(self) -> None:
        self._closing = True
        if self._end is not None:
            self._end.set()

    async def _end_tasks(self) -> None:
        self._cancel_tasks(list(self._begun))
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))


@coroutine
def _rest(handling: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """What a coroutine returns that has suspended once already, on `waits_for`; for the rest it is `await`."""
    while True:
        thrown: BaseException | None = None
        try:
            sent = yield waits_for
        except BaseException as error:  # thrown into the task: a cancellation, above all
            thrown = error
            go_on: Callable[[], Any] = partial(handling.throw, error)
        else:
            go_on = partial(handling.send, sent)
        try:
            waits_for = go_on()
        except StopIteration as done:
            return done.value
        except GeneratorExit as error:
            if isinstance(thrown, GeneratorExit):
                raise
            raise _own_exit() from error


@coroutine
def _whole(handling: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The same of a coroutine that has not begun."""
    try:
        waits_for = handling.send(None)
    except StopIteration as done:
        return done.value
    except GeneratorExit as error:
        raise _own_exit() from error
    return (yield from _rest(handling, waits_for))


def _own_exit() -> RuntimeError:
    """A GeneratorExit that the function raised would read as the interpreter's, which ends coroutines by it."""
    return RuntimeError("the function raised GeneratorExit")


async def _enter(stack: AsyncExitStack, resource: Any) -> Any:
    """Enter an async or a plain context manager."""
    if hasattr(resource, "__aenter__"):
        return await stack.enter_async_context(resource)
    if hasattr(resource, "__enter__"):
        return stack.enter_context(resource)
    raise UsageError(
        f"resource returned {resource!r}: return a context manager (contextlib.asynccontextmanager makes one)"
    )
