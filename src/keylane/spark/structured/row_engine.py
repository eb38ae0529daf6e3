"""`RowEngine`: rows through the flow, inside one Spark task.

The idea: all rows of a task are one source of a flow (`keylane.flow`), so that ordering, concurrency, retries, rates,
batches and workers are those of every pipeline. One thread is the flow's loop. What the handler returns for one row in
a thread or a coroutine does not pass through it: the worker puts it where the task's thread takes it, many at a time,
and to the flow the row is through.
"""

from __future__ import annotations

import math
import random
import threading
from collections import Counter, deque
from dataclasses import dataclass, field, fields, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.errors import HandlerError, InternalError
from keylane.flow.autoscale import AutoLimit
from keylane.flow.core import FlowCore
from keylane.flow.failures import Failures
from keylane.flow.items import Batch, Call, Source
from keylane.flow.outcomes import Failure
from keylane.flow.workers import Always, Inbox, Stall, WorkerDied, WorkersFailed
from keylane.flow.workers.aio import AsyncioWorkers
from keylane.flow.workers.blocked import LoopWatch
from keylane.flow.workers.calls import Function, as_it_is, as_told, resource_error
from keylane.flow.workers.made import hand_over_to, make_workers
from keylane.flow.workers.tuning import HOST
from keylane.foreign_errors import one_line
from keylane.options import Processes, Rates, is_coroutine_function
from keylane.spark.structured.rows import TaskRow, row_arrives, row_departs
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from keylane.flow.items import Carried, Item
    from keylane.flow.outcomes import Outcome
    from keylane.flow.workers import Histogram
    from keylane.options import Flow
    from keylane.records import Context, FailedAttempt

    Handler = Callable[..., Any]
    Settle = Callable[[TaskRow, Outcome, int, float], None]
    """Notes in a row what it came to by the loop: what the function returned, its last `Failure`, or the row itself
    where that has it already; the attempt; and how many seconds ago it was handed over."""
    Held = Callable[[TaskRow, Outcome], Outcome]
    """Of a row whose turn has come, and of what `not_before` says (a `Later`, a `Failure`, or None): None to run it,
    the row itself to give it back."""

logger = logger_of("keylane.spark")

MAX_PENDING = 20_000
"""Rows taken from Spark and not given back: bounds a task's memory."""

MAX_PENDING_BYTES = 64 << 20
"""Of those rows, about; but as many rows as may run at once."""

MAX_ANSWER_BYTES = 64 << 20
"""Of large answers that Spark has not taken: so long nothing more starts."""

LARGE_BYTES = 4_096
"""What a large answer has at least: those below are few bytes, by MAX_PENDING."""

WORTH_WAKING = 100
"""Results that the task's thread waits for: each of its turns takes the interpreter's lock from the handlers."""

FIRST_CALLS_S = 0.1
"""After the first call: how long the task's thread at most leaves the others that can begin at once."""

CLOSE_S = 2.0
"""How long closing waits for calls that outlived the end, before their threads are left behind."""

FAILURES = Failures(outlives=True)
"""Of all tasks that this process runs: the first of a kind is told once, not once a task."""


class _Owner:
    """Of the rows: they start as they come."""

    def __init__(self, ended: Callable[[Item, Outcome, float], None]) -> None:
        self.ended = ended

    def may_start(self) -> int:
        return _ALL

    def started(self, highest: int) -> None:
        """Nothing follows from it."""

    def released(self, numbers: Sequence[int], payloads: Sequence[Carried]) -> None:
        """Nothing follows from it."""


@dataclass(frozen=True, slots=True)
class _RowFunction(Function):
    """A function of which some rows may be held back, when their turn comes."""

    held: Held = field(kw_only=True)

    def kept(self, payload: Carried) -> Outcome:
        return self.held(payload, Function.kept(self, payload))

    def __reduce__(self) -> tuple[type[Function], tuple[object, ...]]:
        """What goes to a worker process does not ask."""
        return Function, tuple(getattr(self, one.name) for one in fields(Function))


_ALL = 1 << 62
"""A number that no row has."""
_STOP = object()
"""In the inbox: start nothing more."""
_ANSWERS = object()
"""In the inbox: the answers that wait for Spark have come to be too many bytes, or few enough again."""
_NO_MORE = object()
"""In the inbox: nothing more is fed."""


class RowEngine:
    """Runs while it is open (a context manager). Thread safety: one thread, but for `stop`."""

    def __init__(
        self,
        options: Flow,
        settle: Settle,
        name_of: Callable[[Carried, int], str],
        held: Held | None = None,
        auto: Callable[[int], AutoLimit] = AutoLimit,
        on_failure: Callable[[FailedAttempt], None] | None = None,
    ) -> None:
        """`options.handler` gets a `TaskRow`, notes in it what it came to, and returns it, or a `Failure`; rows with
        the same key run one after another, unless unordered. `name_of` says how errors name what was fed, and `auto`
        makes the automatic limit, of at most so many. A row that `held` gives a result for does not run. `on_failure`
        is told of each failed attempt, but for those that are given back.
        """
        self._settle = settle
        self._name_of = name_of
        self._results: deque[TaskRow] = deque()
        self._answer_bytes = 0
        """Of the large ones among the results."""
        self._answers = threading.Lock()
        """Guards that number: workers and the task's thread change it."""
        self._wanted: float = math.inf
        """How many results the task's thread waits for, while it does."""
        self._over = False
        """Whether nothing more comes."""
        self._there = threading.Event()
        self._is_woken = False
        """Whether that is set for the results: once is enough."""
        self._next = 0
        self.pending: dict[int, TaskRow] = {}
        """What was fed and has not come back, by number, in that order."""
        self.bytes_a_row = 0.0
        """About; the task's thread may set it."""
        self.counters: Counter[str] = Counter()
        self._inbox = Inbox()
        waits = options.rates != Rates() or options.max_concurrency == "auto" or options.not_before is not None
        waits = waits or options.breaker is not None
        self._begun: deque[None] | None = deque() if _is_direct(options) and not waits else None
        """One for each of the first calls; None once they have begun, or where they do not begin at once."""
        function = self._function(options, held)
        if isinstance(function, _RowFunction) and options.not_before is None:
            options = replace(options, not_before=_now)  # one row at a time is asked for
        self._workers = make_workers(options, function, self._inbox.put, "keylane-rows", Always())
        self._first_calls = self._workers.concurrency
        """How many calls begin before the task's thread makes more rows."""
        depth_first = options.traversal == "depth_first"  # what waits with the workers would be others' turn
        self._flow = FlowCore(
            options,
            hand_over_to(self._workers, options, may_queue=not depth_first),
            random=random.Random().random,
            notes=FAILURES,
            counters=self.counters,
            view=_row_of,
            on_failure=on_failure,
            auto=auto,
        )
        self._source = Source("rows", _Owner(self._ended), options.ordering, self._name, depth_first=depth_first)
        self._stall = Stall(options.stall_timeout_ms / 1000)
        self._watch = LoopWatch(self._workers, FAILURES) if isinstance(self._workers, AsyncioWorkers) else None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="keylane-rows-loop", daemon=True)

    def _function(self, options: Flow, held: Held | None) -> Function:
        """What the workers run. Where they can, they give the results themselves, and ask in the call whether a row is
        held, so that several quick rows may be one hand-over; of batches, and from processes, results come by the loop.
        """
        call, not_before = options.handler, options.not_before
        if _is_direct(options):
            in_call, held = (held, None) if not_before is None else (None, held)
            call = self._giving(call, in_call)
        timed = not_before and partial(_of_row, not_before)
        rest = (call, None, as_it_is, _each, options.resource, timed, row_departs, row_arrives)
        return Function(*rest) if held is None else _RowFunction(*rest, held=held)

    @property
    def latency(self) -> Histogram:
        return self._workers.latency()

    def __enter__(self) -> RowEngine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()

    def run(self, feeds: Iterator[Iterable[tuple[Carried, bytes | None]]]) -> Iterator[list[TaskRow]]:
        """All that the feeds give, as it comes back, some at a time; ends early when it was stopped."""
        for rows in feeds:
            self.feed(rows)
            if self._begun is not None and self.pending:
                self._wait_for_first_calls(self._begun)
            while True:
                results = self.pop_results(wait=self._is_full)
                if results is None:
                    return
                yield results
                if not self._is_full:
                    break
        self._inbox.put(_NO_MORE)
        while self.pending and (results := self.pop_results(wait=True)) is not None:
            yield results

    @property
    def _is_full(self) -> bool:
        count = len(self.pending)
        if count * self.bytes_a_row > MAX_PENDING_BYTES:
            return count >= self._workers.concurrency
        return count >= MAX_PENDING

    def feed(self, rows: Iterable[tuple[Carried, bytes | None]]) -> None:
        """Hand over values with their keys."""
        fed = [TaskRow(value, key, number) for number, (value, key) in enumerate(rows, self._next)]
        self.pending.update(zip(range(self._next, self._next + len(fed)), fed, strict=True))
        self._next += len(fed)
        self._inbox.put(fed)

    def stop(self) -> None:
        """Any thread: start nothing more, and cancel what can be cancelled; what is pending then does not come back."""
        self._inbox.put(_STOP)

    def pop_results(self, *, wait: bool) -> list[TaskRow] | None:
        """Rows that are through; with `wait`, at least one. None once it was stopped and all is taken.

        Raises what the engine failed with: a resource that could not be made.
        """
        if wait:
            self._wait_for(max(1, min(WORTH_WAKING, len(self.pending))))
        over = self._over
        results: list[TaskRow] = []
        while self._results:
            row = self._results.popleft()
            del self.pending[row.number]
            results.append(row)
            if row.size >= LARGE_BYTES:
                self._count_answer(-row.size)
        if results or not over:
            return results
        self._thread.join()
        if self._failure is not None:
            raise as_told(self._failure)
        return None

    def _wait_for_first_calls(self, begun: deque[None]) -> None:
        """Until all have begun that can at once; of a few keys only as many do, hence the limit. Two threads lead to
        the first call, and each worker thread is one more: each would wait 5 ms for the interpreter's lock while this
        one makes rows."""
        self._first_calls = min(self._first_calls, len(self.pending))
        while len(begun) < self._first_calls and not self._over:
            if not self._there.wait(FIRST_CALLS_S) and begun:
                break
            self._forget()
        self._begun = None

    def _wait_for(self, count: int) -> None:
        """Until there are so many results, or nothing more comes: also because those that wait are too many bytes."""
        self._wanted = count
        while len(self._results) < count and not self._over and not self._is_held and self._there.wait():
            self._forget()
        self._wanted = math.inf

    def _forget(self) -> None:
        """That something was there: before it is looked for."""
        self._is_woken = False
        self._there.clear()

    @property
    def _is_held(self) -> bool:
        """Whether nothing starts before somebody takes the results that are there."""
        return bool(self._results) and self._answer_bytes > MAX_ANSWER_BYTES

    # --- the workers' ---

    def _giving(self, handler: Handler, held: Held | None) -> Handler:
        """The handler, whose rows go to the task's thread; what failed goes to the flow. A row that is held does not
        reach it. Flat: a quick handler may take less time than one more call."""
        results = self._results

        def call(row: TaskRow, context: Context) -> Failure | None:
            if (begun := self._begun) is not None:
                self._begin(begun)
            if held is None or held(row, None) is None:
                result = handler(row, context)
                if result is not row:
                    failed: Failure = result
                    return failed
                row.attempts = context.attempt
            results.append(row)
            if row.size >= LARGE_BYTES or (len(results) >= self._wanted and not self._is_woken):
                self._tell_of(row)
            return None

        async def call_async(row: TaskRow, context: Context) -> Failure | None:
            if (begun := self._begun) is not None:
                self._begin(begun)
            if held is None or held(row, None) is None:
                result = await handler(row, context)
                if result is not row:
                    failed: Failure = result
                    return failed
                row.attempts = context.attempt
            results.append(row)
            if row.size >= LARGE_BYTES or (len(results) >= self._wanted and not self._is_woken):
                self._tell_of(row)
            return None

        return call_async if is_coroutine_function(handler) else call

    def _begin(self, begun: deque[None]) -> None:
        begun.append(None)
        if len(begun) >= self._first_calls:
            self._there.set()

    def _tell_of(self, row: TaskRow) -> None:
        """It is among the results: wake the task's thread where that is due."""
        if is_large := row.size >= LARGE_BYTES:
            self._count_answer(row.size)
        if len(self._results) >= self._wanted or (is_large and self._is_held):
            self._is_woken = True
            self._there.set()

    def _count_answer(self, size: int) -> None:
        with self._answers:
            before, self._answer_bytes = self._answer_bytes, self._answer_bytes + size
            after = self._answer_bytes
        if (before > MAX_ANSWER_BYTES) != (after > MAX_ANSWER_BYTES):
            self._inbox.put(_ANSWERS)

    # --- the loop's ---

    def _serve(self) -> None:
        try:
            self._workers.start()
            with HOST.while_running():
                while self._turn():
                    pass
        except BaseException as error:  # a defect, or the interpreter ends: handed to the task's thread
            self._fail(error)
        finally:
            self._close()

    def _turn(self) -> bool:
        """Take what has come, and hand over what may run; whether there is more to do."""
        self._inbox.rest(self._flow.stocked_s)
        events = self._inbox.get(0) or self._inbox.get(self._wait_s())
        now = monotonic()
        units = [event for event in events if isinstance(event, Call | Batch)]
        if units:
            self._flow.calls_ended(units, now)
            self._stall.moved(now, runs=self._flow.calls > 0)
        for event in events:
            if event is _STOP:
                return False
            if event is _NO_MORE:
                self._flow.end_lingering()
            if event is _ANSWERS:
                self._source.pause(is_paused=self._answer_bytes > MAX_ANSWER_BYTES)
                self._flow.offer(self._source)
            if isinstance(event, list):
                self._source.feed([row.number for row in event], event)
                self._flow.offer(self._source)
            elif isinstance(event, WorkersFailed):
                self._fail(resource_error("could not be made", event.error))
            elif isinstance(event, WorkerDied):
                self.counters["workers_died"] += 1
                logger.warning("%s; another one takes its place", event.text)
        self._check(now)
        if self._failure is not None:
            return False
        if self._flow.release_due(now):
            self._stall.moved(now, runs=True)
        if taken := self._flow.take(now):
            self._stall.begun(now)
            self._workers.submit(taken)
        return True

    def _ended(self, item: Item, outcome: Outcome, now: float) -> None:
        """A row came to something that the workers did not give: it is given back."""
        if isinstance(outcome, Failure) and outcome.halts:
            self._flow.tell_failed(item, outcome, "halted")
            error = HandlerError(f"{item.name}: {one_line(outcome.error)}")
            error.__cause__ = outcome.error
            self._fail(error)
            return
        if (begun := self._begun) is not None:
            self._begin(begun)
        row: TaskRow = item.payload
        self._settle(row, outcome, item.attempt, now - item.since)
        self._results.append(row)
        self._tell_of(row)
        self._flow.release(item, now)

    def _checks(self, now: float) -> list[float]:
        """When there is something to do even if nothing happens."""
        times = [self._flow.next_due, self._flow.next_check(now), self._stall.next_check(), FAILURES.next_check()]
        times.append(None if self._watch is None else self._watch.next_check)
        return [time for time in times if time is not None]

    def _wait_s(self) -> float | None:
        now = monotonic()
        check = min(self._checks(now), default=None)
        return None if check is None else check - now

    def _check(self, now: float) -> None:
        if (due := FAILURES.next_check()) is not None and now >= due:
            FAILURES.check(now)
        if self._watch is not None and now >= self._watch.next_check:
            self._watch.check(now)
        if self._stall.is_stalled(now) and (oldest := next(iter(self._flow.out), None)) is not None:
            self._fail(HandlerError(self._stall.text(self._workers.running(), oldest, now)))

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _close(self) -> None:
        self._source.close()
        self._workers.withdraw()
        self._workers.cancel()
        closed = self._workers.close(CLOSE_S)
        for name in closed.still_running:
            logger.error("closed while the function still ran on %s; its thread is left behind", name)
        if closed.error is not None:
            self._fail(resource_error("could not be closed", closed.error))
        self._over = True
        self._there.set()

    def _name(self, number: int) -> str:
        fed = self.pending.get(number)
        return f"row {number + 1} of its task" if fed is None else self._name_of(fed.row, number)


def _is_direct(options: Flow) -> bool:
    """Whether workers give results where the task's thread takes them."""
    return options.batch is None and not isinstance(options.workers, Processes)


def _row_of(row: TaskRow) -> Carried:
    return row.row


def _of_row(not_before: Callable[[Carried], float | None], row: TaskRow) -> float | None:
    return not_before(row.row)


def _now(_: Carried) -> None:
    return None


def _each(results: Outcome, count: int) -> Sequence[Outcome]:
    """What a call for a batch returned: one result a row."""
    if len(results) != count:
        raise InternalError(f"{len(results)} results for {count} rows")
    found: Sequence[Outcome] = results
    return found
