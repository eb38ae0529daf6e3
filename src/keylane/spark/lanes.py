"""The lane itself: what runs inside the one task of its Spark job, in the executor's Python worker.

A lane is a member of the consumer group: it builds a `ParallelConsumer` and runs it in the worker's main thread. One
more thread, the *link*, talks to the driver, does what users ask for there (`pause`, `seek`, …), and watches for the
three ways in which a lane is asked to end early:
the driver says `stop`; the driver is gone (its socket closed); the executor is gone (SIGHUP from Spark's daemon, or
another parent process). Each of them stops intake, lets the records in handlers finish, commits, and leaves.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from keylane.consumer.passing import Passing
from keylane.consumer.settings import apply
from keylane.errors import InternalError
from keylane.kafka.membership import Replay, Seek
from keylane.pipeline import Partitions
from keylane.spark.channel import REPORT_S, Address, Answer, Ask, Go, Hello, LaneEnd, Moved
from keylane.spark.controls import TellLiveness, TellWork
from keylane.spark.outcome import Ending, LaneFailure, LaneOutcome
from keylane.spark.to_driver import ToDriver
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from keylane.consumer.intake import Liveness
    from keylane.consumer.passing import Told
    from keylane.consumer.ports import LastStage
    from keylane.consumer.settings import Change
    from keylane.consumer.snapshot import Snapshot
    from keylane.consumer.work import Work
    from keylane.flow.keys import KeyRule
    from keylane.kafka.membership import Target
    from keylane.options import Rates
    from keylane.pipeline import Pipeline
    from keylane.spark.channel import Order
    from keylane.spark.controls import Name, Request, Value

logger = logger_of(__name__)

TICK_S = 0.25
"""How often a lane looks at its parent, and whether there is something to tell its driver."""
ORPHAN_LIMIT_S = 25.0
"""How long a lane without driver or executor may drain; then its process exits, so that nothing is left after 30 s."""
TOLD_BY_DRIVER = ("keylane.failures", "keylane.waits")


class Runner(Protocol):
    """The part of `ParallelConsumer` that a lane uses."""

    def run(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def snapshot(self) -> Snapshot: ...
    def pause(self, partitions: Iterable[Name] | None = None) -> None: ...
    def resume(self, partitions: Iterable[Name] | None = None) -> None: ...
    def adjust(self, *, max_concurrency: int | None = None, rates: Rates | None = None) -> None: ...
    def rule_keys(self, rules: tuple[KeyRule, ...]) -> None: ...
    def pass_over(self, asked: Passing, told: Callable[[Told], None]) -> None: ...
    def move(self, targets: Mapping[Name, Target], moved: Callable[[Mapping[Name, str]], None]) -> None: ...
    def replay(self, asked: Replay, told: Callable[[Told], None]) -> None: ...
    def liveness(self) -> Liveness: ...
    def work(self) -> Work: ...
    def show(self, stream: LastStage) -> None: ...


MakeRunner = Callable[["Pipeline", "LaneTask"], Runner]


@dataclass(frozen=True, slots=True)
class LaneTask:
    """What one launch of a lane needs beside the pipeline."""

    lane: int
    launch: int
    """Which launch of the lane by the supervisor: 1 for the first."""
    cargo: bytes
    """The pipeline and the function that makes its runner, from `shipping.pack`: the same bytes for every lane."""
    kafka: Mapping[str, Any]
    """Client settings of this lane alone, over the pipeline's."""
    assignment: Sequence[tuple[str, int]]
    """Its share of the pipeline's, when that assigns partitions by hand."""
    ending_offsets: Mapping[tuple[str, int], int] | None
    client_id: str
    driver: Address


def parallel_consumer(pipeline: Pipeline, task: LaneTask) -> Runner:
    """The runner of every real lane."""
    from keylane.parallel_consumer import ParallelConsumer

    return ParallelConsumer(pipeline, ending_offsets=task.ending_offsets, client_id=task.client_id)


def run_lane(task: LaneTask, pipeline: Pipeline, make_runner: MakeRunner, task_attempt: int) -> LaneOutcome:
    """Runs one lane to its end. Never raises an `Exception`: a failure is part of the outcome."""
    hello = Hello(task.lane, task.launch, task_attempt, os.getpid(), os.getppid(), socket.gethostname())
    try:
        end = LaneEnd(task.driver, hello)
    except Exception as error:  # by value, as every failure of a lane
        return LaneOutcome("failed", None, LaneFailure.of(error))
    link = Link(end)
    try:
        with link.hangups(), logging_to_stderr(), told_by_the_driver():
            topics = Partitions(task.assignment) if task.assignment else pipeline.topics
            ours = replace(pipeline, kafka={**pipeline.kafka, **task.kafka}, topics=topics)
            return _run(link, lambda: make_runner(ours, task))
    finally:
        end.close()


@contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Within the block keylane's warnings name their time and logger in the executor's stderr.

    An executor's Python worker configures no logging, and would print the bare text. Where the user's code has, this
    does nothing. Reused workers are left as they were.
    """
    ours = logging.getLogger("keylane")
    if ours.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    ours.addHandler(handler)
    try:
        yield
    finally:
        ours.removeHandler(handler)


@contextmanager
def told_by_the_driver() -> Iterator[None]:
    """Within the block this process does not log failed attempts, and what it waits for: the driver does, once for all
    lanes, from their snapshots."""
    levels = {name: logging.getLogger(name).level for name in TOLD_BY_DRIVER}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _run(link: Link, make_runner: Callable[[], Runner]) -> LaneOutcome:
    snapshot = None
    try:
        if not link.wait_for_go():
            return LaneOutcome(link.ending, None)
        runner = make_runner()
        try:
            for change in link.changes:
                apply(runner, change)
            if link.to_driver is not None:
                runner.show(link.to_driver)
            with link.serving(runner):
                runner.run()
        finally:
            runner.close()
            snapshot = runner.snapshot()
            link.report(snapshot)
    except Exception as error:  # by value: an exception would reach the driver as a Java stack trace
        return LaneOutcome("failed", snapshot, LaneFailure.of(error))
    return LaneOutcome(link.ending, snapshot)


class Link:
    """The lane's conversation with its driver, and why the lane must end.

    Thread safety: before and after `serving`, everything runs in the task's thread. Within it, the link's thread alone
    uses the socket. A signal handler only calls `_end`.
    """

    def __init__(self, end: LaneEnd) -> None:
        self.ending: Ending = "work done"
        self.changes: tuple[Change, ...] = ()
        """What the lane begins with."""
        self.to_driver: ToDriver | None = None
        """What user code in the driver is to see goes there."""
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        """From whichever thread did what was asked for; the link's sends them."""
        self._end_of_lane = end
        self._parent = os.getppid()
        self._runner: Runner | None = None
        self._ending_since: float | None = None
        self._report_s = REPORT_S
        self._next_report = float("-inf")
        self._finished = threading.Event()
        self._error: Exception | None = None

    def wait_for_go(self) -> bool:
        """Waits until the driver lets the lane start; False when the lane must end instead."""
        while self.ending == "work done":
            try:
                order = self._end_of_lane.receive(TICK_S)
            except ConnectionError:
                self._end("driver gone")
                break
            if isinstance(order, Go):
                self.changes = order.changes
                self._report_s = order.report_s
                if order.shows is not None:
                    self.to_driver = ToDriver(order.shows, self._end_of_lane.post)
                return True
            if order == "stop":
                self._end("stopped")
            self._look_at_parent()
        return False

    @contextmanager
    def serving(self, runner: Runner) -> Iterator[None]:
        """Serves the driver from a thread of its own, joined at the end."""
        self._runner = runner
        if self.ending != "work done":  # a hangup came before there was a runner to stop
            runner.stop()
        thread = threading.Thread(target=self._serve, args=(runner,), name="keylane-lane-link", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._finished.set()
            thread.join()
        if self._error is not None:
            raise InternalError(f"the lane's link to its driver failed: {self._error!r}") from self._error

    @contextmanager
    def hangups(self) -> Iterator[None]:
        """Takes SIGHUP as the executor's end while the task runs; the worker may serve other tasks after it."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
            yield
            return
        before = signal.signal(signal.SIGHUP, lambda *_: self._end("executor gone"))
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)

    def report(self, snapshot: Snapshot) -> None:
        """Sends the last snapshot; it also travels in the outcome, so a driver that is gone does not matter."""
        try:
            self._end_of_lane.send(snapshot)
        except ConnectionError as error:
            logger.debug("last snapshot not sent: %s", error)

    def _serve(self, runner: Runner) -> None:
        try:
            self._serve_until_finished(runner)
        except Exception as error:  # raised in the task's thread, once the runner has stopped
            self._error = error
            runner.stop()

    def _serve_until_finished(self, runner: Runner) -> None:
        driver_there = True
        while not self._finished.is_set():
            if driver_there:
                driver_there = self._talk(runner)
            else:
                self._finished.wait(TICK_S)
            self._look_at_parent()
            self._exit_if_overdue()

    def _talk(self, runner: Runner) -> bool:
        """One exchange with the driver, of at most a tick. False when the driver is gone."""
        try:
            if time.monotonic() >= self._next_report:
                self._end_of_lane.send(runner.snapshot())
                self._next_report = time.monotonic() + self._report_s - TICK_S / 2  # in the tick nearest to it
            if self.to_driver is not None:
                self.to_driver.look()
            until = time.monotonic() + TICK_S
            while (left_s := until - time.monotonic()) > 0 and not self._finished.is_set():
                order = self._end_of_lane.receive(left_s)
                if order is not None:
                    self._obey(order, runner)
                with suppress(Empty):
                    while True:
                        self._end_of_lane.post(self._answers.get_nowait())
        except ConnectionError:
            self._end("driver gone")
            self._leave()
            return False
        return True

    def _obey(self, order: Order, runner: Runner) -> None:
        match order:
            case Moved():
                assert self.to_driver is not None, "what was shown?"
                self.to_driver.moved(order)
            case "left":
                self._end("stopped")
                self._leave()
            case "stop":
                self._end("stopped")
            case Ask(number, what):
                try:
                    self._do(number, what, runner)
                except Exception as error:  # the answer: whoever asked raises it
                    self._answers.put(Answer(number, failure=LaneFailure.of(error)))

    def _do(self, number: int, what: Request, runner: Runner) -> None:
        match what:
            case Seek(targets):
                runner.move(targets, partial(self._moved, number))
            case TellLiveness():
                self._answers.put(Answer(number, runner.liveness()))
            case TellWork():
                self._answers.put(Answer(number, runner.work()))
            case Passing():
                runner.pass_over(what, lambda told: self._answers.put(Answer(number, told)))
            case Replay():
                runner.replay(what, partial(self._replayed, number))
            case change:
                apply(runner, change)
                self._end_of_lane.send(runner.snapshot())  # which its loop makes after the change
                self._answers.put(Answer(number))

    def _moved(self, number: int, names: Iterable[Name]) -> None:
        """Any thread: a seek is done in these, and in no others."""
        self._replayed(number, tuple(names))

    def _replayed(self, number: int, value: Value) -> None:
        """Any thread: partitions have gone and come."""
        if self.to_driver is not None:
            self.to_driver.look()
        self._answers.put(Answer(number, value))

    def _leave(self) -> None:
        """Nobody in the driver sees anything any more. The runner has been told to stop: nothing starts again."""
        if self.to_driver is not None:
            self.to_driver.leave()

    def _look_at_parent(self) -> None:
        if os.getppid() != self._parent:
            self._end("executor gone")

    def _end(self, ending: Ending) -> None:
        """The lane shall end. Safe in a signal handler: it takes no lock, and `Runner.stop` promises the same."""
        if ending in ("driver gone", "executor gone") and self._ending_since is None:
            self._ending_since = time.monotonic()
        if self.ending != "work done":
            return
        self.ending = ending
        if self._runner is not None:
            self._runner.stop()

    def _exit_if_overdue(self) -> None:
        since = self._ending_since
        if since is not None and time.monotonic() - since > ORPHAN_LIMIT_S:
            logger.error(
                "%s: records are still in handlers after %.0f s; the process exits", self.ending, ORPHAN_LIMIT_S
            )
            os._exit(1)
