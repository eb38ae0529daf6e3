"""How a consumer ends: the close modes, a stall, handlers over their time; a whole engine on fakes."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from keylane import Context, HandlerError, Pipeline, Record, Retries, Skip, UsageError
from keylane.consumer.closing import FINAL_COMMIT_S, Closing, Phase
from keylane.consumer.start import Start
from keylane.flow.items import Call
from keylane.flow.workers import Running, Stall
from keylane.offsets import OffsetMap, decode
from keylane.options import Batch, Threads
from keylane.parallel_consumer import ParallelConsumer
from keylane.pipeline import Commit
from keylane.records import PlainMessage
from kit.engines import SomeWorkers, make_core
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.consumer.closing import CloseMode

T0 = ("t", 0)
LOG = logging.getLogger("keylane.consumer")


def pipeline(handler: Callable[..., Any], **options: Any) -> Pipeline:
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    return Pipeline(**{"kafka": kafka, "topics": ["t"], "offset_reset": "earliest", "handler": handler, **options})


def broker(count: int, keys: int) -> FakeBroker:
    made = FakeBroker([T0])
    made.append(T0, [(b"%d" % (i % keys), b"%d" % i) for i in range(count)])
    return made


def committed(log: FakeBroker) -> OffsetMap:
    offset, metadata = log.committed[T0]
    return decode(metadata, offset)


# --- the phases ---


@pytest.mark.parametrize(
    ("mode", "phase", "stops"),
    [("drain", Phase.EMPTYING, False), ("in_flight", Phase.DRAINING, True), ("now", Phase.DRAINING, True)],
)
def test_a_mode_says_what_is_still_done(mode: CloseMode, phase: Phase, *, stops: bool) -> None:
    closing = Closing(30.0, LOG)
    assert closing.begin(mode, 100.0, None) is stops
    assert closing.phase is phase
    assert closing.next_check() == (100.0 if mode == "now" else 130.0)


def test_a_later_request_can_shorten_the_end_and_not_lengthen_it() -> None:
    closing = Closing(30.0, LOG)
    closing.begin("drain", 100.0, 20.0)
    assert not closing.begin("drain", 101.0, 500.0)
    assert closing.next_check() == 120.0
    assert closing.begin("in_flight", 102.0, 500.0), "nothing starts from here on"
    assert closing.next_check() == 120.0
    assert not closing.begin("drain", 103.0, None)
    assert closing.phase is Phase.DRAINING
    assert not closing.begin("now", 104.0, None)
    assert closing.next_check() == 104.0


def test_emptying_is_over_when_all_is_complete_or_had_its_time() -> None:
    closing = Closing(30.0, LOG)
    assert not closing.emptied(0, 100.0)
    closing.begin("drain", 100.0, None)
    assert not closing.emptied(1, 129.0)
    assert closing.emptied(1, 130.0)
    closing = Closing(30.0, LOG)
    closing.begin("drain", 100.0, None)
    assert closing.emptied(0, 100.0)
    assert not closing.emptied(0, 100.0), "once"


def test_the_last_commit_has_a_time_of_its_own() -> None:
    closing = Closing(30.0, LOG)
    closing.begin("now", 100.0, None)
    assert not closing.waits_for_handlers(100.0, busy=True)
    phases = []
    for now in (109.0, 100.0 + FINAL_COMMIT_S):
        is_late = closing.finish(now, is_committed=False)
        phases.append((closing.phase, is_late))
    assert phases == [(Phase.DRAINING, False), (Phase.FINISHED, True)]


# --- close modes, with a whole engine ---


class Gated:
    """A handler whose first records wait at a gate."""

    def __init__(self, hold: int) -> None:
        self.gate = threading.Event()
        self.entered: list[int] = []
        self.cancelled: list[int] = []
        self._hold = hold

    def __call__(self, record: Record, context: Context) -> None:
        self.entered.append(record.offset)
        if record.offset < self._hold:
            until(lambda: self.gate.is_set() or context.cancelled, "the gate opens, or it is cancelled")
            if context.cancelled:
                self.cancelled.append(record.offset)


def stopped(mode: CloseMode, *, opens: bool, timeout_s: float | None = None) -> tuple[FakeBroker, Gated, FakeEngine]:
    """40 records of 4 keys, of which the first of each key wait while the engine is told to stop."""
    log, handler = broker(40, keys=4), Gated(4)
    engine = FakeEngine(pipeline(handler, workers=Threads(4), commit=Commit(interval_ms=60_000)), log)
    with engine:
        until(lambda: len(handler.entered) == 4, "one of each key is in its handler")
        until(lambda: engine.loop.snapshot().buffered == 40, "all are polled")
        log.append(T0, [(b"late", b"late")] if mode != "drain" else [])
        engine.loop.stop(mode, timeout_s)
        if opens:
            handler.gate.set()
        assert engine.loop.ended.wait(20)
    assert engine.loop.failure is None
    return log, handler, engine


def test_drain_finishes_everything_that_was_polled() -> None:
    log, handler, engine = stopped("drain", opens=True)
    assert len(handler.entered) == 40
    assert committed(log) == OffsetMap(40)
    assert engine.loop.snapshot().processed == 40


def test_drain_has_its_time_and_then_what_runs_is_cancelled() -> None:
    log, handler, engine = stopped("drain", opens=False, timeout_s=0.05)
    assert sorted(handler.cancelled) == [0, 1, 2, 3]
    assert committed(log).base == 0
    assert engine.loop.snapshot().processed == 0


def test_drain_finishes_waiting_retries_too() -> None:
    log, failed = broker(10, keys=10), threading.Event()

    def handler(record: Record, context: Context) -> None:
        if record.offset == 3 and context.attempt < 3:
            failed.set()
            raise ValueError("not yet")

    retries = Retries(max_attempts=3, delay_ms=50, jitter=0)
    with FakeEngine(pipeline(handler, retries=retries), log) as engine:
        assert failed.wait(20)
        engine.loop.stop("drain")
        assert engine.loop.ended.wait(20)
    assert committed(log) == OffsetMap(10)


def test_in_flight_finishes_what_is_in_handlers_alone() -> None:
    log, handler, _ = stopped("in_flight", opens=True)
    assert sorted(handler.entered) == [0, 1, 2, 3]
    assert committed(log) == OffsetMap(4)


def test_now_cancels_and_commits_what_is_complete() -> None:
    log, handler, engine = stopped("now", opens=False)
    assert sorted(handler.cancelled) == [0, 1, 2, 3]
    assert log.committed[T0] == (0, "")
    assert engine.loop.snapshot().processed == 0


def test_another_mode_is_refused() -> None:
    consumer = ParallelConsumer(pipeline(print))
    with pytest.raises(UsageError, match="mode='later': give one of 'drain', 'in_flight', 'now'"):
        consumer.close("later")  # type: ignore[arg-type]


# --- a stall ---


def test_a_stall_is_the_time_since_a_handler_ended_while_some_run() -> None:
    stall = Stall(10.0)
    assert stall.next_check() is None
    stall.begun(100.0)
    stall.begun(105.0)
    assert stall.next_check() == 110.0
    stall.moved(108.0, runs=True)
    assert not stall.is_stalled(117.0)
    assert stall.is_stalled(118.0)
    stall.moved(118.0, runs=False)
    assert not stall.is_stalled(1e9), "an idle consumer is not stalled"


def test_a_stall_names_the_call_that_runs_for_longest_and_what_it_is_at() -> None:
    core = make_core(pipeline(print, stall_timeout_ms=10_000), SomeWorkers(2))
    core.assigned([Start("t", partition, 1, OffsetMap(0), 0, 100) for partition in (0, 1)], 0.0)

    def call(partition: int, offset: int, since: float, where: str) -> Running:
        source = core.partitions.open["t", partition].source
        return Running(source, PlainMessage("t", partition, offset, None, b"secret"), since, lambda: where)

    running = [call(0, 7, 115.0, "read (db.py:2)"), call(1, 9, 106.0, "score (orders.py:12) in thread one")]
    handed_over = Call(running[0].source, [3], [PlainMessage("t", 0, 3)], 19.0)
    assert Stall(10.0).text(running, handed_over, 118.0) == (
        "t-1@9: no handler has ended for 10 s, and this record has been in its handler for longest (12 s), at score "
        "(orders.py:12) in thread one, and 1 more run; mend the handler, or raise stall_timeout_ms (0: no limit)"
    )
    for partition, offset, now in ((1, 4, 18.0), (0, 3, 19.0)):
        core.polled(("t", partition), 1, [PlainMessage("t", partition, offset)])
        assert len(core.plan(now).dispatch) == 1
    core.plan(118.0)
    text = str(core.failure)
    assert text.startswith("t-1@4: no handler has ended for 10 s, and none has begun on this record")


def test_a_stall_names_no_record_of_a_partition_that_was_lost() -> None:
    core = make_core(pipeline(print, stall_timeout_ms=10_000, batch=Batch(2)), SomeWorkers(1))
    core.assigned([Start("t", partition, 1, OffsetMap(0), 0, 100) for partition in (0, 1)], 100.0)
    for partition, offset in ((0, 3), (1, 4)):
        core.polled(("t", partition), 1, [PlainMessage("t", partition, offset)])
    [batch] = core.plan(100.0).dispatch
    assert len(batch) == 2
    core.lost([("t", 0)])
    core.plan(111.0)
    assert str(core.failure).startswith("t-1@4: no handler has ended for 10 s, and none has begun on this record")


def test_without_a_limit_nothing_stalls() -> None:
    stall = Stall(0)
    stall.begun(100.0)
    assert not stall.is_stalled(1e9)


def test_a_consumer_that_hangs_leaves_the_group_and_names_the_record() -> None:
    log, gate = broker(20, keys=20), threading.Event()

    def handler(record: Record) -> None:
        if record.offset in (5, 6):
            gate.wait(20)

    with FakeEngine(pipeline(handler, workers=Threads(2), stall_timeout_ms=200), log) as engine:
        until(lambda: engine.consumer.closed, "it has left the group")
        gate.set()
        assert engine.loop.ended.wait(20)
    assert isinstance(engine.loop.failure, HandlerError)
    text = str(engine.loop.failure)
    assert text.startswith(("t-0@5: no handler has ended for 0.2 s", "t-0@6: no handler has"))
    assert "at handler (test_engine_closing.py:" in text
    assert " > wait (threading.py:" in text, "the line that blocks"
    assert " in thread " in text
    assert ", and 1 more run;" in text
    assert committed(log).base == 5, "what was complete is committed"


def test_handlers_that_end_now_and_then_are_no_stall() -> None:
    log, gate = broker(30, keys=30), threading.Event()

    def handler(record: Record) -> None:
        gate.wait(0.05) if record.offset else gate.wait(20)

    with FakeEngine(
        pipeline(handler, workers=Threads(2), stall_timeout_ms=1_000), log, ending_offsets={T0: 30}
    ) as engine:
        until(lambda: engine.loop.snapshot().processed == 29, "the others are through")
        gate.set()
        assert engine.loop.ended.wait(20)
    assert engine.loop.failure is None


# --- handlers over their time ---

ONCE = Retries(max_attempts=1)


def test_a_coroutine_over_its_time_is_cancelled_and_takes_the_retry_path() -> None:
    log, attempts, ended = broker(5, keys=1), [], []

    async def handler(record: Record, context: Context) -> None:
        assert context.remaining_ms is not None
        attempts.append(record.offset)
        if record.offset == 2 and context.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append(record.offset)
                raise

    made = pipeline(handler, handler_timeout_ms=100, retries=Retries(max_attempts=2, delay_ms=1))
    with FakeEngine(made, log, ending_offsets={T0: 5}) as engine:
        assert engine.loop.ended.wait(20)
    assert engine.loop.failure is None
    assert attempts == [0, 1, 2, 2, 3, 4]
    assert ended == [2]
    assert engine.loop.snapshot().retried == 1


def test_a_coroutine_that_is_always_too_slow_is_given_up_with_the_time_named(caplog: pytest.LogCaptureFixture) -> None:
    log = broker(2, keys=2)

    async def handler(record: Record) -> None:
        await asyncio.sleep(60 if record.offset == 0 else 0)

    made = pipeline(handler, handler_timeout_ms=50, retries=ONCE, on_exhausted=Skip())
    with caplog.at_level(logging.INFO, "keylane"), FakeEngine(made, log, ending_offsets={T0: 2}) as engine:
        assert engine.loop.ended.wait(20)
    assert "skipped t-0@0: HandlerTimeoutError: the handler took longer than 50 ms" in caplog.text


def test_a_timeout_of_the_handlers_own_is_its_own() -> None:
    async def handler(_: Record) -> None:
        raise TimeoutError("of a service")

    made = pipeline(handler, handler_timeout_ms=60_000, retries=ONCE)
    with FakeEngine(made, broker(1, keys=1)) as engine:
        assert engine.loop.ended.wait(20)
    assert "TimeoutError: of a service" in str(engine.loop.failure)


def test_a_thread_over_its_time_keeps_its_key_and_is_counted_and_named(caplog: pytest.LogCaptureFixture) -> None:
    log, gate = broker(10, keys=2), threading.Event()
    ran: list[int] = []
    told: list[bool] = []

    def handler(record: Record, context: Context) -> None:
        if record.offset == 0:
            gate.wait(20)
            told.append(context.cancelled)
        ran.append(record.offset)

    made = pipeline(handler, workers=Threads(2), handler_timeout_ms=100)
    with caplog.at_level(logging.ERROR, "keylane"), FakeEngine(made, log, ending_offsets={T0: 10}) as engine:
        until(lambda: engine.loop.snapshot().stuck == 1, "it is counted")
        assert sorted(ran) == [1, 3, 5, 7, 9], "the other key goes on"
        gate.set()
        assert engine.loop.ended.wait(20)
    assert caplog.text.count("t-0@0 has been in its handler for more than 100 ms") == 1
    assert told == [True]
    assert [offset for offset in ran if offset % 2 == 0] == [0, 2, 4, 6, 8]
    assert engine.loop.failure is None
