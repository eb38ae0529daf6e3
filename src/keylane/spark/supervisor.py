"""The driver's side: starts lanes, starts failed ones again, collects what they report, and ends the query.

One thread owns all state and waits on one queue: what lanes' sockets say, how lanes' jobs end, and the user's `stop`.
Everything that other threads may read is published as one immutable `View` (`publisher`).
"""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.errors import InternalError, KeylaneError, PeerError
from keylane.spark.channel import Arrived, Departed, DriverSocket, Reported, SocketEvent
from keylane.spark.jobs import JobFailure, JobResult
from keylane.spark.lane_record import LaneRecord
from keylane.spark.lanes import LaneTask
from keylane.spark.outcome import LaneOutcome
from keylane.spark.publisher import Publisher
from keylane.spark.restarts import Restarts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.spark.plan import LaneJobs, LanePlan
    from keylane.spark.publisher import View

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
        self.ended = threading.Event()
        self._plan = plan
        self._jobs = jobs
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._socket = DriverSocket(bind, advertise, key, self._events.put)
        self._lanes = [LaneRecord(lane, Restarts(plan.limits)) for lane in range(plan.lanes)]
        self._publisher = Publisher(plan, self._lanes)
        self._stop_requested = threading.Event()
        self._ending_since: float | None = None
        """When the lanes were told to stop: by the user, for a failure, or because the work is done."""
        self._work_is_done = False
        self._first_arrival: float | None = None
        self._cancelled_late = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"keylane-lanes-{plan.query.group}", daemon=True)

    @property
    def view(self) -> View:
        """The query as it is now. Any thread may ask."""
        return self._publisher.view

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
                self._publisher.publish_end(self._error)
                self.ended.set()

    def _supervise(self) -> None:
        now = time.monotonic()
        for lane in self._lanes:
            self._launch(lane, now)
        while any(lane.state != "ended" for lane in self._lanes):
            self._publisher.publish(ending=self._ending_since is not None)
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
        was_stopped = self._stop_requested.is_set() and not self._work_is_done
        must_be_whole = ends is not None and not was_stopped and self._error is None
        try:
            committed = self._plan.committed()
        except PeerError as error:
            if must_be_whole:
                raise
            logger.warning("what the group has committed in the end is not known: %s", error)
            return
        self._publisher.note_committed(committed)
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
        self._publisher.report(time.monotonic())

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
        times = [self._publisher.next_report]
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
        if self._ending_since is not None:
            end.send("stop")

    def _job_ended(self, lane: LaneRecord, result: JobResult, now: float) -> None:
        if isinstance(result, LaneOutcome) and result.snapshot is not None:
            lane.snapshot = result.snapshot
            self._publisher.note(result.snapshot)
        lane.disconnect()
        match result:
            case LaneOutcome(failure=None, ending="work done" | "stopped" as ending):
                lane.enter("ended", now)
                if ending == "work done":
                    # It saw the whole group's offsets at their ends. The others need not find out for themselves, and
                    # could not while the group waits for this one, which is static and has not left.
                    self._work_is_done = True
                    self._stop_lanes(now)
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
        if self._ending_since is not None and kind != "died":
            lane.enter("ended", now)  # cancelled by us, or the session ends with the query
        elif kind == "cancelled":
            self._fail(
                lane, PeerError(f"lane {lane.lane}'s Spark job was cancelled from outside the query: {text}"), now
            )
        elif kind == "session stopped":
            self._fail(lane, PeerError(f"the Spark session was stopped while lane {lane.lane} ran: {text}"), now)
        else:
            self._failed(lane, PeerError(f"lane {lane.lane} died: {text}"), now)

    # Failures.

    def _failed(self, lane: LaneRecord, error: BaseException, now: float, *, launch: bool = True) -> None:
        """A failure that a new start may mend. `launch=False`: Spark has already started the lane again by itself."""
        if self._ending_since is not None:
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
        if self._ending_since is not None:
            return
        self._ending_since = now
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
        name_unscheduled(self._lanes, self._plan.query.group, now)
        if now >= self._publisher.next_report:
            self._publisher.report(now)
        overdue = self._plan.drain_timeout_s + STOP_SLACK_S
        if self._ending_since is not None and now - self._ending_since > overdue and not self._cancelled_late:
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
        if lane.end is not None and not lane.predecessors and self._ending_since is None:
            lane.enter("running", now)
            lane.end.send("go")


def name_unscheduled(lanes: Sequence[LaneRecord], group: str, now: float) -> None:
    """Logs, once a launch, which lanes still have no task slot."""
    late = [
        lane
        for lane in lanes
        if lane.state == "launching" and not lane.warned and now - lane.since > UNSCHEDULED_WARNING_S
    ]
    for lane in late:
        lane.warned = True
    if late:
        logger.warning(
            "no task slot for lane %s of group %s after %.0f s: other jobs hold them, or executors are missing",
            *(", ".join(str(lane.lane) for lane in late), group, UNSCHEDULED_WARNING_S),
        )
