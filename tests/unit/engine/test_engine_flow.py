"""What bounds the flow: rates, pauses, changes while running, schedules, and how much is taken in."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane import DeadLetter, HandlerError, Output, Pipeline, Rates, Record, Retries, Skip, UsageError
from keylane.consumer import events
from keylane.consumer.partitions import FIRST_CREDIT
from keylane.consumer.start import Start
from keylane.flow.items import Batch, Call
from keylane.flow.outcomes import Failure, Later
from keylane.offsets import OffsetMap
from keylane.options import Threads
from keylane.records import PlainMessage
from kit.engines import SomeWorkers, make_core
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.flow.outcomes import Outcome

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
WAIT_S = 20.0
FAILED = Failure(ValueError("bad"))


def nothing(_: Any) -> None:
    """A handler."""


class World:
    """A core, its time, and what runs: offsets of partition 0, or (partition, offset)."""

    def __init__(self, concurrency: int = 100, partitions: int = 1, elastic: bool = False, **options: Any) -> None:
        self.pipeline = Pipeline(kafka=KAFKA, topics=["t"], handler=nothing, **options)
        workers = SomeWorkers(concurrency, may_queue=True, elastic=elastic)
        self.core = make_core(self.pipeline, workers)
        self.now = 100.0
        self.running: dict[tuple[int, int], Call] = {}
        self.core.assigned([Start("t", p, 1, OffsetMap(0), 0, 10_000) for p in range(partitions)], self.now)

    def poll(self, keys: str, partition: int = 0, first: int = 0, value: bytes = b"v") -> list[Any]:
        messages = [PlainMessage("t", partition, first + i, key.encode(), value) for i, key in enumerate(keys)]
        self.core.polled(("t", partition), 1, messages)
        return self.plan()

    def plan(self, wait: float = 0.0) -> list[Any]:
        self.now += wait
        started = []
        for call in self.core.plan(self.now).dispatch:
            assert isinstance(call, Call)
            [offset] = call.numbers
            name = (call.source.name[1], offset)
            self.running[name] = call
            started.append(name if len(self.core.partitions.open) > 1 else offset)
        return started

    def end(self, offset: int, outcome: Outcome = None, partition: int = 0) -> list[Any]:
        call = self.running.pop((partition, offset))
        if outcome is not None:
            call.note(0, outcome)
        self.core.calls_ended([call], self.now)
        return self.plan()

    def check(self) -> float:
        """Seconds until the core wants to be asked again."""
        check = self.core.next_check(self.now)
        assert check is not None
        return round(check - self.now, 6)


# --- rates ---


def test_the_rate_over_all_is_kept_and_the_core_wakes_for_the_next() -> None:
    world = World(rates=Rates(records_per_s=10, burst_ms=200))
    assert world.poll("abcdef") == [0, 1]
    assert world.check() == 0.1
    assert world.plan(0.1) == [2]
    assert world.plan(0.05) == []
    assert world.plan(0.05) == [3]
    assert world.plan(10) == [4, 5]


def test_a_partition_that_has_used_up_its_rate_leaves_the_others_theirs() -> None:
    world = World(partitions=2, rates=Rates(per_partition=10, burst_ms=0))
    assert world.poll("ab") == [(0, 0)]
    assert world.poll("cd", partition=1) == [(1, 0)]
    assert world.check() == 0.1
    assert world.plan(0.1) == [(0, 1), (1, 1)]


def test_a_rate_by_key_holds_that_key_alone() -> None:
    world = World(rates=Rates(per_key=2, burst_ms=0))
    assert world.poll("aab") == [0, 2]
    assert world.end(0) == []
    assert world.check() == 0.5
    assert world.plan(0.5) == [1]


def test_a_retry_takes_from_the_rate_too() -> None:
    world = World(rates=Rates(records_per_s=10, burst_ms=0), retries=Retries(delay_ms=10, jitter=0))
    world.poll("a")
    assert world.end(0, FAILED) == []
    assert world.plan(0.05) == []
    assert world.plan(0.05) == [0]


def test_rates_bound_batches() -> None:
    world = World(rates=Rates(records_per_s=10, burst_ms=300), batch=kl.Batch(10))
    world.core.polled(("t", 0), 1, [PlainMessage("t", 0, offset, b"a") for offset in range(9)])
    [batch] = world.core.plan(world.now).dispatch
    assert isinstance(batch, Batch)
    assert [item.number for item in batch.items] == [0, 1, 2]


def test_a_batch_has_one_record_of_a_key_whose_rate_is_bounded() -> None:
    world = World(rates=Rates(per_key=10, burst_ms=1_000), batch=kl.Batch(10))
    world.core.polled(("t", 0), 1, [PlainMessage("t", 0, offset, b"ab"[offset % 2 :][:1]) for offset in range(6)])
    [batch] = world.core.plan(world.now).dispatch
    assert isinstance(batch, Batch)
    assert [item.number for item in batch.items] == [0, 1]


# --- changes while running ---


def test_rates_change_while_running() -> None:
    world = World(rates=Rates(per_partition=1, burst_ms=0))
    assert world.poll("abc") == [0]
    world.core.adjust(None, Rates())
    assert world.plan() == [1, 2]


@pytest.mark.parametrize("elastic", [True, False])
def test_concurrency_changes_while_running(elastic: bool) -> None:
    world = World(concurrency=4, elastic=elastic)
    assert world.poll("abcdefghij") == [0, 1, 2, 3]
    world.core.adjust(2, None)
    assert world.end(0) == []
    assert world.end(1) == []
    assert world.end(2) == [4], "two are left"
    world.core.adjust(6, None)
    assert len(world.plan()) == (4 if elastic else 2), "threads are as many as they are"


def test_coroutines_beyond_the_first_concurrency_run_after_a_change() -> None:
    entered: list[int] = []

    async def handler(record: Record) -> None:
        entered.append(record.offset)
        await asyncio.sleep(1_000)

    log = FakeBroker([("t", 0)])
    log.append(("t", 0), [(b"%d" % number, b"v") for number in range(50)])
    options: dict[str, Any] = {"max_concurrency": 3, "drain_timeout_ms": 0, "offset_reset": "earliest"}
    with FakeEngine(Pipeline(kafka=KAFKA, topics=["t"], handler=handler, **options), log) as engine:
        until(lambda: len(entered) == 3, "three run")
        engine.loop.tell(events.Adjust(max_concurrency=20))
        until(lambda: len(entered) == 20, "twenty run")


# --- pause and resume ---


def test_a_paused_partition_starts_nothing_and_goes_on_where_it_was() -> None:
    world = World(partitions=2, concurrency=2)
    world.core.pause([("t", 0)])
    assert world.poll("abc") == []
    assert world.poll("abc", partition=1) == [(1, 0), (1, 1)]
    world.core.resume([("t", 0)])
    assert world.end(0, partition=1) == [(1, 2)]
    assert world.end(1, partition=1) == [(0, 0)]


def test_records_in_handlers_of_a_paused_partition_finish_and_their_retries_wait() -> None:
    world = World(retries=Retries(delay_ms=10, jitter=0))
    assert world.poll("ab") == [0, 1]
    world.core.pause(None)
    assert world.end(0) == []
    assert world.end(1, FAILED) == []
    assert world.core.partitions.open["t", 0].tracker.base == 1
    assert world.plan(1.0) == []
    world.core.resume(None)
    assert world.plan() == [1]


def test_what_is_paused_stays_so_over_rebalances() -> None:
    world = World()
    world.core.pause([("t", 0), ("t", 7)])
    world.core.lost([("t", 0)])
    world.core.assigned([Start("t", 0, 2, OffsetMap(0), 0, 10), Start("t", 7, 2, OffsetMap(0), 0, 10)], world.now)
    world.core.polled(("t", 7), 2, [PlainMessage("t", 7, 0, b"k")])
    assert world.plan() == []
    world.core.resume([("t", 7)])
    assert world.plan() == [(7, 0)]


# --- scheduled records ---


def test_a_scheduled_record_holds_its_key_and_nothing_else_and_costs_no_attempt() -> None:
    world = World()
    assert world.poll("aab") == [0, 2]
    assert world.end(0, Later(5.0)) == []
    assert world.check() == 5.0
    assert world.plan(5.0) == [0]
    assert world.running[0, 0].attempt == 1
    assert world.end(0) == [1]
    assert world.core.snapshot(world.now).failed == 0


def run(handler: Callable[..., Any], keys: str, **options: Any) -> FakeEngine:
    log = FakeBroker([("t", 0)])
    log.append(("t", 0), [(key.encode(), key.encode()) for key in keys])
    options.setdefault("retries", Retries(max_attempts=1))
    pipeline = Pipeline(kafka=KAFKA, topics=["t"], handler=handler, offset_reset="earliest", **options)
    with FakeEngine(pipeline, log, ending_offsets={("t", 0): len(keys)}) as engine:
        assert engine.loop.ended.wait(WAIT_S)
    return engine


def of_kind(kind: str, seen: list[int]) -> tuple[Callable[..., Any], dict[str, Any]]:
    def note(records: list[Record]) -> None:
        seen.extend(record.offset for record in records)

    async def one(record: Record) -> None:
        note([record])

    async def many(records: list[Record]) -> None:
        note(records)

    if kind == "threads":
        return (lambda record: note([record])), {}
    if kind == "thread batches":
        return note, {"batch": kl.Batch(10)}
    return (many, {"batch": kl.Batch(10)}) if kind == "asyncio batches" else (one, {})


@pytest.mark.parametrize("kind", ["threads", "thread batches", "asyncio", "asyncio batches"])
def test_a_function_of_the_record_schedules_it(kind: str) -> None:
    seen: list[int] = []
    handler, options = of_kind(kind, seen)
    due_ms: list[float] = []  # a second after it was first asked

    def not_before(record: Record) -> float | None:
        if not due_ms:
            due_ms.append(time.time() * 1000 + 1_000)
        return due_ms[0] if record.key == b"a" else None

    engine = run(handler, "abaca", not_before=not_before, **options)
    assert engine.loop.failure is None
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert [offset for offset in seen if offset in (0, 2, 4)] == [0, 2, 4]
    assert set(seen[:2]) == {1, 3}, "the others do not wait"
    assert time.time() * 1000 >= due_ms[0]


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize(
    ("not_before", "text"),
    [(lambda _: 1 / 0, "ZeroDivisionError"), (lambda _: "soon", "not_before returned a value of type str")],
)
def test_a_schedule_that_fails_takes_the_path_of_failures(batch_size: int, not_before: Any, text: str) -> None:
    engine = run(
        nothing,
        "a",
        not_before=not_before,
        batch=kl.Batch(batch_size) if batch_size > 1 else None,
        on_exhausted=DeadLetter("dead"),
    )
    [letter] = engine.producer.sent
    headers = dict(letter.headers)
    assert text in f"{headers['keylane.error.class']!r} {headers['keylane.error.text']!r}".replace("\\\\", "")


@pytest.mark.parametrize("kind", ["threads", "thread batches", "asyncio", "asyncio batches"])
@pytest.mark.parametrize("at_ms", [2 * 10**18, 10**400])
def test_a_time_that_no_clock_reaches_holds_its_record_and_nothing_else(kind: str, at_ms: int) -> None:
    """Such as nanoseconds, or a number of 400 digits in a record's JSON."""
    seen: list[int] = []
    handler, options = of_kind(kind, seen)
    log = FakeBroker([("t", 0)])
    log.append(("t", 0), [(b"a", b""), (b"b", b"")])
    not_before = {b"a": at_ms, b"b": -at_ms}
    pipeline = Pipeline(
        kafka=KAFKA,
        topics=["t"],
        handler=handler,
        offset_reset="earliest",
        not_before=lambda record: not_before[record.key or b""],
        **options,
    )
    with FakeEngine(pipeline, log) as engine:
        until(lambda: engine.loop.snapshot().processed == 1, "the record that does not wait")
        log.append(("t", 0), [(b"b", b"")])
        until(lambda: engine.loop.snapshot().processed == 2, "the loop goes on")
    assert engine.loop.failure is None
    assert seen == [1, 2]


# --- retries ---


def test_a_delay_may_be_a_function_of_attempt_error_and_record() -> None:
    def delay(attempt: int, error: BaseException, record: Record) -> int:
        assert isinstance(error, ValueError)
        return 100 * attempt + 10 * record.offset

    world = World(retries=Retries(max_attempts=5, delay_ms=delay))
    world.poll("ab")
    world.end(1, FAILED)
    assert world.check() == 0.11
    assert world.plan(0.11) == [1]
    world.end(1, FAILED)
    assert world.check() == 0.21


@pytest.mark.parametrize("delay", [lambda *_: 1 / 0, lambda *_: "soon", lambda *_: -1])
def test_a_delay_function_that_gives_no_delay_ends_the_run_by_name(delay: Any) -> None:
    world = World(retries=Retries(delay_ms=delay))
    world.poll("a")
    world.end(0, FAILED)
    assert isinstance(world.core.failure, HandlerError)
    assert "the function Retries.delay_ms" in str(world.core.failure)


def test_no_attempt_begins_beyond_the_age() -> None:
    retries = Retries(max_attempts=None, delay_ms=400, multiplier=1, jitter=0, max_age_ms=1_000)
    world = World(retries=retries, on_exhausted=Skip())
    world.poll("a")
    world.end(0, FAILED)
    assert world.plan(0.4) == [0]
    world.end(0, FAILED)
    assert world.plan(0.4) == [0]
    world.end(0, FAILED)  # the next would begin at 1.2 s
    assert world.core.snapshot(world.now).skipped == 1


def test_attempts_without_a_bound_go_on() -> None:
    world = World(retries=Retries(max_attempts=None, delay_ms=0), on_exhausted=Skip())
    world.poll("a")
    for _ in range(100):
        world.end(0, FAILED)
        world.plan(0.01)
    assert world.core.snapshot(world.now).skipped == 0


# --- how much is taken in ---


def test_max_uncommitted_bounds_what_starts_past_the_base() -> None:
    world = World(max_uncommitted=3)
    assert world.poll("abcdef") == [0, 1, 2]
    assert world.end(1) == []
    assert world.end(0) == [3, 4], "the base is 2"


def test_large_records_lower_the_poll_s_credit() -> None:
    world = World(max_buffered_records=1_000, max_buffered_bytes=100_000)
    assert world.core.plan(world.now).credit == min(FIRST_CREDIT, 125)
    world.poll("abcdefghij", value=b"v" * 1_000)
    assert world.core.plan(world.now).credit == (100 - 10) // 8
    for offset in range(10):
        world.end(offset)
    assert world.core.partitions.buffered_bytes == 0
    assert world.core.plan(world.now).credit == 100 // 8, "the last size counts on"


def test_keys_and_headers_count_as_about_what_a_record_of_each_batch_has() -> None:
    world = World(max_buffered_records=1_000, max_buffered_bytes=100_000)
    for offset in range(40):
        message = PlainMessage("t", 0, offset, b"k" * 400, b"", (("h", b"v" * 599),))
        world.core.polled(("t", 0), 1, [message])
    assert world.core.partitions.buffered_bytes == 0
    assert 6 <= world.core.plan(world.now).credit <= 8, "room for sixty of a thousand bytes, and one in eight of these"


def test_bytes_of_a_lost_partition_are_let_go() -> None:
    world = World()
    world.poll("abc", value=b"v" * 1_000)
    assert world.core.partitions.buffered_bytes == 3_000
    world.core.lost([("t", 0)])
    assert world.core.partitions.buffered_bytes == 0


def test_a_stuck_handler_bounds_the_bytes_that_are_taken_in() -> None:
    gate = threading.Event()

    def handler(record: Record) -> Output | None:
        gate.wait(WAIT_S)
        return None

    log = FakeBroker([("t", 0)])
    log.append(("t", 0), [(b"%d" % number, b"v" * 10_000) for number in range(3_000)])
    pipeline = Pipeline(
        kafka=KAFKA,
        topics=["t"],
        handler=handler,
        offset_reset="earliest",
        max_buffered_bytes=10_000_000,
        workers=Threads(2),
    )
    with FakeEngine(pipeline, log) as engine:
        until(lambda: engine.consumer.pauses > 0, "the partition is paused")
        assert 5_000_000 <= engine.loop.snapshot().buffered * 10_000 <= 10_000_000 + FIRST_CREDIT * 10_000
        gate.set()


def test_rates_and_pauses_are_checked_in_the_caller_s_thread() -> None:
    from keylane import ParallelConsumer

    consumer = ParallelConsumer(Pipeline(kafka=KAFKA, topics=["t"], handler=nothing))
    with pytest.raises(UsageError, match="max_concurrency=0"):
        consumer.adjust(max_concurrency=0)
    with pytest.raises(UsageError, match=r"max_concurrency=2\.5: give a whole number"):
        consumer.adjust(max_concurrency=2.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="rates=3"):
        consumer.adjust(rates=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="partitions="):
        consumer.pause(["t"])  # type: ignore[list-item]
