"""The driver's side: starts lanes, starts failed ones again, collects what they report, and ends the query.

One thread owns all state and waits on one queue: what lanes' sockets say, how lanes' jobs end, and the user's `stop`.
Everything that other threads may read is published as one immutable `View` (`publisher`).
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from keylane.consumer.health import ANSWER_WITHIN_S, Health
from keylane.errors import FencedError, InternalError, KeylaneError, PeerError, SessionEndedError, UsageError
from keylane.flow.failures import log_end
from keylane.foreign_errors import line_of, one_line
from keylane.kafka.membership import Seek
from keylane.spark.channel import Answered, Arrived, Ask, Departed, DriverEnd, DriverSocket, Reported, SocketEvent
from keylane.spark.controls import Controls, Done, Send
from keylane.spark.descriptions import Descriptions
from keylane.spark.from_lanes import FromLanes
from keylane.spark.jobs import JobFailure, JobResult
from keylane.spark.lane_record import (
    LaneRecord,
    last_word,
    name_lost,
    name_silent,
    name_unscheduled,
    unnamed_unscheduled,
)
from keylane.spark.lanes import ORPHAN_LIMIT_S, LaneTask
from keylane.spark.last_commits import note_commits
from keylane.spark.outcome import LaneOutcome
from keylane.spark.publisher import Publisher
from keylane.spark.restarts import Restarts
from keylane.spark.scaling import Scaler
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.consumer.snapshot import Snapshot
    from keylane.spark.controls import Effect, Request, Value
    from keylane.spark.listeners import Listeners
    from keylane.spark.plan import LaneJobs, LanePlan
    from keylane.spark.publisher import View

logger = logger_of(__name__)

LOOK_A_LANE_S = 0.00015
"""Between two looks at the lanes, for each of them: a look costs some microseconds a lane, and so never much of a core.
What lanes say meanwhile is taken at once."""
START_TOGETHER_S = 2.0
"""How long the first lane waits for the others: lanes that join one by one cost the group a rebalance each."""
WAITING_POLL_S = 0.1
"""How often a lane that waits to be let go is looked at."""
SHORTEST_SILENCE_S = 10.0
"""A lane reports four times a second. One that was not heard for its session timeout, and for this long, is given up:
by then the group has given its partitions to others."""
GONE_S = 3.0
"""While the query ends: how long the job of a process that is gone may take to say so. It does within a second."""
CANCEL_AGAIN_S = 0.5
"""Between two cancellations of a job that no process runs. A lane's thread may give Spark the job a moment after the
first one, which Spark does not remember: the job would wait for a task slot for as long as there is none."""
STOP_SLACK_S = 15.0
"""What a lane gets beside its drain timeout, for its last commit and for leaving; then its job is cancelled."""
DEPARTURE_TIMEOUT_S = 5.0
"""For the processes of lanes whose jobs have ended; Spark kills one whose job was cancelled within two seconds."""
ORPHAN_DEPARTURE_S = ORPHAN_LIMIT_S + DEPARTURE_TIMEOUT_S
"""For lanes whose session has ended: they drain by themselves."""
CALLBACKS_TIMEOUT_S = 5.0
"""For callbacks in the driver, once all lanes have ended."""
JOIN_TIMEOUT_S = 10.0
"""For the threads of jobs that have ended or were cancelled."""


@dataclass(frozen=True, slots=True)
class _JobEnded:
    lane: int
    launch: int
    result: JobResult


@dataclass(frozen=True, slots=True)
class _Stop:
    """The user asked for the end, or a callback failed."""


@dataclass(frozen=True, slots=True)
class _SetLanes:
    """The user asked for this many lanes."""

    count: int


_Answer: TypeAlias = "Future[dict[int, Value]]"
"""What lanes answered, by their numbers."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The user asks lanes for something, and waits."""

    what: Request
    answer: _Answer


_Event = SocketEvent | _JobEnded | _Stop | _SetLanes | _Asked


class Supervisor:
    """Runs a `LanePlan` to its end in a thread of its own."""

    def __init__(
        self,
        plan: LanePlan,
        jobs: LaneJobs,
        bind: str,
        advertise: str,
        key: bytes,
        listeners: Listeners,
        from_lanes: FromLanes | None = None,
    ) -> None:
        self.ended = threading.Event()
        self._plan = plan
        self._jobs = jobs
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._from_lanes = from_lanes or FromLanes()
        """What user code in the driver sees: by default, nothing."""
        self._socket = DriverSocket(bind, advertise, key, self._from_lanes.before(self._events.put))
        self._lanes = [LaneRecord(lane, Restarts(plan.limits)) for lane in range(plan.lanes)]
        self._controls: Controls[DriverEnd] = Controls(plan.log_ends, plan.revoke_timeout_s, plan.settings)
        self._open_calls: dict[int, tuple[Request, _Answer]] = {}
        self._asking = threading.Lock()
        """Guards that nobody asks once nobody answers."""
        self._is_over = False
        self._scaler = None if plan.bounds is None else Scaler(plan.bounds)
        self._publisher = Publisher(plan, self._lanes, listeners)
        self._descriptions = Descriptions(self._lanes, jobs)
        self._stop_requested = threading.Event()
        self._ending_since: float | None = None
        """When the lanes were told to stop: by the user, for a failure, or because the work is done."""
        self._work_is_done = False
        self._first_arrival: float | None = None
        self._has_failures = False
        """Whether lanes have told of failed attempts since they were last looked at."""
        self._cancelled_late = False
        self._error: BaseException | None = None
        self._is_fenced = False
        """Whether another process has taken the group instance id of a lane."""
        self._turned_at: float | None = None
        """When lanes were last looked at; None before and after that is done."""
        self._thread = threading.Thread(target=self._run, name=f"keylane-lanes-{plan.query.group}", daemon=True)

    @property
    def view(self) -> View:
        """The query as it is now. Any thread may ask."""
        return self._publisher.view

    def health(self) -> Health:
        """Any thread may ask."""
        view, turned_at = self.view, self._turned_at
        if view.error is not None:
            return Health.failed(view.error)
        if not view.active:
            return Health("it has ended", "it has ended")
        silent_s = 0.0 if turned_at is None else time.monotonic() - turned_at
        if silent_s > self._plan.progress_interval_s + ANSWER_WITHIN_S:
            fault = f"the supervisor of its lanes has not turned for {silent_s:.0f} s"
            return Health(fault, fault)
        if self._ending_since is not None:
            return Health(None, "it stops")
        is_ready = any(lane.state == "running" for lane in view.lanes) and not view.missing
        return Health(None, None if is_ready else view.message)

    def start(self) -> None:
        self._from_lanes.start(lambda: self._events.put(_Stop()))
        self._thread.start()

    def stop(self) -> None:
        """Asks every lane to drain, commit and leave. Returns at once; `ended` tells when it is done."""
        self._stop_requested.set()
        self._events.put(_Stop())

    def set_lanes(self, count: int) -> None:
        """Asks for more lanes or fewer. Returns at once."""
        self._events.put(_SetLanes(count))

    def ask(self, what: Request) -> dict[int, Value]:
        """Asks lanes for something, and returns what they answered once all have that it concerns. Raises what a lane
        could not do, and `PeerError` when one does not answer in time."""
        answer: _Answer = Future()
        with self._asking:
            if self._is_over:
                return self._answer_at_the_end(what)
            self._events.put(_Asked(what, answer))
        return answer.result()

    def _answer_at_the_end(self, what: Request) -> dict[int, Value]:
        """What a call comes to when no lane runs, or ever will."""
        if isinstance(what, Seek):
            raise UsageError("seek: the query has ended; `keylane groups reset` moves a group that nobody is in")
        return {}

    # The thread.

    def _run(self) -> None:
        try:
            self._plan.prepare(self._stop_requested.is_set)
            if self._stop_requested.is_set():  # no lane has begun
                return
            self._supervise()
            was_stopped = self._stop_requested.is_set() and not self._work_is_done
            note_commits(self._plan, self._publisher, must_be_whole=not was_stopped and self._error is None)
        except KeylaneError as error:
            self._error = self._error or error
        except Exception as error:  # the user's thread raises it from awaitTermination
            defect = InternalError(f"the supervisor of the lanes failed: {line_of(error)}")
            defect.__cause__ = error
            self._error = self._error or defect
        finally:
            try:
                self._end()
            finally:  # whatever happens, nobody shall wait for ever
                if isinstance(self._error, SessionEndedError) and self._stop_requested.is_set():
                    logger.info("the session ended before its lanes were stopped: %s", self._error)
                    self._error = None
                if self._error is not None:
                    log_end(f"the query of group {self._plan.query.group!r}", self._error)
                self._publisher.publish_end(self._error)
                self._end_calls()
                try:
                    self._plan.ended()
                finally:
                    self.ended.set()

    def _end_calls(self) -> None:
        """Nobody shall wait for lanes that have ended."""
        with self._asking:
            self._is_over = True
        waiting = [(asked.what, asked.answer) for asked in self._left_over() if isinstance(asked, _Asked)]
        for what, answer in [*self._open_calls.values(), *waiting]:
            try:
                answer.set_result(self._answer_at_the_end(what))
            except UsageError as error:
                answer.set_exception(error)

    def _left_over(self) -> Iterable[_Event]:
        while not self._events.empty():
            yield self._events.get()

    def _supervise(self) -> None:
        now = time.monotonic()
        for lane in self._lanes:
            self._launch(lane, now)
        while not all(lane.is_over for lane in self._lanes):
            self._turned_at = time.monotonic()
            self._publisher.publish(ending=self._ending_since is not None)
            self._take_events()
            self._on_time(time.monotonic())
        self._turned_at = None

    def _take_events(self) -> None:
        """Waits for the first, until there is something to do without any, and takes what comes soon after it, too."""
        try:
            event = self._events.get(timeout=max(0.0, self._next_timer() - time.monotonic()))
        except queue.Empty:
            return
        self._handle(event, time.monotonic())
        time.sleep(len(self._lanes) * LOOK_A_LANE_S)
        for event in self._left_over():
            self._handle(event, time.monotonic())

    def _end(self) -> None:
        self._publisher.publish(ending=True)
        for lane in self._lanes:
            if lane.has_job and lane.launches:
                self._jobs.cancel(lane.lane)
        self._jobs.join(JOIN_TIMEOUT_S)
        if self._all_departed() and not self._is_fenced:  # else the group lists one that runs elsewhere
            self._plan.closed()
        self._socket.close()
        self._from_lanes.close(CALLBACKS_TIMEOUT_S)
        self._error = self._error or self._from_lanes.failure
        for lane in self._lanes:
            lane.state = "ended"
        self._publisher.report(time.monotonic())
        self._publisher.tell_failures(time.monotonic(), at_once=True)

    def _all_departed(self) -> bool:
        """Waits for the last processes to end: whether all have, so that their group instance ids are free."""
        session_ended = isinstance(self._error, SessionEndedError)
        deadline = time.monotonic() + (ORPHAN_DEPARTURE_S if session_ended else DEPARTURE_TIMEOUT_S)
        while any(lane.end or lane.predecessors for lane in self._lanes):
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            if isinstance(event, Departed | Reported | _Asked):
                self._handle(event, time.monotonic())
        return True

    def _next_timer(self) -> float:
        """When the thread must act without an event; at most a progress interval away."""
        times = [self._publisher.next_report]
        if any(lane.state == "connected" for lane in self._lanes):
            times.append(time.monotonic() + WAITING_POLL_S)
        times += [lane.since for lane in self._lanes if lane.state == "backing off"]
        times += [due for due in (self._controls.next_due, *map(cancel_again_at, self._lanes)) if due is not None]
        return min(times)

    # Events.

    def _handle(self, event: _Event, now: float) -> None:
        match event:
            case Arrived(end):
                self._arrived(event, self._lanes[end.hello.lane], now)
            case Reported(end, snapshot):
                self._reported(self._lanes[end.hello.lane], end, snapshot)
            case Answered(end, answer):
                error = None if answer.failure is None else answer.failure.exception(end.hello.lane)
                self._carry_out(self._controls.answered(end, answer.number, answer.value, error))
            case Departed(end):
                self._lanes[end.hello.lane].departed(end, now)
                self._carry_out(self._controls.went(end))
            case _Asked(what, answer):
                number, effects = self._controls.ask(what, now)
                self._open_calls[number] = (what, answer)
                self._carry_out(effects)
            case _JobEnded(index, launch, result):
                lane = self._lanes[index]
                if launch == lane.launches and lane.state != "ended":
                    self._job_ended(lane, result, now)
            case _Stop():
                self._error = self._error or self._from_lanes.failure
                self._stop_lanes(now)
            case _SetLanes(count):
                self._resize(count, now)

    def _carry_out(self, effects: Iterable[Effect[DriverEnd]]) -> None:
        for effect in effects:
            match effect:
                case Send(end, number, what):
                    end.send(Ask(number, what))
                case Done(number, values, error):
                    _, answer = self._open_calls.pop(number)
                    self._publisher.publish(ending=self._ending_since is not None)  # what is looked at next is after it
                    if error is not None:
                        answer.set_exception(error)
                    else:
                        answer.set_result({end.hello.lane: value for end, value in values.items()})

    def _arrived(self, event: Arrived, lane: LaneRecord, now: float) -> None:
        end = event.end
        if end.hello.launch != lane.launches or not lane.has_job:
            end.send("stop")  # a task that Spark started once more after its job had ended for us
            lane.predecessors.append(end)
            return
        self._first_arrival = now if self._first_arrival is None else self._first_arrival
        retried_by_spark = lane.state in ("connected", "running", "lost")
        lane.connect(end, self._jobs.executor_of(lane.lane))
        lane.enter("connected", now)
        if retried_by_spark:
            self._failed(
                lane, PeerError(f"lane {lane.lane}'s task was lost, and Spark started it again"), now, launch=False
            )
        if self._ending_since is not None or lane.goal != "run":
            end.send("stop")

    def _reported(self, lane: LaneRecord, end: DriverEnd, snapshot: Snapshot) -> None:
        if lane.end is not end:
            return  # a predecessor that drains
        if lane.executor_id is None:  # Spark may learn of a task after the task has told us of itself
            lane.executor_id = self._jobs.executor_of(lane.lane)
        has_others = lane.reported(snapshot)
        if has_others or self._controls.is_asked:
            self._carry_out(self._controls.reported(end, lane.names))
        self._has_failures = self._has_failures or bool(snapshot.failures)
        if has_others and self._ending_since is None:
            self._descriptions.describe(lane, time.monotonic())

    def _job_ended(self, lane: LaneRecord, result: JobResult, now: float) -> None:
        lane.last_word = last_word(lane.snapshot) or lane.last_word
        if isinstance(result, LaneOutcome) and result.snapshot is not None:
            lane.reported(result.snapshot)
            self._publisher.note(result.snapshot)
        if not (isinstance(result, JobFailure) and result.kind == "session stopped"):  # then it drains, and reports
            lane.disconnect()
        match result:
            case LaneOutcome(failure=None, ending="stopped") if lane.goal != "run" and self._ending_since is None:
                self._went(lane, now)
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
                self._is_fenced = self._is_fenced or isinstance(error, FencedError)
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
        elif kind == "session stopped":
            error = SessionEndedError(f"the Spark session ended while lane {lane.lane} ran: {text}")
            self._fail(lane, error, now)
        elif kind == "cancelled" and lane.given_up:
            self._failed(lane, PeerError(f"lane {lane.lane} was silent, and its job is cancelled"), now)
        elif kind == "cancelled" and lane.goal != "run":
            self._went(lane, now)
        elif kind == "cancelled":
            self._fail(
                lane, PeerError(f"lane {lane.lane}'s Spark job was cancelled from outside the query: {text}"), now
            )
        else:
            self._failed(lane, PeerError(f"lane {lane.lane} died{lane.last_word}: {text}"), now)

    # Failures.

    def _failed(self, lane: LaneRecord, error: BaseException, now: float, *, launch: bool = True) -> None:
        """A failure that a new start may mend. `launch=False`: Spark has already started the lane again by itself."""
        if self._ending_since is not None:
            logger.warning("while the query ends: %s", one_line(error))
            if launch:
                lane.enter("ended", now)
            return
        if lane.goal == "leave" and launch:
            logger.warning("while lane %d leaves: %s", lane.lane, one_line(error))
            lane.enter("removed", now)
            return
        at = lane.restarts.failed(now)
        if at is None:
            logger.error("lane %d failed %d times within the window", lane.lane, lane.restarts.in_window)
            self._fail(lane, error, now, ended=launch)
            return
        logger.warning("%s; %s", one_line(error), f"it starts again in {at - now:.2f} s" if launch else "it goes on")
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
            self._stop_lane(lane, now)

    def _stop_lane(self, lane: LaneRecord, now: float) -> None:
        if lane.state in ("launching", "lost"):  # no process that could be asked
            lane.cancelled_at = now
            self._jobs.cancel(lane.lane)
        elif lane.state == "backing off":
            lane.enter("ended" if self._ending_since is not None else "removed", now)
        elif lane.end is not None:
            lane.end.send("stop")

    # More lanes, fewer lanes, lanes elsewhere.

    def _resize(self, count: int, now: float) -> None:
        """Makes the lanes that shall run `count`: the highest numbers leave first, and come back first."""
        if self._ending_since is not None:
            return
        staying = [lane for lane in self._lanes if not lane.is_over and lane.goal != "leave"]
        for lane in staying[count:]:
            logger.info("lane %d of group %s leaves", lane.lane, self._plan.query.group)
            lane.goal = "leave"
            self._stop_lane(lane, now)
        for _ in range(count - len(staying)):
            self._add_lane(now)

    def _add_lane(self, now: float) -> None:
        for lane in self._lanes:
            if lane.goal == "leave" and not lane.is_over:
                lane.goal = "move"  # it starts again as soon as it has left
                return
            if lane.state == "removed":
                break
        else:
            lane = LaneRecord(len(self._lanes), Restarts(self._plan.limits))
            self._lanes.append(lane)
        logger.info("lane %d of group %s is added", lane.lane, self._plan.query.group)
        self._launch(lane, now)

    def _went(self, lane: LaneRecord, now: float) -> None:
        """A lane that was told to stop, while the query goes on, has done so."""
        if lane.goal == "move":
            self._launch(lane, now)
        else:
            lane.enter("removed", now)

    def _launch(self, lane: LaneRecord, now: float) -> None:
        lane.enter("launching", now)
        lane.goal, lane.given_up, lane.cancelled_at = "run", False, None
        lane.launches += 1
        task = LaneTask(
            lane=lane.lane,
            launch=lane.launches,
            cargo=self._plan.cargo,
            kafka=self._plan.lane_settings(lane.lane),
            assignment=self._plan.assignment[lane.lane :: self._plan.lanes],
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
                case "running" if not lane.given_up:
                    self._give_up_if_silent(lane, now)
        self._name_missing(now)
        self._cancel_again(now)
        if self._ending_since is not None:
            self._cancel_what_is_gone(now)
            self._leave_what_spark_does_not_end(now)
        if self._has_failures:
            self._has_failures = False
            self._publisher.tell_failures(now)
        self._carry_out(self._controls.expire(now))
        if now >= self._publisher.next_report:
            self._publisher.report(now)
            if self._ending_since is None:
                self._descriptions.renew(now)
                self._leave_executors_that_go(now)
                self._follow_lag(now)
        overdue = self._plan.drain_timeout_s + STOP_SLACK_S
        if self._ending_since is not None and now - self._ending_since > overdue and not self._cancelled_late:
            self._cancelled_late = True
            for lane in self._lanes:
                if not lane.is_over:
                    logger.error("lane %d did not stop within %.0f s: its job is cancelled", lane.lane, overdue)
                    self._jobs.cancel(lane.lane)

    def _name_missing(self, now: float) -> None:
        """Says which lanes do nothing: that no slot is there is what Spark says, and not a guess."""
        for lane in unnamed_unscheduled(self._lanes, now):
            lane.executor_id = self._jobs.executor_of(lane.lane)
        name_unscheduled(self._lanes, self._plan.query.group, now, self._jobs.silence)
        name_silent(self._lanes, self._plan.query.group, now)
        name_lost(self._lanes, self._plan.query.group, now, self._jobs.silence)

    def _cancel_again(self, now: float) -> None:
        """Jobs that Spark may have got after they were cancelled, and that wait for a task slot."""
        for lane in self._lanes:
            if (due := cancel_again_at(lane)) is not None and now >= due:
                self._stop_lane(lane, now)

    def _cancel_what_is_gone(self, now: float) -> None:
        """Nobody is left that could drain: Spark would wait for a slot, to start the task again."""
        for lane in self._lanes:
            if lane.is_gone(now, GONE_S) and not lane.given_up:
                lane.given_up, lane.cancelled_at = True, now
                self._jobs.cancel(lane.lane)

    def _leave_what_spark_does_not_end(self, now: float) -> None:
        """Cancelled jobs without a process, of which a Spark that is gone says nothing. A process that comes after all
        finds no driver, and ends."""
        assert self._ending_since is not None
        if now - self._ending_since <= STOP_SLACK_S:
            return
        for lane in self._lanes:
            if lane.cancelled_at is not None and lane.state in ("launching", "lost"):
                logger.error(
                    "lane %d: Spark has not ended its job within %.0f s, and it is left: does Spark still answer?",
                    *(lane.lane, STOP_SLACK_S),
                )
                lane.enter("ended", now)

    def _give_up_if_silent(self, lane: LaneRecord, now: float) -> None:
        """A process that is stopped (SIGSTOP), starved, or cut off from the driver neither works nor ends by itself. A
        query that ends does not wait for its session: nobody else of it takes the partitions."""
        limit = SHORTEST_SILENCE_S
        if self._ending_since is None:
            limit = max(self._plan.session_timeout_s, limit)
        if lane.end is None or now - lane.silent_since() <= limit:
            return
        logger.error(
            "lane %d: process %d on %s was not heard for %.0f s: its job is cancelled",
            *(lane.lane, lane.end.hello.pid, lane.end.hello.host, limit),
        )
        lane.given_up = True
        self._jobs.cancel(lane.lane)  # Spark kills its Python worker with SIGKILL

    def _leave_executors_that_go(self, now: float) -> None:
        """A lane on an executor that is decommissioned drains, commits and starts elsewhere: no failure."""
        for lane in self._lanes:
            if lane.state != "running" or lane.goal != "run" or lane.executor_id is None:
                continue
            if self._jobs.is_decommissioned(lane.executor_id):
                logger.info("lane %d: executor %s is decommissioned: it moves", lane.lane, lane.executor_id)
                lane.goal = "move"
                self._stop_lane(lane, now)

    def _follow_lag(self, now: float) -> None:
        if self._scaler is None:
            return
        present = [lane for lane in self._lanes if not lane.is_over]
        if any(lane.state != "running" or lane.goal != "run" for lane in present):
            self._scaler.unsettled()
            return
        lanes = len(present)
        load = self._publisher.load
        busy = load.in_flight / (lanes * (self._controls.settings.max_concurrency or self._plan.concurrency))
        wanted = self._scaler.plan(now, lanes, load.lag, load.rate, busy)
        if wanted > lanes:
            wanted = max(lanes, min(wanted, self._plan.room()))
        if wanted != lanes:
            logger.info("group %s: %d lanes become %d: lag %s", self._plan.query.group, lanes, wanted, load.lag)
            self._resize(wanted, now)

    def _let_go(self, lane: LaneRecord, now: float) -> None:
        """Lets a connected lane start, once nothing of its earlier processes is left."""
        for silent in lane.drop_silent_predecessors(now, self._plan.session_timeout_s):
            logger.warning(
                "lane %d: process %d on %s has been silent for its session timeout, and is taken for lost",
                *(lane.lane, silent.hello.pid, silent.hello.host),
            )
        if lane.end is not None and not lane.predecessors and self._ending_since is None and lane.goal == "run":
            changes, shown = self._controls.started(lane.end), self._from_lanes.started(lane.lane, lane.end)
            lane.let_go(changes, shown, len(self._lanes), now)


def cancel_again_at(lane: LaneRecord) -> float | None:
    """When to cancel its job again; None unless it is cancelled and without a process."""
    if lane.cancelled_at is None or lane.state not in ("launching", "lost"):
        return None
    return lane.cancelled_at + CANCEL_AGAIN_S
