"""Every option of `Pipeline` means the same in one process and on a lane: each test runs on both.

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
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest
from confluent_kafka import Consumer, TopicPartition

import keylane as kl
from keylane.kafka.bulk import read_to_end
from kit.filling import filling
from kit.outputs import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORDS = 60
MANY = 2_000
"""More than is polled at once."""
PATIENCE_S = 180.0

covered_options: set[str] = {"kafka", "topics", "handler"}
"""They are part of every test."""
BATCHES = "unit/engine/test_engine_batches.py"
SHOWN_ELSEWHERE = {
    "Partitions.of": "unit/spark/test_spark_supervisor.py::test_partitions_that_are_assigned_by_hand_are_divided",
    "Batch.min_size": f"{BATCHES}::test_a_batch_waits_for_its_least_size_and_no_longer_than_it_lingers",
    "Batch.linger_ms": f"{BATCHES}::test_a_batch_waits_for_its_least_size_and_no_longer_than_it_lingers",
    "Periods.mode": "unit/engine/test_engine_commit_modes.py::test_a_synchronous_commit_holds_up_what_would_start",
    "Transactional.id_prefix": "unit/test_transactional_options.py::test_the_id_is_the_static_members_or_a_new_one",
    "revoke_timeout_ms": "unit/engine/test_engine_core.py::test_a_revoke_gives_up_handlers_after_its_limit",
}
"""What only shows in the engine's own time, and not in what a whole run leaves behind."""
VALUES = (
    kl.Batch, kl.Threads, kl.Processes, kl.Transactional, kl.ExactlyOnce, kl.Partitions, kl.Commit, kl.External
)  # fmt: skip
"""Values that have options of their own; `Retries` and `Rates` are one option each here."""
TRACE = "0af7651916cd43dd8448eb211c80319c"


Test = TypeVar("Test", bound="Callable[..., None]")


def leaf_names(value: type) -> list[str]:
    """The options of a value, each named by the class that has it."""
    owner = {name: one.__name__ for one in reversed(value.__mro__) for name in vars(one).get("__annotations__", ())}
    return [f"{owner[one.name]}.{one.name}" for one in fields(value)]


def leaves(pipeline: kl.Pipeline) -> dict[str, object]:
    """Every option of a pipeline by its name."""
    found: dict[str, object] = {}
    for one in fields(pipeline):
        value = getattr(pipeline, one.name)
        if isinstance(value, VALUES):
            found |= zip(leaf_names(type(value)), (getattr(value, name.name) for name in fields(value)), strict=True)
        else:
            found[one.name] = value
    return found


def covers(*options: str) -> Callable[[Test], Test]:
    """Says which options a test is about. It has to give each of them a value that is not the usual one."""
    covered_options.update(options)

    def mark(test: Test) -> Test:
        test.covers = set(options)  # type: ignore[attr-defined]
        return test

    return mark


class Running(Protocol):
    """A pipeline that runs until what is there now is done."""

    def snapshot(self) -> kl.Snapshot: ...
    def stop(self) -> None: ...
    def wait(self) -> None: ...


class InProcess:
    def __init__(self, pipeline: kl.Pipeline, *, endless: bool = False) -> None:
        self._consumer = kl.ParallelConsumer(pipeline, ending_offsets=None if endless else "latest")
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.snapshot, self.stop = self._consumer.snapshot, self._consumer.stop

    def _run(self) -> None:
        try:
            with self._consumer:
                self._consumer.run()
        except BaseException as error:  # raised by `wait`
            self._error = error

    def wait(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


class OnALane:
    def __init__(self, spark: Any, pipeline: kl.Pipeline, *, endless: bool = False) -> None:
        trigger = None if endless else {"availableNow": True}
        self._query = kl.spark.start(pipeline, spark, lanes=1, trigger=trigger, members="dynamic", max_lane_failures=0)
        self.snapshot, self.stop = self._query.snapshot, self._query.stop

    def wait(self) -> None:
        assert self._query.awaitTermination(PATIENCE_S), self._query.lanes


@pytest.fixture(params=["in one process", pytest.param("on a lane", marks=pytest.mark.soak)])
def begin(request: pytest.FixtureRequest) -> Callable[..., Running]:
    """Starts a pipeline in one of the two places."""
    if request.param == "in one process":
        return InProcess
    return partial(OnALane, request.getfixturevalue("spark"))


class Bench:
    """Work of one test, in one of the two places."""

    def __init__(self, work: Any, begin: Callable[..., Running], folder: Path) -> None:
        self.work, self.folder = work, folder
        self.given: set[str] = set()
        """Options that a pipeline had another value of than pipelines usually have here."""
        self._begin = begin
        self._usual = work.pipeline()
        work.fill(RECORDS)

    def begin(self, pipeline: kl.Pipeline, *, endless: bool = False) -> Running:
        given, usual = leaves(pipeline), leaves(self._usual)
        self.given.update(name for name in given | usual if given.get(name) != usual.get(name))
        return self._begin(pipeline, endless=endless)

    @staticmethod
    def until(condition: Callable[[], object], what: Callable[[], object] = lambda: None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, what()
            time.sleep(0.01)

    def run(self, handler: Callable[..., Any], **options: Any) -> kl.Snapshot:
        running = self.begin(self.work.pipeline(handler, **options))
        running.wait()
        return running.snapshot()

    def told(self, name: str) -> list[str]:
        """What outputs say in the header `name`, in the order of their partitions."""
        return [text for log in self.told_by_partition(name) for text in log]

    def told_by_partition(self, name: str) -> list[list[str]]:
        logs: dict[int, list[tuple[int, str]]] = {}
        for batch in read_to_end(self.work.servers, self.work.output):
            for one in batch:
                found = next((value for key, value in one.headers if key == name and value is not None), None)
                if found is not None:
                    logs.setdefault(one.partition, []).append((one.offset, found.decode()))
        return [[text for _, text in sorted(log)] for _, log in sorted(logs.items())]

    def all_once(self) -> bool:
        seen = self.work.outputs()
        return not (seen.lost or seen.repeated or seen.foreign) and self.work.lag() == 0

    def file(self, name: str) -> list[str]:
        found = self.folder / name
        return found.read_text().splitlines() if found.exists() else []


@pytest.fixture
def bench(work: Any, begin: Callable[..., Running], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(work, begin, tmp_path)
    yield made
    said: set[str] = getattr(request.function, "covers", set())
    assert said <= made.given, f"{sorted(said - made.given)}: no pipeline had a value that is not the usual one"


def telling(output: str, tell: Callable[[kl.Record, kl.Context], str] = lambda *_: "", pause_s: float = 0.0) -> Any:
    """A handler that copies its record and tells something in the header `told`."""

    async def copy(record: kl.Record, context: kl.Context) -> kl.Output:
        if pause_s:
            await asyncio.sleep(pause_s)
        headers = [source_of(record), ("told", tell(record, context).encode())]
        return kl.Output(output, record.key, record.value, headers=headers, partition=record.partition)

    return copy


@covers("ordering")
@pytest.mark.parametrize("ordering", ["partition", "unordered"])
def test_ordering(bench: Bench, ordering: Any) -> None:
    bench.run(telling(bench.work.output, pause_s=0.002), ordering=ordering)
    assert bench.all_once()
    assert bench.work.outputs().out_of_order(ordering) == []


def test_the_order_of_keys_is_the_default(bench: Bench) -> None:
    assert bench.work.pipeline().ordering == "key"
    bench.run(telling(bench.work.output, pause_s=0.002))
    assert bench.all_once()
    assert bench.work.outputs().out_of_order("key") == []


@covers("max_concurrency", "resource")
def test_max_concurrency_and_the_resource_of_a_worker(bench: Bench) -> None:
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
def test_threads(bench: Bench) -> None:
    output = bench.work.output

    def name(record: kl.Record) -> kl.Output:
        time.sleep(0.002)
        headers = [source_of(record), ("told", str(threading.get_ident()).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(name, workers=kl.Threads(2), ordering="unordered")
    assert len(set(bench.told("told"))) == 2
    assert bench.all_once()


@covers("one_processor")
def test_one_processor(bench: Bench) -> None:
    output = bench.work.output

    def place(record: kl.Record) -> kl.Output:
        headers = [source_of(record), ("told", str(len(os.sched_getaffinity(0))).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(place, one_processor=True)
    assert set(bench.told("told")) == {"1"}
    assert bench.all_once()


@covers("Batch.size")
def test_batches_and_one_outcome_a_record(bench: Bench) -> None:
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
def test_not_before(bench: Bench) -> None:
    due_ms = (time.time() + 0.5) * 1000
    bench.run(telling(bench.work.output, lambda *_: str(time.time() * 1000 >= due_ms)), not_before=lambda _: due_ms)
    assert set(bench.told("told")) == {"True"}
    assert bench.all_once()


@covers("rates")
def test_rates(bench: Bench) -> None:
    rates = kl.Rates(records_per_s=100, burst_ms=0)
    bench.run(telling(bench.work.output, lambda *_: str(time.time())), rates=rates, ordering="unordered")
    times = sorted(map(float, bench.told("told")))
    assert times[-1] - times[0] >= (RECORDS - 2) / 100 * 0.9
    assert bench.all_once()


@covers("traversal")
def test_depth_first_finishes_a_partition_before_the_next(bench: Bench) -> None:
    bench.run(
        telling(bench.work.output, lambda record, _: f"{time.monotonic_ns()} {record.partition}"),
        max_concurrency=1,
        traversal="depth_first",
        ordering="unordered",
    )
    order = [partition for _, partition in sorted((int(ns), one) for ns, one in map(str.split, bench.told("told")))]
    turns = sum(one != another for one, another in pairwise(order))
    assert turns < 10, f"a partition that is fetched late costs two turns, and fair ones take dozens: {order}"
    assert bench.all_once()


@covers("max_buffered_records")
def test_max_buffered_records(bench: Bench) -> None:
    assert 0 < buffered_while_handlers_hang(bench, max_buffered_records=10) <= 10


@covers("max_buffered_bytes")
def test_max_buffered_bytes(bench: Bench) -> None:
    """What is polled before the first record's size is known is more than a byte; the rest is not."""
    bench.work.fill(MANY)
    assert 0 < buffered_while_handlers_hang(bench, max_buffered_bytes=1) < MANY


def buffered_while_handlers_hang(bench: Bench, **options: Any) -> int:
    output, gate = bench.work.output, str(bench.folder / "gate")

    async def wait(record: kl.Record) -> kl.Output:
        while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240, PTH110 - it may be in another process
            await asyncio.sleep(0.01)
        return kl.Output(output, record.key, headers=[source_of(record)], partition=record.partition)

    running = bench.begin(bench.work.pipeline(wait, max_concurrency=1, **options))
    try:
        bench.until(lambda: any(one.paused for one in running.snapshot().partitions), running.snapshot)
        return running.snapshot().buffered
    finally:
        Path(gate).touch()
        running.wait()
        assert bench.all_once()


@covers("Commit.metadata_max_bytes")
@pytest.mark.parametrize(("characters", "runs_ahead"), [(4, False), (400, True)])
def test_what_the_metadata_cannot_tell_does_not_start(bench: Bench, characters: int, runs_ahead: bool) -> None:
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
def test_outputs_carry_the_trace_on(bench: Bench, tracing: Any) -> None:
    with filling(bench.work.servers) as producer:
        header = ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())
        producer.produce(kl.Output(bench.work.topic, b"key-0", b"traced", headers=[header]))
    bench.run(telling(bench.work.output), tracing=tracing)
    assert [TRACE in one for one in bench.told("traceparent")] == ([True] if tracing == "on" else [])
    assert bench.all_once()


@covers("outputs")
def test_an_output_topic_that_is_not_there_is_told_at_the_start(bench: Bench) -> None:
    with pytest.raises(kl.KeylaneError, match="no-such-topic"):
        bench.run(refuse, outputs=["no-such-topic"])
    assert bench.work.lag() == RECORDS, "before anything ran"


@covers("max_uncommitted")
def test_max_uncommitted(bench: Bench) -> None:
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
def test_retries(bench: Bench) -> None:
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
def test_on_exhausted(bench: Bench) -> None:
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


@covers("on_produced")
def test_on_produced(bench: Bench) -> None:
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
def test_metadata_of_commits(bench: Bench) -> None:
    place = str(bench.folder / "metadata")

    class Listener(kl.RebalanceListener):
        def on_metadata(self, partition: tuple[str, int], offset: int, metadata: str) -> None:
            with open(place, "a") as file:  # noqa: PTH123 - travels with the pipeline
                file.write(f"{partition[1]} {offset} {metadata}\n")

    commit = kl.Commit(interval_ms=100, metadata=lambda _, partition, offset: f"state-{partition}-{offset}")
    pipeline = {"ordering": "partition", "commit": commit, "rebalance_listener": Listener()}
    bench.run(telling(bench.work.output), **pipeline)
    logs = bench.work.admin.log_ends([(bench.work.topic, partition) for partition in range(4)])
    bench.work.fill(RECORDS)  # so that it goes on: with nothing to do it may end before it has partitions
    bench.run(telling(bench.work.output), **pipeline)
    assert sorted(bench.file("metadata")) == [
        f"{part} {end} state-{part}-{end}" for (_, part), end in sorted(logs.items())
    ]


@covers("rebalance_listener")
def test_rebalance_listener(bench: Bench) -> None:
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
def test_commit_interval(bench: Bench) -> None:
    rare = bench.run(telling(bench.work.output, pause_s=0.02), commit=kl.Commit(interval_ms=60_000), max_concurrency=2)
    bench.work.group += "-2"
    often = bench.run(telling(bench.work.output, pause_s=0.02), commit=kl.Commit(interval_ms=20), max_concurrency=2)
    assert often.commits > rare.commits


@covers("offset_reset")
def test_offset_reset(bench: Bench) -> None:
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
def test_stop_waits_for_handlers_no_longer_than_it_may(bench: Bench) -> None:
    place = str(bench.folder / "begun")

    async def hang(record: kl.Record) -> None:
        with open(place, "a") as file:  # noqa: ASYNC230, PTH123 - travels with the pipeline
            file.write("begun\n")
        await asyncio.sleep(120)

    running = bench.begin(bench.work.pipeline(hang, drain_timeout_ms=100, stall_timeout_ms=0))
    bench.until(lambda: bench.file("begun"))
    stopped = time.monotonic()
    running.stop()
    running.wait()
    assert time.monotonic() - stopped < 25, "by default it waits for 30 s"
    assert running.snapshot().processed == 0
    assert bench.work.lag() == RECORDS


@covers("key_deserializer", "value_deserializer")
def test_deserializers(bench: Bench) -> None:
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
def test_worker_processes(bench: Bench) -> None:
    output = bench.work.output

    def compute(record: kl.Record) -> kl.Output:
        time.sleep(0.01)
        headers = [
            source_of(record),
            ("told", f"{'keylane.flow.workers.process_main' in sys.orig_argv} {os.getpid()}".encode()),
        ]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(compute, workers=kl.Processes(2), ordering="unordered")
    told = set(bench.told("told"))
    assert len(told) == 2
    assert all(one.startswith("True ") for one in told), "in worker processes, and not where the engine is"
    assert bench.all_once()


@covers("Periods.every_records", "on_commit", "on_committed")
def test_commits_and_what_is_told_of_them(bench: Bench) -> None:
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
def test_a_handler_that_takes_too_long_has_failed(bench: Bench) -> None:
    async def hang_once(record: kl.Record, context: kl.Context) -> None:
        if context.attempt == 1 and record.offset == 0:
            await asyncio.sleep(120)

    done = bench.run(
        hang_once,
        handler_timeout_ms=100,
        retries=kl.Retries(max_attempts=2, delay_ms=1),
    )
    assert (done.processed, done.failed) == (RECORDS, 4)
    assert bench.work.lag() == 0


@covers("stall_timeout_ms")
def test_a_consumer_whose_handlers_all_hang_ends_and_names_a_record(bench: Bench) -> None:
    async def hang(record: kl.Record) -> None:
        await asyncio.sleep(120)

    with pytest.raises(kl.HandlerError, match=rf"^{bench.work.topic}-\d@\d+: no handler has ended for 0.3 s"):
        bench.run(hang, stall_timeout_ms=300, drain_timeout_ms=100)
    assert bench.work.lag() == RECORDS


@covers("beyond_log_end")
def test_a_commit_beyond_the_logs_end(bench: Bench) -> None:
    beyond = {(bench.work.topic, partition): 1_000 for partition in range(4)}
    bench.work.admin.commit_offsets(bench.work.group, beyond)
    with pytest.raises(kl.KeylaneError, match="1000"):
        bench.run(telling(bench.work.output))
    assert bench.run(telling(bench.work.output), beyond_log_end="earliest").processed == RECORDS
    assert bench.all_once()


@covers("Commit.on_foreign_metadata")
def test_metadata_that_is_no_map(bench: Bench) -> None:
    with closing(Consumer({"bootstrap.servers": bench.work.servers, "group.id": bench.work.group})) as other:
        marked = [TopicPartition(bench.work.topic, one, 0, "a word of somebody else's") for one in range(4)]
        other.commit(offsets=marked, asynchronous=False)
    with pytest.raises(kl.KeylaneError, match="metadata"):
        bench.run(telling(bench.work.output), commit=kl.Commit(on_foreign_metadata="fail"))
    assert bench.run(telling(bench.work.output)).processed == RECORDS
    assert bench.all_once()


@covers("ExactlyOnce.store", "ExactlyOnce.identity", "delivery")
def test_effects_in_a_database_happen_once_whatever_the_record_is_known_by(bench: Bench) -> None:
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
def test_an_identity_is_known_for_so_long(bench: Bench, retention_ms: int, times: int) -> None:
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
def test_offsets_that_are_kept_elsewhere(bench: Bench) -> None:
    place = str(bench.folder / "offsets")

    def starts(partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 5)

    def note(offsets: Any, error: Any) -> None:
        with open(place, "a") as file:  # noqa: PTH123 - travels with the pipeline
            file.writelines(f"{partition} {offset}\n" for (_, partition), offset in offsets.items())

    logs = bench.work.admin.log_ends([(bench.work.topic, partition) for partition in range(4)])
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


def test_every_option_is_here() -> None:
    known = {one.name for one in fields(kl.Pipeline)} - {"workers", "batch", "commit"}
    known |= {name for value in VALUES for name in leaf_names(value)}
    assert known == covered_options | SHOWN_ELSEWHERE.keys()
    assert covered_options & SHOWN_ELSEWHERE.keys() == set()
    for file, _, test in (place.partition("::") for place in SHOWN_ELSEWHERE.values()):
        assert f"def {test}(" in (Path(__file__).parents[1] / file).read_text()
