"""`keylane.spark.start`: checks what must hold, looks at the group once, and starts the lanes' supervisor.

Lanes are *static* members of the group by default: lane i has the group instance id `<name>-i`. A lane that died and
starts again takes its partitions back at once, and the other lanes do not notice (docs/adr/0006-lanes.md).
"""

from __future__ import annotations

import secrets
import time
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from keylane.consumer.results import check_stream
from keylane.consumer.settings import Settings
from keylane.errors import UsageError
from keylane.operations.agent import Agent
from keylane.pipeline import External, Pipeline
from keylane.spark.checks import check_store, check_trigger
from keylane.spark.classic import ClassicSession
from keylane.spark.connect import ConnectSession, is_connect
from keylane.spark.from_lanes import FromLanes
from keylane.spark.group import Group
from keylane.spark.lanes import parallel_consumer
from keylane.spark.listeners import Listeners
from keylane.spark.plan import LanePlan
from keylane.spark.progress import QueryName, timestamp
from keylane.spark.query import LaneQuery, OperatedQuery
from keylane.spark.restarts import RestartLimits
from keylane.spark.scaling import LaneBounds
from keylane.spark.session_end import naming_its_end
from keylane.spark.shipping import pack
from keylane.spark.static_members import StaticMembers
from keylane.spark.supervisor import Supervisor
from keylane.telling import by_name, kind_of, logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from keylane.consumer.results import Complete
    from keylane.records import Produced, Record
    from keylane.spark.plan import Session, TaskSlots

logger = logger_of(__name__)

Members = Literal["static", "dynamic"]

DEFAULT_SESSION_TIMEOUT_MS = 10_000
"""Unless the user sets `session.timeout.ms`: how long the group keeps the partitions of a lane whose node is gone."""
DEFAULT_NAME = "keylane-lane"
"""The prefix of the group instance ids of a query without a name."""
KEY_BYTES = 32
"""Of the secret that lanes prove to their driver."""


@by_name
@naming_its_end
def start(
    pipeline: Pipeline,
    spark: SparkSession,
    *,
    lanes: int | tuple[int, int] | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    members: Members | None = None,
    allow_all_slots: bool = False,
    task_cpus: float | None = None,
    catch_up_ms: int = 10_000,
    max_lane_failures: int = 5,
    lane_failure_window_ms: int = 600_000,
    progress_interval_ms: int = 1_000,
    listeners: Sequence[StreamingQueryListener] = (),
    stream: Complete | None = None,
    max_unread: int = 1_000,
    on_produced: Callable[[Produced], object] | None = None,
    on_commit: Callable[..., object] | None = None,
    on_committed: Callable[[Record], object] | None = None,
) -> LaneQuery:
    """Starts the pipeline on lanes of this Spark session, in this process or through Spark Connect; returns at once.

    - `lanes`: how many; `(least, most)` lets the number follow the lag, so that what waits is worked off within
      `catch_up_ms`; None runs one a partition, as long as a task slot stays free. `LaneQuery.set_lanes` changes it.
    - `task_cpus`: cores that a lane's task asks for instead of `spark.task.cpus`, for example 0.25 for handlers that
      wait. On clusters, from Spark 4.3.
    - `trigger`: `{"availableNow": True}` ends the query when all that is in the topics now is committed; None runs
      until `stop()`.
    - `name`: the query's name in progress, and the prefix of its lanes' group instance ids. Two queries that share a
      group at the same time need two names.
    - `members`: `"static"` lanes (the default of a fixed number) come back with their partitions within a second of a
      crash, and stay listed in the group for a session timeout after the end; `"dynamic"` ones (the default between
      bounds) leave at once, and a crash costs a session timeout.
    - `allow_all_slots`: lets lanes take every task slot, so that other jobs of this session wait until they end.
    - `max_lane_failures` of one lane within `lane_failure_window_ms` start it again; one more ends the query.
    - `listeners`: get the query's events, as those of `spark.streams` do of a streaming query.
    - `stream`: results come to the driver, where `LaneQuery.stream` has them. With `"read"` a record is complete once
      its reader asks for the next result, with `"handled"` as soon as its result waits in the driver. While
      `max_unread` results of a lane wait there, that lane starts no new record.
    - `on_produced`, `on_commit`, `on_committed`: called in this process, with what all lanes have to tell, as those of
      `Pipeline` are on the lanes (and after them). Lanes wait for them when they are slow.

    Raises `UsageError` for what cannot work, a topic that does not exist among it, and `BrokerUnavailableError` when no
    broker answers.
    """
    available_now = check_trigger(trigger)
    _check_arguments(pipeline, lanes, members, available_now, progress_interval_ms)
    limits = RestartLimits(max_lane_failures, lane_failure_window_ms)
    bounds = LaneBounds(*lanes, catch_up_ms) if isinstance(lanes, tuple) else None
    session: Session = ConnectSession(spark) if is_connect(spark) else ClassicSession(spark)
    check_store(pipeline.delivery, session.master, "lanes")
    slots = session.slots(allow_all=allow_all_slots, task_cpus=task_cpus)
    cargo = pack(replace(pipeline, operations=None), parallel_consumer)  # the driver reports, and has the token
    group = Group(pipeline)
    ends = group.end_offsets()
    count = _count(pipeline, lanes, slots, len(ends))
    shown = results_of_lanes(pipeline, stream, max_unread, on_produced, on_commit, on_committed)
    query = _query_name(pipeline, name)
    timeout_ms = int(pipeline.kafka.get("session.timeout.ms", DEFAULT_SESSION_TIMEOUT_MS))
    static = None
    if not pipeline.assignment and (members == "static" or (members is None and bounds is None)):
        static = StaticMembers(pipeline.group_id, name or DEFAULT_NAME, count, timeout_ms / 1000, group.member_ids)
    agent = None if pipeline.operations is None else Agent(pipeline, pipeline.operations, name)
    plan = LanePlan(
        query=query,
        lanes=count,
        bounds=bounds,
        room=lambda: min(slots.room(), len(ends)),
        concurrency=pipeline.most_concurrent,
        cargo=cargo,
        log_ends=ends,
        ending_offsets=ends if available_now else None,
        lane_settings=partial(_lane_settings, static, timeout_ms),
        assignment=pipeline.assignment,
        limits=limits,
        drain_timeout_s=pipeline.drain_timeout_ms / 1000,
        session_timeout_s=timeout_ms / 1000,
        revoke_timeout_s=pipeline.revoke_timeout_ms / 1000,
        progress_interval_s=progress_interval_ms / 1000,
        recent_progress=int(str(spark.conf.get("spark.sql.streaming.numRecentProgressUpdates", "100"))),
        prepare=static.await_earlier if static is not None else lambda _: None,
        committed=group.committed,
        closed=static.ended if static is not None else lambda: None,
        settings=Settings() if agent is None else agent.begin(),
        ended=(lambda: None) if agent is None else agent.close,
    )
    try:
        supervisor = _supervise(plan, session, task_cpus, listeners, shown)
    except BaseException:
        plan.ended()
        raise
    made = LaneQuery(query, pipeline, supervisor, slots.check, bounds, shown)
    if agent is not None:
        agent.start(OperatedQuery(made, session.ui))
    return made


def results_of_lanes(
    pipeline: Pipeline,
    stream: Complete | None,
    max_unread: int,
    on_produced: Callable[[Produced], object] | None,
    on_commit: Callable[..., object] | None,
    on_committed: Callable[[Record], object] | None,
) -> FromLanes:
    """What user code in the driver is to see. Raises `UsageError` for what the pipeline cannot show."""
    if stream is not None:
        check_stream(pipeline, stream, max_unread, "stream")
    replace(  # refused here as they would be there
        pipeline,
        on_produced=on_produced or pipeline.on_produced,
        on_commit=on_commit or pipeline.on_commit,
        on_committed=on_committed or pipeline.on_committed,
    )
    return FromLanes(
        complete=stream,
        max_unread=max_unread,
        on_produced=on_produced,
        on_commit=on_commit,
        on_committed=on_committed,
    )


def _supervise(
    plan: LanePlan,
    session: Session,
    task_cpus: float | None,
    listeners: Sequence[StreamingQueryListener],
    shown: FromLanes,
) -> Supervisor:
    """The plan's supervisor, running; its listeners have heard of the start."""
    jobs = session.jobs(plan.query.run_id, plan.query.group, task_cpus)
    bind, advertise = session.addresses()
    told = Listeners(plan.query, listeners)
    supervisor = Supervisor(plan, jobs, bind, advertise, secrets.token_bytes(KEY_BYTES), told, shown)
    told.started(timestamp(time.time()))
    supervisor.start()
    logger.info("group %s: %d lanes on %s", plan.query.group, plan.lanes, session.master)
    return supervisor


def _query_name(pipeline: Pipeline, name: str | None) -> QueryName:
    """The id is that of the group and name, as a checkpoint's is; the run id is new with every start."""
    return QueryName(
        id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"keylane:{pipeline.group_id}:{name or ''}")),
        run_id=str(uuid.uuid4()),
        name=name,
        group=pipeline.group_id,
        topics=pipeline.reads,
    )


def _check_arguments(
    pipeline: Pipeline,
    lanes: int | tuple[int, int] | None,
    members: str | None,
    available_now: bool,
    progress_interval_ms: int,
) -> None:
    """Refuses what neither Spark nor the broker need be asked for."""
    if not isinstance(pipeline, Pipeline):
        raise UsageError(f"start(…) got {kind_of(pipeline)}: give a keylane.Pipeline")
    if members is not None and members not in get_args(Members):
        raise UsageError(f"members={members!r}: give one of {', '.join(map(repr, get_args(Members)))}")
    if (own := pipeline.kafka.get("group.instance.id")) is not None:
        raise UsageError(
            f"kafka['group.instance.id']={own!r} would make all lanes one member: leave it out, lanes make their own "
            "from name="
        )
    if isinstance(lanes, tuple) and (len(lanes) != 2 or not all(map(_is_whole, lanes))):
        raise UsageError(f"lanes={lanes!r}: give a number of lanes, or (least, most)")
    if not _is_whole(progress_interval_ms) or progress_interval_ms < 1:
        raise UsageError(f"progress_interval_ms={progress_interval_ms!r}: give a whole number of at least 1")
    if isinstance(pipeline.commit, External) and (available_now or isinstance(lanes, tuple)):
        ending = "trigger={'availableNow': True}, " if available_now else ""
        raise UsageError(
            f"{ending}lanes={lanes!r}: with commit=External(...) the group has no commits for lanes to see "
            "what is done, and what waits: give a fixed number of lanes, and end the query with stop()"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(pipeline: Pipeline, lanes: int | tuple[int, int] | None, slots: TaskSlots, partitions: int) -> int:
    """How many lanes to begin with; the session holds them."""
    least = lanes[0] if isinstance(lanes, tuple) else lanes
    count = slots.default(partitions) if least is None else slots.check(least)
    if pipeline.assignment and (isinstance(lanes, tuple) or count > len(pipeline.assignment)):
        raise UsageError(
            f"lanes={lanes!r}: the pipeline assigns {len(pipeline.assignment)} partitions by hand, which are divided "
            "among a fixed number of lanes: give a number of at most that"
        )
    return count


def _lane_settings(static: StaticMembers | None, session_timeout_ms: int, lane: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"session.timeout.ms": session_timeout_ms}
    if static is not None:
        settings["group.instance.id"] = static.id_of(lane)
    return settings
