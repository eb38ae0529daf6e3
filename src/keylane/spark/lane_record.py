"""What the driver knows of one lane, and the moves it can make. Owned by the supervisor's thread.

A lane *launches* (its job is submitted), *connects* (its task runs and waits), *runs*, *backs off* after a failure, is
*removed* when the query shall have fewer lanes, and has *ended* with the query. It is *lost* when its process is gone
and its job goes on: its executor died, say, and Spark has the task wait for a slot, to start it again. A lane is let go
only once every earlier process of it has closed its socket: a predecessor that drains because its executor went away
must not overlap its successor.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from keylane.consumer.snapshot import Snapshot, some_of
from keylane.spark.channel import REPORT_A_LANE_S, REPORT_S, Go
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.consumer.outputs import ResultsRule
    from keylane.consumer.settings import Change
    from keylane.spark.channel import DriverEnd
    from keylane.spark.restarts import Restarts

logger = logger_of(__name__)

MISSING_S = 10.0
"""A lane that does nothing for this long is named: in the log, in `status`, on the page and by the readiness probe. Its
job waits for a task slot, perhaps for ever; its process is gone, and its job goes on; or its process is not heard.
Spark tells sooner how a job ended, and starts a task again within a second where there is a slot."""

GAUGES = (
    "concurrency",
    "in_flight",
    "handed_over",
    "unseen",
    "buffered",
    "stuck",
    "waiting_for_store",
    "waiting_for_pool",
)
"""Numbers of a snapshot that are of now; the others count from the start."""

State = Literal["launching", "connected", "running", "lost", "backing off", "removed", "ended"]
Shown = State | Literal["not heard"]
Goal = Literal["run", "move", "leave"]


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane, as `LaneQuery.lanes` shows it."""

    lane: int
    state: Shown
    """`not heard`: it runs as far as anybody knows, and has said nothing for long."""
    pid: int | None
    """The Python worker's process id on `host`; None while no process runs the lane."""
    host: str | None
    executor_id: str | None
    """Spark's id of the executor (`driver` in local mode)."""
    launches: int
    """Spark jobs started for this lane: more than 1 after failures."""
    failures: int
    """Failures in the window that counts."""
    partitions: tuple[str, ...]
    """What the group has assigned to it, as `flights-3`."""

    def to_dict(self) -> dict[str, Any]:
        names = (one.name for one in dataclasses.fields(self))
        return {"executorId" if name == "executor_id" else name: getattr(self, name) for name in names}


@dataclass(slots=True)
class LaneRecord:
    """The state of one lane."""

    lane: int
    restarts: Restarts
    state: State = "launching"
    launches: int = 0
    since: float = 0.0
    """When the state was entered, in monotonic seconds; for `backing off`, when to start again."""
    warned: bool = False
    """The log says what is wrong with it in this state: it has no slot for long, or is not heard."""
    goal: Goal = "run"
    """`move`: it was told to stop, and starts again elsewhere. `leave`: it was told to stop, and is removed."""
    given_up: bool = False
    """Its process was silent for too long, and its job is cancelled."""
    cancelled_at: float | None = None
    """When its job was cancelled last because no process runs that could be asked to stop; None before that."""
    end: DriverEnd | None = None
    """The socket of the process that runs the lane now."""
    missing_since: float | None = None
    """When it did something last, or was launched first; None while a process of it runs, and when it is over."""
    departed_at: float | None = None
    """When that process was gone, before its job had ended; None while it is there."""
    predecessors: list[DriverEnd] = field(default_factory=list)
    executor_id: str | None = None
    silence: str = ""
    """Who of Spark did not answer when this state was named; empty where that is not the reason."""
    last_word: str = ""
    """What the last process that ended had told of its records; one that ends before it tells of any leaves it."""
    snapshot: Snapshot | None = None
    """The last one of the process of now."""
    names: tuple[tuple[str, int], ...] = ()
    """What that one says that the group has assigned to it."""
    partitions: tuple[str, ...] = ()
    """The same, as `flights-3`."""
    total: Snapshot = field(default_factory=Snapshot)
    """Everything that the lane has done, over all its processes."""
    _retired: Snapshot | None = None
    """The counters of processes that have ended; None before the first has."""
    _status: LaneStatus | None = None
    _shown: tuple[object, ...] = ()
    """What that status was made of: of a thousand lanes few change from one look to the next."""

    def enter(self, state: State, since: float) -> None:
        assert self.state != "ended", f"lane {self.lane} has ended and cannot become {state}"
        self.state, self.since, self.warned, self.silence = state, since, False, ""
        if state == "running" or self.is_over:
            self.missing_since = None
        elif self.missing_since is None:
            self.missing_since = since

    @property
    def is_over(self) -> bool:
        """Nothing of it runs, and nothing will by itself."""
        return self.state in ("removed", "ended")

    @property
    def shown_state(self) -> Shown:
        return "not heard" if self.state == "running" and self.warned else self.state

    @property
    def has_job(self) -> bool:
        return self.state in ("launching", "connected", "running", "lost")

    def silent_since(self) -> float:
        """When its running process was last heard."""
        assert self.end is not None
        return max(self.since, self.end.last_heard)

    def idle_s(self, now: float) -> float:
        """For how long it has done nothing, or was not heard; 0 before its first launch."""
        if self.missing_since is not None:
            return now - self.missing_since
        return 0.0 if self.end is None else now - self.silent_since()

    def connect(self, end: DriverEnd, executor_id: str | None) -> None:
        """Another process runs the lane from now on."""
        self.disconnect()
        self.end, self.executor_id, self.departed_at = end, executor_id, None

    def let_go(self, changes: tuple[Change, ...], shown: ResultsRule | None, lanes: int, now: float) -> None:
        """Its process, one of so many lanes, may join the group, and begins with this."""
        assert self.end is not None
        self.enter("running", now)
        self.end.send(Go(changes, shown, max(REPORT_S, lanes * REPORT_A_LANE_S)))

    def disconnect(self) -> None:
        """The process of now becomes a predecessor, and its counters are kept."""
        if self.end is not None:
            self._note_last_word()
            self.predecessors.append(self.end)
        if self.snapshot is not None:
            self.total = self._retired = counters(self.total)
        self.end = self.executor_id = self.snapshot = None
        self.names = self.partitions = ()

    def reported(self, snapshot: Snapshot) -> bool:
        """The process of now says so; returns whether it has other partitions than before."""
        if snapshot is self.snapshot:
            return False
        self.snapshot = snapshot
        self.total = snapshot if self._retired is None else self._retired.merge(snapshot)
        names = tuple([one[:2] for one in snapshot.partitions])
        is_other = names != self.names
        if is_other:
            self.names, self.partitions = names, tuple(f"{topic}-{partition}" for topic, partition in names)
        return is_other

    def departed(self, end: DriverEnd, now: float) -> None:
        """A socket of this lane is closed: its process has ended."""
        if end is self.end:
            self._note_last_word()
            self.end = None  # its snapshot stays until its job has said how it ended
            self.departed_at = now
        if end in self.predecessors:
            self.predecessors.remove(end)

    def _note_last_word(self) -> None:
        if self.missing_since is None:
            self.missing_since = self.silent_since()

    def is_gone(self, now: float, for_s: float) -> bool:
        """Whether its process has been gone for so long, and its job has not ended."""
        return self.has_job and self.departed_at is not None and now - self.departed_at > for_s

    def drop_silent_predecessors(self, now: float, silent_s: float) -> list[DriverEnd]:
        """Gives up predecessors that were not heard for `silent_s`: by then the group has fenced them."""
        silent = [one for one in self.predecessors if now - one.last_heard > silent_s]
        self.predecessors = [one for one in self.predecessors if one not in silent]
        return silent

    @property
    def status(self) -> LaneStatus:
        hello = None if self.end is None else self.end.hello
        shown = (self.shown_state, hello, self.executor_id, self.launches, self.restarts.in_window, self.partitions)
        if self._status is None or shown != self._shown:
            self._shown = shown
            self._status = LaneStatus(
                lane=self.lane,
                state=self.shown_state,
                pid=None if hello is None else hello.pid,
                host=None if hello is None else hello.host,
                executor_id=self.executor_id,
                launches=self.launches,
                failures=self.restarts.in_window,
                partitions=self.partitions,
            )
        return self._status


def counters(snapshot: Snapshot) -> Snapshot:
    """A snapshot's sums without its gauges: what remains of a process that has ended."""
    gauges: dict[str, Any] = dict.fromkeys(GAUGES, 0)
    return dataclasses.replace(snapshot, **gauges, oldest=None, partitions=(), waits=None)


def last_word(snapshot: Snapshot | None) -> str:
    """What to add to how a process ended that could not say it: a handler may have ended it (`os._exit`, a crash in
    native code), and the record is one of these."""
    if snapshot is None:
        return ""
    if (oldest := snapshot.oldest) is not None:
        which = f"{snapshot.in_flight} in handlers, the oldest {oldest.topic}-{oldest.partition}"
        return f" (its last word: {which} offset {oldest.offset})"
    waiting = [
        f"{one.topic}-{one.partition} from offset {one.base} on"
        for one in snapshot.partitions
        if one.incomplete or one.base < (one.log_end_offset or 0)
    ]
    return f" (its last word: {some_of(waiting)} was next)" if waiting else ""


def name_unscheduled(lanes: Sequence[LaneRecord], group: str, now: float, silence: Callable[[], str]) -> None:
    """Logs, once a launch, which lanes still have no task slot, or have one and no process. `silence` tells who of
    Spark does not answer."""
    late = unnamed_unscheduled(lanes, now)
    for lane in late:
        lane.warned = True
        if lane.executor_id is not None:
            logger.warning(
                "lane %d of group %s has a task slot (executor %s), and no Python worker has come for %.0f s: the "
                "machine is busy, or Spark's daemon of Python workers stands still",
                *(lane.lane, group, lane.executor_id, MISSING_S),
            )
    late = [lane for lane in late if lane.executor_id is None]
    if late:
        reason = silence()
        for lane in late:
            lane.silence = reason
        logger.warning(
            "no task slot for lane %s of group %s after %.0f s: %s",
            *(", ".join(str(lane.lane) for lane in late), group, MISSING_S),
            reason or "other jobs hold them, or executors are missing",
        )


def unnamed_unscheduled(lanes: Sequence[LaneRecord], now: float) -> list[LaneRecord]:
    """Lanes that have waited for their process for long, and of which the log does not say so yet."""
    return [lane for lane in lanes if not lane.warned and lane.state == "launching" and now - lane.since > MISSING_S]


def name_silent(lanes: Sequence[LaneRecord], group: str, now: float) -> None:
    """Logs, once each time, which lanes are not heard: their processes are stopped, starved or cut off."""
    for lane in lanes:
        if lane.state != "running" or lane.end is None:
            continue
        is_silent = lane.idle_s(now) > MISSING_S
        if is_silent and not lane.warned and not lane.given_up:
            logger.warning(
                "lane %d of group %s: process %d on %s has not been heard for %.0f s",
                *(lane.lane, group, lane.end.hello.pid, lane.end.hello.host, MISSING_S),
            )
        lane.warned = is_silent


def name_lost(lanes: Sequence[LaneRecord], group: str, now: float, silence: Callable[[], str]) -> None:
    """Notes which lanes are lost, and logs each of them once. `silence` tells who of Spark does not answer."""
    lost = [lane for lane in lanes if lane.state in ("connected", "running") and lane.is_gone(now, MISSING_S)]
    if lost:
        reason = silence()
        for lane in lost:
            logger.warning(
                "lane %d of group %s is lost: its process has been gone for %.0f s, and %s",
                *(lane.lane, group, MISSING_S),
                reason or "another one has no task slot: executors are missing, or other jobs hold them",
            )
            assert lane.departed_at is not None
            lane.disconnect()
            lane.enter("lost", lane.departed_at)
            lane.silence = reason


def missing_lanes(lanes: Sequence[LaneRecord], now: float) -> str:
    """Which lanes do not run and have not for long; empty where there are none."""
    missing = [lane for lane in lanes if not lane.is_over and lane.idle_s(now) > MISSING_S]
    return ", ".join(f"lane {lane.lane}: {_why_missing(lane, now)}" for lane in missing)


def _why_missing(lane: LaneRecord, now: float) -> str:
    because = f": {lane.silence}" if lane.silence else ""
    match lane.state:
        case "launching":
            what = "no task slot" if lane.executor_id is None else f"no Python worker on executor {lane.executor_id}"
            return f"{what} for {now - lane.since:.0f} s{because}"
        case "lost":
            return f"lost for {now - lane.since:.0f} s{because}"
        case "connected":
            return f"waits for {now - lane.since:.0f} s until its earlier process has ended"
        case "running":
            return f"not heard for {lane.idle_s(now):.0f} s"
        case _:
            return f"has not run for {lane.idle_s(now):.0f} s, and starts again"
