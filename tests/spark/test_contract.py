"""Every option of `Pipeline` means the same in one process, on a lane, and on a lane through Spark Connect: each test
runs on all three.

Handlers tell what they saw in the headers of their outputs, and resources and callbacks in files: nothing of it depends
on where they run. `test_every_option_is_here` fails for an option without a test.
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
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import keylane as kl
from keylane.kafka.bulk import read_to_end
from kit.contract import VALUES, Covered, fails_without, leaf_names
from kit.filling import filling
from kit.outputs import source_of
from kit.pipeline_bench import RECORDS, InProcess, OnALane, PipelineBench, Running, telling
from kit.processes import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keylane.broker.process import BrokerProcess
    from kit.connect_server import ConnectServer

STARTED_WITHIN_S = 10.0
"""A worker process, on a busy machine."""
MANY = 2_000
"""More than is polled at once."""

ON_LANES = {"on a lane": ("spark", pytest.mark.soak), "through Spark Connect": ("client", pytest.mark.cluster)}
"""Which fixture has the session, and where they run."""
covers = Covered("kafka", "topics", "handler")
BATCHES = "unit/engine/test_engine_batches.py"
STORE = "unit/delivery/test_exactly_once.py"
SHOWN_ELSEWHERE = {
    "Partitions.of": "unit/spark/test_spark_supervisor.py::test_partitions_that_are_assigned_by_hand_are_divided",
    "Batch.min_size": f"{BATCHES}::test_a_batch_waits_for_its_least_size_and_no_longer_than_it_lingers",
    "Batch.linger_ms": f"{BATCHES}::test_a_batch_waits_for_its_least_size_and_no_longer_than_it_lingers",
    "Periods.mode": "unit/engine/test_engine_commit_modes.py::test_a_synchronous_commit_holds_up_what_would_start",
    "Transactional.id_prefix": "unit/test_transactional_options.py::test_the_id_is_the_static_members_or_a_new_one",
    "Commit.on_commits_at_brokers": "integration/test_offsets_move.py::test_a_group_begins_anew_where_it_is_told_to",
    "Commit.on_copied_map": "unit/engine/test_engine_start.py::test_a_marked_map_without_an_epoch_was_copied",
    "ExactlyOnce.scope": "unit/delivery/test_exactly_once.py::test_a_scope_holds_over_clusters",
    "ExactlyOnce.unseen_commits": f"{STORE}::test_a_store_that_was_emptied_is_refused_and_both_ways_out_hold",
    "budget": "integration/test_budgets.py::test_pipelines_of_two_groups_spend_one_budget",
    "operations": "spark/test_lanes_operations.py::test_lanes_are_paused_adjusted_sought_and_drained_from_outside",
    "steps": "integration/test_steps.py::test_a_failed_second_step_does_not_repeat_the_first",
    "revoke_timeout_ms": "unit/engine/test_engine_core.py::test_a_revoke_gives_up_handlers_after_its_limit",
}
"""What only shows in the engine's own time, and not in what a whole run leaves behind."""
HAVE_A_CONTROL = {"tracing", "Commit.metadata_max_bytes", "ExactlyOnce.retention_ms"}
"""Options whose test has a variant of what happens without them."""
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(params=["in one process", *(pytest.param(one, marks=mark) for one, (_, mark) in ON_LANES.items())])
def begin(request: pytest.FixtureRequest) -> Callable[..., Running]:
    """Starts a pipeline in one of the three places."""
    if request.param == "in one process":
        return InProcess
    return partial(OnALane, request.getfixturevalue(ON_LANES[request.param][0]))


@pytest.fixture(scope="module")
def client(connect_server: ConnectServer) -> Any:
    return connect_server.client()


@pytest.fixture
def bench(
    work: Any, begin: Callable[..., Running], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[PipelineBench]:
    made = PipelineBench(work, begin, tmp_path)
    yield made
    said: set[str] = getattr(request.function, "covers", set())
    assert said <= made.given, f"{sorted(said - made.given)}: no pipeline had a value that is not the usual one"


def overlapping(bench: PipelineBench, **options: Any) -> tuple[int, int]:
    """How many records began before an earlier one of their key, and of their partition, had ended."""
    output = bench.work.output

    async def tell(record: kl.Record) -> kl.Output:
        began = time.monotonic_ns()
        await asyncio.sleep(0.004)
        told = f"{record.offset} {record.partition} {(record.key or b'').decode()} {began} {time.monotonic_ns()}"
        headers = [source_of(record), ("told", told.encode())]
        return kl.Output(output, record.key, record.value, headers=headers, partition=record.partition)

    bench.run(tell, **options)
    ended: dict[tuple[str, ...], int] = {}
    found = [0, 0]
    for _, partition, key, began, end in sorted(map(str.split, bench.told("told")), key=lambda one: int(one[0])):
        for number, of in enumerate([(partition, key), (partition,)]):
            found[number] += int(began) < ended.get(of, 0)
            ended[of] = max(int(end), ended.get(of, 0))
    assert bench.all_once()
    return found[0], found[1]


@covers("ordering")
def test_records_of_a_partition_run_one_after_another(bench: PipelineBench) -> None:
    assert overlapping(bench, ordering="partition") == (0, 0)


@covers("ordering")
def test_without_an_order_records_of_a_key_run_at_once(bench: PipelineBench) -> None:
    of_a_key, of_a_partition = overlapping(bench, ordering="unordered")
    assert of_a_key > RECORDS // 4
    assert of_a_partition > of_a_key


def test_the_order_of_keys_is_the_default(bench: PipelineBench) -> None:
    assert bench.work.pipeline().ordering == "key"
    of_a_key, of_a_partition = overlapping(bench)
    assert of_a_key == 0
    assert of_a_partition > 0


@covers("max_concurrency", "resource")
def test_max_concurrency_and_the_resource_of_a_worker(bench: PipelineBench) -> None:
    place, output = str(bench.folder / "resource"), bench.work.output

    @contextmanager
    def resource() -> Iterator[list[int]]:
        running = [0]
        with open(place, "a") as file:  # noqa: PTH123 - travels with the handler
            file.write("entered\n")
        yield running
        with open(place, "a") as file:  # noqa: PTH123
            file.write("left\n")

    async def count(record: kl.Record, context: kl.Context) -> kl.Output:
        context.resource[0] += 1
        now = context.resource[0]
        await asyncio.sleep(0.005)
        context.resource[0] -= 1
        headers = [source_of(record), ("told", str(now).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(count, resource=resource, max_concurrency=3, ordering="unordered")
    assert max(map(int, bench.told("told"))) == 3
    assert bench.file("resource") == ["entered", "left"]
    assert bench.all_once()


@covers("Threads.count")
def test_threads(bench: PipelineBench) -> None:
    output = bench.work.output

    def name(record: kl.Record) -> kl.Output:
        time.sleep(0.002)
        headers = [source_of(record), ("told", str(threading.get_ident()).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(name, workers=kl.Threads(2), ordering="unordered")
    assert len(set(bench.told("told"))) == 2
    assert bench.all_once()


@covers("one_processor")
def test_one_processor(bench: PipelineBench) -> None:
    output = bench.work.output

    def place(record: kl.Record) -> kl.Output:
        headers = [source_of(record), ("told", str(len(os.sched_getaffinity(0))).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(place, one_processor=True)
    assert set(bench.told("told")) == {"1"}
    assert bench.all_once()


@covers("Batch.size")
def test_batches_and_one_outcome_a_record(bench: PipelineBench) -> None:
    output = bench.work.output

    def handle(records: list[kl.Record]) -> list[Any]:
        made: list[Any] = []
        for record in records:
            headers = [source_of(record), ("told", str(len(records)).encode())]
            made.append(kl.Output(output, record.key, headers=headers, partition=record.partition))
        made[0] = ValueError("not this one")
        return made

    once = kl.Retries(max_attempts=1)
    done = bench.run(handle, batch=kl.Batch(5), ordering="unordered", retries=once, on_exhausted=kl.Skip())
    assert max(map(int, bench.told("told"))) == 5
    assert done.skipped >= RECORDS // 5
    assert done.processed + done.skipped == RECORDS


@covers("not_before")
def test_not_before(bench: PipelineBench) -> None:
    due_ms = (time.time() + 0.5) * 1000
    bench.run(telling(bench.work.output, lambda *_: str(time.time() * 1000 >= due_ms)), not_before=lambda _: due_ms)
    assert set(bench.told("told")) == {"True"}
    assert bench.all_once()


@covers("expires_ms")
def test_expires_ms(bench: PipelineBench) -> None:
    def until(record: kl.Record) -> float:
        return 0.0 if record.offset % 3 == 0 else (time.time() + 3_600) * 1000

    told = telling(bench.work.output, lambda record, context: f"{record.offset % 3} {context.deadline is not None}")
    done = bench.run(told, expires_ms=until, on_exhausted=kl.Skip())
    assert set(bench.told("told")) == {"1 True", "2 True"}
    assert done.expired == done.skipped == RECORDS - done.processed > 0


@covers("priority")
def test_priority(bench: PipelineBench) -> None:
    """Two calls run at a time, and the first ones begin before all is polled."""

    def tell(record: kl.Record, context: kl.Context) -> str:
        return str(record.offset % 3)

    told = telling(bench.work.output, tell, pause_s=0.02)
    bench.run(told, priority=lambda record: record.offset % 3, max_concurrency=2)
    logs = [log for log in bench.told_by_partition("told") if log]
    means = [
        [sum(at for at, one in enumerate(log) if one == level) / max(1, log.count(level)) for level in "20"]
        for log in logs
    ]
    assert sum(urgent for urgent, _ in means) < sum(other for _, other in means)
    assert bench.all_once()


@covers("breaker")
def test_breaker(bench: PipelineBench) -> None:
    began: list[float] = []

    def call(*_: Any) -> str:
        if not began:
            began.append(time.monotonic())
        if time.monotonic() < began[0] + 0.5:
            raise ConnectionError("down")
        return "up"

    breaker = kl.Breaker(errors=ConnectionError, probe_interval_ms=100)
    once = kl.Retries(max_attempts=1)
    done = bench.run(telling(bench.work.output, call), breaker=breaker, retries=once, on_exhausted=kl.Skip())
    assert (done.skipped, done.processed) == (0, RECORDS)
    assert bench.all_once()


@covers("rates")
def test_rates(bench: PipelineBench) -> None:
    rates = kl.Rates(records_per_s=100, burst_ms=0)
    bench.run(telling(bench.work.output, lambda *_: str(time.time())), rates=rates, ordering="unordered")
    times = sorted(map(float, bench.told("told")))
    assert times[-1] - times[0] >= (RECORDS - 2) / 100 * 0.9
    assert bench.all_once()


@covers("traversal")
def test_depth_first_finishes_a_partition_before_the_next(bench: PipelineBench) -> None:
    bench.run(
        telling(bench.work.output, lambda record, _: f"{time.monotonic_ns()} {record.partition}", pause_s=0.01),
        max_concurrency=1,
        traversal="depth_first",
        ordering="unordered",
    )
    order = [partition for _, partition in sorted((int(ns), one) for ns, one in map(str.split, bench.told("told")))]
    turns = sum(one != another for one, another in pairwise(order))
    assert turns < 10, f"a partition that is fetched late costs two turns, and fair ones take dozens: {order}"
    assert bench.all_once()


@covers("max_buffered_records")
def test_max_buffered_records(bench: PipelineBench) -> None:
    assert 0 < buffered_while_handlers_hang(bench, max_buffered_records=10) <= 10


@covers("max_buffered_bytes")
def test_max_buffered_bytes(bench: PipelineBench) -> None:
    """What is polled before the first record's size is known is more than a byte; the rest is not."""
    bench.work.fill(MANY)
    assert 0 < buffered_while_handlers_hang(bench, max_buffered_bytes=1) < MANY


def are_paused(partitions: Sequence[Any]) -> bool:
    return bool(partitions) and all(one.paused for one in partitions)


def buffered_while_handlers_hang(bench: PipelineBench, **options: Any) -> int:
    output, gate = bench.work.output, str(bench.folder / "gate")

    async def wait(record: kl.Record) -> kl.Output:
        while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240, PTH110 - it may be in another process
            await asyncio.sleep(0.01)
        return kl.Output(output, record.key, headers=[source_of(record)], partition=record.partition)

    running = bench.begin(bench.work.pipeline(wait, max_concurrency=1, **options))
    try:
        # Each is, sooner or later: by the bound, or at its end.
        bench.until(lambda: are_paused(running.snapshot().partitions), running.snapshot)
        return running.snapshot().buffered
    finally:
        Path(gate).touch()
        running.wait()
        assert bench.all_once()


@covers("Commit.metadata_max_bytes")
@pytest.mark.parametrize(("characters", "runs_ahead"), [(4, False), (400, True)])
def test_what_the_metadata_cannot_tell_does_not_start(bench: PipelineBench, characters: int, runs_ahead: bool) -> None:
    """Four characters have room for no map: nothing runs ahead of the first record."""
    output = bench.work.output

    async def every_other_is_slow(record: kl.Record) -> kl.Output:
        await asyncio.sleep(0 if record.offset % 2 else 0.5)
        headers = [source_of(record), ("told", str(record.offset).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    options: dict[str, Any] = {"max_concurrency": RECORDS, "ordering": "unordered"}
    bench.run(every_other_is_slow, commit=kl.Commit(metadata_max_bytes=characters), **options)
    assert any(log.index("0") for log in bench.told_by_partition("told")) is runs_ahead
    assert bench.work.lag() == 0


@covers("tracing")
@pytest.mark.parametrize("tracing", ["on", "off"])
def test_outputs_carry_the_trace_on(bench: PipelineBench, tracing: Any) -> None:
    with filling(bench.work.servers) as producer:
        header = ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())
        producer.produce(kl.Output(bench.work.topic, b"key-0", b"traced", headers=[header]))
    bench.run(telling(bench.work.output), tracing=tracing)
    assert [TRACE in one for one in bench.told("traceparent")] == ([True] if tracing == "on" else [])
    assert bench.all_once()


@covers("outputs")
def test_an_output_topic_that_is_not_there_is_told_at_the_start(bench: PipelineBench) -> None:
    with pytest.raises(kl.KeylaneError, match="no-such-topic"):
        bench.run(refuse, outputs=["no-such-topic"])
    assert bench.work.lag() == RECORDS, "before anything ran"


@covers("max_uncommitted")
def test_max_uncommitted(bench: PipelineBench) -> None:
    output = bench.work.output

    async def first_is_slow(record: kl.Record) -> kl.Output:
        await asyncio.sleep(0.5 if record.offset == 0 else 0)
        headers = [source_of(record), ("told", str(record.offset).encode())]
        return kl.Output(output, record.key, headers=headers, partition=0)

    bench.run(first_is_slow, max_uncommitted=4, ordering="unordered")
    order = list(map(int, bench.told("told")))
    assert all(offset < 4 for offset in order[: order.index(0)])
    assert bench.work.lag() == 0


@covers("retries")
def test_retries(bench: PipelineBench) -> None:
    output = bench.work.output

    def third_time(record: kl.Record, context: kl.Context) -> kl.Output:
        if context.attempt < 3:
            raise ValueError("not yet")
        headers = [source_of(record), ("told", str(context.attempt).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    done = bench.run(third_time, retries=kl.Retries(max_attempts=3, delay_ms=1))
    assert set(bench.told("told")) == {"3"}
    assert (done.failed, done.retried) == (2 * RECORDS, 2 * RECORDS)
    assert bench.all_once()


def refuse(record: kl.Record) -> None:
    raise ValueError("no")


@covers("on_exhausted")
def test_on_exhausted(bench: PipelineBench) -> None:
    once = kl.Retries(max_attempts=1)
    with pytest.raises(kl.HandlerError, match=rf"^{bench.work.topic}-\d@\d+: ValueError: no"):
        bench.run(refuse, retries=once, on_exhausted=kl.Halt())
    done = bench.run(refuse, retries=once, on_exhausted=kl.DeadLetter(bench.work.output))
    dead = [one for batch in read_to_end(bench.work.servers, bench.work.output) for one in batch]
    assert (done.dead_lettered, len(dead)) == (RECORDS, RECORDS)
    assert {one.value for one in dead} == {str(number).encode() for number in range(RECORDS)}
    bench.work.group += "-2"
    assert bench.run(refuse, retries=once, on_exhausted=kl.Skip()).skipped == RECORDS
    assert bench.work.lag() == 0


@covers("on_failure")
def test_on_failure(bench: PipelineBench) -> None:
    place = str(bench.folder / "failed")

    def note(failed: kl.FailedAttempt) -> None:
        with open(place, "a") as file:  # noqa: PTH123 - travels with the pipeline
            file.write(f"{int(failed.record.value)} {failed.attempt} {failed.outcome} {failed.error!r}\n")

    done = bench.run(refuse, retries=kl.Retries(max_attempts=2, delay_ms=1), on_exhausted=kl.Skip(), on_failure=note)
    assert sorted(bench.file("failed")) == sorted(
        f"{number} {attempt} {outcome} ValueError('no')"
        for number in range(RECORDS)
        for attempt, outcome in ((1, "retried"), (2, "skipped"))
    )
    assert done.failed == 2 * RECORDS


@covers("around")
def test_around(bench: PipelineBench) -> None:
    output = bench.work.output

    @contextmanager
    def unit(record: kl.Record) -> Iterator[str]:
        yield f"around {int(record.value or b'')}"

    def tell(record: kl.Record, context: kl.Context) -> kl.Output:
        headers = [source_of(record), ("told", context.around.encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(tell, around=unit)
    assert set(bench.told("told")) == {f"around {number}" for number in range(RECORDS)}
    assert bench.all_once()


@covers("on_produced")
def test_on_produced(bench: PipelineBench) -> None:
    place = str(bench.folder / "produced")

    def note(produced: kl.Produced) -> None:
        with open(place, "a") as file:  # noqa: PTH123 - travels with the pipeline
            file.write(f"{produced.topic}-{produced.partition}@{produced.offset}\n")

    bench.run(telling(bench.work.output), on_produced=note)
    there = {
        f"{one.topic}-{one.partition}@{one.offset}"
        for batch in read_to_end(bench.work.servers, bench.work.output)
        for one in batch
    }
    assert sorted(bench.file("produced")) == sorted(there)
    assert bench.all_once()


@covers("Commit.metadata")
def test_metadata_of_commits(bench: PipelineBench) -> None:
    place = str(bench.folder / "metadata")

    class Listener(kl.RebalanceListener):
        def on_metadata(self, partition: tuple[str, int], offset: int, metadata: str) -> None:
            with open(place, "a") as file:  # noqa: PTH123 - travels with the pipeline
                file.write(f"{partition[1]} {offset} {metadata}\n")

    commit = kl.Commit(interval_ms=100, metadata=lambda _, partition, offset: f"state-{partition}-{offset}")
    pipeline = {"ordering": "partition", "commit": commit, "rebalance_listener": Listener()}
    bench.run(telling(bench.work.output), **pipeline)
    logs = bench.work.admin.log_ends([(bench.work.topic, partition) for partition in range(4)], read_committed=False)
    bench.work.fill(RECORDS)  # so that it goes on: with nothing to do it may end before it has partitions
    bench.run(telling(bench.work.output), **pipeline)
    assert sorted(bench.file("metadata")) == [
        f"{part} {end} state-{part}-{end}" for (_, part), end in sorted(logs.items())
    ]


@covers("rebalance_listener")
def test_rebalance_listener(bench: PipelineBench) -> None:
    place = str(bench.folder / "rebalances")

    class Listener(kl.RebalanceListener):
        def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
            self._note("assigned", partitions)

        def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            self._note("revoked", partitions)

        def _note(self, what: str, partitions: list[tuple[str, int]]) -> None:
            with open(place, "a") as file:  # noqa: PTH123 - travels with the pipeline
                file.write(f"{what} {len(partitions)}\n")

    bench.run(telling(bench.work.output), rebalance_listener=Listener())
    assert bench.file("rebalances") == ["assigned 4", "revoked 4"]


@covers("Periods.interval_ms")
def test_commit_interval(bench: PipelineBench) -> None:
    rare = bench.run(telling(bench.work.output, pause_s=0.02), commit=kl.Commit(interval_ms=60_000), max_concurrency=2)
    bench.work.group += "-2"
    often = bench.run(telling(bench.work.output, pause_s=0.02), commit=kl.Commit(interval_ms=20), max_concurrency=2)
    assert often.commits > rare.commits


@covers("offset_reset")
def test_offset_reset(bench: PipelineBench) -> None:
    def run(offset_reset: str) -> int:
        bench.work.group += f"-{offset_reset}"
        pipeline = bench.work.pipeline(telling(bench.work.output))
        options = {one.name: getattr(pipeline, one.name) for one in fields(pipeline)}
        running = bench.begin(kl.Pipeline(**(options | {"offset_reset": offset_reset})))
        running.wait()
        return running.snapshot().processed

    assert run("earliest") == RECORDS
    assert run("latest") == 0
    with pytest.raises(kl.KeylaneError, match="no committed offset"):
        run("error")


@covers("drain_timeout_ms")
def test_stop_waits_for_handlers_no_longer_than_it_may(bench: PipelineBench) -> None:
    place, hang_s = str(bench.folder / "begun"), bench.hang_s

    async def hang(record: kl.Record) -> None:
        with open(place, "a") as file:  # noqa: ASYNC230, PTH123 - travels with the pipeline
            file.write("begun\n")
        await asyncio.sleep(hang_s)

    running = bench.begin(bench.work.pipeline(hang, drain_timeout_ms=100, stall_timeout_ms=0))
    bench.until(lambda: bench.file("begun"))
    watch = Stopwatch()
    running.stop()
    running.wait()
    assert watch.took_s() < 25, "by default it waits for 30 s"
    assert running.snapshot().processed == 0
    assert bench.work.lag() == RECORDS


@covers("key_deserializer", "value_deserializer")
def test_deserializers(bench: PipelineBench) -> None:
    def number(data: bytes | None, context: Any) -> int:
        return int(data or b"")

    def text(data: bytes | None, context: Any) -> str:
        return (data or b"").decode()

    output = bench.work.output

    async def add(record: Any) -> kl.Output:
        headers = [("told", f"{record.key}={record.value + 1}".encode())]
        return kl.Output(output, record.key.encode(), headers=headers, partition=record.partition)

    bench.run(add, key_deserializer=text, value_deserializer=number)
    assert {int(one.rpartition("=")[2]) for one in bench.told("told")} == set(range(1, RECORDS + 1))
    assert all(one.startswith("key-") for one in bench.told("told"))


@covers("Processes.count")
def test_worker_processes(bench: PipelineBench) -> None:
    output = bench.work.output

    place = bench.folder / "processes"
    place.mkdir()
    seen = str(place)

    def compute(record: kl.Record) -> kl.Output:
        is_worker = "keylane.flow.workers.process_main" in sys.orig_argv
        open(f"{seen}/{os.getpid()}", "w").close()  # noqa: PTH123 - travels with the pipeline
        give_up_at = time.monotonic() + STARTED_WITHIN_S
        while is_worker and len(os.listdir(seen)) < 3:  # noqa: PTH208
            time.sleep(0.01)  # each has something to do, however late it started
            if time.monotonic() > give_up_at:
                for number in range(3):  # nobody else comes: nobody else waits
                    open(f"{seen}/nobody-{number}", "w").close()  # noqa: PTH123
        headers = [source_of(record), ("told", f"{is_worker} {os.getpid()}".encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(compute, workers=kl.Processes(3), ordering="unordered")
    told = set(bench.told("told"))
    assert len(told) == 3
    assert all(one.startswith("True ") for one in told), "in worker processes, and not where the engine is"
    assert bench.all_once()


@covers("Periods.every_records", "on_commit", "on_committed")
def test_commits_and_what_is_told_of_them(bench: PipelineBench) -> None:
    place = str(bench.folder / "commits")

    def note(offsets: Any, error: Any) -> None:
        with open(place, "a") as file:  # noqa: PTH123 - travels with the pipeline
            file.write(f"commit {error}\n")

    def note_record(record: kl.Record) -> None:
        with open(place, "a") as file:  # noqa: PTH123
            file.write(f"record {record.partition}@{record.offset}\n")

    bench.run(
        telling(bench.work.output),
        commit=kl.Commit(interval_ms=60_000, every_records=10),
        on_commit=note,
        on_committed=note_record,
    )
    told = bench.file("commits")
    assert told.count("commit None") >= 2
    assert len({one for one in told if one.startswith("record")}) == RECORDS
    assert bench.all_once()


@covers("handler_timeout_ms")
def test_a_handler_that_takes_too_long_has_failed(bench: PipelineBench) -> None:
    hang_s = bench.hang_s

    async def hang_once(record: kl.Record, context: kl.Context) -> None:
        if context.attempt == 1 and record.offset == 0:
            await asyncio.sleep(hang_s)

    done = bench.run(
        hang_once,
        handler_timeout_ms=100,
        retries=kl.Retries(max_attempts=2, delay_ms=1),
    )
    assert (done.processed, done.failed) == (RECORDS, 4)
    assert bench.work.lag() == 0


@covers("stall_timeout_ms")
def test_a_consumer_whose_handlers_all_hang_ends_and_names_a_record(bench: PipelineBench) -> None:
    hang_s = bench.hang_s

    async def hang(record: kl.Record) -> None:
        await asyncio.sleep(hang_s)

    with pytest.raises(kl.HandlerError, match=rf"^{bench.work.topic}-\d@\d+: no handler has ended for 0.3 s"):
        bench.run(hang, stall_timeout_ms=300, drain_timeout_ms=100)
    assert bench.work.lag() == RECORDS


@covers("beyond_log_end")
def test_a_commit_beyond_the_logs_end(bench: PipelineBench) -> None:
    beyond = {(bench.work.topic, partition): 1_000 for partition in range(4)}
    bench.work.admin.commit_offsets(bench.work.group, beyond)
    with pytest.raises(kl.KeylaneError, match="1000"):
        bench.run(telling(bench.work.output))
    assert bench.run(telling(bench.work.output), beyond_log_end="earliest").processed == RECORDS
    assert bench.all_once()


@covers("Commit.on_foreign_metadata")
def test_metadata_that_is_no_map(bench: PipelineBench) -> None:
    with closing(Consumer({"bootstrap.servers": bench.work.servers, "group.id": bench.work.group})) as other:
        marked = [TopicPartition(bench.work.topic, one, 0, "a word of somebody else's") for one in range(4)]
        other.commit(offsets=marked, asynchronous=False)
    with pytest.raises(kl.KeylaneError, match="metadata"):
        bench.run(telling(bench.work.output), commit=kl.Commit(on_foreign_metadata="fail"))
    assert bench.run(telling(bench.work.output)).processed == RECORDS
    assert bench.all_once()


@covers("ExactlyOnce.store", "ExactlyOnce.identity", "delivery")
def test_effects_in_a_database_happen_once_whatever_the_record_is_known_by(bench: PipelineBench) -> None:
    place = str(bench.folder / "effects.db")
    with closing(sqlite3.connect(place)) as effects:
        effects.execute("CREATE TABLE effects (value text)")

    def known_by(record: kl.Record) -> bytes:
        assert record.value is not None
        return record.value

    def insert(record: kl.Record, context: kl.Context) -> None:
        assert record.value is not None
        context.transaction.execute("INSERT INTO effects VALUES (?)", (record.value.decode(),))

    once = kl.ExactlyOnce(place, identity=known_by)
    bench.run(insert, delivery=once)
    bench.work.fill(RECORDS)  # the same values once more
    bench.run(insert, delivery=once)
    with closing(sqlite3.connect(place)) as effects:
        found = effects.execute("SELECT count(*), count(DISTINCT value) FROM effects").fetchone()
    values = {one.value for batch in read_to_end(bench.work.servers, bench.work.topic) for one in batch}
    assert found == (len(values), len(values))
    assert bench.work.lag() == 0


@covers("ExactlyOnce.retention_ms")
@pytest.mark.parametrize(("retention_ms", "times"), [(1, 2), (60_000, 1)])
def test_an_identity_is_known_for_so_long(bench: PipelineBench, retention_ms: int, times: int) -> None:
    place = str(bench.folder / "effects.db")
    with closing(sqlite3.connect(place)) as effects:
        effects.execute("CREATE TABLE effects (value blob)")

    def known_by(record: kl.Record) -> bytes:
        return record.value or b""

    def insert(record: kl.Record, context: kl.Context) -> None:
        context.transaction.execute("INSERT INTO effects VALUES (?)", (record.value,))

    once = kl.ExactlyOnce(place, identity=known_by, retention_ms=retention_ms)
    bench.run(insert, delivery=once)
    bench.work.fill(RECORDS)  # the same values once more
    bench.run(insert, delivery=once)
    with closing(sqlite3.connect(place)) as effects:
        assert effects.execute("SELECT count(*) FROM effects").fetchone() == (times * RECORDS,)


@covers("External.start_offsets")
def test_offsets_that_are_kept_elsewhere(bench: PipelineBench) -> None:
    place = str(bench.folder / "offsets")

    def starts(partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 5)

    def note(offsets: Any, error: Any) -> None:
        with open(place, "a") as file:  # noqa: PTH123 - travels with the pipeline
            file.writelines(f"{partition} {offset}\n" for (_, partition), offset in offsets.items())

    logs = bench.work.admin.log_ends([(bench.work.topic, partition) for partition in range(4)], read_committed=False)
    ends = {partition: end for (_, partition), end in logs.items()}
    pipeline = bench.work.pipeline(
        telling(bench.work.output), commit=kl.External(starts, interval_ms=20), on_commit=note
    )
    running = bench.begin(pipeline, endless=True)
    bench.until(lambda: {int(part): int(end) for part, end in map(str.split, bench.file("offsets"))} == ends)
    running.stop()
    running.wait()
    assert len(bench.told("told")) == sum(ends.values()) - 5 * len(ends)
    assert bench.work.admin.committed_offsets(bench.work.group) == {}


@pytest.mark.soak
@pytest.mark.parametrize(("test", "option"), covers.cases(sys.modules[__name__]))
def test_a_case_fails_when_its_option_is_ignored(
    test: Any, option: str, broker: BrokerProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In one process: what a lane ignores shows in the same assertions."""

    def bench(number: int) -> PipelineBench:
        folder = tmp_path / str(number)
        folder.mkdir()
        return PipelineBench(works(broker.bootstrap), InProcess, folder, ignores=option)

    works = request.getfixturevalue("works")
    fails_without(test, bench, request.getfixturevalue, has_control=option in HAVE_A_CONTROL)


def test_every_option_is_here() -> None:
    known = {one.name for one in fields(kl.Pipeline)} - {"workers", "batch", "commit"}
    known |= {name for value in VALUES for name in leaf_names(value)}
    assert covers.missing(known, SHOWN_ELSEWHERE) == []
