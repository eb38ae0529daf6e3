"""`acknowledged` and carry-over on a real broker: the group's lag, fencing, and the crash matrix of ADR 40."""

from __future__ import annotations

import itertools
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.offsets import OffsetMap, decode
from keylane.spark import CarryOver, GroupCommits, acknowledged, parallel_map
from keylane.spark.structured.acknowledged import INSTANCE_ID
from keylane.spark.structured.carry_lists import Lists
from kit.filling import filling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from keylane.broker.process import BrokerProcess

_numbers = itertools.count()
FILLED_MS = time.time_ns() // 1_000_000 - 60_000
"""The first record's own timestamp."""


@dataclass
class Job:
    """A topic with one partition of 20 records of 4 keys, and a query that writes their numbers into a list."""

    spark: SparkSession
    servers: str
    folder: Path
    name: str = field(default_factory=lambda: f"job-{next(_numbers)}")
    written: list[tuple[int, list[int]]] = field(default_factory=list)
    """What the sink got: (batch, numbers)."""

    def __post_init__(self) -> None:
        self.admin = Admin({"bootstrap.servers": self.servers})
        self.admin.create_topics({self.name: 1, f"{self.name}-dead": 1})
        self.fill(0, 20)

    def fill(self, start: int, stop: int) -> None:
        with filling(self.servers) as producer:
            for number in range(start, stop):
                headers = [("trace", b"t-%d" % number), ("empty", None)]
                key, value = b"%d" % (number % 4), b"%d" % number
                producer.produce(kl.Output(self.name, key, value, headers, timestamp_ms=FILLED_MS + number))

    def source(self, **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": self.servers, "kafka.group.id": self.name, "subscribe": self.name}
        return (
            self.spark.readStream.format("keylane").options(**given | {"startingOffsets": "committed"} | options).load()
        )

    def sink(self, frame: DataFrame, batch: int) -> None:
        self.written.append((batch, sorted(int(bytes(row.value)) for row in frame.collect())))

    def writer(self, frame: DataFrame, step: Callable[[DataFrame, int], Any]) -> DataStreamWriter:
        return frame.writeStream.foreachBatch(step).option("checkpointLocation", str(self.folder / "checkpoint"))

    def run(self, frame: DataFrame, step: Callable[[DataFrame, int], Any]) -> None:
        """One availableNow query, to its end; raises what it failed with."""
        query = self.writer(frame, step).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120), "it does not end"
        finally:
            query.stop()

    def run_what_is_due(self, frame: DataFrame, step: Callable[[DataFrame, int], Any]) -> None:
        """A query that is stopped while the carried records wait; raises what it failed with."""
        query = self.writer(frame, step).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def carry_over(self, **options: Any) -> CarryOver:
        return CarryOver(str(self.folder / "lists"), kafka={"bootstrap.servers": self.servers}, **options)

    def carries(self, function: Callable[..., Any], carry: CarryOver, **options: Any) -> DataFrame:
        step = parallel_map(
            function, "value binary, offset bigint", ordering="key", key="key", carry_over=carry, **options
        )
        headers = {"includeHeaders": "true"} if carry.dead_letter is not None else {}
        return self.source(carryOver=carry.folder, **headers).transform(step)

    def forget_commit(self, batch: int) -> None:
        """As if the driver had died before the checkpoint had the batch."""
        commits = self.folder / "checkpoint" / "commits"
        for name in (f"{batch}", f".{batch}.crc"):
            (commits / name).unlink(missing_ok=True)

    def standing(self) -> OffsetMap:
        commit = self.admin.committed_offsets(self.name)[self.name, 0]
        return decode(commit.metadata, commit.offset)


@pytest.fixture
def job(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Job:
    return Job(spark, broker.bootstrap, tmp_path)


def broken(*numbers: int) -> Callable[..., Any]:
    """Copies a record, but for those that the service refuses now."""

    async def function(row: Any) -> Any:
        if int(bytes(row.value)) in numbers:
            raise ValueError("busy")
        return (row.value, row.offset)

    return function


LATER = kl.Retries(max_attempts=5, delay_ms=1, max_delay_ms=1)
NOT_NOW = kl.Retries(max_attempts=5, delay_ms=3_600_000, max_delay_ms=3_600_000)
PROMPT_S = 60.0
"""For what takes no time, on a machine that is busy; the wait that it cuts short is an hour."""


@pytest.mark.full
def test_the_group_has_what_the_sink_has(job: Job, until: Callable[..., None]) -> None:
    streams = job.spark._jsparkSession.streams()
    heard_by = len(streams.listListeners())
    job.run(job.source(maxOffsetsPerTrigger="8"), acknowledged(job.sink))
    assert [len(numbers) for _, numbers in job.written] == [8, 8, 4]
    assert job.standing() == OffsetMap(20)
    members = job.admin.describe_group(job.name).members
    assert [one.group_instance_id for one in members] == [INSTANCE_ID]
    until(lambda: len(streams.listListeners()) == heard_by)  # a query that has ended leaves none behind


@pytest.mark.full
def test_a_listener_commits_for_a_built_in_sink(job: Job, until: Callable[..., None]) -> None:
    listener = GroupCommits({"bootstrap.servers": job.servers, "group.id": job.name}, query=job.name)
    job.spark.streams.addListener(listener)
    try:
        writer = job.source().writeStream.format("noop").queryName(job.name).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(job.folder / "checkpoint")).start()
        query.awaitTermination(120)
        assert query.exception() is None
        until(lambda: (job.name, 0) in job.admin.committed_offsets(job.name))
    finally:
        job.spark.streams.removeListener(listener)
        listener.close()
    assert job.standing() == OffsetMap(20)


@pytest.mark.full
def test_the_rows_of_a_batch_with_carry_over_are_made_in_one_job(job: Job) -> None:
    """Before its list is written, and not by the sink, which reads nothing here."""
    carry, made = job.carry_over(), []

    async def function(row: Any) -> Any:
        if int(bytes(row.value)) == 5:
            raise ValueError("busy")
        return (row.value, row.offset)

    def sink(_: DataFrame, batch: int) -> None:
        found = Lists(carry.folder).read(batch)
        made.append(found and len(found.records()))

    query = job.writer(job.carries(function, carry, retries=NOT_NOW), acknowledged(sink, carry_over=carry)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert made == [4], "5, and 9, 13 and 17 behind it"
    context: Any = job.spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()
    assert len(context.statusTracker().getJobIdsForGroup(str(query.runId))) == 1


@pytest.mark.soak
def test_a_failed_record_leaves_its_batch_with_what_follows_of_its_key(job: Job) -> None:
    carry = job.carry_over()
    job.run_what_is_due(job.carries(broken(5), carry, retries=NOT_NOW), acknowledged(job.sink, carry_over=carry))
    assert job.written == [(0, [n for n in range(20) if n % 4 != 1 or n < 5])]
    assert job.standing() == OffsetMap(5, [5, 9, 13, 17], 19)
    # a new checkpoint goes on from the group's map, and gets exactly what is left
    again = Job.__new__(Job)
    again.__dict__.update(job.__dict__)
    again.folder = job.folder / "again"
    job.written.clear()
    again.run(again.source(), acknowledged(again.sink))
    assert job.written == [(0, [5, 9, 13, 17])]
    assert job.standing() == OffsetMap(20)


@pytest.mark.soak
def test_carried_records_run_in_a_later_batch_in_order(job: Job) -> None:
    mended = job.folder / "mended"
    attempts: Any = job.spark.sparkContext.accumulator(0)

    async def function(row: Any, context: kl.Context) -> Any:
        attempts.add(1)
        if int(bytes(row.value)) == 5 and not mended.exists():
            raise ValueError("busy")
        return (row.value, row.offset)

    carry = job.carry_over()
    job.run_what_is_due(job.carries(function, carry, retries=NOT_NOW), acknowledged(job.sink, carry_over=carry))
    assert attempts.value == 17  # of 20: 9, 13 and 17 wait for 5, which failed
    mended.touch()
    job.fill(20, 24)
    _make_due(job)
    job.run(job.carries(function, carry, retries=LATER), acknowledged(job.sink, carry_over=carry))
    assert job.written[1] == (1, [5, 9, 13, 17, 20, 21, 22, 23])
    assert job.standing() == OffsetMap(24)


def test_what_is_not_due_holds_up_no_batch_and_comes_when_it_is_due(job: Job) -> None:
    """With what follows of its key; `availableNow` waits for it."""
    place = job.folder / "due"

    def later(row: Any) -> float | None:
        if int(bytes(row.value)) != 5:
            return None
        if not place.exists():
            place.write_text(str((time.time() + 2) * 1000))
        return float(place.read_text())

    def function(row: Any) -> Any:
        assert int(bytes(row.value)) not in (5, 9, 13, 17) or time.time() * 1000 >= float(place.read_text())
        return (row.value, row.offset)

    carry = job.carry_over()
    frame = job.carries(function, carry, retries=NOT_NOW, not_before=later)
    job.run(frame, acknowledged(job.sink, carry_over=carry))
    assert job.written == [(0, [n for n in range(20) if n % 4 != 1 or n < 5]), (1, [5, 9, 13, 17])]
    assert job.standing() == OffsetMap(20)


@pytest.mark.parametrize("shuffled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_tasks_know_what_is_carried_without_the_folder(
    job: Job, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's processes stand elsewhere, as executors on machines of their own do. With a shuffle behind the step,
    adaptive execution runs it before it calls `foreachBatch`."""
    monkeypatch.chdir(job.folder)
    carry = CarryOver(
        "carried", dead_letter=kl.DeadLetter(f"{job.name}-dead"), kafka={"bootstrap.servers": job.servers}
    )
    calls, sinks = job.folder / "calls", iter([OSError("away")])

    def function(row: Any) -> Any:
        with calls.open("a") as file:
            file.write(f"{int(bytes(row.value))}\n")
        if int(bytes(row.value)) == 5:
            raise ValueError("busy")
        return (row.value, row.offset)

    def sink(frame: DataFrame, batch: int) -> None:
        rows = frame.collect()  # a replay makes them again
        if (error := next(sinks, None)) is not None:
            raise error
        job.written.append((batch, sorted(int(bytes(row.value)) for row in rows)))

    def run() -> None:
        frame = job.carries(function, carry, retries=kl.Retries(max_attempts=2, delay_ms=10))
        job.run(frame.repartition(1) if shuffled else frame, acknowledged(sink, carry_over=carry))

    with pytest.raises(StreamingQueryException, match="away"):
        run()
    run()
    assert sorted(n for _, numbers in job.written for n in numbers) == [n for n in range(20) if n != 5]
    assert calls.read_text().split().count("5") == 2, "attempts are counted across batches"
    assert carry.folder == str(job.folder / "carried")


def test_a_step_that_the_plan_has_twice_is_refused(job: Job) -> None:
    carry = job.carry_over()
    rows = job.carries(broken(), carry)
    with pytest.raises(StreamingQueryException, match="plan has 2 steps of parallel_map with one"):
        job.run(rows.where("offset > 3").union(rows.where("offset < 4")), acknowledged(job.sink, carry_over=carry))
    assert job.written == []


@pytest.mark.full
def test_a_stream_that_is_split_and_united_is_one_source(job: Job) -> None:
    source = job.source()
    job.run(source.where("offset % 2 = 0").union(source.where("offset % 2 = 1")), acknowledged(job.sink))
    assert job.written == [(0, [*range(20)])]
    assert job.standing() == OffsetMap(20)


def _make_due(job: Job) -> None:
    """The hour is over."""
    (name,) = [one for one in (job.folder / "lists").iterdir() if one.suffix == ".json"]
    found = Lists(str(job.folder / "lists")).read(int(name.stem))
    assert found is not None
    name.unlink()
    due = {partition: {one: (n, 0) for one, (n, _) in some.items()} for partition, some in found.carried.items()}
    Lists(str(job.folder / "lists")).write_once(type(found)(found.batch, found.id, found.seq, due, found.dead))


@pytest.mark.soak
def test_after_the_last_attempt_a_record_goes_to_the_dead_letter_topic(job: Job) -> None:
    carry = job.carry_over(dead_letter=kl.DeadLetter(f"{job.name}-dead"))
    job.run(job.carries(broken(5), carry, retries=LATER), acknowledged(job.sink, carry_over=carry))
    assert sorted(n for _, numbers in job.written for n in numbers) == [n for n in range(20) if n != 5]
    (dead,) = [record for some in read_to_end(job.servers, f"{job.name}-dead") for record in some]
    assert (dead.key, dead.value) == (b"1", b"5")
    assert dict(dead.headers)["keylane.attempts"] == b"5"
    assert job.standing() == OffsetMap(20)


@pytest.mark.soak
def test_a_batch_ends_within_its_deadline(job: Job) -> None:
    async def function(row: Any) -> Any:
        import asyncio

        if int(bytes(row.value)) == 5:
            await asyncio.sleep(3600)
        return (row.value, row.offset)

    carry = job.carry_over(deadline_ms=5_000)
    job.run_what_is_due(job.carries(function, carry, retries=NOT_NOW), acknowledged(job.sink, carry_over=carry))
    assert job.written == [(0, [n for n in range(20) if n % 4 != 1 or n < 5])]
    listed = Lists(carry.folder).read(0)
    assert listed is not None
    assert {offset: attempts for offset, (attempts, _) in listed.carried[job.name, 0].items()} == {
        5: 1,
        9: 0,
        13: 0,
        17: 0,
    }


class CrashError(Exception):
    """The driver dies here."""


def test_available_now_ends_when_every_record_is_written_or_dead(job: Job) -> None:
    """It waits for the retries of what it carries, also in the run after a crash; by the sink and the dead letters."""
    attempts = job.folder / "attempts"
    attempts.mkdir()

    async def function(row: Any) -> Any:
        number = int(bytes(row.value))
        (attempts / f"{number}.{uuid.uuid4().hex}").touch()
        if number == 5 or (number % 5 == 2 and len(list(attempts.glob(f"{number}.*"))) < 2):
            raise ConnectionError("busy")
        return (row.value, row.offset)

    written: dict[int, list[int]] = {}
    crashes = [CrashError("the driver dies while records wait")]

    def write(frame: DataFrame, batch: int) -> None:
        written[batch] = sorted(int(bytes(row.value)) for row in frame.collect())
        if batch == 1 and crashes:
            raise crashes.pop()

    carry = job.carry_over(dead_letter=kl.DeadLetter(f"{job.name}-dead"))
    frame = job.carries(function, carry, retries=kl.Retries(max_attempts=3, delay_ms=1_000, multiplier=1))
    with pytest.raises(Exception, match="the driver dies"):
        job.run(frame, acknowledged(write, carry_over=carry))
    job.fill(20, 24)
    job.run(frame, acknowledged(write, carry_over=carry))
    (dead,) = [record for some in read_to_end(job.servers, f"{job.name}-dead") for record in some]
    assert (dead.key, dead.value) == (b"1", b"5")
    assert dead.headers == [
        ("trace", b"t-5"),
        ("empty", None),
        ("keylane.topic", job.name.encode()),
        ("keylane.partition", b"0"),
        ("keylane.offset", b"5"),
        ("keylane.timestamp", b"%d" % (FILLED_MS + 5)),
        ("keylane.error.class", b"ConnectionError"),
        ("keylane.error.text", b"busy"),
        ("keylane.attempts", b"3"),
    ]
    assert sorted(n for numbers in written.values() for n in numbers) == [n for n in range(24) if n != 5]
    assert len(list(attempts.glob("5.*"))) == 3


@pytest.mark.parametrize(
    "trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}], ids=lambda one: next(iter(one))
)
def test_a_query_that_is_stopped_says_how_many_records_it_carries(
    job: Job, trigger: Any, until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    carry = job.carry_over()
    frame = job.carries(broken(5), carry, retries=NOT_NOW)
    query = job.writer(frame, acknowledged(job.sink, carry_over=carry)).trigger(**trigger).start()
    try:
        until((job.folder / "checkpoint" / "commits" / "0").exists, query.exception)
        assert not query.awaitTermination(1), "four records wait for an hour"
    finally:
        began = time.monotonic()
        query.stop()
    assert time.monotonic() - began < PROMPT_S, "the wait ends with the query"
    until(lambda: "the query ended with 4 records carried" in caplog.text)


@pytest.mark.parametrize(
    ("dies", "sink"),
    [
        pytest.param("before the list", "appending", marks=pytest.mark.soak),
        pytest.param("before the sink", "appending", marks=pytest.mark.soak),
        pytest.param("after the sink", "appending", marks=pytest.mark.soak),
        pytest.param("after the sink", "idempotent", marks=pytest.mark.soak),
        pytest.param("after the checkpoint", "appending", marks=pytest.mark.soak),
    ],
)
def test_the_crash_matrix(job: Job, dies: str, sink: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the driver dies: no row is lost, and the sink that has a batch sees the same rows of it again."""
    idempotent: dict[int, list[int]] = {}

    def write(frame: DataFrame, batch: int) -> None:
        crash_once("before the sink")
        numbers = sorted(int(bytes(row.value)) for row in frame.collect())
        if sink == "idempotent":
            assert idempotent.setdefault(batch, numbers) == numbers, "a batch was changed"
        else:
            job.written.append((batch, numbers))
        crash_once("after the sink")

    crashes = [dies]

    def crash_once(where: str) -> None:
        if where in crashes:
            crashes.remove(where)
            raise CrashError(where)

    carry = job.carry_over()
    if dies == "before the list":
        whole = Lists.write_once

        def write_once(self: Lists, made: Any) -> Any:
            crash_once("before the list")
            return whole(self, made)

        monkeypatch.setattr(Lists, "write_once", write_once)
    first = job.carries(broken(5, 10), carry, retries=NOT_NOW)
    if dies == "after the checkpoint":
        crashes.clear()
        job.run_what_is_due(first, acknowledged(write, carry_over=carry))
    else:
        with pytest.raises(Exception, match=dies):
            job.run_what_is_due(first, acknowledged(write, carry_over=carry))
    listed = Lists(carry.folder).read(0)
    assert (listed is None) == (dies == "before the list")
    # The service refuses others now: a batch with a list must not care, one without may carry other records.
    job.fill(20, 22)
    mended = broken() if listed is not None else broken(6)
    job.run_what_is_due(job.carries(mended, carry, retries=NOT_NOW), acknowledged(write, carry_over=carry))
    _finish(job, carry, write)
    batches = list(idempotent.values()) if sink == "idempotent" else [numbers for _, numbers in job.written]
    emitted = sorted(n for numbers in batches for n in numbers)
    if sink == "appending" and dies == "after the sink":
        assert job.written[0] == job.written[1], "the batch was repeated, and nothing else"
        emitted = sorted(n for _, numbers in job.written[1:] for n in numbers)
    assert emitted == list(range(22))
    assert job.standing() == OffsetMap(22)


def _finish(job: Job, carry: CarryOver, write: Any) -> None:
    """Run what is still carried, all of it due."""
    lists = Lists(carry.folder)
    newest = lists.newest()
    assert newest is not None
    if newest.carried:
        path = job.folder / "lists" / f"{newest.batch}.json"
        path.unlink()
        due = {name: {one: (n, 0) for one, (n, _) in some.items()} for name, some in newest.carried.items()}
        lists.write_once(type(newest)(newest.batch, newest.id, newest.seq, due, newest.dead))
        job.run(job.carries(broken(), carry, retries=LATER), acknowledged(write, carry_over=carry))


@pytest.mark.soak
def test_a_second_driver_fences_the_first(job: Job, until: Callable[..., None]) -> None:
    """Two queries of one group: the first one commits nothing more and fails, the second one goes on."""
    again = Job.__new__(Job)
    again.__dict__.update(job.__dict__)
    again.folder, again.written = job.folder / "again", []

    def start(one: Job) -> Any:
        writer = one.source().writeStream.foreachBatch(acknowledged(one.sink))
        return writer.option("checkpointLocation", str(one.folder / "checkpoint")).start()

    first = start(job)
    try:
        first.processAllAvailable()
        second = start(again)
        try:
            job.fill(20, 24)
            until(lambda: again.written, lambda: second.exception())
            job.fill(24, 28)
            until(lambda: not first.isActive)
            assert "no longer its member" in str(first.exception())
            second.processAllAvailable()
            assert job.standing() == OffsetMap(28)
        finally:
            second.stop()
    finally:
        first.stop()


@pytest.mark.soak
def test_state_after_parallel_map_is_right_after_replays(job: Job) -> None:
    """Counts by key, while records are carried and the driver dies after the sink and before it."""
    counts: dict[bytes, int] = {}
    crashes = [1, 2]

    def write(frame: DataFrame, batch: int) -> None:
        crash = crashes.pop(0) if crashes and crashes[0] == batch + 1 else None
        if crash == 2:
            raise CrashError("before the sink")
        counts.update({bytes(row.key): row["count"] for row in frame.collect()})
        if crash == 1:
            raise CrashError("after the sink")

    def query(carry: CarryOver, *refused: int) -> None:
        step = parallel_map(
            broken(*refused), "value binary, offset bigint", ordering="key", key="key", carry_over=carry, retries=LATER
        )
        keyed = job.source(carryOver=carry.folder, maxOffsetsPerTrigger="10").transform(step)
        counted = keyed.selectExpr("cast(cast(value AS string) AS int) % 4 AS k").groupBy("k").count()
        frame = counted.selectExpr("cast(cast(k AS string) AS binary) AS key", "count")
        writer = frame.writeStream.outputMode("update").foreachBatch(acknowledged(write, carry_over=carry))
        run = writer.option("checkpointLocation", str(job.folder / "checkpoint")).trigger(availableNow=True).start()
        run.awaitTermination(120)
        if error := run.exception():
            raise error

    job.spark.conf.set("spark.sql.shuffle.partitions", "2")
    carry = job.carry_over()
    for where in ("after the sink", "before the sink"):
        with pytest.raises(Exception, match=where):
            query(carry, 5)
    while sum(counts.values()) < 20:
        query(carry)
    job.fill(20, 28)
    while sum(counts.values()) < 28:
        query(carry)
    assert counts == {b"%d" % key: 7 for key in range(4)}
    assert job.standing() == OffsetMap(28)


@pytest.mark.soak
@pytest.mark.parametrize("outage_s", [0, 150])
def test_an_outage_of_the_service_stops_the_reading_and_not_the_query(
    job: Job, outage_s: int, until: Callable[..., None]
) -> None:
    """While the service refuses everything, no more is read than the group's map can hold; then all is through."""
    mended = job.folder / "mended"

    async def function(row: Any) -> Any:
        if not mended.exists():
            raise ConnectionError("the service is down")
        return (row.value, row.offset)

    carry = job.carry_over()
    job.fill(20, 1_000)
    tries = kl.Retries(max_attempts=100_000, delay_ms=200, max_delay_ms=1_000)
    step = parallel_map(
        function, "value binary, offset bigint", ordering="key", key="key", carry_over=carry, retries=tries
    )
    frame = job.source(carryOver=carry.folder, maxOffsetsPerTrigger="400").transform(step)
    lists = Lists(carry.folder)

    def carried() -> int:
        found = lists.newest()
        return 0 if found is None else len(found.records())

    writer = frame.writeStream.foreachBatch(acknowledged(job.sink, carry_over=carry))
    query = writer.option("checkpointLocation", str(job.folder / "checkpoint")).start()
    try:
        until(lambda: carried() >= 400, query.exception)
        began = time.monotonic()
        newest = lists.newest()
        assert newest is not None
        until(lambda: (lists.newest() or newest).batch >= newest.batch + 2, query.exception)
        while time.monotonic() - began < outage_s:
            assert query.isActive, query.exception()
            time.sleep(1)
        assert carried() == 400, "no more is read"
        assert not any(numbers for _, numbers in job.written)
        mended.touch()
        until(lambda: sum(len(numbers) for _, numbers in job.written) >= 1_000, query.exception)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(n for _, numbers in job.written for n in numbers) == list(range(1_000))
    assert job.standing() == OffsetMap(1_000)


@pytest.mark.parametrize("by_column", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_sink_that_would_feed_its_own_query_is_refused(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, by_column: bool
) -> None:
    job = Job(spark, broker.bootstrap, tmp_path)

    def write(frame: DataFrame, _: int) -> None:
        columns = ["key", "value", *(["topic"] if by_column else [])]
        options = {"kafka.bootstrap.servers": broker.bootstrap, **({} if by_column else {"topic": job.name})}
        frame.select(*columns).write.format("keylane").mode("append").options(**options).save()

    with pytest.raises(Exception, match=f"the sink's topic '{job.name}' is one that the query reads itself"):
        job.run(job.source(), acknowledged(write))
    assert job.admin.log_ends([(job.name, 0)], read_committed=False) == {(job.name, 0): 20}, "nothing was produced"


def test_a_sink_for_another_topic_is_nobodys_business(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    job = Job(spark, broker.bootstrap, tmp_path)

    def write(frame: DataFrame, _: int) -> None:
        options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": f"{job.name}-dead"}
        frame.select("key", "value").write.format("keylane").mode("append").options(**options).save()

    job.run(job.source(), acknowledged(write))
    assert job.admin.log_ends([(f"{job.name}-dead", 0)], read_committed=False) == {(f"{job.name}-dead", 0): 20}
