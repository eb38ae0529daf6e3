"""Callbacks and streams on the whole engine, with fakes for consumer and producer."""

from __future__ import annotations

import asyncio
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from keylane import HandlerError, Output, Pipeline, Produced, Record, Retries
from keylane.consumer.results import ResultQueue
from keylane.consumer.streams import Stream
from keylane.offsets import decode
from keylane.options import Batch, Processes, Threads
from keylane.pipeline import Commit
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.consumer.results import Complete

WAIT_S = 20.0
T0 = ("t", 0)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [one for one in set(threading.enumerate()) - before if not one.name.startswith("asyncio_")]
    assert left == []


def pipeline(handler: Callable[..., Any], **options: Any) -> Pipeline:
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    return Pipeline(**{"kafka": kafka, "topics": ["t"], "offset_reset": "earliest", "handler": handler, **options})


def broker(count: int, keys: int = 5) -> FakeBroker:
    made = FakeBroker([T0])
    made.append(T0, [(b"%d" % (i % keys), b"%d" % i) for i in range(count)])
    return made


class Streamed:
    """A stream over a whole engine on fakes."""

    def __init__(
        self,
        handler: Callable[..., Any],
        log: FakeBroker,
        *,
        end: int | None,
        complete: Complete = "read",
        max_unread: int = 1_000,
        **options: Any,
    ) -> None:
        queue = ResultQueue(complete, max_unread)
        ends = None if end is None else {T0: end}
        self.engine = FakeEngine(pipeline(handler, **options), log, ending_offsets=ends, stream=queue)
        self.loop = self.engine.loop
        self.stream = Stream(queue, self._run, self.loop.stop)

    def _run(self) -> None:
        self.loop.start()
        self.loop.join()
        if self.loop.failure is not None:
            raise self.loop.failure


# --- callbacks ---


def test_on_produced_gets_each_output_and_where_it_is() -> None:
    seen: list[Produced] = []

    def handler(record: Record) -> Any:
        return [Output("out", value=record.value), Output("more", partition=3)] if record.offset % 2 else None

    log = broker(10)
    with FakeEngine(pipeline(handler, on_produced=seen.append), log, ending_offsets={T0: 10}) as engine:
        assert engine.loop.ended.wait(WAIT_S)
    assert engine.loop.failure is None
    assert log.committed[T0] == (10, "")
    assert sorted((one.record.offset, one.topic, one.partition) for one in seen) == [
        (offset, topic, partition) for offset in range(1, 10, 2) for topic, partition in (("more", 3), ("out", 0))
    ]
    for one in seen:
        assert engine.producer.sent[one.offset] is one.output


def test_a_record_is_complete_after_its_callback_and_in_order() -> None:
    gate, entered = threading.Event(), threading.Event()
    ran: list[int] = []

    def handler(record: Record) -> Output:
        ran.append(record.offset)
        return Output("out")

    def on_produced(_: Produced) -> None:
        entered.set()
        gate.wait(WAIT_S)

    log = broker(3, keys=1)
    with FakeEngine(pipeline(handler, on_produced=on_produced), log, ending_offsets={T0: 3}) as engine:
        assert entered.wait(WAIT_S)
        snapshot = engine.loop.snapshot()
        assert (snapshot.processed, snapshot.unseen, ran) == (0, 1, [0])
        gate.set()
        assert engine.loop.ended.wait(WAIT_S)
    assert ran == [0, 1, 2]


def test_what_a_callback_raises_is_a_failed_attempt() -> None:
    def on_produced(one: Produced) -> None:
        if one.record.offset == 1:
            raise ValueError("no room")

    options = {"on_produced": on_produced, "retries": Retries(max_attempts=2, delay_ms=1)}
    with FakeEngine(pipeline(lambda _: Output("out"), **options), broker(3), ending_offsets={T0: 3}) as engine:
        assert engine.loop.ended.wait(WAIT_S)
    assert str(engine.loop.failure).startswith("t-0@1: ValueError: no room; failed 2 attempts")


# --- streams ---


@pytest.mark.parametrize("complete", ["read", "handled"])
def test_a_stream_has_every_result_and_ends(complete: Complete) -> None:
    log = broker(500)
    made = Streamed(lambda record: record.offset * 2, log, end=500, complete=complete)
    with made.stream as results:
        got = [(result.record.offset, result.value) for result in results]
        assert list(results) == [], "the end stays the end"
    assert sorted(got) == [(offset, offset * 2) for offset in range(500)]
    for key in range(5):
        own = [offset for offset, _ in got if offset % 5 == key]
        assert own == sorted(own)
    assert log.committed[T0] == (500, "")


@pytest.mark.parametrize("batch_size", [1, 7])
def test_results_cross_from_worker_processes(batch_size: int) -> None:
    def handler(what: Any) -> Any:
        return what.value * 2 if batch_size == 1 else [one.value * 2 for one in what]

    options: dict[str, Any] = {
        "workers": Processes(),
        "max_concurrency": 2,
        "batch": Batch(batch_size) if batch_size > 1 else None,
    }
    made = Streamed(handler, broker(60), end=60, value_deserializer=lambda raw, _: int(raw), **options)
    with made.stream as results:
        got: list[Any] = [(result.record.offset, result.record.value, result.value) for result in results]
    assert sorted(got) == [(offset, offset, offset * 2) for offset in range(60)]
    assert made.loop.snapshot().handler_latency.count > 0


def test_an_async_stream_has_every_result_and_ends() -> None:
    async def handler(record: Record) -> int:
        await asyncio.sleep(0)
        return record.offset

    async def read() -> list[Any]:
        async with Streamed(handler, broker(500), end=500).stream as results:
            return [result.value async for result in results]

    assert sorted(asyncio.run(read())) == list(range(500))


def test_outputs_are_produced_before_their_result_is_there() -> None:
    def handler(record: Record) -> Any:
        return Output("out", value=record.value) if record.offset % 2 else {"any": "value"}

    made = Streamed(handler, broker(10), end=10)
    with made.stream as results:
        for result in results:
            if result.record.offset % 2:
                [produced] = result.produced
                assert made.engine.producer.sent[produced.offset] is result.value
            else:
                assert (result.value, result.produced) == ({"any": "value"}, ())


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_result_has_the_record_as_its_handler_got_it(batch_size: int) -> None:
    def handler(what: Any) -> Any:
        return what.value + 1 if batch_size == 1 else [one.value + 1 for one in what]

    options: dict[str, Any] = {
        "batch": Batch(batch_size) if batch_size > 1 else None,
        "value_deserializer": lambda raw, _: int(raw),
    }
    with Streamed(handler, broker(20), end=20, **options).stream as results:
        got: list[Any] = [(result.record.raw_value, result.record.value, result.value) for result in results]
    assert sorted(got, key=lambda one: one[2]) == [(b"%d" % n, n, n + 1) for n in range(20)]


def test_callbacks_come_before_the_stream() -> None:
    called: list[int] = []
    made = Streamed(lambda _: Output("out"), broker(20), end=20, on_produced=lambda one: called.append(one.offset))
    with made.stream as results:
        assert all(result.produced[0].offset in called for result in results)
    assert len(called) == 20


@pytest.mark.parametrize("complete", ["read", "handled"])
def test_a_slow_reader_stops_the_intake(complete: Complete) -> None:
    """Workers hold 50 ms of work: 100 records of a millisecond each, by two threads; some times that where the machine
    is busy and the loop has its turn late. In no time they could do all."""
    ran: SimpleQueue[int] = SimpleQueue()

    def handler(record: Record) -> None:
        time.sleep(0.001)
        ran.put(record.offset)

    options: dict[str, Any] = {"ordering": "unordered", "workers": Threads(2), "max_concurrency": 2}
    made = Streamed(handler, broker(2_000), end=2_000, complete=complete, max_unread=5, **options)
    with made.stream as results:
        next(results)

        def only_results_wait() -> bool:
            snapshot = made.loop.snapshot()
            with_workers = snapshot.handed_over - (snapshot.unseen if complete == "read" else 0)
            return snapshot.unseen >= 5 and with_workers == 0

        until(only_results_wait, "workers have nothing left, and as many results wait as may")
        assert ran.qsize() < 1_000, "what was with the workers by then still came, no more"
        assert sum(1 for _ in results) == 1_999


def test_read_completes_a_record_when_its_reader_asks_for_the_next() -> None:
    log = broker(3, keys=1)
    made = Streamed(lambda record: record.offset, log, end=3, commit=Commit(interval_ms=1))
    with made.stream as results:
        first = next(results)
        assert first.value == 0
        assert made.loop.snapshot().processed == 0
        next(results)
        until(lambda: log.committed[T0][0] == 1, "the first is committed")
        assert made.loop.snapshot().partitions[0].base == 1


def test_handled_completes_a_record_before_it_is_read() -> None:
    log = broker(30)
    made = Streamed(lambda record: record.offset, log, end=30, complete="handled", commit=Commit(interval_ms=1))
    with made.stream as results:
        until(lambda: log.committed.get(T0, (0, ""))[0] == 30, "all are committed, and none is read")
        assert len(list(results)) == 30


@pytest.mark.parametrize("raises", [False, True])
def test_what_was_not_read_stays_to_do(raises: bool) -> None:
    """Leaving by an exception leaves the last result to do as well."""
    log = broker(40)
    made = Streamed(lambda record: record.offset, log, end=None)
    read: list[int] = []

    def reading() -> None:
        with made.stream as results:
            for result in results:
                read.append(result.value)
                if len(read) == 7:
                    if raises:
                        raise LookupError
                    return

    if raises:
        with pytest.raises(LookupError):
            reading()
    else:
        reading()
    offset, metadata = log.committed[T0]
    complete = {one for one in range(40) if decode(metadata, offset).is_complete(one)}
    assert complete == set(read[:6] if raises else read)


def test_a_partition_that_was_lost_yields_no_more() -> None:
    log = broker(200)
    made = Streamed(lambda record: record.offset, log, end=None)
    with made.stream as results:
        next(results)
        made.engine.consumer.lose([T0])
        until(lambda: made.loop.snapshot().partitions == (), "it is lost")
        log.append(T0, [(None, b"later")])
        made.engine.consumer.assign([T0])
        assert [next(results).value, next(results).value] != []
    assert made.loop.failure is None


@pytest.mark.parametrize("is_async", [False, True])
def test_what_ends_the_run_is_raised_where_reading_ends(is_async: bool) -> None:
    def handler(record: Record) -> int:
        if record.offset == 5:
            raise ValueError("bad")
        return record.offset

    made = Streamed(handler, broker(10, keys=1), end=10, retries=Retries(max_attempts=1))
    got: list[int] = []
    note = got.append

    async def read() -> None:
        async with made.stream as results:
            async for result in results:
                note(result.value)

    def read_sync() -> None:
        with made.stream as results:
            for result in results:
                note(result.value)

    with pytest.raises(HandlerError, match="t-0@5: ValueError: bad"):
        asyncio.run(read()) if is_async else read_sync()
    assert got == [0, 1, 2, 3, 4]


def test_what_ended_the_run_is_raised_when_nobody_reads_on() -> None:
    def handler(record: Record) -> None:
        raise ValueError("bad")

    made = Streamed(handler, broker(1), end=1, retries=Retries(max_attempts=1))
    with pytest.raises(HandlerError, match="t-0@0"), made.stream:
        assert made.loop.ended.wait(WAIT_S)


def test_a_list_with_an_output_and_something_else_is_a_mistake() -> None:
    made = Streamed(lambda _: [Output("out"), 5], broker(1), end=1)
    with (
        pytest.raises(HandlerError, match="returned a list with a value of type int at index 1"),
        made.stream as results,
    ):
        next(results)


def test_a_stream_is_read_in_its_block() -> None:
    made = Streamed(lambda _: None, broker(1), end=1)
    with pytest.raises(Exception, match="in its `with` block"):
        next(made.stream)
