"""Threads and asyncio: the same handler means the same, and nothing a handler does ends a worker."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import pytest

from keylane import Context, Fatal, HandlerError, Output, Pipeline, Record, UsageError
from keylane.engine.aio import AsyncioWorkers
from keylane.engine.latency import LEFT_OUT
from keylane.engine.ports import WorkersFailed
from keylane.engine.threads import ThreadWorkers
from keylane.engine.work import NOT_RUN, Chain, Failure, Work, works_of
from keylane.records import PlainMessage
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from keylane.engine.ports import Workers

WAIT_S = 10.0


def nothing(record: Record, context: Context) -> None:
    """A handler."""


class Part:
    """What workers look at of an assignment."""

    topic, partition = "t", 0

    def __init__(self) -> None:
        self.may_start = self.wanted = True


class Pool:
    """Workers over a handler, and what they report."""

    def __init__(self, handler: Callable[..., Any], **options: Any) -> None:
        kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
        pipeline = Pipeline(kafka=kafka, topics=["t"], handler=handler, **options)
        self.reports: SimpleQueue[Any] = SimpleQueue()
        make = AsyncioWorkers if pipeline.is_async else ThreadWorkers
        self.workers: Workers = make(pipeline, self.reports.put, "test")
        self.part = Part()

    def __enter__(self) -> Pool:
        self.workers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.close(WAIT_S)

    def work(self, offset: int = 0, attempt: int = 1, part: Part | None = None) -> Work:
        message = PlainMessage("t", 0, offset, None, b"%d" % offset)
        made = works_of(cast("Any", part or self.part), [offset], [message])[0]
        made.attempt = attempt
        return made

    def run(self, *works: Work) -> list[Any]:
        """Hand over, and wait for as many reports: their outcomes in the order of the works."""
        self.workers.submit(works)
        for _ in works:
            self.report()
        return [work.outcome for work in works]

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
        outcomes = pool.run(*(pool.work(offset) for offset in range(500)))
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
        assert pool.run(pool.work(attempt=3)) == [None]
        assert pool.run(pool.work(attempt=1)) == [None]
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
        pool.run(pool.work())
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
        pool.run(pool.work())
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

    with Pool(kind(handler), threads=1, max_concurrency=1) as pool:
        [failed] = pool.run(pool.work(0))
        [fine] = pool.run(pool.work(1))
    assert isinstance(failed, Failure)
    assert failed.error is error
    assert failed.final == isinstance(error, Fatal)
    assert fine is None


@KINDS
def test_a_wrong_return_value_is_a_failure_that_says_what_it_was(kind: Any) -> None:
    with Pool(kind(lambda *_: {"not": "an output"})) as pool:
        [outcome] = pool.run(pool.work())
    assert isinstance(outcome.error, HandlerError)
    assert "returned a value of type dict" in str(outcome.error)


@KINDS
def test_what_may_not_start_any_more_is_not_run(kind: Any) -> None:
    ran = []
    gone = Part()
    gone.may_start = False
    with Pool(kind(lambda record, _: ran.append(record.offset))) as pool:
        assert pool.run(pool.work(1, part=gone), pool.work(2)) == [NOT_RUN, None]
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

    with Pool(handler, threads=3) as pool:
        pool.workers.submit([pool.work(offset) for offset in range(6)])
        barrier.wait(WAIT_S)  # three handlers are in at once, and this is the fourth party
        assert sorted(entered.get(timeout=WAIT_S) for _ in range(3)) == [0, 1, 2]
        assert entered.empty()
        gate.set()
        assert len({pool.report().offset for _ in range(6)}) == 6


def test_every_hand_over_wakes_as_many_threads_as_it_needs() -> None:
    barrier = threading.Barrier(4)

    def handler(record: Record) -> None:
        barrier.wait(WAIT_S)  # passes when four records are in handlers at once

    with Pool(handler, threads=4) as pool:
        for turn in range(200):  # one hand-over of four, and four of one
            works = [pool.work(offset) for offset in range(4)]
            for handed_over in [works] if turn % 2 else [[work] for work in works]:
                pool.workers.submit(handed_over)
            for _ in works:
                assert pool.report().outcome is None


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

    with Pool(handler, threads=1) as pool:
        works = [pool.work(0, attempt=3), pool.work(1), pool.work(2)]
        Chain(works)
        pool.workers.submit(works[:1])
        assert [pool.report() for _ in works] == works
    assert attempts == [(0, 3), (1, 1), (2, 1)]


@pytest.mark.parametrize("options", [{"threads": 16, "max_concurrency": 2}, {"threads": 2, "max_concurrency": 16}])
def test_of_threads_and_max_concurrency_the_smaller_counts(options: dict[str, int]) -> None:
    with Pool(nothing, **options) as pool:
        assert pool.workers.concurrency == 2


def test_threads_give_back_what_waits_of_a_revoked_partition() -> None:
    gate = Gate()
    with Pool(gate, threads=1) as pool:
        revoked = Part()
        first, waiting, kept = pool.work(0), pool.work(1, part=revoked), pool.work(2)
        pool.workers.submit([first, waiting, kept])
        assert gate.entered.wait(WAIT_S)
        revoked.may_start = False
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

    with Pool(handler, threads=1) as pool:
        pool.workers.submit([pool.work()])
        assert entered.wait(WAIT_S)
        pool.workers.cancel()
        assert not seen.is_set(), "it is still wanted"
        pool.part.wanted = False
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
        kept = pool.work(1, part=Part())
        pool.workers.submit([pool.work(0), kept])
        if has_begun:
            assert entered.wait(WAIT_S)
        pool.part.may_start = pool.part.wanted = False
        pool.workers.cancel()
        report = pool.report()
        assert (report.offset, report.outcome) == (0, NOT_RUN)
        assert pool.nothing_is_reported()


def test_a_task_takes_on_when_its_handler_has_ended() -> None:
    tasks: set[asyncio.Task[Any] | None] = set()

    async def handler(record: Record) -> None:
        tasks.add(asyncio.current_task())
        await asyncio.sleep(0)

    with Pool(handler, max_concurrency=2) as pool:
        assert pool.run(*[pool.work(offset) for offset in range(50)]) == [None] * 50
    assert len(tasks) < 10


@pytest.mark.parametrize("waits", [False, True])
def test_every_record_on_asyncio_is_in_the_latency_once(waits: bool) -> None:
    async def handler(record: Record) -> None:
        if waits or record.offset % 3 == 0:
            await asyncio.sleep(0)

    with Pool(handler, max_concurrency=10) as pool:
        pool.run(*[pool.work(offset) for offset in range(1_000)])
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
        assert pool.run(*[pool.work(offset) for offset in range(5)]) == [None] * 5
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
        assert pool.run(*[pool.work(offset) for offset in range(records)]) == [None] * records
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
        pool.workers.submit([pool.work()])
        assert entered.wait(WAIT_S)
        closed = pool.workers.close(WAIT_S)
    assert closed.still_running == ()
    assert seen == ["cancelled", "left"]


def test_close_names_the_record_of_a_thread_that_does_not_end() -> None:
    gate = Gate()
    pool = Pool(gate, threads=2)
    pool.workers.start()
    pool.workers.submit([pool.work(7)])
    assert gate.entered.wait(WAIT_S)
    assert pool.workers.close(0.05).still_running == ("t-0@7",)
    gate.opened.set()
    pool.report()
    pool.workers.close(WAIT_S)


@KINDS
def test_no_thread_is_left_after_close(kind: Any) -> None:
    before = set(threading.enumerate())
    with Pool(kind(nothing), threads=8) as pool:
        pool.run(*(pool.work(offset) for offset in range(20)))
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

    with Pool(kind(handler), threads=1, max_concurrency=1) as pool:
        before = monotonic()
        pool.workers.submit([pool.work(offset) for offset in range(4)])
        assert began.wait(WAIT_S)
        (call,) = pool.workers.running()
        where = call.where()
        gate.set()
        for _ in range(4):
            pool.report()
        until(lambda: not pool.workers.running(), "nothing runs any more")
    assert call.message.offset() == 1
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
        works = [pool.work(offset) for offset in range(3)]
        pool.workers.submit(works)
        assert {began.get(timeout=WAIT_S) for _ in range(2)} == {0, 1}
        until(lambda: len(pool.workers.running()) == 2, "both have suspended")
        calls = {call.message.offset(): call for call in pool.workers.running()}
        texts = [call.where() for call in calls.values()]
        loops[0].call_soon_threadsafe(gates[0].set)
        pool.report()
        assert began.get(timeout=WAIT_S) == 2
        until(lambda: {call.message.offset() for call in pool.workers.running()} == {1, 2}, "the next one runs")
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

    with Pool(kind(handler), threads=2) as pool:
        works = [pool.work(offset) for offset in range(3)]
        Chain(works)
        pool.workers.submit(works[:1])
        for offset in range(3):
            assert began.get(timeout=WAIT_S) == offset
            assert [call.message.offset() for call in pool.workers.running()] == [offset]
            gate.put(None)
        for _ in range(3):
            pool.report()
