"""Every option of `Pipeline` means the same in one process and on a lane: each test runs on both.

Handlers tell what they saw in the headers of their outputs, and resources and callbacks in files: nothing of it depends
on where they run. `test_every_option_is_here` fails for an option without a test.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

import keylane as kl
from keylane.kafka.bulk import read_to_end
from kit.outputs import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RECORDS = 60
PATIENCE_S = 180.0

covered_options: set[str] = {"kafka", "topics", "handler", "assignment"}
"""The first three are part of every test. Partitions that are assigned by hand are divided among lanes, see
`test_partitions_that_are_assigned_by_hand_are_divided`."""


Test = TypeVar("Test", bound="Callable[..., None]")


def covers(*options: str) -> Callable[[Test], Test]:
    """Says which options a test is about."""
    covered_options.update(options)
    return lambda test: test


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
        self.work, self.begin, self.folder = work, begin, folder
        work.fill(RECORDS)

    def run(self, handler: Callable[..., Any], **options: Any) -> kl.Snapshot:
        running = self.begin(self.work.pipeline(handler, **options))
        running.wait()
        return running.snapshot()

    def told(self, name: str) -> list[str]:
        """What outputs say in the header `name`, in the order of their partitions."""
        logs: dict[int, list[tuple[int, str]]] = {}
        for batch in read_to_end(self.work.servers, self.work.output):
            for one in batch:
                found = next((value for key, value in one.headers if key == name and value is not None), None)
                if found is not None:
                    logs.setdefault(one.partition, []).append((one.offset, found.decode()))
        return [text for _, log in sorted(logs.items()) for _, text in sorted(log)]

    def all_once(self) -> bool:
        seen = self.work.outputs()
        return not (seen.lost or seen.repeated or seen.foreign) and self.work.lag() == 0

    def file(self, name: str) -> list[str]:
        found = self.folder / name
        return found.read_text().splitlines() if found.exists() else []


@pytest.fixture
def bench(work: Any, begin: Callable[..., Running], tmp_path: Path) -> Bench:
    return Bench(work, begin, tmp_path)


def telling(output: str, tell: Callable[[kl.Record, kl.Context], str] = lambda *_: "", pause_s: float = 0.0) -> Any:
    """A handler that copies its record and tells something in the header `told`."""

    async def copy(record: kl.Record, context: kl.Context) -> kl.Output:
        if pause_s:
            await asyncio.sleep(pause_s)
        headers = [source_of(record), ("told", tell(record, context).encode())]
        return kl.Output(output, record.key, record.value, headers=headers, partition=record.partition)

    return copy


@covers("ordering")
@pytest.mark.parametrize("ordering", ["key", "partition", "unordered"])
def test_ordering(bench: Bench, ordering: Any) -> None:
    bench.run(telling(bench.work.output, pause_s=0.002), ordering=ordering)
    assert bench.all_once()
    assert bench.work.outputs().out_of_order(ordering) == []


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


@covers("threads")
def test_threads(bench: Bench) -> None:
    output = bench.work.output

    def name(record: kl.Record) -> kl.Output:
        time.sleep(0.002)
        headers = [source_of(record), ("told", str(threading.get_ident()).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(name, threads=2, ordering="unordered")
    assert len(set(bench.told("told"))) == 2
    assert bench.all_once()


@covers("one_processor")
def test_one_processor(bench: Bench) -> None:
    output = bench.work.output

    def place(record: kl.Record) -> kl.Output:
        import os

        headers = [source_of(record), ("told", str(len(os.sched_getaffinity(0))).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(place, one_processor=True)
    assert set(bench.told("told")) == {"1"}
    assert bench.all_once()


@covers("batch_size", "batch_min_size", "batch_linger_ms")
def test_batches_and_one_outcome_a_record(bench: Bench) -> None:
    output = bench.work.output

    def handle(records: list[kl.Record]) -> list[Any]:
        made: list[Any] = []
        for record in records:
            headers = [source_of(record), ("told", str(len(records)).encode())]
            made.append(kl.Output(output, record.key, headers=headers, partition=record.partition))
        made[0] = ValueError("not this one")
        return made

    options: dict[str, Any] = {"batch_size": 5, "batch_min_size": 5, "batch_linger_ms": 500, "ordering": "unordered"}
    done = bench.run(handle, retries=kl.Retries(max_attempts=1), on_exhausted=kl.Skip(), **options)
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


@covers(
    "traversal",
    "max_buffered_records",
    "max_buffered_bytes",
    "offset_metadata_max_bytes",
    "tracing",
    "delivery",
    "outputs",
)
def test_options_that_bound_and_choose_lose_nothing(bench: Bench) -> None:
    bench.run(
        telling(bench.work.output),
        max_concurrency="auto",
        traversal="depth_first",
        max_buffered_records=10,
        max_buffered_bytes=100,
        offset_metadata_max_bytes=64,
        tracing="off",
        delivery="at_least_once",
        outputs=[bench.work.output],
    )
    assert bench.all_once()


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


@covers("commit_interval_ms")
def test_commit_interval(bench: Bench) -> None:
    rare = bench.run(telling(bench.work.output, pause_s=0.02), commit_interval_ms=60_000, max_concurrency=2)
    bench.work.group += "-2"
    often = bench.run(telling(bench.work.output, pause_s=0.02), commit_interval_ms=20, max_concurrency=2)
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


@covers("drain_timeout_ms", "revoke_timeout_ms")
def test_stop_waits_for_handlers_no_longer_than_it_may(bench: Bench) -> None:
    place = str(bench.folder / "begun")

    async def hang(record: kl.Record) -> None:
        with open(place, "a") as file:  # noqa: ASYNC230, PTH123 - travels with the pipeline
            file.write("begun\n")
        await asyncio.sleep(120)

    running = bench.begin(bench.work.pipeline(hang, drain_timeout_ms=100, revoke_timeout_ms=100))
    deadline = time.monotonic() + PATIENCE_S
    while not bench.file("begun"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.stop()
    running.wait()
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


@covers("workers", "processes")
def test_worker_processes(bench: Bench) -> None:
    output = bench.work.output

    def compute(record: kl.Record) -> kl.Output:
        import os

        headers = [source_of(record), ("told", str(os.getpid()).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    bench.run(compute, workers="process", processes=2, ordering="unordered")
    assert 1 <= len(set(bench.told("told"))) <= 2
    assert bench.all_once()


@covers("commit_mode", "commit_every_records", "on_commit", "on_committed")
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
        commit_mode="sync",
        commit_every_records=10,
        commit_interval_ms=60_000,
        on_commit=note,
        on_committed=note_record,
    )
    told = bench.file("commits")
    assert told.count("commit None") >= 2
    assert len({one for one in told if one.startswith("record")}) == RECORDS
    assert bench.all_once()


@covers("handler_timeout_ms", "stall_timeout_ms", "beyond_log_end", "on_foreign_metadata")
def test_a_handler_that_takes_too_long_has_failed(bench: Bench) -> None:
    async def hang_once(record: kl.Record, context: kl.Context) -> None:
        if context.attempt == 1 and record.offset == 0:
            await asyncio.sleep(120)

    done = bench.run(
        hang_once,
        handler_timeout_ms=100,
        stall_timeout_ms=60_000,
        beyond_log_end="earliest",
        on_foreign_metadata="fail",
        retries=kl.Retries(max_attempts=2, delay_ms=1),
    )
    assert (done.processed, done.failed) == (RECORDS, 4)
    assert bench.work.lag() == 0


@covers("store", "identity", "identity_retention_ms")
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

    options: dict[str, Any] = {"store": place, "identity": known_by, "identity_retention_ms": 60_000}
    bench.run(insert, delivery="exactly_once", **options)
    bench.work.fill(RECORDS)  # the same values once more
    bench.run(insert, delivery="exactly_once", **options)
    with closing(sqlite3.connect(place)) as effects:
        found = effects.execute("SELECT count(*), count(DISTINCT value) FROM effects").fetchone()
    values = {one.value for batch in read_to_end(bench.work.servers, bench.work.topic) for one in batch}
    assert found == (len(values), len(values))
    assert bench.work.lag() == 0


@covers("commits", "start_offsets")
def test_offsets_that_are_kept_elsewhere(bench: Bench) -> None:
    place = str(bench.folder / "offsets")

    def starts(partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 5)

    def note(offsets: Any, error: Any) -> None:
        with open(place, "a") as file:  # noqa: PTH123 - travels with the pipeline
            file.writelines(f"{partition} {offset}\n" for (_, partition), offset in offsets.items())

    options: dict[str, Any] = {"commits": "external", "start_offsets": starts, "on_commit": note}
    logs = bench.work.admin.log_ends([(bench.work.topic, partition) for partition in range(4)])
    ends = {partition: end for (_, partition), end in logs.items()}
    pipeline = bench.work.pipeline(telling(bench.work.output), commit_interval_ms=20, **options)
    running = bench.begin(pipeline, endless=True)
    deadline = time.monotonic() + PATIENCE_S
    while {int(part): int(end) for part, end in map(str.split, bench.file("offsets"))} != ends:
        assert time.monotonic() < deadline, bench.file("offsets")
        time.sleep(0.01)
    running.stop()
    running.wait()
    assert len(bench.told("told")) == sum(ends.values()) - 5 * len(ends)
    assert bench.work.admin.committed_offsets(bench.work.group) == {}


def test_every_option_is_here() -> None:
    assert {one.name for one in fields(kl.Pipeline)} == covered_options
