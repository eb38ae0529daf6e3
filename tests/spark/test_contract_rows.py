"""Every option of `parallel_map` does what it says: each test runs on a task alone, and in the soak on a Spark query.

Functions tell what they saw in the rows that they return, and resources in files. `test_every_option_is_here` fails for
an option without a test.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from opentelemetry import trace

import keylane as kl
from keylane.kafka.bulk import read_to_end
from keylane.spark import parallel_map
from kit.contract import VALUES, Covered, fails_without, leaf_names
from kit.http_service import Service
from kit.processes import starved_s
from kit.row_bench import (
    KEYS,
    PARTITIONS,
    ROWS,
    InAQuery,
    InATask,
    Place,
    RowBench,
    key_of,
    number_of,
    numbers,
    out_of_order,
    partition_of,
    records,
    spans,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keylane.broker.process import BrokerProcess

TRACE = "0af7651916cd43dd8448eb211c80319c"
ONCE = kl.Retries(max_attempts=1)
STARTED_WITHIN_S = 10.0
"""A worker process, on a busy machine."""

UNIT = "unit/spark/test_structured"
covers = Covered("handler", "returns")
STORE = "unit/delivery/test_exactly_once.py"
SHOWN_ELSEWHERE = {
    "carry_over": f"{UNIT}_carry_over.py::test_a_failure_is_carried_with_the_later_records_of_its_key",
    "ExactlyOnce.unseen_commits": f"{STORE}::test_a_store_that_was_emptied_is_refused_and_both_ways_out_hold",
    "steps": f"{UNIT}_kept_rows.py::test_a_step_of_a_row_is_kept_though_its_attempts_fail_and_its_task_runs_again",
    "Batch.min_size": f"{UNIT}_rows_in_batches.py::test_a_batch_waits_for_its_least_size",
    "Batch.linger_ms": f"{UNIT}_rows_in_batches.py::test_the_last_rows_of_a_task_linger_for_no_others",
}
"""What depends on when rows come, or on a whole query."""
FAILS_WITH = {"kafka": (KeyError,)}
"""By option, errors that are not keylane's: the step would have been refused."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(params=["in a task", pytest.param("in a query", marks=pytest.mark.soak)])
def place(request: pytest.FixtureRequest) -> Place:
    return InATask() if request.param == "in a task" else InAQuery(request.getfixturevalue("spark"))


@pytest.fixture
def bench(place: Place, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RowBench]:
    made = RowBench(place, tmp_path)
    yield made
    said: set[str] = getattr(request.function, "covers", set())
    assert said <= made.given, f"{sorted(said - made.given)}: no step had a value that is not the usual one"


async def second_time(row: Any, context: kl.Context) -> Any:
    """The first of most keys, or partitions, fails once: what follows waits for it, and the others run ahead."""
    began = time.monotonic_ns()
    if number_of(row) < PARTITIONS - 1 and context.attempt == 1:
        raise ValueError("not yet")
    await asyncio.sleep(0.004 - 0.002 * number_of(row) / ROWS)
    return number_of(row), f"{began} {time.monotonic_ns()}"


SOON = kl.Retries(delay_ms=20, jitter=0)


@covers("ordering", "key")
def test_rows_of_a_key_run_one_after_another_in_their_order(bench: RowBench) -> None:
    found = bench.run(second_time, ordering="key", key="key", retries=SOON)
    assert numbers(found) == list(range(ROWS))
    assert out_of_order(found, key_of) == []
    assert out_of_order(found, partition_of), "of other keys they run at once"


@covers("ordering")
def test_rows_of_a_partition_run_one_after_another_in_their_order(bench: RowBench) -> None:
    found = bench.run(second_time, ordering="partition", retries=SOON)
    assert numbers(found) == list(range(ROWS))
    assert out_of_order(found, partition_of) == []
    assert out_of_order(found, key_of), "of other partitions they run at once"


@covers("key")
def test_a_key_may_be_of_several_columns(bench: RowBench) -> None:
    found = bench.run(second_time, ordering="key", key=("partition", "key"), retries=SOON)
    assert out_of_order(found, lambda number: number % (KEYS * PARTITIONS)) == []
    assert out_of_order(found, key_of)


def test_without_an_order_all_run_at_once(bench: RowBench) -> None:
    found = bench.run(timed(0.05))
    assert numbers(found) == list(range(ROWS))
    assert len(out_of_order(found, lambda _: 0)) == ROWS - 1


@covers("order_by")
def test_rows_are_sorted_before_they_run(bench: RowBench) -> None:
    given = records(partitions=1)
    found = bench.run(timed(0), [*reversed(given)], ordering="partition", order_by="offset")
    assert [number for _, _, number in spans(found)] == list(range(ROWS))


@covers("max_concurrency", "resource")
def test_max_concurrency_and_the_resource_of_a_task(bench: RowBench) -> None:
    place = str(bench.folder / "resource")

    @contextmanager
    def resource() -> Iterator[list[int]]:
        with open(place, "a") as file:  # noqa: PTH123 - travels with the function
            file.write("entered\n")
        yield [0]
        with open(place, "a") as file:  # noqa: PTH123
            file.write("left\n")

    async def count(row: Any, context: kl.Context) -> Any:
        context.resource[0] += 1
        now = context.resource[0]
        await asyncio.sleep(0.005)
        context.resource[0] -= 1
        return number_of(row), str(now)

    found = bench.run(count, resource=resource, max_concurrency=3, retries=ONCE)
    assert max(int(one.told) for one in found) == 3
    assert bench.file("resource") == ["entered", "left"]
    assert numbers(found) == list(range(ROWS))


def test_the_automatic_limit_begins_low_and_grows(bench: RowBench) -> None:
    """And the next task of the process goes on from there."""
    running = [0]

    async def count(row: Any) -> Any:
        running[0] += 1
        now = running[0]
        await asyncio.sleep(0.002)
        running[0] -= 1
        return number_of(row), f"{time.monotonic_ns()} {now}"

    def task() -> list[int]:
        found = bench.again(records(400))
        return [at_once for _, at_once in sorted(tuple(map(int, one.told.split())) for one in found)]

    bench.begin(count, max_concurrency="auto")
    told = task()
    assert max(told[:90]) == 4
    assert max(told) >= 8
    if bench.is_in_one_process:  # of a query's tasks another one may have the second
        while max(told[-20:]) < 8:  # a busy machine can make it fall again
            told = task()
        assert max(task()[:90]) > 4


@covers("Threads.count")
def test_threads(bench: RowBench) -> None:
    def name(row: Any) -> Any:
        time.sleep(0.002)
        return number_of(row), str(threading.get_ident())

    found = bench.run(name, workers=kl.Threads(2))
    assert len({one.told for one in found}) == 2
    assert numbers(found) == list(range(ROWS))


@covers("Processes.count")
def test_worker_processes(bench: RowBench) -> None:
    place = bench.folder / "processes"
    place.mkdir()
    seen = str(place)

    def compute(row: Any, context: kl.Context) -> Any:
        if row.offset == 3 and context.attempt == 1:
            raise ValueError("not yet")
        is_worker = "keylane.flow.workers.process_main" in sys.orig_argv
        open(f"{seen}/{os.getpid()}", "w").close()  # noqa: PTH123 - travels with the options
        give_up_at = time.monotonic() + STARTED_WITHIN_S
        while is_worker and len(os.listdir(seen)) < 2:  # noqa: PTH208
            time.sleep(0.01)  # each has something to do, however late it started
            if time.monotonic() > give_up_at:
                for number in range(2):  # nobody else comes: nobody else waits
                    open(f"{seen}/nobody-{number}", "w").close()  # noqa: PTH123
        return number_of(row), f"{is_worker} {os.getpid()}"

    found = bench.run(compute, workers=kl.Processes(2), retries=kl.Retries(delay_ms=1))
    told = {one.told for one in found}
    assert len(told) == 2
    assert all(one.startswith("True ") for one in told)
    assert numbers(found) == list(range(ROWS))


@pytest.mark.parametrize("workers", [None, kl.Processes(1)])
@covers("Batch.size")
def test_batches_and_one_result_a_row(bench: RowBench, workers: Any) -> None:
    def handle(rows: list[Any]) -> list[Any]:
        made: list[Any] = [(int(row.value), str(len(rows))) for row in rows]
        return [ValueError("not this one") if number % 10 == 3 else (number, told) for number, told in made]

    found = bench.run(handle, batch=kl.Batch(5), retries=ONCE, on_exhausted=kl.Skip(), workers=workers)
    assert max(int(one.told) for one in found) == 5
    assert numbers(found) == [number for number in range(ROWS) if number % 10 != 3], "each fails alone"
    assert bench.snapshot().skipped == ROWS // 10


def test_what_a_batch_raises_is_a_failed_attempt_of_its_rows_which_go_on_in_order(bench: RowBench) -> None:
    async def handle(rows: list[Any], context: kl.Context) -> list[Any]:
        began = time.monotonic_ns()
        await asyncio.sleep(0.001)
        if len(rows) > 1:
            raise ValueError("too many")
        return [(number_of(row), f"{began} {time.monotonic_ns()}") for row in rows]

    retries = kl.Retries(max_attempts=3, delay_ms=1)
    found = bench.run(handle, batch=kl.Batch(4), ordering="key", key="key", retries=retries)
    assert numbers(found) == list(range(ROWS))
    assert out_of_order(found, key_of) == []


@covers("breaker")
@pytest.mark.parametrize("workers", [None, kl.Processes(1)])
def test_breaker(bench: RowBench, workers: Any) -> None:
    up = bench.folder / f"up-{workers is None}"
    place, tries = str(up), str(bench.folder / f"tries-{workers is None}")

    def call(row: Any) -> Any:
        with open(tries, "a") as file:  # noqa: PTH123 - travels with the options
            file.write("x")
        if not os.path.exists(place):  # noqa: PTH110
            if os.path.getsize(tries) >= 30:  # noqa: PTH202 - what comes next finds it up
                open(place, "w").close()  # noqa: PTH123
            raise ConnectionError("down")
        return number_of(row), "up"

    breaker = kl.Breaker(failures=10, errors=ConnectionError, probe_interval_ms=5)
    found = bench.run(call, breaker=breaker, retries=ONCE, on_exhausted=kl.Skip(), workers=workers)
    assert numbers(found) == list(range(ROWS))


@covers("not_before")
@pytest.mark.parametrize("workers", [None, kl.Processes(1)])
def test_not_before(bench: RowBench, workers: Any) -> None:
    due_ms: list[float] = []

    def later(row: Any) -> float | None:
        if not due_ms:
            due_ms.append((time.time() + 1) * 1000)
        return due_ms[0] if row.partition == 1 else None

    def tell(row: Any) -> Any:
        return number_of(row), str(time.time())

    found = bench.run(tell, not_before=later, workers=workers)
    assert numbers(found) == list(range(ROWS))
    begun = [min(float(one.told) for one in found if (one.number % 4 == 1) is late) for late in (False, True)]
    assert begun[1] - begun[0] > 0.5, "these wait, and the others do not"


@covers("expires_ms")
@pytest.mark.parametrize("workers", [None, kl.Processes(1)])
def test_expires_ms(bench: RowBench, workers: Any) -> None:
    def until(row: Any) -> float | None:
        return 0.0 if row.partition == 1 else (time.time() + 3_600) * 1000

    def tell(row: Any, context: kl.Context) -> Any:
        return number_of(row), str(context.deadline is not None)

    found = bench.run(tell, expires_ms=until, on_exhausted=kl.Skip(), workers=workers)
    assert numbers(found) == [number for number in range(ROWS) if number % 4 != 1]
    assert {one.told for one in found} == {"True"}


@covers("rates")
@pytest.mark.parametrize(
    ("rates", "options", "of"),
    [
        (kl.Rates(records_per_s=150, burst_ms=0), {}, 1),
        (kl.Rates(per_key=20, burst_ms=0), {"ordering": "key", "key": "key"}, KEYS),
        (kl.Rates(per_partition=30, burst_ms=0), {"ordering": "partition"}, 4),
    ],
)
def test_rates(bench: RowBench, rates: kl.Rates, options: dict[str, Any], of: int) -> None:
    starved = starved_s()
    found = bench.run(timed(0), rates=rates, **options)
    starved = starved_s() - starved
    assert numbers(found) == list(range(ROWS))
    per_s = rates.records_per_s or rates.per_key or rates.per_partition or 0
    for number in range(of):
        times = [began / 1e9 for began, _, one in spans(found) if one % of == number]
        assert times[-1] - times[0] >= (len(times) - 2) / per_s * 0.9
    all_began = [began / 1e9 for began, _, _ in spans(found)]
    assert of == 1 or all_began[-1] - all_began[0] - starved < ROWS / per_s * 0.8, "each has a rate of its own"


@covers("traversal")
@pytest.mark.parametrize("options", [{"ordering": "partition"}, {"ordering": "key", "key": "partition"}])
def test_depth_first_finishes_a_partition_before_the_next(bench: RowBench, options: dict[str, Any]) -> None:
    def turns(**more: Any) -> int:
        found = bench.run(timed(0.001), max_concurrency=1, **options, **more)
        order = [number % 4 for _, _, number in spans(found)]
        return len(list(groupby(order)))

    assert turns(traversal="depth_first") < 10
    assert turns() > 20, "in turn"


@covers("retries")
def test_retries(bench: RowBench) -> None:
    def sixth_time(row: Any, context: kl.Context) -> Any:
        if context.attempt < 6:
            raise ValueError("not yet")
        return number_of(row), str(context.attempt)

    found = bench.run(sixth_time, retries=kl.Retries(max_attempts=6, delay_ms=1))
    assert {one.told for one in found} == {"6"}
    done = bench.snapshot()
    assert (done.processed, done.failed, done.retried) == (ROWS, 5 * ROWS, 5 * ROWS)
    assert done.handler_latency.count > 0
    assert [(one.error, one.count) for one in done.failures] == [("ValueError", 5 * ROWS)]


def test_counts_of_all_tasks_of_a_step_add_up(bench: RowBench) -> None:
    bench.begin(lambda row: (number_of(row), "here"))
    for _ in range(3):
        assert numbers(bench.again()) == list(range(ROWS))
    assert bench.snapshot().processed == 3 * ROWS


def test_the_delay_of_retries_may_be_a_function_of_the_row_and_their_age_ends_them(bench: RowBench) -> None:
    def delay_ms(attempt: int, error: BaseException, row: Any) -> float:
        return 1.0 if row.partition == 0 else 3_600_000.0

    def second_time(row: Any, context: kl.Context) -> Any:
        if context.attempt == 1:
            raise ValueError("not yet")
        return number_of(row), str(context.attempt)

    found = bench.run(second_time, retries=kl.Retries(delay_ms=delay_ms, max_age_ms=60_000), outcome=True)
    assert sorted(one.number for one in found if one.error is None) == list(range(0, ROWS, 4))
    assert {(one.attempts, one.error) for one in found if one.error} == {(1, "ValueError: not yet")}


def refuse(row: Any) -> Any:
    raise ValueError("no")


@covers("on_exhausted", "kafka", "outcome")
def test_on_exhausted(bench: RowBench, broker: BrokerProcess) -> None:
    topic = f"dead-{time.monotonic_ns()}"
    kafka = {"bootstrap.servers": broker.bootstrap, "allow.auto.create.topics": True}
    with pytest.raises(Exception, match=r"in-\d@\d+: failed after 1 attempts: ValueError: no"):
        bench.run(refuse, retries=ONCE)
    assert bench.run(refuse, retries=ONCE, on_exhausted=kl.Skip()) == []
    assert (bench.snapshot().skipped, bench.snapshot().processed) == (ROWS, 0)
    assert bench.run(refuse, retries=ONCE, on_exhausted=kl.DeadLetter(topic), kafka=kafka) == []
    assert (bench.snapshot().dead_lettered, bench.snapshot().produced) == (ROWS, ROWS)
    found = bench.run(refuse, retries=ONCE, on_exhausted=kl.DeadLetter(topic), kafka=kafka, outcome=True)
    assert {(one.number, one.error, one.attempts) for one in found} == {(None, "ValueError: no", 1)}
    dead = [one for batch in read_to_end(broker.bootstrap, topic) for one in batch]
    assert sorted(int(one.value or b"") for one in dead) == sorted([*range(ROWS), *range(ROWS)])
    for one in dead:
        number, said = int(one.value or b""), dict(one.headers)
        assert one.key == b"key-%d" % (number % KEYS)
        assert said["number"] == one.value, "its own header"
        assert (said["keylane.topic"], said["keylane.partition"]) == (b"in", b"%d" % (number % 4))
        assert (said["keylane.offset"], said["keylane.error.text"]) == (b"%d" % (number // 4), b"no")
        assert said["keylane.attempts"] == b"1"


@covers("on_failure")
@pytest.mark.parametrize(
    "way", [{}, {"workers": kl.Processes(1)}, {"batch": kl.Batch(10)}], ids=["threads", "processes", "batches"]
)
def test_on_failure(bench: RowBench, way: dict[str, Any]) -> None:
    place = str(bench.folder / "failed")

    def note(failed: kl.FailedAttempt) -> None:
        with open(place, "a") as file:  # noqa: PTH123 - travels with the step
            file.write(f"{int(failed.record.value)} {failed.attempt} {failed.outcome} {failed.error!r}\n")

    def seventh(what: Any) -> Any:
        if isinstance(what, list):
            return [ValueError("no") if number_of(one) == 7 else (number_of(one), "") for one in what]
        if number_of(what) == 7:
            raise ValueError("no")
        return number_of(what), ""

    twice = kl.Retries(max_attempts=2, delay_ms=1)
    bench.run(seventh, retries=twice, on_exhausted=kl.Skip(), on_failure=note, **way)
    assert bench.file("failed") == ["7 1 retried ValueError('no')", "7 2 skipped ValueError('no')"]
    bench.run(seventh, retries=ONCE, outcome=True, on_failure=note, **way)
    with pytest.raises(Exception, match="ValueError: no"):
        bench.run(seventh, retries=ONCE, on_failure=note, **way)
    outcomes = [line.split()[2] for line in bench.file("failed")[2:]]
    assert outcomes == ["returned", "halted"] or bench.file("failed").count("7 1 halted ValueError('no')") > 1, (
        "Spark tries a task again"
    )


@covers("around")
@pytest.mark.parametrize("way", [{}, {"workers": kl.Processes(1)}, {"batch": kl.Batch(10)}])
def test_around(bench: RowBench, way: dict[str, Any]) -> None:
    @contextmanager
    def unit(what: Any) -> Iterator[list[int]]:
        yield [number_of(one) for one in (what if isinstance(what, list) else [what])]

    def tell(what: Any, context: kl.Context) -> Any:
        numbers = context.around
        return [(number, "in") for number in numbers] if isinstance(what, list) else (numbers[0], "in")

    found = bench.run(tell, around=unit, **way)
    assert numbers(found) == list(range(ROWS))


def test_a_dead_letter_that_the_broker_does_not_take_fails_the_task(bench: RowBench, broker: BrokerProcess) -> None:
    with pytest.raises(Exception, match="keylane topics create no-such-topic"):
        bench.run(
            refuse,
            retries=ONCE,
            on_exhausted=kl.DeadLetter("no-such-topic"),
            kafka={"bootstrap.servers": broker.bootstrap, "topic.metadata.propagation.max.ms": 100},
        )
    with pytest.raises(Exception, match="which the query reads itself"):
        bench.run(refuse, retries=ONCE, on_exhausted=kl.DeadLetter("in"), kafka={"bootstrap.servers": broker.bootstrap})


@covers("handler_timeout_ms")
@pytest.mark.parametrize("workers", [None, kl.Processes(1)])
def test_a_call_that_takes_too_long_has_failed(bench: RowBench, workers: Any) -> None:
    hang_s = bench.hang_s

    async def hang_once(row: Any, context: kl.Context) -> Any:
        if context.attempt == 1 and row.offset == 0:
            await asyncio.sleep(hang_s)
        return number_of(row), str(context.attempt)

    def spin_once(row: Any, context: kl.Context) -> Any:
        until = time.monotonic() + hang_s
        while context.attempt == 1 and row.offset == 0 and row.partition == 0 and time.monotonic() < until:
            pass
        return number_of(row), str(context.attempt)

    found = bench.run(
        spin_once if workers else hang_once,
        handler_timeout_ms=500,
        workers=workers,
        retries=kl.Retries(max_attempts=2, delay_ms=1),
    )
    assert numbers(found) == list(range(ROWS))
    slow = [0] if workers else [0, 1, 2, 3]
    assert sorted(one.number for one in found if one.told == "2") == slow
    assert bench.snapshot().failed == len(slow)


@covers("stall_timeout_ms")
def test_a_task_whose_calls_all_hang_fails_and_names_a_row(bench: RowBench) -> None:
    hang_s = bench.hang_s

    async def hang(row: Any) -> None:
        await asyncio.sleep(hang_s)

    with pytest.raises(Exception, match=r"in-\d@\d+: no handler has ended for 0.3 s"):
        bench.run(hang, stall_timeout_ms=300)


@covers("tracing")
@pytest.mark.parametrize("of_batches", [False, True])
def test_calls_are_in_the_traces_of_their_records(bench: RowBench, of_batches: bool) -> None:
    def tell(row: Any) -> Any:
        span: Any = trace.get_current_span()
        links = [f"{one.context.trace_id:032x}" for one in getattr(span, "links", ())]
        return number_of(row), f"{span.get_span_context().trace_id:032x} {links}"

    @contextmanager
    def provider() -> Iterator[None]:
        from opentelemetry.sdk.trace import TracerProvider

        before = trace._TRACER_PROVIDER
        trace._TRACER_PROVIDER = TracerProvider(shutdown_on_exit=False)
        yield
        trace._TRACER_PROVIDER = before

    given = records(1)
    given[0]["headers"] = [{"key": "traceparent", "value": f"00-{TRACE}-b7ad6b7169203331-01".encode()}]
    options: dict[str, Any] = {"resource": provider, "batch": kl.Batch(2) if of_batches else None}

    def function(what: Any) -> Any:
        return [tell(one) for one in what] if of_batches else tell(what)

    (traced,) = bench.run(function, given, tracing="on", **options)
    assert f"['{TRACE}']" in traced.told
    assert traced.told.startswith(TRACE) != of_batches, "a batch is in no record's trace, and linked to each"
    (plain,) = bench.run(function, given, tracing="off", **options)
    assert TRACE not in plain.told


@covers("key_deserializer", "value_deserializer")
@pytest.mark.parametrize(("of_batches", "is_async"), [(False, False), (True, False), (False, True), (True, True)])
def test_deserializers(bench: RowBench, of_batches: bool, is_async: bool) -> None:
    def number(data: bytes, field: Any) -> int:
        assert (field.topic, field.field, field.headers) == ("in", "value", [("number", data)])
        if data == b"7":
            raise ValueError("no number")
        return int(data)

    def text(data: bytes, field: Any) -> str:
        return f"{field.field} {data.decode()}"

    def add(row: Any) -> Any:
        return row.value + 100, row.key

    def function(what: Any) -> Any:
        return [add(one) for one in what] if of_batches else add(what)

    async def function_async(what: Any) -> Any:
        return function(what)

    async def number_async(data: bytes, field: Any) -> int:
        await asyncio.sleep(0)
        return number(data, field)

    found = bench.run(
        function_async if is_async else function,
        key_deserializer=text,
        value_deserializer=number_async if is_async else number,
        batch=kl.Batch(10) if of_batches else None,
        retries=ONCE,
        ordering="key",
        key="key",
        on_exhausted=kl.Skip(),
    )
    assert numbers(found) == [number + 100 for number in range(ROWS) if number != 7]
    assert all(one.told == f"key key-{(one.number - 100) % KEYS}" for one in found)


class Effects:
    """A database file, and a function of rows that notes each in it."""

    def __init__(self, bench: RowBench) -> None:
        self.place = str(bench.folder / "effects.db")
        with closing(sqlite3.connect(self.place)) as database:
            database.execute("CREATE TABLE effects (number INTEGER)")

    def found(self) -> list[int]:
        with closing(sqlite3.connect(self.place)) as database:
            return [number for (number,) in database.execute("SELECT number FROM effects ORDER BY number")]


def note(row: Any, context: kl.Context) -> Any:
    context.transaction.execute("INSERT INTO effects VALUES (?)", (number_of(row),))
    return number_of(row), f"{time.monotonic_ns()}"


@covers("delivery", "ExactlyOnce.store", "ExactlyOnce.scope")
@pytest.mark.parametrize("of_batches", [False, True])
def test_rows_that_run_again_have_their_effect_once_and_the_same_rows(bench: RowBench, of_batches: bool) -> None:
    def function(what: Any, context: kl.Context) -> Any:
        return [note(one, context) for one in what] if of_batches else note(what, context)

    effects, batch = Effects(bench), kl.Batch(7) if of_batches else None
    first = bench.run(function, delivery=kl.ExactlyOnce(effects.place, scope="a"), batch=batch)
    again = bench.again()
    assert numbers(first) == list(range(ROWS))
    assert {one.number: one.told for one in first} == {one.number: one.told for one in again}
    assert effects.found() == list(range(ROWS))
    assert numbers(bench.run(function, delivery=kl.ExactlyOnce(effects.place, scope="b"), batch=batch)) == numbers(
        first
    )
    assert effects.found() == sorted([*range(ROWS)] * 2), "another scope knows nothing of it"


@covers("ExactlyOnce.identity")
@pytest.mark.parametrize("identity", [lambda row: row.key, "key"])
def test_rows_are_known_by_what_the_user_says(bench: RowBench, identity: Any) -> None:
    effects = Effects(bench)
    found = bench.run(note, delivery=kl.ExactlyOnce(effects.place, identity=identity, scope="a"))
    assert len(found) == ROWS
    assert len({one.told for one in found}) == len(effects.found()) == KEYS


@covers("ExactlyOnce.retention_ms")
def test_an_identity_is_known_for_so_long(bench: RowBench) -> None:
    effects = Effects(bench)
    bench.run(note, delivery=kl.ExactlyOnce(effects.place, scope="a", retention_ms=1))
    time.sleep(0.01)
    bench.again()
    assert effects.found() == sorted([*range(ROWS)] * 2)


def test_http_calls_are_a_function_of_rows(bench: RowBench) -> None:
    """What the server puts off is asked again when it says, and what it refuses is no row."""
    asked: list[float] = []

    def answer(request: web.Request, before: int) -> web.Response:
        if request.path == "/5":
            asked.append(time.monotonic())
            if not before:
                return web.Response(status=503, headers={"Retry-After": "1"})
        return web.Response(text=f"answer {request.path}", status=404 if request.path == "/9" else 200)

    with Service() as service:
        service.answer, address = answer, service.url
        calls = kl.http.Calls(
            request=lambda row: kl.http.Request("GET", f"{address}/{row.value.decode()}"),
            on_response=lambda row, response: (int(row.value), response.text),
        )
        found = bench.run(calls, resource=calls.pool, on_exhausted=kl.Skip(), retries=kl.Retries(delay_ms=1))
    assert {one.number: one.told for one in found} == {n: f"answer /{n}" for n in range(ROWS) if n != 9}
    assert service.asked["/9"] == 1
    first, second = asked
    assert second - first >= 1


@pytest.mark.full
@pytest.mark.parametrize(("test", "option"), covers.cases(sys.modules[__name__]))
def test_a_case_fails_when_its_option_is_ignored(
    test: Any, option: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def bench(number: int) -> RowBench:
        folder = tmp_path / str(number)
        folder.mkdir()
        return RowBench(InATask(), folder, ignores=option)

    fails_without(test, bench, request.getfixturevalue, also=FAILS_WITH.get(option, ()))


def test_every_option_is_here() -> None:
    known = {one.name for one in fields(parallel_map) if one.init} - {"workers", "batch"}
    known |= {name for value in (*VALUES[:3], kl.ExactlyOnce) for name in leaf_names(value)}
    assert covers.missing(known, SHOWN_ELSEWHERE) == []
