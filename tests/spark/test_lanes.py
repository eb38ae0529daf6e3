"""Pipelines on lanes of a real session, against the embedded broker; verdicts by reading the topics."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import urllib.request
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.metrics.prometheus import MetricsServer
from kit.outputs import covered, source_of
from kit.processes import thread_names, words
from kit.protocol import ProtocolClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from keylane.options import Ordering

AVAILABLE_NOW = {"availableNow": True}


@pytest.mark.parametrize(
    "ordering", ["key", *(pytest.param(one, marks=pytest.mark.soak) for one in ("partition", "unordered"))]
)
def test_every_ordering_runs_each_record_once(spark: SparkSession, work: Any, ordering: Ordering) -> None:
    work.fill(1_000)
    query = kl.spark.start(work.pipeline(ordering=ordering), spark, lanes=2, trigger=AVAILABLE_NOW, name="each once")
    work.finish(query)
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.foreign) == (set(), set(), set())
    assert seen.out_of_order(ordering) == []
    assert work.lag() == 0
    assert query.snapshot().processed == 1_000
    progress = query.lastProgress
    assert progress is not None
    source = progress["sources"][0]
    assert source["endOffset"] == source["latestOffset"]
    behind = {f"{one}OffsetsBehindLatest": "0" for one in ("min", "max")} | {"avgOffsetsBehindLatest": "0.0"}
    assert (progress["name"], progress["inFlight"]) == ("each once", 0)
    assert source["metrics"] == {"lag": 0, "remaining": 0, **behind}
    assert sum(one["numInputRows"] for one in query.recentProgress) == 1_000
    assert not query.isActive
    assert query.exception() is None


@pytest.mark.full
def test_each_lane_commits_in_transactions_of_its_own(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    pipeline = work.pipeline(delivery="transactional", commit=kl.Commit(interval_ms=50))
    query = kl.spark.start(pipeline, spark, lanes=2, progress_interval_ms=100)
    until(lambda: sorted(len(lane.partitions) for lane in query.lanes) == [2, 2], lambda: query.lanes)
    work.fill(600)  # now that each lane has its share: one that is late may find that the other has done it all
    until(lambda: work.lag() == 0, lambda: query.lanes)
    query.stop()
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.foreign, seen.out_of_order("key")) == (set(), set(), set(), [])
    assert work.lag() == 0
    assert query.snapshot().transactions_aborted == 0
    with ProtocolClient(work.servers) as client:
        found = client.ask("list_transactions", 0, state_filters=(), producer_id_filters=()).transaction_states
    states = [one.transaction_state for one in found if work.group in one.transactional_id]
    assert states == ["CompleteCommit"] * 2, "each lane has a transactional id of its own"
    ends = work.admin.log_ends([(work.output, partition) for partition in range(4)], read_committed=False)
    assert sum(ends.values()) > 600, "the marks of transactions take offsets"


def place_of(record: kl.Record) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


@pytest.mark.soak
def test_at_most_once_on_lanes(spark: SparkSession, work: Any) -> None:
    """Its commit has a record before it starts; a failed attempt is not repeated."""
    work.fill(200)
    servers, group, output = work.servers, work.group, work.output

    def handle(record: kl.Record) -> kl.Output:
        known = covered(Admin({"bootstrap.servers": servers}), group)
        if record.offset % 5 == 0:
            raise ValueError("not this one")
        told = str(place_of(record) in known).encode()
        return kl.Output(output, record.key, headers=[source_of(record), ("told", told)], partition=record.partition)

    pipeline = work.pipeline(handle, delivery="at_most_once", on_exhausted=kl.Skip())
    query = kl.spark.start(pipeline, spark, lanes=2, trigger=AVAILABLE_NOW)
    work.finish(query)
    seen = work.outputs()
    assert (seen.repeated, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
    assert seen.lost
    assert {offset % 5 for _, _, offset in seen.lost} == {0}
    snapshot = query.snapshot()
    assert (work.lag(), snapshot.skipped, snapshot.retried) == (0, len(seen.lost), 0)
    assert told(work) == {b"True"}


@pytest.mark.soak
def test_almost_once_on_lanes(spark: SparkSession, work: Any) -> None:
    """With one place, the commit has all that ran before when the next record starts, and not that one."""
    work.fill(200)
    servers, group, output = work.servers, work.group, work.output
    ran: list[tuple[str, int, int]] = []

    def handle(record: kl.Record) -> kl.Output:
        known = covered(Admin({"bootstrap.servers": servers}), group)
        right = all(one in known for one in ran) and place_of(record) not in known
        ran.append(place_of(record))
        headers = [source_of(record), ("told", str(right).encode())]
        return kl.Output(output, record.key, headers=headers, partition=record.partition)

    pipeline = work.pipeline(handle, delivery="almost_once", max_concurrency=1, commit=kl.Commit(interval_ms=60_000))
    query = kl.spark.start(pipeline, spark, lanes=2, trigger=AVAILABLE_NOW)
    work.finish(query)
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.foreign, seen.out_of_order("key")) == (set(), set(), set(), [])
    assert (work.lag(), query.snapshot().processed) == (0, 200)
    assert told(work) == {b"True"}


def told(work: Any) -> set[bytes | None]:
    """What the outputs say in the header `told`."""
    logs = read_to_end(work.servers, work.output)
    return {value for batch in logs for one in batch for name, value in one.headers if name == "told"}


def test_exactly_once_on_lanes(spark: SparkSession, work: Any, tmp_path: Path) -> None:
    """What was produced twice has its effect once, and what is committed is purged."""
    store = str(tmp_path / "effects.db")
    with closing(sqlite3.connect(store)) as effects:
        effects.execute("CREATE TABLE effects (value text)")

    def insert(record: kl.Record, context: kl.Context) -> None:
        context.transaction.execute("INSERT INTO effects VALUES (?)", ((record.value or b"").decode(),))

    def known_by(record: kl.Record) -> bytes:
        return record.value or b""

    work.fill(200)
    work.fill(200)
    once = kl.ExactlyOnce(store, identity=known_by, retention_ms=60_000)
    query = kl.spark.start(work.pipeline(insert, delivery=once), spark, lanes=2, trigger=AVAILABLE_NOW)
    work.finish(query)
    assert (work.lag(), query.snapshot().processed) == (0, 400)
    with closing(sqlite3.connect(store)) as effects:
        assert effects.execute("SELECT count(*), count(DISTINCT value) FROM effects").fetchone() == (200, 200)


def test_available_now_leaves_what_came_later(spark: SparkSession, work: Any) -> None:
    work.fill(200)
    query = kl.spark.start(work.pipeline(), spark, lanes=1, trigger=AVAILABLE_NOW)
    work.fill(100)
    work.finish(query)
    assert len(work.outputs().outputs) == 200
    work.finish(kl.spark.start(work.pipeline(), spark, lanes=1, trigger=AVAILABLE_NOW))
    seen = work.outputs()
    assert (len(seen.outputs), seen.lost, seen.repeated) == (300, set(), set())


def test_stop_drains_commits_and_the_next_run_goes_on_there(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    work.fill(3_000)
    query = kl.spark.start(work.pipeline(), spark, lanes=2)
    until(lambda: query.snapshot().processed > 300, lambda: query.lanes)
    assert query.isActive
    assert query.status["isTriggerActive"]
    query.stop()
    assert query.exception() is None
    seen, known = work.outputs(), covered(work.admin, work.group)
    assert seen.lost, "it was stopped in the middle"
    assert seen.repeated == set()
    assert {source for source in seen.inputs if source in known} == set(seen.outputs), "what ran is what is committed"
    work.finish(kl.spark.start(work.pipeline(), spark, lanes=2, trigger=AVAILABLE_NOW))
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.out_of_order("key")) == (set(), set(), [])


def test_lanes_share_the_partitions_and_name_their_processes(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    query = kl.spark.start(work.pipeline(), spark, lanes=2, progress_interval_ms=100)
    until(lambda: sorted(len(lane.partitions) for lane in query.lanes) == [2, 2], lambda: query.lanes)
    assert {lane.executor_id for lane in query.lanes} == {"driver"}
    assert len({lane.pid for lane in query.lanes}) == 2
    members = work.admin.describe_group(work.group).members
    assert {one.group_instance_id for one in members} == {"keylane-lane-0", "keylane-lane-1"}
    assert {one.client_id for one in members} == {f"keylane-{work.group}-lane-{lane}" for lane in range(2)}
    query.stop()


@pytest.mark.full
def test_metrics_of_all_lanes_are_served_by_the_driver(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    work.fill(400)
    query = kl.spark.start(work.pipeline(), spark, lanes=2)
    labels = {"group": work.group}
    with MetricsServer(query.snapshot, port=0, labels=labels, health=query.health, lanes=lambda: query.lanes) as server:

        def lines() -> list[str]:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
                return list(answer.read().decode().splitlines())

        total = f'keylane_processed_total{{group="{work.group}"}} 400.0'
        until(lambda: total in lines(), lines)
        assert f'keylane_handler_seconds_count{{group="{work.group}"}} 400.0' in lines()
        of_partitions = [line for line in lines() if line.startswith("keylane_partition_position{")]
        assert len(of_partitions) == 4, "each partition once, whichever lane has it"
        assert f'keylane_ready{{group="{work.group}"}} 1.0' in lines()
        for lane in range(2):
            assert f'keylane_lane_launches_total{{group="{work.group}",lane="{lane}"}} 1.0' in lines()
        query.stop()


@pytest.mark.full
def test_other_jobs_run_beside_lanes_and_workers_are_used_again(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    def pids() -> set[int | None]:
        query = kl.spark.start(work.pipeline(), spark, lanes=2)
        until(lambda: all(lane.state == "running" for lane in query.lanes) and query.lanes, lambda: query.lanes)
        assert spark.range(10).count() == 10
        found = {lane.pid for lane in query.lanes}
        query.stop()
        return found

    pids()
    running = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    workers = {pid for pid in running if b"pyspark_keylane.daemon" in words(pid)}
    assert pids() <= workers  # Spark takes any of its idle workers, and starts no new one
    left = spark.sparkContext.parallelize(range(16), 16).flatMap(_threads).collect()
    assert [name for name in left if "keylane" in name or "rdk" in name] == []


def _threads(_: int) -> list[str]:
    """The names of the worker's threads, those of clients in C included."""
    time.sleep(0.05)  # so that all workers get tasks
    names = [thread.name for thread in threading.enumerate()]
    return names + thread_names()


@pytest.mark.full
def test_lanes_come_and_go_while_the_query_runs_and_spark_shows_their_partitions(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    work.fill(2_000)
    query = kl.spark.start(work.pipeline(), spark, lanes=1, members="dynamic")
    until(lambda: query.snapshot().processed > 200, lambda: query.lanes)
    with pytest.raises(kl.UsageError, match="lanes=4"):
        query.set_lanes(4)
    query.set_lanes(3)
    until(lambda: len(query.lanes) == 3 and all(lane.partitions for lane in query.lanes), lambda: query.lanes)
    until(lambda: sum(len(lane.partitions) for lane in query.lanes) == 4, lambda: query.lanes)
    tracker = spark.sparkContext.statusTracker()
    store = spark.sparkContext._jsc.sc().statusStore()

    def described() -> list[str]:
        return [str(store.job(job).description().get()) for job in tracker.getActiveJobsIds()]

    def shown() -> set[str]:
        return {words.partition("; ")[0] for words in described()}

    wording = f"keylane lane {{}} of group {work.group}: {{}}"
    until(lambda: shown() == {wording.format(one.lane, ", ".join(one.partitions)) for one in query.lanes}, shown)
    job = next(iter(tracker.getActiveJobsIds()))
    written = store.job(job)
    jvm: Any = spark.sparkContext._jvm
    to_scala = jvm.org.apache.spark.api.python.PythonUtils
    nothing = to_scala.toSeq(jvm.java.util.ArrayList()), to_scala.toScalaMap(jvm.java.util.HashMap())

    def is_written_anew() -> bool:
        """Spark writes what the UI reads again with an executor's heartbeat, every ten seconds or so."""
        beat = jvm.org.apache.spark.scheduler.SparkListenerExecutorMetricsUpdate("1", *nothing)
        spark.sparkContext._jsc.sc().listenerBus().post(beat)
        return not store.job(job).equals(written)

    until(is_written_anew)
    until(lambda: all(" records/s, " in words and "lag " in words for words in described()), described)
    assert shown() == {wording.format(one.lane, ", ".join(one.partitions)) for one in query.lanes}
    query.set_lanes(1)
    until(lambda: [lane.state for lane in query.lanes] == ["running", "removed", "removed"], lambda: query.lanes)
    until(lambda: work.lag() == 0, lambda: query.lanes)
    query.stop()
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.out_of_order("key")) == (set(), set(), [])
    assert query.exception() is None


@pytest.mark.soak
def test_two_drivers_share_a_group(spark: SparkSession, work: Any, until: Callable[..., None]) -> None:
    work.fill(1_000)
    first, second = (kl.spark.start(work.pipeline(), spark, lanes=1, name=name) for name in ("a", "b"))
    both = (first, second)
    until(lambda: all(query.lanes and query.lanes[0].partitions for query in both), lambda: [one.lanes for one in both])
    assert {*first.lanes[0].partitions, *second.lanes[0].partitions} == {f"{work.topic}-{n}" for n in range(4)}
    until(lambda: work.lag() == 0, lambda: (first.lanes, second.lanes))
    first.stop()
    second.stop()
    seen = work.outputs()
    assert (seen.lost, seen.out_of_order("key")) == (set(), [])


def test_a_regular_expression_chooses_topics(spark: SparkSession, work: Any) -> None:
    work.fill(100)
    chosen, work.topic = work.topic, f"^{work.topic}$"
    pipeline = work.pipeline()
    work.topic = chosen
    work.finish(kl.spark.start(pipeline, spark, lanes=1, trigger=AVAILABLE_NOW))
    assert (work.outputs().lost, work.lag()) == (set(), 0)


def test_dynamic_members_leave_at_the_end(spark: SparkSession, work: Any) -> None:
    work.fill(50)
    work.finish(kl.spark.start(work.pipeline(), spark, lanes=2, trigger=AVAILABLE_NOW, members="dynamic"))
    assert work.admin.describe_group(work.group).members == ()
    assert work.lag() == 0


def test_halt_is_the_handlers_error_that_names_the_record(spark: SparkSession, work: Any) -> None:
    def refuse(record: kl.Record) -> None:
        if record.value == b"77":
            raise ValueError("no seventy-seven")

    work.fill(200)
    pipeline = work.pipeline(refuse, retries=kl.Retries(max_attempts=2, delay_ms=10))
    query = kl.spark.start(pipeline, spark, lanes=2, trigger=AVAILABLE_NOW)
    with pytest.raises(
        kl.HandlerError, match=rf"^{work.topic}-\d@\d+: ValueError: no seventy-seven.*2 attempts"
    ) as caught:
        work.finish(query)
    assert query.exception() is caught.value
    assert "in lane" in caught.value.__notes__[0]
    assert all(lane.launches == 1 for lane in query.lanes), "a handler's error is not tried on another lane"


def test_another_query_under_the_same_name_is_refused(
    spark: SparkSession, work: Any, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keylane.spark.static_members.ORPHAN_LIMIT_S", -14.0)  # wait 1 s and not 40
    first = kl.spark.start(work.pipeline(), spark, lanes=1)
    until(lambda: first.lanes and first.lanes[0].partitions, lambda: first.lanes)
    second = kl.spark.start(work.pipeline(), spark, lanes=1)
    with pytest.raises(kl.UsageError, match="another query runs under this name"):
        work.finish(second)
    assert first.isActive
    assert first.lanes[0].launches == 1
    first.stop()


@pytest.mark.full
def test_a_lane_whose_id_another_consumer_takes_ends_the_query(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    query = kl.spark.start(work.pipeline(), spark, lanes=1)
    until(lambda: query.lanes and query.lanes[0].partitions, lambda: query.lanes)
    settings = {"bootstrap.servers": work.servers, "group.id": work.group, "group.instance.id": "keylane-lane-0"}
    thief = Consumer(settings)
    thief.subscribe([work.topic])
    until(lambda: thief.poll(0.1) is not None or not query.isActive, lambda: query.lanes)
    with pytest.raises(kl.PeerError, match=r"another process has joined under the same group\.instance\.id"):
        work.finish(query)
    assert query.lanes[0].launches == 1, "the two would fence each other for ever"
    thief.close()


def test_too_few_slots_are_refused_in_figures(spark: SparkSession, work: Any) -> None:
    with pytest.raises(kl.UsageError) as caught:
        kl.spark.start(work.pipeline(), spark, lanes=4)
    assert str(caught.value) == (
        "lanes=4 on local[4] would leave no task slot free of 4: run at most 3 lanes, give Spark at least 5 slots, or "
        "pass allow_all_slots=True"
    )


def test_all_slots_are_used_when_that_is_asked_for(spark: SparkSession, work: Any) -> None:
    work.fill(50)
    query = kl.spark.start(work.pipeline(), spark, lanes=4, allow_all_slots=True, trigger=AVAILABLE_NOW)
    work.finish(query)
    assert work.lag() == 0


def test_without_a_number_lanes_leave_a_slot_free(spark: SparkSession, work: Any) -> None:
    query = kl.spark.start(work.pipeline(), spark, trigger=AVAILABLE_NOW)
    work.finish(query)
    assert len(query.lanes) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"trigger": {"processingTime": "1 second"}}, "trigger=.*availableNow"),
        ({"lanes": 0}, "lanes=0"),
        ({"lanes": True}, "lanes=True"),
        ({"lanes": (1, True)}, r"lanes=\(1, True\): give a number of lanes, or \(least, most\)"),
        ({"lanes": (1, 2, 3)}, r"lanes=\(1, 2, 3\)"),
        ({"members": "sticky"}, "members='sticky': give one of 'static', 'dynamic'"),
        ({"max_lane_failures": -1}, "max_lane_failures=-1"),
        ({"progress_interval_ms": 0}, "progress_interval_ms=0"),
    ],
)
def test_options_that_cannot_work_are_refused(
    spark: SparkSession, work: Any, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(kl.UsageError, match=words):
        kl.spark.start(work.pipeline(), spark, **arguments)


def test_what_is_no_pipeline_is_refused(spark: SparkSession) -> None:
    with pytest.raises(kl.UsageError, match=r"got a value of type str: give a keylane\.Pipeline"):
        kl.spark.start("flights", spark)  # type: ignore[arg-type]


def test_an_instance_id_for_all_lanes_is_refused(spark: SparkSession, work: Any) -> None:
    work.kafka["group.instance.id"] = "mine"
    with pytest.raises(kl.UsageError, match=r"kafka\['group.instance.id'\]='mine' would make all lanes one member"):
        kl.spark.start(work.pipeline(), spark)


@pytest.mark.parametrize("more", [{"trigger": AVAILABLE_NOW}, {"lanes": (1, 2)}])
def test_offsets_kept_elsewhere_leave_lanes_nothing_to_end_or_scale_by(
    spark: SparkSession, work: Any, more: dict[str, Any]
) -> None:
    pipeline = work.pipeline(commit=kl.External(dict.fromkeys))
    with pytest.raises(kl.UsageError, match=r"with commit=External\("):
        kl.spark.start(pipeline, spark, **more)


def test_a_topic_that_does_not_exist_is_refused(spark: SparkSession, work: Any) -> None:
    work.topic = "nowhere"
    with pytest.raises(kl.UsageError, match="topic 'nowhere' does not exist"):
        kl.spark.start(work.pipeline(), spark)


def test_a_broker_that_does_not_answer_is_told_at_once(
    spark: SparkSession, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keylane.spark.group.Admin", partial(Admin, timeout_ms=500))
    work.kafka["bootstrap.servers"] = "127.0.0.1:1"
    with pytest.raises(kl.BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
        kl.spark.start(work.pipeline(), spark)


def test_an_executor_with_another_version_is_told(
    spark: SparkSession, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keylane.spark.jobs.__version__", "9.9.9")
    query = kl.spark.start(work.pipeline(), spark, lanes=1)
    with pytest.raises(kl.UsageError, match=r"the executors have keylane .*, the driver has 9\.9\.9"):
        work.finish(query)


def test_a_resource_that_cannot_be_made_fails_the_query_after_its_restarts(
    spark: SparkSession, work: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def resource() -> None:
        raise OSError("the database is down")

    def handle(record: kl.Record, context: kl.Context) -> None:
        pass

    work.fill(10)
    pipeline = work.pipeline(handle, resource=resource)
    query = kl.spark.start(pipeline, spark, lanes=1, trigger=AVAILABLE_NOW, max_lane_failures=1)
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="the database is down"):
        work.finish(query)
