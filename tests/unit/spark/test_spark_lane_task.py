"""One lane in its task: orders, the loss of its driver or executor, failures as values, and what it leaves behind."""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import keylane as kl
from keylane.consumer.events import Adjust, Pause, Resume, RuleKeys
from keylane.consumer.intake import Liveness
from keylane.consumer.outputs import ResultsMoved, ResultsRule
from keylane.consumer.passing import Passing
from keylane.consumer.snapshot import Snapshot
from keylane.consumer.work import Work
from keylane.errors import FencedError, TopicDeletedError
from keylane.flow.outcomes import NOT_RUN
from keylane.kafka.membership import Replay, Seek, Target
from keylane.records import PlainMessage
from keylane.spark import lanes
from keylane.spark.channel import (
    Answered,
    Arrived,
    Ask,
    Departed,
    DriverSocket,
    Go,
    Moved,
    Reported,
    Shipped,
    Show,
    SocketEvent,
)
from keylane.spark.controls import TellLiveness
from keylane.spark.lanes import LaneTask, run_lane, told_by_the_driver
from keylane.spark.to_driver import ToDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.consumer.ports import LastStage
    from keylane.spark.controls import Request
    from keylane.spark.outcome import LaneOutcome

PATIENCE_S = 10.0
Event = TypeVar("Event", bound=SocketEvent)
PIPELINE = kl.Pipeline(kafka={"bootstrap.servers": "b", "group.id": "g"}, topics=["t"], handler=print)


LIVENESS = Liveness(10_000, 3_000, 300_000, 0, 6_000)


class Runner:
    """Runs until it is stopped, or does what the test tells it."""

    def __init__(self, pipeline: kl.Pipeline, act: Callable[[], None] | None = None) -> None:
        self.pipeline = pipeline
        self.stopped = threading.Event()
        self.running = threading.Event()
        self.closed = False
        self.broken = False
        self.done: list[tuple[str, Any]] = []
        """What was asked of it, in order."""
        self.stage: LastStage | None = None
        self._act = act or self._wait

    def _wait(self) -> None:
        """In slices, as `ParallelConsumer.run` waits: Python runs signal handlers between two of them at the latest."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.stopped.wait(0.05):
            assert time.monotonic() < deadline, "nobody stopped the runner"

    def run(self) -> None:
        self.running.set()
        self._act()

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed = True

    def pause(self, partitions: Any = None) -> None:
        self.done.append(("pause", partitions))

    def resume(self, partitions: Any = None) -> None:
        self.done.append(("resume", partitions))

    def adjust(self, *, max_concurrency: int | None = None, rates: kl.Rates | None = None) -> None:
        self.done.append(("adjust", max_concurrency))

    def rule_keys(self, rules: Any) -> None:
        self.done.append(("rules", rules))

    def pass_over(self, asked: Any, told: Any) -> None:
        self.done.append(("pass over", asked.records))
        threading.Thread(target=told, args=({("t", 0, 7): ""},)).start()  # as the loop does

    def replay(self, asked: Any, told: Any) -> None:
        self.done.append(("replay", asked.records))
        threading.Thread(target=told, args=({("t", 0, 8): ""},)).start()  # as the group's thread does

    def move(self, targets: Any, moved: Any) -> None:
        if not targets:
            raise kl.UsageError("nowhere to go")
        self.done.append(("seek", targets))
        threading.Thread(target=moved, args=([*targets],)).start()  # as the client's thread does

    def liveness(self) -> Liveness:
        return LIVENESS

    def work(self) -> Work:
        return Work()

    def show(self, stream: LastStage) -> None:
        self.stage = stream

    def snapshot(self) -> Snapshot:
        if self.broken and threading.current_thread().name == "keylane-lane-link":
            raise RuntimeError("no snapshot")
        return Snapshot(processed=7, commits=int(self.closed))


class Driver:
    """The driver's socket, its events by kind."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[SocketEvent] = queue.SimpleQueue()
        self.socket = DriverSocket("127.0.0.1", "127.0.0.1", b"key", self.events.put)

    def next(self, kind: type[Event]) -> Event:
        while not isinstance(event := self.events.get(timeout=PATIENCE_S), kind):
            pass
        return event


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.socket.close()


class Lane(threading.Thread):
    """A lane's task in a thread beside the test."""

    def __init__(self, driver: Driver, runner: Runner | None = None, kafka: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.outcome: LaneOutcome | None = None
        self.runner = runner
        self._task = LaneTask(0, 1, b"", kafka or {}, (), None, "client", driver.socket.address)

    def make(self, pipeline: kl.Pipeline, task: LaneTask) -> Runner:
        if self.runner is None:
            self.runner = Runner(pipeline)
        return self.runner

    def run(self) -> None:
        self.outcome = run_lane(self._task, PIPELINE, self.make, 0)

    def has_runner(self) -> bool:
        return self.runner is not None

    def result(self) -> LaneOutcome:
        self.join(PATIENCE_S)
        assert self.outcome is not None
        return self.outcome


def test_a_lane_starts_at_go_reports_and_stops_when_told(driver: Driver) -> None:
    lane = Lane(driver, kafka={"group.instance.id": "lane-0"})
    lane.start()
    end = driver.next(Arrived).end
    assert (end.hello.pid, end.hello.launch) == (os.getpid(), 1)
    assert not lane.has_runner(), "it must not join the group before the driver lets it"
    end.send(Go())
    assert driver.next(Reported).snapshot.processed == 7
    end.send("stop")
    outcome = lane.result()
    assert (outcome.ending, outcome.failure) == ("stopped", None)
    assert lane.runner is not None
    assert lane.runner.closed
    assert lane.runner.pipeline.kafka == {**PIPELINE.kafka, "group.instance.id": "lane-0"}
    assert outcome.snapshot == Snapshot(processed=7, commits=1), "the last snapshot is taken after the close"
    driver.next(Departed)


def test_a_lane_reports_as_often_as_it_is_told(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "TICK_S", 0.01)
    lane = Lane(driver)
    lane.start()
    end = driver.next(Arrived).end
    end.send(Go(report_s=PATIENCE_S))
    driver.next(Reported)  # the first, at once
    for number in range(2):  # an answer comes within a tick: snapshots do not wait for it, nor it for them
        end.send(Ask(number, TellLiveness()))
        assert isinstance(driver.events.get(timeout=PATIENCE_S), Answered)
    time.sleep(0.1)  # ten ticks
    assert driver.events.empty()
    end.send("stop")
    lane.result()


def test_a_lane_begins_with_what_was_asked_before_and_does_what_is_asked_while_it_runs(driver: Driver) -> None:
    lane = Lane(driver)
    lane.start()
    end = driver.next(Arrived).end
    end.send(Go((Pause(None), Adjust(3, None))))
    driver.next(Reported)
    assert lane.runner is not None
    assert lane.runner.done == [("pause", None), ("adjust", 3)]
    a, there = ("t", 0), Target(offset=5)
    skip, again = Passing((("t", 0, 7),)), Replay((("t", 0, 8),))
    requests: list[Request] = [Resume((a,)), TellLiveness(), Seek({a: there}), Seek({}), RuleKeys(()), skip, again]
    for number, what in enumerate(requests):
        end.send(Ask(number, what))
    answers = {one.number: one for one in (driver.next(Answered).answer for _ in range(7))}
    told = [
        ("resume", (a,)),
        ("seek", {a: there}),
        ("rules", ()),
        ("pass over", skip.records),
        ("replay", again.records),
    ]
    assert lane.runner.done[2:] == told
    assert [answers[number].value for number in range(3)] == [None, LIVENESS, (a,)]
    assert [answers[number].value for number in (4, 5, 6)] == [None, {("t", 0, 7): ""}, {("t", 0, 8): ""}]
    failure = answers[3].failure
    assert failure is not None
    assert str(failure.exception(0)) == "nowhere to go"
    end.send("stop")
    assert lane.result().ending == "stopped"


def test_a_lane_that_is_stopped_before_go_never_makes_a_consumer(driver: Driver) -> None:
    lane = Lane(driver)
    lane.start()
    driver.next(Arrived).end.send("stop")
    assert lane.result().ending == "stopped"
    assert lane.runner is None


@pytest.mark.parametrize("started", [False, True])
def test_a_lane_whose_driver_is_gone_drains_and_ends(driver: Driver, *, started: bool) -> None:
    lane = Lane(driver)
    lane.start()
    end = driver.next(Arrived).end
    if started:
        end.send(Go())
        driver.next(Reported)
    driver.socket.close()
    outcome = lane.result()
    assert outcome.ending == "driver gone"
    assert (lane.runner is not None) == started


@pytest.mark.parametrize("how", ["the reader left", "the driver is gone"])
def test_a_lane_shows_results_until_nobody_is_there_to_see_them(driver: Driver, how: str) -> None:
    lane = Lane(driver)
    lane.start()
    end = driver.next(Arrived).end
    end.send(Go(shows=ResultsRule(every=True, max_unseen=7)))
    driver.next(Reported)
    assert lane.runner is not None
    stage = lane.runner.stage
    assert isinstance(stage, ToDriver)
    assert stage.rule.max_unseen == 7
    moved: queue.SimpleQueue[ResultsMoved[Any]] = queue.SimpleQueue()
    stage.report_to(moved.put)
    stage.start()
    shown: list[Any] = [SeenThrough(), SeenThrough()]
    stage.put(shown)
    sent = driver.next(Shipped).what
    assert isinstance(sent, Show)
    end.send(Moved(((1, None),), passed=1))
    first = moved.get(timeout=PATIENCE_S)
    assert (first.settled, len(first.passed)) == ([(shown[0], None)], 1)
    if how == "the reader left":
        end.send("left")
    else:
        driver.socket.close()
    last = moved.get(timeout=PATIENCE_S)
    assert (last.settled, len(last.passed)) == ([(shown[1], NOT_RUN)], 1)
    assert lane.runner.stopped.is_set(), "nothing starts again"
    assert lane.result().ending == ("stopped" if how == "the reader left" else "driver gone")
    stage.close(PATIENCE_S)


class SeenThrough:
    wanted = True

    def result(self) -> kl.Result:
        return kl.Result(kl.Record(PlainMessage("t", 0, 0)), None)


def test_work_that_is_done_ends_the_lane(driver: Driver) -> None:
    lane = Lane(driver, Runner(PIPELINE, act=lambda: None))
    lane.start()
    driver.next(Arrived).end.send(Go())
    outcome = lane.result()
    assert (outcome.ending, outcome.failure) == ("work done", None)


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (kl.HandlerError("flights-0@3: ValueError: no"), True),
        (kl.UsageError("no"), True),
        (FencedError("another process has the name"), True),
        (TopicDeletedError("gone"), True),
        (kl.PeerError("broker"), False),
        (OSError("disk"), False),
    ],
)
def test_a_failure_is_a_value_with_the_original_error(driver: Driver, error: Exception, *, lasting: bool) -> None:
    def act() -> None:
        raise error

    lane = Lane(driver, Runner(PIPELINE, act))
    lane.start()
    driver.next(Arrived).end.send(Go())
    failure = lane.result().failure
    assert failure is not None
    assert failure.lasting == lasting
    seen = failure.exception(0)
    assert (type(seen), str(seen)) == (type(error), str(error))
    assert "in lane 0:" in seen.__notes__[0]
    assert "in act" in seen.__notes__[0]


def test_an_error_that_cannot_be_pickled_is_quoted(driver: Driver) -> None:
    class Local(Exception):  # noqa: N818
        def __init__(self, thing: object) -> None:
            super().__init__("lost", thing)

    def act() -> None:
        raise Local(threading.Lock())

    lane = Lane(driver, Runner(PIPELINE, act))
    lane.start()
    driver.next(Arrived).end.send(Go())
    failure = lane.result().failure
    assert failure is not None
    seen = failure.exception(4)
    assert isinstance(seen, kl.PeerError)
    assert "lane 4 failed: Local: ('lost'" in str(seen)


def test_a_link_that_fails_stops_the_lane_with_an_internal_error(driver: Driver) -> None:
    lane = Lane(driver, Runner(PIPELINE))
    lane.start()
    driver.next(Arrived).end.send(Go())
    driver.next(Reported)
    assert lane.runner is not None
    lane.runner.broken = True
    failure = lane.result().failure
    assert failure is not None
    assert "RuntimeError('no snapshot')" in failure.text


def test_no_driver_is_a_failure_by_value() -> None:
    driver = Driver()
    driver.socket.close()
    failure = _in_this_thread(driver, Runner(PIPELINE)).failure
    assert failure is not None
    assert not failure.lasting
    assert "does not reach its driver" in failure.text


def test_a_hangup_drains_the_lane_and_the_worker_stays_usable(driver: Driver) -> None:
    """Spark's daemon sends SIGHUP when the executor's JVM is gone; it reaches the main thread, where the task runs."""
    before = signal.getsignal(signal.SIGHUP)
    threads = set(threading.enumerate())
    runner = Runner(PIPELINE)
    letting_go = threading.Thread(target=lambda: driver.next(Arrived).end.send(Go()))

    def hang_up() -> None:
        if runner.running.wait(PATIENCE_S):
            os.kill(os.getpid(), signal.SIGHUP)

    hanging_up = threading.Thread(target=hang_up)
    letting_go.start()
    hanging_up.start()
    outcome = _in_this_thread(driver, runner)
    letting_go.join()
    hanging_up.join()
    assert outcome.ending == "executor gone", outcome
    assert runner.closed
    assert signal.getsignal(signal.SIGHUP) == before
    left = {thread.name for thread in set(threading.enumerate()) - threads if "lane-link" in thread.name}
    assert not left


def test_a_lane_whose_parent_has_changed_ends(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor can also vanish without a signal: SIGKILL of Spark's daemon leaves workers to another parent."""
    lane = Lane(driver)
    lane.start()
    driver.next(Arrived).end.send(Go())
    driver.next(Reported)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert lane.result().ending == "executor gone"


def _in_this_thread(driver: Driver, runner: Runner) -> LaneOutcome:
    task = LaneTask(0, 1, b"", {}, (), None, "client", driver.socket.address)
    return run_lane(task, PIPELINE, lambda _pipeline, _task: runner, 0)


def test_a_lanes_warnings_name_their_logger_where_nobody_configured_logging() -> None:
    """In a process of its own, as an executor's Python worker is: pytest has handlers of its own."""
    program = (
        "import logging; from keylane.spark.lanes import logging_to_stderr\n"
        "with logging_to_stderr(): logging.getLogger('keylane.kafka').warning('the broker is away')\n"
        "print(logging.getLogger('keylane').handlers)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\S+ \S+ WARNING keylane.kafka: the broker is away\n", done.stderr)
    assert done.stdout == "[]\n", "a worker that is used again is as it was"


def test_a_lane_leaves_it_to_the_driver_to_tell_of_failed_attempts(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("keylane.failures")
    with told_by_the_driver():
        logger.warning("told by the driver")
    logger.warning("told by a worker that is used again")
    assert caplog.messages == ["told by a worker that is used again"]
