"""The driver's side: starts lanes, starts failed ones again, collects what they report, and ends the query.

One thread owns all state and waits on one queue: what lanes' sockets say, how lanes' jobs end, and the user's `stop`.
Everything that other threads may read is published as one immutable `View`.
"""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from keylane.engine.snapshot import Snapshot
from keylane.errors import InternalError, KeylaneError, PeerError
from keylane.spark.channel import Arrived, Departed, DriverSocket, Reported, SocketEvent
from keylane.spark.jobs import JobFailure, JobResult
from keylane.spark.lane_record import LaneRecord, LaneStatus
from keylane.spark.lanes import LaneTask
from keylane.spark.outcome import LaneOutcome
from keylane.spark.progress import ProgressReporter, QueryName
from keylane.spark.restarts import RestartLimits, Restarts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

UNSCHEDULED_WARNING_S = 10.0
"""A lane whose job has no task slot for this long is named in the log: it may wait for ever."""
START_TOGETHER_S = 2.0
"""How long the first lane waits for the others: lanes that join one by one cost the group a rebalance each."""
WAITING_POLL_S = 0.1
"""How often a lane that waits to be let go is looked at."""
STOP_SLACK_S = 15.0
"""What a lane gets beside its drain timeout, for its last commit and for leaving; then its job is cancelled."""
DEPARTURE_TIMEOUT_S = 5.0
"""For the processes of lanes whose jobs have ended; Spark kills one whose job was cancelled within two seconds."""
JOIN_TIMEOUT_S = 10.0
"""For the threads of jobs that have ended or were cancelled."""


class LaneJobs(Protocol):
    """What the supervisor needs of Spark."""

    def submit(self, lane: int, shipment: bytes, on_end: Callable[[JobResult], None]) -> None: ...
    def cancel(self, lane: int) -> None: ...
    def executor_of(self, lane: int) -> str | None: ...
    def join(self, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What the query is to run."""

    query: QueryName
    lanes: int
    cargo: bytes
    """The pipeline, from `shipping.pack`."""
    ending_offsets: Mapping[tuple[str, int], int] | None
    """The trigger `availableNow`: where lanes stop. None: they run until they are stopped."""
    lane_settings: Callable[[int], Mapping[str, Any]]
    """Client settings of one lane: its group instance id."""
    limits: RestartLimits
    drain_timeout_s: float
    session_timeout_s: float
    progress_interval_s: float
    recent_progress: int
    """How many progress events are kept."""
    prepare: Callable[[Callable[[], bool]], None]
    """Runs before the first lane, in the supervisor's thread, and raises what the query shall fail with. It is given a
    function that tells whether the query is to stop."""
    committed: Callable[[], Mapping[tuple[str, int], int]]
    """Asks the broker for the group's committed offsets, once all lanes have ended."""
    closed: Callable[[], None]
    """Runs at the end, when no lane's process of this query is left."""


@dataclass(frozen=True, slots=True)
class View:
    """The query as other threads see it."""

    active: bool = True
    message: str = "Starting lanes"
    lag: int | None = None
    lanes: tuple[LaneStatus, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    progress: tuple[dict[str, Any], ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _JobEnded:
    lane: int
    launch: int
    result: JobResult


@dataclass(frozen=True, slots=True)
class _Stop:
    """The user asked for the end."""


_Event = SocketEvent | _JobEnded | _Stop


class Supervisor:
    """Runs a `LanePlan` to its end in a thread of its own."""

    def __init__(self, plan: LanePlan, jobs: LaneJobs, bind: str, advertise: str, key: bytes) -> None:
        self.view = View()
        self.ended = threading.Event()
        self._plan = plan
        self._jobs = jobs
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._socket = DriverSocket(bind, advertise, key, self._events.put)
        self._lanes = [LaneRecord(lane, Restarts(plan.limits)) for lane in range(plan.lanes)]
        self._reporter = ProgressReporter(plan.query)
        self._progress: deque[dict[str, Any]] = deque(maxlen=plan.recent_progress)
        self._next_progress = time.monotonic() + plan.progress_interval_s
        self._stop_requested = threading.Event()
        self._stopping_since: float | None = None
        self._work_is_done = False
        self._first_arrival: float | None = None
        self._cancelled_late = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"keylane-lanes-{plan.query.group}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks every lane to drain, commit and leave. Returns at once; `ended` tells when it is done."""
        self._stop_requested.set()
        self._events.put(_Stop())

    # The thread.

    def _run(self) -> None:
        try:
            self._plan.prepare(self._stop_requested.is_set)
            if not self._stop_requested.is_set():
                self._supervise()
            self._look_at_commits()
        except KeylaneError as error:
            self._error = self._error or error
        except Exception as error:  # the user's thread raises it from awaitTermination
            defect = InternalError(f"the supervisor of the lanes failed: {error!r}")
            defect.__cause__ = error
            self._error = self._error or defect
        finally:
            try:
                self._end()
            finally:  # whatever happens, nobody shall wait for ever
                self._publish(active=False)
                self.ended.set()

    def _supervise(self) -> None:
        now = time.monotonic()
        for lane in self._lanes:
            self._launch(lane, now)
        while any(lane.state != "ended" for lane in self._lanes):
            self._publish()
            try:
                event = self._events.get(timeout=max(0.0, self._next_timer() - time.monotonic()))
            except queue.Empty:
                pass
            else:
                self._handle(event, time.monotonic())
            self._on_time(time.monotonic())

    def _look_at_commits(self) -> None:
        """What the group has committed, from the broker and not from the lanes: the last word of the query."""
        ends = self._plan.ending_offsets
        must_be_whole = ends is not None and self._stopping_since is None and self._error is None
        try:
            committed = self._plan.committed()
        except PeerError as error:
            if must_be_whole:
                raise
            logger.warning("what the group has committed in the end is not known: %s", error)
            return
        self._reporter.note_committed(committed)
        if ends is None or not must_be_whole:
            return
        short = [
            f"{t}-{p} at {committed.get((t, p))} of {end}"
            for (t, p), end in ends.items()
            if committed.get((t, p), 0) < end
        ]
        if short:
            raise InternalError(
                f"all lanes have ended, but group {self._plan.query.group} has not committed all: {', '.join(short)}"
            )

    def _end(self) -> None:
        for lane in self._lanes:
            if lane.launches and lane.state not in ("backing off", "ended"):
                self._jobs.cancel(lane.lane)
        self._jobs.join(JOIN_TIMEOUT_S)
        if self._all_departed():
            self._plan.closed()
        self._socket.close()
        for lane in self._lanes:
            lane.state = "ended"
        self._report(time.monotonic())

    def _all_departed(self) -> bool:
        """Waits for the last processes to end: whether all have, so that their group instance ids are free."""
        deadline = time.monotonic() + DEPARTURE_TIMEOUT_S
        while any(lane.end or lane.predecessors for lane in self._lanes):
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            if isinstance(event, Departed):
                self._lanes[event.end.hello.lane].departed(event.end)
        return True

    def _next_timer(self) -> float:
        """When the thread must act without an event; at most a progress interval away."""
        times = [self._next_progress]
        if any(lane.state == "connected" for lane in self._lanes):
            times.append(time.monotonic() + WAITING_POLL_S)
        times += [lane.since for lane in self._lanes if lane.state == "backing off"]
        return min(times)

    # Events.

    def _handle(self, event: _Event, now: float) -> None:
        match event:
            case Arrived(end):
                self._arrived(event, self._lanes[end.hello.lane], now)
            case Reported(end, snapshot):
                lane = self._lanes[end.hello.lane]
                if lane.end is end:
                    lane.snapshot = snapshot
            case Departed(end):
                self._lanes[end.hello.lane].departed(end)
            case _JobEnded(index, launch, result):
                lane = self._lanes[index]
                if launch == lane.launches and lane.state != "ended":
                    self._job_ended(lane, result, now)
            case _Stop():
                self._stop_lanes(now)

    def _arrived(self, event: Arrived, lane: LaneRecord, now: float) -> None:
        end = event.end
        if end.hello.launch != lane.launches or lane.state in ("ended", "backing off"):
            end.send("stop")  # a task that Spark started once more after its job had ended for us
            lane.predecessors.append(end)
            return
        self._first_arrival = now if self._first_arrival is None else self._first_arrival
        retried_by_spark = lane.state in ("connected", "running")
        lane.connect(end, self._jobs.executor_of(lane.lane))
        lane.enter("connected", now)
        if retried_by_spark:
            self._failed(
                lane, PeerError(f"lane {lane.lane}'s task was lost, and Spark started it again"), now, launch=False
            )
        if self._stopping_since is not None or self._work_is_done:
            end.send("stop")

    def _job_ended(self, lane: LaneRecord, result: JobResult, now: float) -> None:
        if isinstance(result, LaneOutcome) and result.snapshot is not None:
            lane.snapshot = result.snapshot
            self._reporter.note(result.snapshot)
        lane.disconnect()
        match result:
            case LaneOutcome(failure=None, ending="work done" | "stopped" as ending):
                lane.enter("ended", now)
                if ending == "work done":
                    self._work_done(now)
            case LaneOutcome(failure=None, ending=ending):
                self._failed(lane, PeerError(f"lane {lane.lane} ended: {ending}"), now)
            case LaneOutcome(failure=failure):
                assert failure is not None
                error = failure.exception(lane.lane)
                if failure.lasting:
                    self._fail(lane, error, now)
                else:
                    self._failed(lane, error, now)
            case JobFailure(kind, text):
                self._job_failed(lane, kind, text, now)
            case error:
                self._fail(lane, error, now)

    def _job_failed(self, lane: LaneRecord, kind: str, text: str, now: float) -> None:
        if self._stopping_since is not None and kind != "died":
            lane.enter("ended", now)  # cancelled by us, or the session ends with the query
        elif kind == "cancelled":
            self._fail(
                lane, PeerError(f"lane {lane.lane}'s Spark job was cancelled from outside the query: {text}"), now
            )
        elif kind == "session stopped":
            self._fail(lane, PeerError(f"the Spark session was stopped while lane {lane.lane} ran: {text}"), now)
        else:
            self._failed(lane, PeerError(f"lane {lane.lane} died: {text}"), now)

    def _work_done(self, now: float) -> None:
        """One lane saw the whole group's offsets at their ends: the others need not find out for themselves.

        They could not, either, while the group waits for the lane that has just ended and, static, has not left.
        """
        self._work_is_done = True
        for lane in self._lanes:
            if lane.state == "launching":
                self._jobs.cancel(lane.lane)
                lane.enter("ended", now)
            elif lane.state == "backing off":
                lane.enter("ended", now)
            elif lane.end is not None:
                lane.end.send("stop")

    # Failures.

    def _failed(self, lane: LaneRecord, error: BaseException, now: float, *, launch: bool = True) -> None:
        """A failure that a new start may mend. `launch=False`: Spark has already started the lane again by itself."""
        if self._stopping_since is not None or self._work_is_done:
            logger.warning("while the query ends: %s", error)
            if launch:
                lane.enter("ended", now)
            return
        at = lane.restarts.failed(now)
        if at is None:
            logger.error("lane %d failed %d times within the window", lane.lane, lane.restarts.in_window)
            self._fail(lane, error, now, ended=launch)
            return
        logger.warning("%s; %s", error, f"it starts again in {at - now:.2f} s" if launch else "it goes on")
        if launch:
            lane.enter("backing off", at)

    def _fail(self, lane: LaneRecord, error: BaseException, now: float, *, ended: bool = True) -> None:
        """The query fails with this error, once the other lanes have drained."""
        if ended:
            lane.enter("ended", now)
        if self._error is None:
            self._error = error
        self._stop_lanes(now)

    def _stop_lanes(self, now: float) -> None:
        if self._stopping_since is not None:
            return
        self._stopping_since = now
        for lane in self._lanes:
            if lane.state == "launching":  # no process yet that could be asked
                self._jobs.cancel(lane.lane)
            elif lane.state == "backing off":
                lane.enter("ended", now)
            elif lane.end is not None:
                lane.end.send("stop")

    def _launch(self, lane: LaneRecord, now: float) -> None:
        lane.enter("launching", now)
        lane.launches += 1
        task = LaneTask(
            lane=lane.lane,
            launch=lane.launches,
            cargo=self._plan.cargo,
            kafka=self._plan.lane_settings(lane.lane),
            ending_offsets=self._plan.ending_offsets,
            client_id=f"keylane-{self._plan.query.group}-lane-{lane.lane}",
            driver=self._socket.address,
        )
        index, launch = lane.lane, lane.launches
        self._jobs.submit(index, pickle.dumps(task), lambda result: self._events.put(_JobEnded(index, launch, result)))

    # Time.

    def _on_time(self, now: float) -> None:
        waits_for_others = (
            self._first_arrival is not None
            and now < self._first_arrival + START_TOGETHER_S
            and any(lane.state == "launching" for lane in self._lanes)
        )
        for lane in self._lanes:
            match lane.state:
                case "connected" if not waits_for_others:
                    self._let_go(lane, now)
                case "backing off" if now >= lane.since:
                    self._launch(lane, now)
        self._name_unscheduled(now)
        if now >= self._next_progress:
            self._next_progress = now + self._plan.progress_interval_s
            self._report(now)
        overdue = self._plan.drain_timeout_s + STOP_SLACK_S
        if self._stopping_since is not None and now - self._stopping_since > overdue and not self._cancelled_late:
            self._cancelled_late = True
            for lane in self._lanes:
                if lane.state != "ended":
                    logger.error("lane %d did not stop within %.0f s: its job is cancelled", lane.lane, overdue)
                    self._jobs.cancel(lane.lane)

    def _let_go(self, lane: LaneRecord, now: float) -> None:
        """Lets a connected lane start, once nothing of its earlier processes is left."""
        for silent in lane.drop_silent_predecessors(now, self._plan.session_timeout_s):
            logger.warning(
                "lane %d: process %d on %s has been silent for its session timeout, and is taken for lost",
                *(lane.lane, silent.hello.pid, silent.hello.host),
            )
        ending = self._stopping_since is not None or self._work_is_done
        if lane.end is not None and not lane.predecessors and not ending:
            lane.enter("running", now)
            lane.end.send("go")

    def _name_unscheduled(self, now: float) -> None:
        late = [
            lane
            for lane in self._lanes
            if lane.state == "launching" and not lane.warned and now - lane.since > UNSCHEDULED_WARNING_S
        ]
        for lane in late:
            lane.warned = True
        if late:
            logger.warning(
                "no task slot for lane %s of group %s after %.0f s: other jobs hold them, or executors are missing",
                *(", ".join(str(lane.lane) for lane in late), self._plan.query.group, UNSCHEDULED_WARNING_S),
            )

    # What others see.

    def _report(self, now: float) -> None:
        merged = Snapshot()
        for lane in self._lanes:
            merged = merged.merge(lane.total)
        lanes = [lane.status.to_dict() for lane in self._lanes]
        self._progress.append(self._reporter.report(merged, lanes, now, time.time()))

    def _publish(self, *, active: bool = True) -> None:
        self.view = View(
            active=active,
            message=self._message(active=active),
            lag=self._reporter.lag,
            lanes=tuple(lane.status for lane in self._lanes),
            snapshots=tuple(lane.total for lane in self._lanes),
            progress=tuple(self._progress),
            error=None if active else self._error,
        )

    def _message(self, *, active: bool) -> str:
        if not active:
            return "Stopped" if self._error is None else f"Terminated with exception: {self._error}"
        if self._stopping_since is not None:
            return "Stopping lanes"
        running = sum(lane.state == "running" for lane in self._lanes)
        return f"{running} of {len(self._lanes)} lanes running"
