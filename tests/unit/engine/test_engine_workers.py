"""Threads and asyncio: the same handler means the same, and nothing a handler does ends a worker."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import pytest

from keylane import Context, Fatal, HandlerError, Output, Pipeline, Record, UsageError
from keylane.consumer.returns import outcome_of, outcomes_of, record_arrives, record_departs
from keylane.errors import WorkerProcessError
from keylane.flow.items import Call, Item, Source
from keylane.flow.outcomes import NOT_RUN, Failure
from keylane.flow.workers import LEFT_OUT, Always, WorkerDied, WorkersFailed
from keylane.flow.workers.calls import Function
from keylane.flow.workers.made import make_workers
from keylane.options import Processes, Threads, is_coroutine_function
from keylane.records import PlainMessage
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from pathlib import Path

    from keylane.flow.workers import Workers

WAIT_S = 10.0


def nothing(record: Record, context: Context) -> None:
    """A handler."""


def part() -> Source:
    """A partition, as far as workers know it; it feeds nothing, so it needs no owner."""
    return Source(("t", 0), cast("Any", None), "unordered", lambda number: f"t-0@{number}")


def message(offset: int) -> PlainMessage:
    return PlainMessage("t", 0, offset, None, b"%d" % offset)


class Pool:
    """Workers over a handler, and what they report."""

    def __init__(self, handler: Callable[..., Any], **options: Any) -> None:
        kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
        if is_coroutine_function(handler):
            options.pop("workers", None)
        pipeline = Pipeline(kafka=kafka, topics=["t"], handler=handler, **options)
        self.reports: SimpleQueue[Any] = SimpleQueue()
        function = Function(
            handler, Record, outcome_of, outcomes_of, pipeline.resource, None, record_departs, record_arrives
        )
        self.workers: Workers = make_workers(pipeline, function, self.reports.put, "test", Always())
        self.part = part()

    def __enter__(self) -> Pool:
        self.workers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.close(WAIT_S)

    def call(self, offset: int = 0, attempt: int = 1, source: Source | None = None) -> Call:
        """Of one record; from the second attempt on it is an item already."""
        source = source or self.part
        item = Item(source, offset, message(offset)) if attempt > 1 else None
        if item is not None:
            item.restore(attempt, 0.0)
        return Call(source, [offset], [message(offset)], 0.0, item)

    def chain(self, offsets: Iterable[int], *, ordered: bool = True) -> Call:
        """Of records of one key, or of such as have nothing to do with one another."""
        return Call(self.part, list(offsets), list(map(message, offsets)), 0.0, ordered=ordered)

    def run(self, *calls: Call) -> list[Any]:
        """Hand over, and wait for as many reports: the outcomes of the first records in the order of the calls."""
        self.workers.submit(calls)
        for _ in calls:
            self.report()
        return [call.outcomes.get(0) for call in calls]

    def report(self) -> Any:
        return self.reports.get(timeout=WAIT_S)

    def nothing_is_reported(self) -> bool:
        try:
            self.reports.get(timeout=0.05)
        except Empty:
            return True
        return False


def as_async(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same handler as a coroutine function."""

    async def handler(record: Record, context: Context) -> Any:
        return function(record, context)

    return handler


KINDS = pytest.mark.parametrize("kind", [lambda function: function, as_async], ids=["threads", "asyncio"])


@KINDS
def test_every_record_runs_once_and_is_reported_with_its_outcome(kind: Any) -> None:
    def handler(record: Record, context: Context) -> Output:
        return Output("out", value=record.value)

    with Pool(kind(handler)) as pool:
        outcomes = pool.run(*(pool.call(offset) for offset in range(500)))
    assert [one[0].value for one in outcomes] == [b"%d" % offset for offset in range(500)]


@KINDS
def test_the_context_has_attempt_and_resource(kind: Any) -> None:
    seen = []

    @contextmanager
    def resource() -> Iterator[str]:
        seen.append("entered")
        yield "client"
        seen.append("left")

    def handler(record: Record, context: Context) -> None:
        seen.append(f"{context.resource} {context.attempt}")

    with Pool(kind(handler), resource=resource) as pool:
        assert pool.run(pool.call(attempt=3)) == [None]
        assert pool.run(pool.call(attempt=1)) == [None]
    assert seen == ["entered", "client 3", "client 1", "left"]


def test_an_async_resource_serves_coroutines() -> None:
    seen = []

    @asynccontextmanager
    async def resource() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        yield "client"
        seen.append("left")

    async def handler(record: Record, context: Context) -> None:
        seen.append(context.resource)

    with Pool(handler, resource=resource) as pool:
        pool.run(pool.call())
    assert seen == ["client", "left"]


@KINDS
@pytest.mark.parametrize(
    ("resource", "error"),
    [(lambda: 1 / 0, ZeroDivisionError), (lambda: "no context manager", UsageError), (sys.exit, SystemExit)],
)
def test_a_resource_that_cannot_be_made_is_reported(kind: Any, resource: Any, error: type[BaseException]) -> None:
    with Pool(kind(nothing), resource=resource) as pool:
        report = pool.report()
    assert isinstance(report, WorkersFailed)
    assert isinstance(report.error, error)


def test_threads_refuse_an_async_resource_with_the_way_out() -> None:
    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        yield

    with Pool(nothing, resource=resource) as pool:
        report = pool.report()
    assert "async context manager, but the handler is a plain function" in str(report.error)


@KINDS
def test_a_resource_that_cannot_be_left_is_told_by_close(kind: Any) -> None:
    @contextmanager
    def resource() -> Iterator[None]:
        yield
        raise OSError("stuck")

    with Pool(kind(nothing), resource=resource) as pool:
        pool.run(pool.call())
        closed = pool.workers.close(WAIT_S)
    assert isinstance(closed.error, OSError)


@KINDS
@pytest.mark.parametrize(
    "error",
    [ValueError("x"), Fatal("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_is_its_record_s_failure_and_the_worker_goes_on(
    kind: Any, error: BaseException
) -> None:
    def handler(record: Record, context: Context) -> None:
        if record.offset == 0:
            raise error

    with Pool(kind(handler), workers=Threads(1), max_concurrency=1) as pool:
        [failed] = pool.run(pool.call(0))
        [fine] = pool.run(pool.call(1))
    assert isinstance(failed, Failure)
    assert failed.error is error
    assert failed.final == isinstance(error, Fatal)
    assert fine is None


@KINDS
def test_a_wrong_return_value_is_a_failure_that_says_what_it_was(kind: Any) -> None:
    with Pool(kind(lambda *_: {"not": "an output"})) as pool:
        [outcome] = pool.run(pool.call())
    assert isinstance(outcome.error, HandlerError)
    assert "returned a value of type dict" in str(outcome.error)


@KINDS
def test_what_may_not_start_any_more_is_not_run(kind: Any) -> None:
    ran = []
    gone = part()
    gone.stop()
    with Pool(kind(lambda record, _: ran.append(record.offset))) as pool:
        assert pool.run(pool.call(1, source=gone), pool.call(2)) == [NOT_RUN, None]
    assert ran == [2]


def test_threads_run_as_many_at_once_as_they_are_and_no_more() -> None:
    barrier = threading.Barrier(4)
    gate = threading.Event()
    entered: SimpleQueue[int] = SimpleQueue()

    def handler(record: Record) -> None:
        entered.put(record.offset)
        if record.offset < 3:
            barrier.wait(WAIT_S)
            gate.wait(WAIT_S)

    with Pool(handler, workers=Threads(3)) as pool:
        pool.workers.submit([pool.call(offset) for offset in range(6)])
        barrier.wait(WAIT_S)  # three handlers are in at once, and this is the fourth party
        assert sorted(entered.get(timeout=WAIT_S) for _ in range(3)) == [0, 1, 2]
        assert entered.empty()
        gate.set()
        assert len({pool.report().numbers[0] for _ in range(6)}) == 6


def test_every_hand_over_wakes_as_many_threads_as_it_needs() -> None:
    barrier = threading.Barrier(4)

    def handler(record: Record) -> None:
        barrier.wait(WAIT_S)  # passes when four records are in handlers at once

    with Pool(handler, workers=Threads(4)) as pool:
        for turn in range(200):  # one hand-over of four, and four of one
            calls = [pool.call(offset) for offset in range(4)]
            for handed_over in [calls] if turn % 2 else [[call] for call in calls]:
                pool.workers.submit(handed_over)
            for _ in calls:
                assert pool.report().outcomes == {}


class Gate:
    """A handler that says when it was entered, and stays until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, record: Record) -> None:
        self.entered.set()
        self.opened.wait(WAIT_S)


def test_what_follows_a_record_that_was_tried_again_is_at_its_first_attempt() -> None:
    attempts: list[tuple[int, int]] = []

    def handler(record: Record, context: Context) -> None:
        attempts.append((record.offset, context.attempt))

    with Pool(handler, workers=Threads(1)) as pool:
        calls = [pool.call(0, attempt=3), pool.chain([1, 2])]
        pool.workers.submit(calls)
        assert [pool.report() for _ in calls] == calls
    assert attempts == [(0, 3), (1, 1), (2, 1)]


@KINDS
@pytest.mark.parametrize("ordered", [True, False])
def test_a_call_ends_with_the_first_that_is_not_through_where_the_others_follow_it(kind: Any, ordered: bool) -> None:
    ran: list[int] = []

    def handler(record: Record, context: Context) -> None:
        ran.append(record.offset)
        if record.offset == 1:
            raise ValueError("bad")

    with Pool(kind(handler), workers=Threads(1), max_concurrency=1) as pool:
        call = pool.chain(range(4), ordered=ordered)
        pool.workers.submit([call])
        assert pool.report() is call
    assert ran == ([0, 1] if ordered else [0, 1, 2, 3])
    assert list(call.outcomes) == [1]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_call_in_a_process_ends_as_in_a_thread_and_the_next_has_its_own_answers(ordered: bool) -> None:
    def handler(record: Record) -> Output:
        if record.offset == 1:
            raise ValueError("bad")
        return Output("out", value=record.value)

    with Pool(lambda record: None if record.offset == 0 else handler(record), workers=Processes(1)) as pool:
        call, following = pool.chain(range(4), ordered=ordered), pool.call(7)
        pool.workers.submit([call, following])
        assert [pool.report(), pool.report()] == [call, following]
    assert list(call.outcomes) == ([1] if ordered else [1, 2, 3])
    assert following.outcomes[0][0].value == b"7"


@pytest.mark.parametrize("ordered", [True, False])
def test_of_a_call_the_record_that_its_process_died_at_has_failed_and_those_behind_it_have_not_run(
    ordered: bool,
) -> None:
    def handler(record: Record) -> None:
        if record.offset == 1:
            os._exit(3)

    with Pool(handler, workers=Processes(1)) as pool:
        call = pool.chain(range(4), ordered=ordered)
        pool.workers.submit([call])
        assert isinstance(pool.report(), WorkerDied)
        assert pool.report() is call
    failure = call.outcomes.pop(1)
    assert isinstance(failure.error, WorkerProcessError)
    assert call.outcomes == ({} if ordered else {2: NOT_RUN, 3: NOT_RUN}), "of those in order the flow knows it"


def test_what_a_process_has_answered_of_a_call_is_known_before_it_comes_back(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    os.mkfifo(gate)

    def handler(record: Record) -> None:
        if record.offset == 2:
            gate.read_bytes()  # until somebody has written, and closed

    with Pool(handler, workers=Processes(1)) as pool:
        call = pool.chain(range(4))
        pool.workers.submit([call])
        until(lambda: call.has_begun and call.ended == 2, "two have ended", WAIT_S)
        assert call.recall() == ([], [])
        gate.write_bytes(b"on")
        assert pool.report() is call
    assert call.outcomes == {}


@KINDS
def test_each_record_of_a_call_runs_or_is_taken_back(kind: Any) -> None:
    ran: list[int] = []
    entered, gate = threading.Event(), threading.Event()

    def handler(record: Record, context: Context) -> None:
        ran.append(record.offset)
        if record.offset == 1:
            entered.set()
            gate.wait(WAIT_S)

    with Pool(kind(handler), workers=Threads(1), max_concurrency=1) as pool:
        call = pool.chain(range(4))
        pool.workers.submit([call])
        assert entered.wait(WAIT_S)
        numbers, payloads = call.recall()
        gate.set()
        assert pool.report() is call
    assert ran == call.numbers == [0, 1]
    assert numbers == [payload.offset() for payload in payloads] == [2, 3]


@pytest.mark.parametrize(
    "options", [{"workers": Threads(16), "max_concurrency": 2}, {"workers": Threads(2), "max_concurrency": 16}]
)
def test_of_threads_and_max_concurrency_the_smaller_counts(options: dict[str, Any]) -> None:
    with Pool(nothing, **options) as pool:
        assert pool.workers.concurrency == 2


def test_threads_give_back_what_waits_of_a_revoked_partition() -> None:
    gate = Gate()
    with Pool(gate, workers=Threads(1)) as pool:
        revoked = part()
        first, waiting, kept = pool.call(0), pool.call(1, source=revoked), pool.call(2)
        pool.workers.submit([first, waiting, kept])
        assert gate.entered.wait(WAIT_S)
        revoked.stop()
        assert pool.workers.withdraw() == [waiting]
        gate.opened.set()
        assert {pool.report(), pool.report()} == {first, kept}


def test_a_handler_in_a_thread_is_told_when_nobody_wants_its_result() -> None:
    entered, seen = threading.Event(), threading.Event()

    def handler(record: Record, context: Context) -> None:
        entered.set()
        while not context.cancelled:
            seen.wait(0.01)
        seen.set()

    with Pool(handler, workers=Threads(1)) as pool:
        pool.workers.submit([pool.call()])
        assert entered.wait(WAIT_S)
        pool.workers.cancel()
        assert not seen.is_set(), "it is still wanted"
        pool.part.close()
        pool.workers.cancel()
        assert seen.wait(WAIT_S)
        pool.report()


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_task_whose_result_nobody_wants_is_cancelled(has_begun: bool) -> None:
    entered = threading.Event()

    async def handler(record: Record) -> None:
        if record.offset == 1:
            entered.set()
        await asyncio.sleep(1_000)

    with Pool(handler) as pool:
        kept = pool.call(1, source=part())
        pool.workers.submit([pool.call(0), kept])
        if has_begun:
            assert entered.wait(WAIT_S)
        pool.part.close()
        pool.workers.cancel()
        report = pool.report()
        assert (report.numbers, report.outcomes) == ([0], {0: NOT_RUN})
        assert pool.nothing_is_reported()


def test_a_task_takes_on_when_its_handler_has_ended() -> None:
    tasks: set[asyncio.Task[Any] | None] = set()

    async def handler(record: Record) -> None:
        tasks.add(asyncio.current_task())
        await asyncio.sleep(0)

    with Pool(handler, max_concurrency=2) as pool:
        assert pool.run(*[pool.call(offset) for offset in range(50)]) == [None] * 50
    assert len(tasks) < 10


@pytest.mark.parametrize("waits", [False, True])
def test_every_record_on_asyncio_is_in_the_latency_once(waits: bool) -> None:
    async def handler(record: Record) -> None:
        if waits or record.offset % 3 == 0:
            await asyncio.sleep(0)

    with Pool(handler, max_concurrency=10) as pool:
        pool.run(*[pool.call(offset) for offset in range(1_000)])
        assert 1_000 - LEFT_OUT <= pool.workers.latency().count <= 1_000


def test_a_task_that_was_cancelled_takes_nothing_more() -> None:
    cancelling: list[int] = []

    async def handler(record: Record) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancelling.append(task.cancelling())
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1_000)

    with Pool(handler, max_concurrency=1) as pool:
        assert pool.run(*[pool.call(offset) for offset in range(5)]) == [None] * 5
    assert cancelling == [0] * 5


def test_as_many_handlers_wait_on_asyncio_at_once_as_may() -> None:
    """From the first turns of the asyncio loop on, and again after each that ends."""
    at_once, records = 64, 2_000
    running = 0
    found: list[int] = []

    async def handler(record: Record) -> None:
        nonlocal running
        running += 1
        found.append(running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1

    with Pool(handler, max_concurrency=at_once) as pool:
        assert pool.run(*[pool.call(offset) for offset in range(records)]) == [None] * records
    assert max(found) == at_once
    assert sorted(found)[records // 4] == at_once, "three quarters begin as the last that may"


def test_close_cancels_tasks_and_leaves_the_resource_after_them() -> None:
    seen = []

    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        yield
        seen.append("left")

    async def handler(record: Record, context: Context) -> None:
        entered.set()
        try:
            await asyncio.sleep(1_000)
        finally:
            seen.append("cancelled")

    entered = threading.Event()
    with Pool(handler, resource=resource) as pool:
        pool.workers.submit([pool.call()])
        assert entered.wait(WAIT_S)
        closed = pool.workers.close(WAIT_S)
    assert closed.still_running == ()
    assert seen == ["cancelled", "left"]


def test_close_names_the_record_of_a_thread_that_does_not_end() -> None:
    gate = Gate()
    pool = Pool(gate, workers=Threads(2))
    pool.workers.start()
    pool.workers.submit([pool.call(7)])
    assert gate.entered.wait(WAIT_S)
    assert pool.workers.close(0.05).still_running == ("t-0@7",)
    gate.opened.set()
    pool.report()
    pool.workers.close(WAIT_S)


@KINDS
def test_no_thread_is_left_after_close(kind: Any) -> None:
    before = set(threading.enumerate())
    with Pool(kind(nothing), workers=Threads(8)) as pool:
        pool.run(*(pool.call(offset) for offset in range(20)))
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) == before


@KINDS
def test_workers_that_never_started_close(kind: Any) -> None:
    pool = Pool(kind(nothing))
    assert pool.workers.close(WAIT_S).still_running == ()


# --- what runs ---


@KINDS
def test_what_runs_is_told_with_its_beginning_and_its_line_and_what_waits_is_not(kind: Any) -> None:
    began, gate = threading.Event(), threading.Event()

    def handler(record: Record, context: Context) -> None:
        if record.offset == 1:
            began.set()
            gate.wait(WAIT_S)

    with Pool(kind(handler), workers=Threads(1), max_concurrency=1) as pool:
        before = monotonic()
        pool.workers.submit([pool.call(offset) for offset in range(4)])
        assert began.wait(WAIT_S)
        (call,) = pool.workers.running()
        where = call.where()
        gate.set()
        for _ in range(4):
            pool.report()
        until(lambda: not pool.workers.running(), "nothing runs any more")
    assert call.payload.offset() == 1
    assert before <= call.since <= monotonic()
    assert "handler (test_engine_workers.py:" in where
    assert "wait (threading.py:" in where, "the line that blocks"


def test_coroutines_that_wait_are_told_with_the_line_that_they_wait_at() -> None:
    gates: dict[int, asyncio.Event] = {}
    began: SimpleQueue[int] = SimpleQueue()
    loops: list[asyncio.AbstractEventLoop] = []

    async def fetch(offset: int) -> None:
        gates[offset] = asyncio.Event()
        loops.append(asyncio.get_running_loop())
        began.put(offset)
        await gates[offset].wait()

    async def handler(record: Record) -> None:
        await fetch(record.offset)

    with Pool(handler, max_concurrency=2) as pool:
        pool.workers.submit([pool.call(offset) for offset in range(3)])
        assert {began.get(timeout=WAIT_S) for _ in range(2)} == {0, 1}
        until(lambda: len(pool.workers.running()) == 2, "both have suspended")
        calls = {call.payload.offset(): call for call in pool.workers.running()}
        texts = [call.where() for call in calls.values()]
        loops[0].call_soon_threadsafe(gates[0].set)
        pool.report()
        assert began.get(timeout=WAIT_S) == 2
        until(lambda: {call.payload.offset() for call in pool.workers.running()} == {1, 2}, "the next one runs")
        for offset in (1, 2):
            loops[0].call_soon_threadsafe(gates[offset].set)
            pool.report()
        until(lambda: not pool.workers.running(), "nothing runs any more")
    assert all(text.startswith("handler (test_engine_workers.py:") for text in texts)
    assert all("fetch (test_engine_workers.py:" in text for text in texts), texts


@KINDS
def test_of_a_chain_the_record_that_runs_is_told(kind: Any) -> None:
    began: SimpleQueue[int] = SimpleQueue()
    gate: SimpleQueue[None] = SimpleQueue()

    def handler(record: Record, context: Context) -> None:
        began.put(record.offset)
        gate.get(timeout=WAIT_S)

    with Pool(kind(handler), workers=Threads(2)) as pool:
        pool.workers.submit([pool.chain(range(3))])
        for offset in range(3):
            assert began.get(timeout=WAIT_S) == offset
            assert [call.payload.offset() for call in pool.workers.running()] == [offset]
            gate.put(None)
        assert pool.report().outcomes == {}


@pytest.mark.parametrize("workers", [Threads(2), Processes(1), None])
def test_a_call_says_how_long_it_was_in_its_worker_and_not_how_long_it_waited_for_one(workers: Any) -> None:
    handler = nothing if workers else as_async(nothing)
    with Pool(handler, **({"workers": workers} if workers else {})) as pool:
        begun = monotonic()
        calls = [pool.chain(range(at, at + 10), ordered=False) for at in range(0, 1_000, 10)]
        pool.run(*calls)
        took_s, most = [one.took_s for one in calls], monotonic() - begun
    assert min(took_s) > 0
    assert sum(took_s) <= 2 * most, "two at once"
