"""Timers of the threads and of the asyncio loop that handlers run on."""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import pytest

from keylane import Pipeline, Record
from keylane.consumer.returns import outcome_of, outcomes_of
from keylane.flow.host import timers
from keylane.flow.host.linux import PR_SET_TIMERSLACK, prctl
from keylane.flow.host.timers import FEW_THREADS, FineSelector, keep_time, new_event_loop
from keylane.flow.items import Call, Source
from keylane.flow.workers import Always
from keylane.flow.workers.aio import AsyncioWorkers
from keylane.flow.workers.calls import Function
from keylane.flow.workers.made import make_workers
from keylane.flow.workers.threads import ThreadWorkers
from keylane.options import Threads
from keylane.records import PlainMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.skipif(
    selectors.DefaultSelector.__name__ != "EpollSelector", reason="elsewhere asyncio's own timers are fine enough"
)


def run_one(kind: type[AsyncioWorkers | ThreadWorkers], handler: Any, **options: Any) -> None:
    """One record, by workers that are closed again."""
    reports: SimpleQueue[Any] = SimpleQueue()
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    pipeline = Pipeline(kafka=kafka, topics=["t"], handler=handler, **options)
    workers = make_workers(pipeline, Function(handler, Record, outcome_of, outcomes_of), reports.put, "test", Always())
    assert isinstance(workers, kind)
    workers.start()
    source = Source(("t", 0), cast("Any", None), "unordered", str)
    workers.submit([Call(source, [0], [PlainMessage("t", 0, 0)], 0.0)])
    reports.get(timeout=10)
    workers.close(10)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The timeouts that `select` was called with."""
    timeouts: list[float] = []
    real = select.select

    def note(readers: Sequence[int], writers: Sequence[int], others: Sequence[int], timeout: float) -> Any:
        timeouts.append(timeout)
        return real(readers, writers, others, timeout)

    monkeypatch.setattr(select, "select", note)
    return timeouts


def test_a_timeout_is_waited_for_as_it_is(asked: list[float]) -> None:
    with closing(FineSelector()) as selector:
        assert selector.select(0.001_2) == []
        assert selector.select(0) == []
    assert asked == [0.001_2], "0 is no wait"


def test_sockets_end_a_wait(asked: list[float]) -> None:
    ours, theirs = socket.socketpair()
    with closing(FineSelector()) as selector, closing(ours), closing(theirs):
        key = selector.register(ours, selectors.EVENT_READ)
        theirs.send(b"1")
        assert selector.select(600) == [(key, selectors.EVENT_READ)]
        assert selector.select(None) == [(key, selectors.EVENT_READ)]
    assert asked == [600], "without a timeout epoll waits by itself"


def test_where_select_cannot_take_the_file_epoll_waits(asked: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "FD_SETSIZE", 0)
    with closing(FineSelector()) as selector:
        assert selector.select(0.001_2) == []
    assert asked == []


def test_handlers_sleep_on_fine_timers(asked: list[float]) -> None:
    async def handler(_: Record) -> None:
        await asyncio.sleep(0.050_2)

    run_one(AsyncioWorkers, handler)
    assert any(0 < timeout < 0.050_21 for timeout in asked)


def slack_ns() -> int:
    """How late the kernel may end a wait of the calling thread."""
    return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text())


@pytest.mark.parametrize(("threads", "seen_ns"), [(FEW_THREADS, 1), (FEW_THREADS + 1, 50_000)])
def test_a_few_threads_of_handlers_keep_time_and_many_share_interrupts(threads: int, seen_ns: int) -> None:
    seen: list[int] = []
    run_one(ThreadWorkers, lambda _: seen.append(slack_ns()), workers=Threads(threads))
    assert seen == [seen_ns]
    assert slack_ns() == 50_000, "the threads of the program are left alone"


def test_the_loop_of_handlers_keeps_time() -> None:
    seen: list[int] = []

    async def handler(_: Record) -> None:
        seen.append(slack_ns())

    run_one(AsyncioWorkers, handler)
    assert seen == [1]
    assert slack_ns() == 50_000, "the threads of the program are left alone"


def test_a_slack_that_somebody_chose_is_kept() -> None:
    def chosen() -> int:
        prctl(PR_SET_TIMERSLACK, 20_000)
        keep_time()
        return slack_ns()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(chosen).result() == 20_000


def test_a_loop_of_the_programs_own_kind_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(asyncio.SelectorEventLoop):
        pass

    monkeypatch.setattr(asyncio, "new_event_loop", Own)
    with closing(new_event_loop()) as loop:
        assert type(loop) is Own
