"""The supervisor against scripted lanes: real sockets, no Spark. What Spark and a lane's process do, the test does."""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import keylane as kl
from keylane.consumer.commits import Told
from keylane.consumer.events import Adjust, Pause, Resume
from keylane.consumer.health import Health
from keylane.consumer.intake import Liveness
from keylane.consumer.outputs import ResultsRule
from keylane.consumer.snapshot import OldestRecord, PartitionSnapshot, Snapshot, Wait
from keylane.errors import FencedError, InternalError, PeerError
from keylane.flow.failures import FailureKind
from keylane.kafka.membership import Seek, Target
from keylane.records import PlainMessage
from keylane.spark import lane_record
from keylane.spark import supervisor as supervisor_module
from keylane.spark.channel import Answer, Ask, Go, Hello, LaneEnd, Moved, Show
from keylane.spark.controls import TellLiveness
from keylane.spark.from_lanes import FromLanes
from keylane.spark.jobs import JobFailure
from keylane.spark.lane_record import GAUGES
from keylane.spark.listeners import Listeners
from keylane.spark.outcome import LaneFailure, LaneOutcome
from keylane.spark.plan import LanePlan
from keylane.spark.progress import QueryName
from keylane.spark.publisher import Publisher
from keylane.spark.query import LaneQuery
from keylane.spark.restarts import RestartLimits, Restarts
from keylane.spark.scaling import LaneBounds
from keylane.spark.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.spark.jobs import JobResult
    from keylane.spark.lanes import LaneTask

PATIENCE_S = 10.0
DIED = JobFailure("died", "Python worker exited unexpectedly (crashed)")


class Launch:
    """One job that the supervisor submitted, and the lane process that the test plays for it."""

    def __init__(self, shipment: bytes, on_end: Callable[[JobResult], None]) -> None:
        self.task: LaneTask = pickle.loads(shipment)
        self.on_end = on_end

    def connect(self, pid: int = 100, task_attempt: int = 0) -> LaneEnd:
        hello = Hello(self.task.lane, self.task.launch, task_attempt, pid, 1, "host")
        return LaneEnd(self.task.driver, hello)


class Jobs:
    """Spark, as the supervisor sees it."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.cancelled: list[int] = []
        self.ignores_cancels = False
        self.decommissioned: set[str] = set()
        self.described: dict[int, tuple[str, ...]] = {}
        self.figures: dict[int, str] = {}
        self.silent = ""
        self.knows_executors = True
        self.changed = threading.Condition()

    def submit(self, lane: int, shipment: bytes, on_end: Callable[[JobResult], None]) -> None:
        with self.changed:
            self.launches.append(Launch(shipment, on_end))
            self.changed.notify_all()

    def cancel(self, lane: int) -> None:
        self.cancelled.append(lane)
        if self.ignores_cancels:
            return
        self.of(lane).on_end(JobFailure("cancelled", "SPARK_JOB_CANCELLED"))

    def executor_of(self, lane: int) -> str | None:
        return f"executor of {lane}" if self.knows_executors else None

    def silence(self) -> str:
        return self.silent

    def is_decommissioned(self, executor_id: str) -> bool:
        return executor_id in self.decommissioned

    def describe(self, lane: int, partitions: tuple[str, ...], figures: str) -> None:
        self.described[lane] = partitions
        self.figures[lane] = figures

    def join(self, timeout_s: float) -> None:
        pass

    def of(self, lane: int, launch: int = 0) -> Launch:
        """The lane's newest launch, or waits for the one of that number."""
        with self.changed:
            assert self.changed.wait_for(lambda: bool(self._found(lane, launch)), PATIENCE_S), (
                "the lane was not launched"
            )
            return self._found(lane, launch)[-1]

    def _found(self, lane: int, launch: int) -> list[Launch]:
        return [one for one in self.launches if one.task.lane == lane and launch in (0, one.task.launch)]


PLAN = LanePlan(
    query=QueryName(str(uuid.UUID(int=1)), str(uuid.UUID(int=2)), None, "g", ("t",)),
    lanes=2,
    bounds=None,
    room=lambda: 8,
    concurrency=10,
    cargo=b"",
    log_ends={},
    ending_offsets=None,
    lane_settings=lambda lane: {"group.instance.id": f"lane-{lane}"},
    assignment=(),
    limits=RestartLimits(max_failures=2),
    drain_timeout_s=5.0,
    session_timeout_s=5.0,
    revoke_timeout_s=0.0,
    progress_interval_s=0.05,
    recent_progress=10,
    prepare=lambda _: None,
    committed=dict,
    closed=lambda: None,
)


PIPELINE = kl.Pipeline(kafka={"bootstrap.servers": "b", "group.id": "g"}, topics=["t"], handler=print)


class Listener(StreamingQueryListener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - PySpark's name
        self.told.append(event)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.told.append(event)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.told.append(event)


class Query:
    """A supervisor that runs, with its jobs and its handle."""

    def __init__(self, from_lanes: FromLanes | None = None, **changes: Any) -> None:
        self.jobs = Jobs()
        plan = replace(PLAN, **changes)
        self.events = Listener()
        listeners = Listeners(plan.query, [self.events])
        self.supervisor = Supervisor(plan, self.jobs, "127.0.0.1", "127.0.0.1", b"key", listeners, from_lanes)
        self.handle = LaneQuery(plan.query, PIPELINE, self.supervisor, lambda count: count, plan.bounds, from_lanes)
        listeners.started("2026-01-01T00:00:00.000Z")
        self.supervisor.start()

    def running(self, lane: int, launch: int = 1) -> LaneEnd:
        """Connects the lane's process and waits until it is let go."""
        end = self.jobs.of(lane, launch).connect()
        assert isinstance(end.receive(PATIENCE_S), Go)
        return end

    def all_running(self) -> list[LaneEnd]:
        return [self.running(lane) for lane in range(2)]

    def finish(self, end: LaneEnd, lane: int, ending: Any = "stopped", snapshot: Snapshot | None = None) -> None:
        end.close()
        self.jobs.of(lane).on_end(LaneOutcome(ending, snapshot))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.handle.lanes
            time.sleep(0.005)

    def states(self) -> list[str]:
        return [lane.state for lane in self.handle.lanes]


def reporting(end: LaneEnd, condition: Callable[[], bool]) -> Callable[[], bool]:
    """The condition, while the process at that end reports."""

    def look() -> bool:
        end.send(Snapshot(processed=1))
        return condition()

    return look


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Query]]:
    monkeypatch.setattr("keylane.spark.restarts.FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(supervisor_module, "DEPARTURE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(supervisor_module, "START_TOGETHER_S", 0.0)
    made: list[Query] = []

    def make(**changes: Any) -> Query:
        made.append(Query(**changes))
        return made[-1]

    yield make
    for query in made:
        query.supervisor.stop()
        for lane, state in enumerate(query.states()):
            if state != "ended":
                query.jobs.cancel(lane)
        assert query.supervisor.ended.wait(PATIENCE_S)


def test_every_lane_is_launched_with_its_own_settings_and_let_go(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    query.until(lambda: query.states() == ["running", "running"])
    assert [one.task.kafka["group.instance.id"] for one in query.jobs.launches] == ["lane-0", "lane-1"]
    first = query.handle.lanes[0]
    assert (first.pid, first.host, first.executor_id, first.launches) == (100, "host", "executor of 0", 1)
    assert query.handle.isActive
    assert query.handle.status["message"] == "2 of 2 lanes running"
    for end in ends:
        end.close()


def test_a_query_is_alive_while_its_supervisor_turns_and_ready_while_a_lane_runs(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = queries()
    assert query.handle.health() == Health(None, "0 of 2 lanes running")
    ends = query.all_running()
    query.until(lambda: "running" in query.states())
    assert query.handle.health() == Health()
    turns, publish = threading.Event(), Publisher.publish

    def published(publisher: Publisher, *, ending: bool) -> None:
        turns.wait(PATIENCE_S)
        publish(publisher, ending=ending)

    monkeypatch.setattr(supervisor_module, "ANSWER_WITHIN_S", 0.0)
    monkeypatch.setattr(Publisher, "publish", published)
    query.until(lambda: query.handle.health().fault is not None)
    assert "the supervisor of its lanes has not turned for" in str(query.handle.health().fault)
    monkeypatch.setattr(supervisor_module, "ANSWER_WITHIN_S", 60.0)
    turns.set()
    assert query.handle.health().fault is None
    query.supervisor.stop()
    for lane, end in enumerate(ends):
        assert end.receive(PATIENCE_S) == "stop"
        query.finish(end, lane)
    assert query.supervisor.ended.wait(PATIENCE_S)
    assert query.handle.health() == Health("it has ended", "it has ended")


def test_stop_tells_lanes_and_returns_when_their_jobs_have_ended(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    stopping = threading.Thread(target=query.handle.stop)
    stopping.start()
    for lane, end in enumerate(ends):
        assert end.receive(PATIENCE_S) == "stop"
        assert stopping.is_alive()
        query.finish(end, lane)
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
    assert query.jobs.cancelled == []
    assert (query.handle.isActive, query.handle.exception()) == (False, None)
    assert query.handle.awaitTermination() is None
    assert query.handle.awaitTermination(0) is True
    assert query.handle.status == {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}


def test_a_lane_without_a_process_is_cancelled_at_stop(queries: Callable[..., Query]) -> None:
    query = queries()
    end = query.running(0)
    query.supervisor.stop()
    assert end.receive(PATIENCE_S) == "stop"
    query.finish(end, 0)
    assert query.supervisor.ended.wait(PATIENCE_S)
    assert query.jobs.cancelled == [1]
    assert query.handle.exception() is None


def test_a_lane_that_connects_during_stop_is_told_so(queries: Callable[..., Query]) -> None:
    query = queries()
    end = query.running(0)
    query.jobs.ignores_cancels = True
    query.supervisor.stop()
    assert end.receive(PATIENCE_S) == "stop"
    late = query.jobs.of(1).connect()
    assert late.receive(PATIENCE_S) == "stop"
    query.finish(end, 0)
    query.finish(late, 1)
    assert query.supervisor.ended.wait(PATIENCE_S)


def test_a_job_that_spark_was_given_after_its_cancellation_is_cancelled_again(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs' threads submit; `stop` may be faster, and no slot may come for long."""
    monkeypatch.setattr(supervisor_module, "CANCEL_AGAIN_S", 0.05)
    query = queries(progress_interval_s=60.0)
    query.jobs.of(1)
    query.jobs.ignores_cancels = True
    query.supervisor.stop()
    query.until(lambda: set(query.jobs.cancelled) == {0, 1})
    query.jobs.ignores_cancels = False
    assert query.supervisor.ended.wait(PATIENCE_S)
    assert min(map(query.jobs.cancelled.count, (0, 1))) > 1
    assert query.handle.exception() is None


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_stop_leaves_jobs_of_which_spark_says_nothing(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_gone: bool
) -> None:
    """A Connect server that is gone answers no interrupt, and its client does not say for minutes that it is gone."""
    monkeypatch.setattr(supervisor_module, "STOP_SLACK_S", 0.3)
    monkeypatch.setattr(supervisor_module, "GONE_S", 0.05)
    monkeypatch.setattr(lane_record, "MISSING_S", 0.2)
    query = queries()
    query.jobs.of(1)
    if is_gone:
        for end in query.all_running():
            end.close()
    query.jobs.ignores_cancels = True
    query.supervisor.stop()
    assert query.supervisor.ended.wait(PATIENCE_S)
    assert "lane 0: Spark has not ended its job within 0 s, and it is left: does Spark still answer?" in caplog.text
    assert query.handle.exception() is None


def test_a_lane_that_leaves_before_spark_has_its_job_is_cancelled_again(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "CANCEL_AGAIN_S", 0.05)
    query = queries()
    end = query.running(0)
    query.jobs.ignores_cancels = True
    query.handle.set_lanes(1)
    query.until(reporting(end, lambda: 1 in query.jobs.cancelled))
    query.jobs.ignores_cancels = False
    query.until(reporting(end, lambda: query.states() == ["running", "removed"]))
    end.close()


def test_a_lane_that_does_not_stop_is_cancelled_in_the_end(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_SLACK_S", 0.1)
    query = queries(drain_timeout_s=0.1)
    ends = query.all_running()
    query.handle.stop()
    assert query.jobs.cancelled == [0, 1]
    assert "lane 0 did not stop within 0 s" in caplog.text
    for end in ends:
        end.close()


def test_a_lane_that_died_starts_again_and_its_counters_stay(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    part = PartitionSnapshot("t", 0, 5, 5, 4, 0, 5, 9)
    gauges: dict[str, Any] = dict.fromkeys(GAUGES, 3)
    ends[0].send(Snapshot(processed=5, partitions=(part,), **gauges))
    query.until(lambda: query.handle.snapshot().processed == 5)
    assert query.handle.lanes[0].partitions == ("t-0",)
    ends[0].close()
    query.jobs.of(0).on_end(DIED)
    again = query.running(0, launch=2)
    again.send(Snapshot(processed=2, in_flight=1))
    query.until(lambda: query.handle.snapshot().processed == 7)
    merged = query.handle.snapshot()
    assert [getattr(merged, name) for name in GAUGES] == [int(name == "in_flight") for name in GAUGES]
    assert merged.partitions == ()
    lane = query.handle.lanes[0]
    assert (lane.launches, lane.failures, lane.state) == (2, 1, "running")
    assert query.handle.lanes[1].launches == 1
    for end in (again, ends[1]):
        end.close()


def test_the_driver_tells_of_failures_in_lanes_once_for_all(
    queries: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "keylane.failures")
    query = queries()
    ends = query.all_running()
    kind = FailureKind("ValueError", "score (orders.py:12)", 3, "ValueError in score (orders.py:12): the first one")
    for end in ends:
        end.send(Snapshot(failed=3, failures=(kind,)))
    query.until(lambda: query.handle.snapshot().failed == 6)
    query.until(lambda: kind.first in caplog.text)  # while it runs
    query.supervisor.stop()
    for lane, end in enumerate(ends):
        query.finish(end, lane, "stopped", Snapshot(failed=5, failures=(replace(kind, count=5),)))
    assert query.supervisor.ended.wait(PATIENCE_S)
    texts = [one.getMessage() for one in caplog.records if one.name == "keylane.failures"]
    assert texts[0] == kind.first
    assert sum(text == kind.first for text in texts) == 1
    assert [text.partition(" in the last")[0] for text in texts[1:]] == ["ValueError in score (orders.py:12): 9 more"]


def test_the_driver_says_what_lanes_wait_for_in_log_status_and_progress(
    queries: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    query = queries()
    ends = query.all_running()
    for end in ends:
        end.send(Snapshot(waits=Wait("g", ("dead", f"lane-{end is ends[0]}"), 45_000)))
    text = str(Wait("g", ("dead",), 45_000))
    query.until(lambda: bool((last := query.handle.lastProgress) and last["waitsFor"] == text))
    query.until(lambda: query.handle.status["message"].endswith(f"lanes running; the group {text}"))
    for end in ends:
        end.send(Snapshot())
    query.until(lambda: query.handle.status["message"].endswith("lanes running"))
    assert [one.getMessage() for one in caplog.records if one.name == "keylane.waits"] == [text]
    for end in ends:
        end.close()


def test_counters_of_an_ended_lane_are_counted_once(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    ends[0].send(Snapshot(processed=5))
    query.until(lambda: query.handle.snapshot().processed == 5)
    query.supervisor.stop()
    for lane, end in enumerate(ends):
        query.finish(end, lane, "stopped", Snapshot(processed=6 + lane))
    assert query.supervisor.ended.wait(PATIENCE_S)
    assert query.handle.snapshot().processed == 13


def test_a_successor_waits_until_its_predecessors_process_has_ended(queries: Callable[..., Query]) -> None:
    """The executor's JVM is gone, its Python worker still drains: the job has failed, the socket is open."""
    query = queries()
    ends = query.all_running()
    query.jobs.of(0).on_end(DIED)
    successor = query.jobs.of(0, launch=2).connect(pid=200)
    query.until(lambda: query.states()[0] == "connected")
    assert successor.receive(0.2) is None, "it must not start beside its predecessor"
    ends[0].close()
    assert successor.receive(PATIENCE_S) == Go()
    for end in (successor, ends[1]):
        end.close()


def test_a_predecessor_that_is_silent_for_its_session_timeout_is_taken_for_lost(
    queries: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    query = queries(session_timeout_s=0.3)
    ends = query.all_running()
    query.jobs.of(0).on_end(DIED)
    successor = query.jobs.of(0, launch=2).connect(pid=200)
    assert successor.receive(PATIENCE_S) == Go()
    assert "process 100 on host has been silent" in caplog.text
    for end in (successor, *ends):
        end.close()


def test_a_task_that_spark_started_again_counts_as_a_failure_and_goes_on(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    ends[0].send(Snapshot(processed=5))
    query.until(lambda: query.handle.snapshot().processed == 5)
    ends[0].close()
    retried = query.jobs.of(0).connect(pid=300, task_attempt=1)
    assert retried.receive(PATIENCE_S) == Go()
    query.until(lambda: query.handle.lanes[0].pid == 300)
    lane = query.handle.lanes[0]
    assert (lane.launches, lane.failures) == (1, 1)
    assert query.handle.snapshot().processed == 5
    for end in (retried, ends[1]):
        end.close()


def test_too_many_failures_end_the_query_with_the_last_cause(queries: Callable[..., Query]) -> None:
    query = queries()
    end = query.running(1)
    for launch in (1, 2, 3):
        query.jobs.of(0, launch).on_end(DIED)
    assert end.receive(PATIENCE_S) == "stop", "the other lanes drain"
    query.finish(end, 1)
    with pytest.raises(PeerError, match=r"lane 0 died: Python worker exited unexpectedly \(crashed\)$"):
        query.handle.awaitTermination(PATIENCE_S)
    assert isinstance(query.handle.exception(), PeerError)
    assert len(query.jobs.launches) == 4


def test_a_process_that_a_handler_ended_is_told_with_its_last_word(
    queries: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    query = queries()
    other = query.running(1)
    parts = (PartitionSnapshot("t", 0, 17, 17, 16, 3, 20, 90), PartitionSnapshot("t", 1, 9, 9, 8, 0, 9, 9))
    said = [
        Snapshot(processed=1, partitions=parts),
        Snapshot(processed=2, partitions=parts, in_flight=3, oldest=OldestRecord("t", 0, 18, 700)),
        None,
    ]
    for launch, snapshot in enumerate(said, 1):
        end = query.running(0, launch=launch)
        if snapshot is not None:
            end.send(snapshot)
            query.until(lambda: bool(query.handle.lanes[0].partitions))
        end.close()
        query.jobs.of(0, launch).on_end(DIED)
    assert other.receive(PATIENCE_S) == "stop"
    query.finish(other, 1)
    says = r"lane 0 died \(its last word: 3 in handlers, the oldest t-0 offset 18\): Python worker"
    with pytest.raises(PeerError, match=says):
        query.handle.awaitTermination(PATIENCE_S)
    assert "lane 0 died (its last word: t-0 from offset 17 on was next): Python" in caplog.text


@pytest.mark.parametrize(
    "error", [kl.HandlerError("flights-0@3: ValueError: no"), kl.UsageError("no"), InternalError("no")]
)
def test_a_lasting_failure_ends_the_query_with_the_original_error(
    queries: Callable[..., Query], error: Exception
) -> None:
    query = queries()
    ends = query.all_running()
    ends[0].close()
    query.jobs.of(0).on_end(LaneOutcome("failed", Snapshot(processed=3), LaneFailure.of(error)))
    assert ends[1].receive(PATIENCE_S) == "stop"
    query.finish(ends[1], 1)
    with pytest.raises(type(error)) as caught:
        query.handle.awaitTermination(PATIENCE_S)
    assert str(caught.value) == str(error)
    assert len(query.jobs.launches) == 2
    assert query.handle.snapshot().processed == 3


@pytest.mark.parametrize(("error", "is_free"), [(PeerError("away"), True), (FencedError("taken"), False)])
def test_ids_are_not_free_when_another_process_has_taken_one(
    queries: Callable[..., Query], error: Exception, is_free: bool
) -> None:
    """The group lists the other one under it, and the next start would throw it out."""
    freed: list[str] = []
    query = queries(closed=lambda: freed.append("ids"), limits=RestartLimits(max_failures=0))
    ends = query.all_running()
    ends[0].close()
    query.jobs.of(0).on_end(LaneOutcome("failed", Snapshot(), LaneFailure.of(error)))
    assert ends[1].receive(PATIENCE_S) == "stop"
    query.finish(ends[1], 1)
    assert query.supervisor.ended.wait(PATIENCE_S)
    assert freed == ["ids"] * is_free


def test_a_failure_that_may_pass_starts_the_lane_again(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    ends[0].close()
    query.jobs.of(0).on_end(LaneOutcome("failed", None, LaneFailure.of(PeerError("no broker"))))
    again = query.running(0, launch=2)
    for end in (again, ends[1]):
        end.close()


@pytest.mark.parametrize("ending", ["executor gone", "driver gone"])
def test_a_lane_that_lost_its_executor_or_the_socket_starts_again(queries: Callable[..., Query], ending: str) -> None:
    query = queries()
    ends = query.all_running()
    query.finish(ends[0], 0, ending, Snapshot(processed=1))
    again = query.running(0, launch=2)
    for end in (again, ends[1]):
        end.close()


def test_a_job_cancelled_from_outside_ends_the_query(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    query.jobs.of(0).on_end(JobFailure("cancelled", "[SPARK_JOB_CANCELLED] Job 3 cancelled"))
    assert ends[1].receive(PATIENCE_S) == "stop"
    query.finish(ends[1], 1)
    with pytest.raises(PeerError, match="lane 0's Spark job was cancelled from outside the query"):
        query.handle.awaitTermination(PATIENCE_S)
    ends[0].close()


def test_available_now_ends_when_lanes_say_so_and_the_broker_agrees(queries: Callable[..., Query]) -> None:
    query = queries(ending_offsets={("t", 0): 9}, committed=lambda: {("t", 0): 9})
    end = query.running(0)
    assert query.jobs.of(0).task.ending_offsets == {("t", 0): 9}
    part = PartitionSnapshot("t", 0, 7, 7, 6, 0, 7, 9)
    query.finish(end, 0, "work done", Snapshot(processed=9, partitions=(part,)))
    assert query.handle.awaitTermination(PATIENCE_S) is True
    assert query.jobs.cancelled == [1], "a lane that never got a slot has nothing left to do"
    last = query.handle.lastProgress
    assert last is not None
    assert last["sources"][0]["endOffset"] == {"t": {"0": 9}}
    assert not query.handle.status["isDataAvailable"]


def test_lanes_whose_work_another_lane_saw_done_are_told_to_stop(queries: Callable[..., Query]) -> None:
    query = queries(ending_offsets={("t", 0): 9}, committed=lambda: {("t", 0): 9})
    ends = query.all_running()
    query.finish(ends[0], 0, "work done")
    assert ends[1].receive(PATIENCE_S) == "stop"
    ends[1].close()
    query.jobs.of(1).on_end(DIED)
    assert query.handle.awaitTermination(PATIENCE_S) is True
    assert len(query.jobs.launches) == 2, "a lane that has nothing left to do is not started again"


def test_the_first_lanes_start_together(queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "START_TOGETHER_S", PATIENCE_S)
    query = queries()
    first = query.jobs.of(0).connect()
    assert first.receive(0.2) is None
    second = query.jobs.of(1).connect()
    assert [first.receive(PATIENCE_S), second.receive(PATIENCE_S)] == [Go(), Go()]
    for end in (first, second):
        end.close()


def test_available_now_does_not_take_the_lanes_word_for_it(queries: Callable[..., Query]) -> None:
    query = queries(ending_offsets={("t", 0): 9, ("t", 1): 0}, committed=lambda: {("t", 0): 8})
    for lane, end in enumerate(query.all_running()):
        query.finish(end, lane, "work done")
    with pytest.raises(InternalError, match=r"group g has not committed all: t-0 at 8 of 9$"):
        query.handle.awaitTermination(PATIENCE_S)


def test_what_prepare_raises_is_what_the_query_fails_with(queries: Callable[..., Query]) -> None:
    def prepare(_: object) -> None:
        raise kl.UsageError("another query runs under this name")

    query = queries(prepare=prepare)
    with pytest.raises(kl.UsageError, match="another query"):
        query.handle.awaitTermination(PATIENCE_S)
    assert query.jobs.launches == []


def test_what_many_lanes_say_is_looked_at_together(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "LOOK_A_LANE_S", 0.2)
    query = queries(progress_interval_s=60.0)
    looks: list[bool] = []
    publish = Publisher.publish

    def counted(publisher: Publisher, *, ending: bool) -> None:
        looks.append(ending)
        publish(publisher, ending=ending)

    ends = query.all_running()
    monkeypatch.setattr(Publisher, "publish", counted)
    for processed in range(100):
        for end in ends:
            end.send(Snapshot(processed=processed))
    query.until(lambda: [one.processed for one in query.supervisor.view.snapshots] == [99, 99])
    assert len(looks) < 20
    for end in ends:
        end.close()


def test_many_lanes_report_less_often_each() -> None:
    class End:
        hello = Hello(0, 1, 0, 1, 1, "host")

        def __init__(self) -> None:
            self.sent: list[Any] = []

        def send(self, order: Any) -> None:
            self.sent.append(order)

    for lanes, report_s in ((1, 0.25), (333, 0.25), (1_000, 0.75)):
        lane, end = lane_record.LaneRecord(0, Restarts(RestartLimits())), End()
        lane.connect(cast("Any", end), None)
        lane.let_go((), None, lanes, 0.0)
        assert end.sent == [Go(report_s=report_s)]
        assert lane.state == "running"


def test_lanes_without_a_slot_are_named(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lane_record, "MISSING_S", 0.3)
    query = queries()
    query.jobs.knows_executors = False
    end = query.running(0)
    query.until(reporting(end, lambda: "no task slot for lane 1 of group g" in caplog.text))
    query.until(reporting(end, lambda: len(query.handle.recentProgress) > 5))
    assert caplog.text.count("no task slot") == 1
    end.close()


def test_a_lane_that_has_a_slot_and_no_process_is_not_said_to_have_none(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's daemon stands still, or Python takes long to start."""
    monkeypatch.setattr(lane_record, "MISSING_S", 0.3)
    query = queries()
    end = query.running(0)
    query.until(
        reporting(end, lambda: "lane 1: no Python worker on executor executor of 1" in query.supervisor.view.missing)
    )
    assert "lane 1 of group g has a task slot (executor executor of 1), and no Python worker has come" in caplog.text
    assert "no task slot" not in caplog.text
    end.close()


def test_a_lane_whose_process_is_gone_while_its_job_goes_on_is_lost(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its node is gone, and there is no slot: Spark has its task wait."""
    monkeypatch.setattr(lane_record, "MISSING_S", 0.3)
    query = queries()
    stays, goes = query.all_running()
    goes.close()
    query.until(reporting(stays, lambda: query.states() == ["running", "lost"]))
    lost = query.handle.lanes[1]
    assert (lost.pid, lost.host, lost.executor_id, lost.partitions) == (None, None, None, ())
    query.until(reporting(stays, lambda: "1 of 2 lanes running; lane 1: lost for" in query.handle.status["message"]))
    assert "lane 1: lost for" in str(query.handle.health().unready)
    assert query.handle.health().fault is None
    query.until(reporting(stays, lambda: len(query.handle.recentProgress) > 5))
    assert caplog.text.count("lane 1 of group g is lost") == 1
    again = query.jobs.of(1).connect(101, task_attempt=1)
    query.until(reporting(stays, lambda: query.states() == ["running", "running"]))
    assert "lane 1's task was lost, and Spark started it again" in caplog.text
    query.until(reporting(stays, reporting(again, lambda: query.handle.health() == Health())))
    again.close()
    stays.close()


def test_what_of_spark_does_not_answer_is_named_as_the_reason(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lane_record, "MISSING_S", 0.3)
    query = queries()
    query.jobs.knows_executors, query.jobs.silent = False, "the server does not answer"
    goes = query.running(0)
    query.until(reporting(goes, lambda: "for 0 s: the server does not answer" in query.supervisor.view.missing))
    assert "no task slot for lane 1 of group g after 0 s: the server does not answer" in caplog.text
    goes.close()
    query.until(lambda: query.states()[0] == "lost")
    assert "lane 0 of group g is lost: its process has been gone for 0 s, and the server does not" in caplog.text
    query.until(lambda: "lane 0: lost for 0 s: the server does not answer" in query.supervisor.view.missing)


def test_a_stop_does_not_wait_for_a_lane_that_is_gone(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost already, or gone a moment ago."""
    monkeypatch.setattr(supervisor_module, "GONE_S", 0.3)
    monkeypatch.setattr(lane_record, "MISSING_S", 0.1)
    for is_lost in (True, False):
        query = queries()
        stays, goes = query.all_running()
        goes.close()
        if is_lost:
            query.until(lambda query=query: query.states()[1] == "lost")  # type: ignore[misc]
        query.supervisor.stop()
        assert stays.receive(PATIENCE_S) == "stop"
        query.finish(stays, 0)
        assert query.supervisor.ended.wait(PATIENCE_S)
        assert query.jobs.cancelled == [1]
        assert query.handle.exception() is None


def test_a_lane_that_is_not_heard_is_named_before_it_is_given_up(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that stands still or is cut off closes no socket; its session may last for minutes."""
    monkeypatch.setattr(lane_record, "MISSING_S", 0.3)
    query = queries(session_timeout_s=600.0)
    heard, silent = query.all_running()
    named = "1 of 2 lanes running; lane 1: not heard for"
    query.until(reporting(heard, lambda: named in query.handle.status["message"]))
    assert query.states() == ["running", "not heard"]
    assert "lane 1: not heard for" in str(query.handle.health().unready)
    query.until(reporting(heard, lambda: len(query.handle.recentProgress) > 5))
    assert caplog.text.count("lane 1 of group g: process 100 on host has not been heard for") == 1
    query.until(reporting(heard, reporting(silent, lambda: query.handle.health() == Health())))
    assert query.handle.status["message"] == "2 of 2 lanes running"
    assert query.jobs.cancelled == []
    for end in (heard, silent):
        end.close()


def test_a_lane_that_was_given_up_stays_named_until_it_runs_again(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node stands still, and there is no other slot: each new launch would begin to count anew."""
    monkeypatch.setattr(lane_record, "MISSING_S", 0.3)
    monkeypatch.setattr(supervisor_module, "SHORTEST_SILENCE_S", 0.4)
    query = queries(session_timeout_s=0.4)
    heard, _ = query.all_running()
    seen: set[tuple[int, bool]] = set()

    def is_launched_again() -> bool:
        view = query.supervisor.view
        seen.add((view.lanes[1].launches, "lane 1: " in view.missing))
        return view.lanes[1].launches == 2 and view.lanes[1].state == "launching"

    query.until(reporting(heard, is_launched_again))
    assert (2, False) not in seen
    assert "lane 1: no task slot for 0 s" in query.supervisor.view.missing
    again = query.running(1, launch=2)
    query.until(reporting(heard, reporting(again, lambda: query.supervisor.view.missing == "")))
    for end in (heard, again):
        end.close()


def test_a_stop_does_not_wait_for_the_session_of_a_lane_that_is_not_heard(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "SHORTEST_SILENCE_S", 0.3)
    query = queries(session_timeout_s=600.0, drain_timeout_s=600.0)
    stays, _ = query.all_running()
    query.supervisor.stop()
    assert stays.receive(PATIENCE_S) == "stop"
    query.finish(stays, 0)
    assert query.supervisor.ended.wait(PATIENCE_S)
    assert query.jobs.cancelled == [1]
    assert query.handle.exception() is None


def test_recent_progress_is_bounded_and_ends_with_the_last(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    query.until(lambda: len(query.handle.recentProgress) == 10)
    query.until(lambda: query.handle.recentProgress[0]["batchId"] > 0)
    assert query.handle.recentProgress[-1] == query.handle.lastProgress
    for end in ends:
        end.close()


def test_await_termination_returns_false_while_the_query_runs(queries: Callable[..., Query]) -> None:
    query = queries()
    assert query.handle.awaitTermination(0.01) is False
    with pytest.raises(kl.UsageError, match="timeout=-1"):
        query.handle.awaitTermination(-1)


def test_a_lane_whose_process_is_silent_is_given_up_and_starts_again(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGSTOP: the socket stays open, nothing comes; cancelling the job makes Spark kill the process."""
    monkeypatch.setattr(supervisor_module, "SHORTEST_SILENCE_S", 0.3)
    query = queries(session_timeout_s=0.3)
    stopped = query.running(0)
    heard = query.running(1)
    query.until(reporting(heard, lambda: query.jobs.cancelled == [0]))
    again = query.jobs.of(0, launch=2).connect(pid=200)
    query.until(reporting(heard, lambda: query.handle.lanes[0].pid == 200))
    assert again.receive(PATIENCE_S) == Go()
    assert "lane 0: process 100 on host was not heard for 0 s" in caplog.text
    assert query.handle.lanes[0].failures == 1
    assert query.handle.exception() is None
    for end in (stopped, again, heard):
        end.close()


def test_a_lane_leaves_an_executor_that_is_decommissioned_and_no_failure_is_counted(
    queries: Callable[..., Query],
) -> None:
    query = queries()
    ends = query.all_running()
    query.jobs.decommissioned = {"executor of 0"}
    assert ends[0].receive(PATIENCE_S) == "stop"
    query.jobs.decommissioned = set()
    query.finish(ends[0], 0, "stopped", Snapshot(processed=4))
    again = query.running(0, launch=2)
    query.until(lambda: query.states() == ["running", "running"] and query.handle.snapshot().processed == 4)
    assert query.handle.lanes[0].failures == 0
    for end in (again, ends[1]):
        end.close()


def test_lanes_are_added_and_taken_away_from_the_end(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    query.handle.set_lanes(3)
    ends.append(query.running(2))
    assert query.jobs.of(2).task.kafka["group.instance.id"] == "lane-2"
    query.handle.set_lanes(1)
    for lane in (1, 2):
        assert ends[lane].receive(PATIENCE_S) == "stop"
        query.finish(ends[lane], lane, "stopped", Snapshot(processed=lane))
    query.until(lambda: query.states() == ["running", "removed", "removed"])
    assert query.handle.snapshot().processed == 3, "what removed lanes have done stays"
    query.handle.set_lanes(2)
    ends[1] = query.running(1, launch=2)
    query.until(lambda: query.states() == ["running", "running", "removed"])
    query.supervisor.stop()
    for lane in (0, 1):
        assert ends[lane].receive(PATIENCE_S) == "stop"
        query.finish(ends[lane], lane)
    assert query.supervisor.ended.wait(PATIENCE_S)
    assert query.handle.exception() is None


def test_a_lane_that_is_wanted_again_before_it_has_left_starts_again(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    query.handle.set_lanes(1)
    assert ends[1].receive(PATIENCE_S) == "stop"
    query.handle.set_lanes(2)
    query.finish(ends[1], 1)
    again = query.running(1, launch=2)
    for end in (ends[0], again):
        end.close()


def test_a_lane_that_dies_while_it_leaves_is_removed(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    query.handle.set_lanes(1)
    assert ends[1].receive(PATIENCE_S) == "stop"
    ends[1].close()
    query.jobs.of(1).on_end(DIED)
    query.until(lambda: query.states() == ["running", "removed"])
    assert query.handle.exception() is None
    ends[0].close()


def test_lanes_follow_the_lag_between_bounds(queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keylane.spark.scaling.GROW_AFTER_S", 0.1)
    query = queries(lanes=1, bounds=LaneBounds(1, 2, 1_000))
    end = query.running(0)
    with pytest.raises(kl.UsageError, match=r"set_lanes\(2\): this query was started with lanes=\(1, 2\)"):
        query.handle.set_lanes(2)
    part = PartitionSnapshot("t", 0, 10, 10, 9, 0, 10, 1_000_000)
    done = 0

    def works() -> bool:
        nonlocal done
        done += 1
        end.send(Snapshot(processed=done, in_flight=10, partitions=(part,)))
        return len(query.jobs.launches) == 2

    query.until(works)
    second = query.running(1)
    for one in (end, second):
        one.close()


def test_a_session_that_ends_is_an_error_unless_the_query_was_to_stop(queries: Callable[..., Query]) -> None:
    """SIGTERM to the process group: the JVM ends at once, and the lanes drain by themselves; they are waited for."""
    ended = JobFailure("session stopped", "the JVM is gone")
    outcomes = []
    for stops in (False, True):
        query = queries(lanes=1)
        end = query.running(0)
        query.jobs.ignores_cancels = True
        query.jobs.of(0).on_end(ended)
        query.until(lambda query=query: query.states() == ["ended"])  # type: ignore[misc]
        if stops:
            query.supervisor.stop()
        end.send(Snapshot(processed=9))
        end.close()
        assert query.supervisor.ended.wait(PATIENCE_S)
        outcomes.append((type(query.handle.exception()), query.handle.snapshot().processed))
    assert outcomes == [(kl.errors.SessionEndedError, 9), (type(None), 9)]


def test_an_executor_that_spark_names_late_is_known_with_the_next_report(queries: Callable[..., Query]) -> None:
    query = queries()
    query.jobs.knows_executors = False
    ends = query.all_running()
    assert query.handle.lanes[0].executor_id is None
    query.jobs.knows_executors = True
    ends[0].send(Snapshot())
    query.until(lambda: query.handle.lanes[0].executor_id == "executor of 0")
    for end in ends:
        end.close()


def test_spark_shows_a_lanes_partitions_as_they_change(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    part = PartitionSnapshot("t", 0, 5, 5, 4, 0, 5, 9)
    ends[0].send(Snapshot(partitions=(part,)))
    query.until(lambda: query.jobs.described == {0: ("t-0",)})
    assert query.jobs.figures[0] == "0 records/s, 0 in flight, lag 4"
    ends[0].send(Snapshot())
    query.until(lambda: query.jobs.described == {0: ()})
    for end in ends:
        end.close()


def test_listeners_get_sparks_events(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    ends[0].send(Snapshot(processed=3, in_flight=1, produced=2))
    query.until(lambda: query.handle.snapshot().processed == 3)
    query.until(lambda: any(isinstance(one, QueryProgressEvent) for one in query.events.told))
    query.supervisor.stop()
    for lane, end in enumerate(ends):
        query.finish(end, lane)
    query.until(lambda: isinstance(query.events.told[-1], QueryTerminatedEvent))
    first, *progress, last = query.events.told
    assert isinstance(first, QueryStartedEvent)
    assert (str(first.id), str(first.runId)) == (query.handle.id, query.handle.runId)
    assert (str(last.runId), last.exception) == (query.handle.runId, None)
    assert sum(one.progress.numInputRows for one in progress) == 3
    assert sum(one.progress.sink.numOutputRows for one in progress) == 2
    assert progress[0].progress["lanes"][0]["lane"] == 0, "keylane's own entries are there"


def test_a_listener_that_fails_does_not_touch_the_query(
    queries: Callable[..., Query], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise ValueError("my dashboard is down")

    query = queries()
    monkeypatch.setattr(query.events, "onQueryProgress", fail)
    ends = query.all_running()
    query.until(lambda: "my dashboard is down" in caplog.text)
    assert query.handle.isActive
    for end in ends:
        end.close()


def test_partitions_that_are_assigned_by_hand_are_divided(queries: Callable[..., Query]) -> None:
    query = queries(assignment=tuple(("t", number) for number in range(5)))
    shares = [list(query.jobs.of(lane).task.assignment) for lane in range(2)]
    assert shares == [[("t", 0), ("t", 2), ("t", 4)], [("t", 1), ("t", 3)]]


# What users ask of lanes while they run.

LIVENESS = Liveness(10_000, 3_000, 300_000, 0, 6_000)


class Caller(threading.Thread):
    """A user's thread in a call of the query's."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.value: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._call()
        except Exception as error:
            self.error = error

    def result(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the call does not end"
        if self.error is not None:
            raise self.error
        return self.value


def asked(end: LaneEnd) -> Ask:
    order = end.receive(PATIENCE_S)
    assert isinstance(order, Ask)
    return order


def has(*partitions: int) -> Snapshot:
    return Snapshot(partitions=tuple(PartitionSnapshot("t", one, 5, 5, 4, 0, 5, 9) for one in partitions))


def test_pause_resume_and_adjust_return_when_all_lanes_have_done_it(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    rates = kl.Rates(records_per_s=9)
    for call, what in (
        (lambda: query.handle.pause([("t", 1)]), Pause((("t", 1),))),
        (query.handle.resume, Resume(None)),
        (lambda: query.handle.adjust(max_concurrency=3, rates=rates), Adjust(3, rates)),
    ):
        caller = Caller(call)
        orders = [asked(end) for end in ends]
        assert [one.what for one in orders] == [what, what]
        ends[0].post(Answer(orders[0].number))
        caller.join(0.05)
        assert caller.is_alive(), "one lane has not answered"
        ends[1].post(Answer(orders[1].number))
        assert caller.result() is None
    for end in ends:
        end.close()


def test_a_lane_that_dies_before_it_answers_begins_with_what_was_asked(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    caller = Caller(query.handle.pause)
    order = asked(ends[1])
    ends[0].close()
    query.jobs.of(0).on_end(DIED)
    ends[1].post(Answer(order.number))
    assert caller.result() is None
    again = query.jobs.of(0, launch=2).connect()
    assert again.receive(PATIENCE_S) == Go((Pause(None),))
    for end in (again, ends[1]):
        end.close()


def test_lanes_that_come_later_begin_with_what_was_asked(queries: Callable[..., Query]) -> None:
    query = queries(lanes=1)
    query.handle.pause([("t", 0)])
    query.handle.adjust(max_concurrency=2)
    begin = Go((Pause((("t", 0),)), Adjust(2, None)))
    first = query.jobs.of(0).connect()
    assert first.receive(PATIENCE_S) == begin
    query.handle.set_lanes(2)
    second = query.jobs.of(1).connect()
    assert second.receive(PATIENCE_S) == begin
    for end in (first, second):
        end.close()


def test_a_lane_that_does_not_answer_in_time_is_named(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keylane.spark.controls.ANSWER_S", 0.1)
    query = queries(lanes=1)
    end = query.running(0)
    with pytest.raises(kl.PeerError, match=r"^pause: no answer within .* from lane 0 \(process 100 on host\)"):
        Caller(query.handle.pause).result()
    end.close()


def test_a_seek_goes_to_the_lane_that_has_the_partition_and_follows_it(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    caller = Caller(lambda: query.handle.seek({("t", 0): 7}))
    query.until(lambda: bool(query.supervisor._open_calls))
    ends[0].send(has(0))
    ends[1].send(has(1))
    order = asked(ends[0])
    assert order.what == Seek({("t", 0): Target(offset=7)})
    ends[0].close()  # in the middle of it
    query.jobs.of(0).on_end(DIED)
    query.jobs.of(0, launch=2)
    ends[1].send(has(0, 1))
    order = asked(ends[1])
    assert order.what == Seek({("t", 0): Target(offset=7)})
    ends[1].post(Answer(order.number, (("t", 0),)))
    assert caller.result() is None
    ends[1].close()


def test_seek_to_time_is_in_all_partitions_or_in_those_named(queries: Callable[..., Query]) -> None:
    query = queries(lanes=1, log_ends={("t", 0): 9, ("t", 1): 9})
    end = query.running(0)
    target = Target(time_ms=17)
    for call, names in (
        (lambda: query.handle.seek_to_time(17), [("t", 0), ("t", 1)]),
        (lambda: query.handle.seek_to_time(17, [("t", 1)]), [("t", 1)]),
    ):
        caller = Caller(call)
        query.until(lambda: bool(query.supervisor._open_calls))
        end.send(has(0, 1))
        order = asked(end)
        assert order.what == Seek(dict.fromkeys(names, target))
        end.post(Answer(order.number, tuple(names)))
        assert caller.result() is None
    end.close()


def test_what_a_lane_could_not_do_is_raised_to_the_caller(queries: Callable[..., Query]) -> None:
    query = queries(lanes=1)
    end = query.running(0)
    caller = Caller(query.handle.pause)
    end.post(Answer(asked(end).number, failure=LaneFailure.of(kl.UsageError("not here"))))
    with pytest.raises(kl.UsageError, match="not here"):
        caller.result()
    end.close()


def test_liveness_is_told_by_lane(queries: Callable[..., Query]) -> None:
    query = queries()
    ends = query.all_running()
    caller = Caller(query.handle.liveness)
    for end in ends:
        order = asked(end)
        assert order.what == TellLiveness()
        end.post(Answer(order.number, LIVENESS))
    assert caller.result() == {0: LIVENESS, 1: LIVENESS}
    for end in ends:
        end.close()


def test_calls_end_with_the_query_and_after_it(queries: Callable[..., Query]) -> None:
    query = queries(lanes=1)
    end = query.running(0)
    waiting = [Caller(query.handle.pause), Caller(query.handle.liveness), Caller(lambda: query.handle.seek({}))]
    seeking = Caller(lambda: query.handle.seek({("t", 0): 1}))
    query.until(lambda: len(query.supervisor._open_calls) == 3)
    query.supervisor.stop()
    query.finish(end, 0)
    assert [one.result() for one in waiting] == [None, {}, None]
    with pytest.raises(kl.UsageError, match="seek: the query has ended"):
        seeking.result()
    assert query.supervisor.ended.wait(PATIENCE_S)
    query.handle.pause()
    assert query.handle.liveness() == {}
    with pytest.raises(kl.UsageError, match="seek: the query has ended"):
        query.handle.seek({("t", 0): 1})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda handle: handle.pause(["t"]), r"partitions=\('t',\): give \(topic, partition\) pairs"),
        (lambda handle: handle.adjust(max_concurrency=0), "max_concurrency=0"),
        (lambda handle: handle.adjust(rates=5), r"rates=5: give keylane\.Rates"),
        (lambda handle: handle.seek({("t", 0): -1}), "give an offset of at least 0"),
        (lambda handle: handle.seek({("u", 0): 1}), r"\('u', 0\) is not of what the pipeline reads"),
        (lambda handle: handle.seek_to_time(-1), r"seek_to_time\(-1\)"),
    ],
)
def test_what_cannot_be_asked_is_refused_as_by_a_consumer(
    queries: Callable[..., Query], call: Callable[[LaneQuery], None], words: str
) -> None:
    with pytest.raises(kl.UsageError, match=words):
        call(queries().handle)


def test_what_lanes_may_run_at_once_is_what_they_were_adjusted_to(
    queries: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def plan(self: Any, now: float, lanes: int, lag: int | None, rate: float, busy: float) -> int:
        seen.append(busy)
        return lanes

    monkeypatch.setattr("keylane.spark.scaling.Scaler.plan", plan)
    query = queries(lanes=1, bounds=LaneBounds(1, 2, 1_000))
    end = query.running(0)
    end.send(Snapshot(in_flight=5))
    query.until(lambda: 0.5 in seen)
    caller = Caller(lambda: query.handle.adjust(max_concurrency=5))
    end.post(Answer(asked(end).number))
    caller.result()
    query.until(lambda: 1.0 in seen)
    end.close()


def shown(number: int) -> Show:
    result = kl.Result(kl.Record(PlainMessage("t", 0, number)), f"result {number}")
    return Show(((number, pickle.dumps(result)),))


def test_results_of_lanes_are_read_and_leaving_ends_the_query(queries: Callable[..., Query]) -> None:
    query = queries(from_lanes=FromLanes(complete="read", max_unread=3))
    ends = [query.jobs.of(lane).connect() for lane in range(2)]
    for end in ends:
        assert end.receive(PATIENCE_S) == Go(shows=ResultsRule(every=True, max_unseen=3))
    with query.handle.stream() as results:
        for number, end in enumerate(ends, 1):
            end.post(shown(number))
            assert next(results).value == f"result {number}"
        assert ends[0].receive(PATIENCE_S) == Moved(((1, None),), passed=1)
        ends[0].post(shown(5))
        ends[0].close()
        query.jobs.of(0).on_end(DIED)
        again = query.jobs.of(0, 2).connect()
        assert again.receive(PATIENCE_S) == Go(shows=ResultsRule(every=True, max_unseen=3, waiting=1))
        again.post(shown(1))
        assert next(results).value == "result 1", "what a lane that died had waiting is passed over"
        assert again.receive(PATIENCE_S) == Moved(passed=1)
        ending = threading.Thread(target=told_to_leave, args=(query, again, ends[1]))
        ending.start()
    ending.join(PATIENCE_S)
    assert not query.handle.isActive


def told_to_leave(query: Query, *ends: LaneEnd) -> None:
    for lane, end in enumerate(ends):
        orders = []
        while "stop" not in orders:
            orders.append(end.receive(PATIENCE_S))
        assert orders[-2:] == ["left", "stop"], orders
        query.finish(end, lane)


def test_what_on_commit_raises_in_the_driver_ends_the_query(queries: Callable[..., Query]) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not today")

    query = queries(from_lanes=FromLanes(on_commit=refuse), lanes=1)
    end = query.running(0)
    end.post(Told({("t", 0): 5}, {}, "", []))
    assert {end.receive(PATIENCE_S), end.receive(PATIENCE_S)} == {"stop", Moved(heard=1)}
    query.finish(end, 0)
    with pytest.raises(kl.HandlerError, match="on_commit raised ValueError: not today"):
        query.handle.awaitTermination()
