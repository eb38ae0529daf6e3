"""Lanes as Spark jobs: one job of one task a lane, from a thread and a job group of its own, in a FAIR pool.

An RDD job, because `mapInArrow` asks for pandas (PySpark 4.3) and a lane passes no data through Spark.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError, Py4JJavaError

from keylane.errors import InternalError, UsageError
from keylane.foreign_errors import short_class_of, text_of
from keylane.spark.interpreters import wrong_python
from keylane.spark.outcome import LaneOutcome
from keylane.spark.reasons import reason_of
from keylane.spark.session_end import is_stopped
from keylane.spark.shipping import lane_body
from keylane.spark.ui import describe_job, lane_words
from keylane.telling import logger_of
from keylane.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext

logger = logger_of(__name__)

POOL = "keylane"
"""The FAIR pool of all lanes: the user's other jobs share the slots with one pool, not with one job a lane."""

CANCELLED = ("SPARK_JOB_CANCELLED", "OPERATION_CANCELED", "cancelled part of cancelled job tag")
"""What errors of jobs that were cancelled say, one of these."""


STOPPED = "the SparkContext was stopped"
"""In place of what PySpark says when that happens below a call: that None has no such method."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A lane's job that returned no outcome."""

    kind: Literal["died", "cancelled", "session stopped"]
    text: str


JobResult = LaneOutcome | JobFailure | InternalError | UsageError
"""An exception stands for what no new start can mend: an executor without keylane or a Python of its own, or with
another version."""


class JobThreads:
    """One for each job, which waits for its end."""

    def __init__(self) -> None:
        self._running: list[threading.Thread] = []

    def start(self, lane: int, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=f"keylane-lane-{lane}-job", daemon=True)
        self._running = [one for one in self._running if one.is_alive()]
        self._running.append(thread)
        thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits so long for all together."""
        deadline = time.monotonic() + timeout_s
        for thread in self._running:
            thread.join(max(0.0, deadline - time.monotonic()))


class SparkLaneJobs:
    """Starts, cancels and finds lanes in one Spark context.

    Thread safety: every method may be called from any thread; `on_end` is called in the job's thread.
    """

    def __init__(self, context: SparkContext, run_id: str, group: str, task_cpus: float | None = None) -> None:
        if not isinstance(context._gateway, ClientServer):  # noqa: SLF001 - how PySpark itself tells the two modes apart
            raise UsageError("PYSPARK_PIN_THREAD=false: lanes need PySpark's pinned threads; unset it")
        self._context = context
        self._run_id = run_id
        self._group = group
        self._profile = None if task_cpus is None else _profile(task_cpus)
        self._decommissions = context.getConf().get("spark.decommission.enabled", "false") == "true"
        self._threads = JobThreads()

    def submit(self, lane: int, shipment: bytes, on_end: Callable[[JobResult], None]) -> None:
        """Starts the lane's job; `on_end` gets its result once, whatever happens."""
        self._threads.start(lane, lambda: on_end(self._run(lane, shipment)))

    def cancel(self, lane: int) -> None:
        """Cancels the lane's job. Spark kills its Python worker two seconds later: for lanes that cannot be asked."""
        try:
            self._context.cancelJobGroup(self._job_group(lane))
        except (Py4JError, AttributeError, OSError) as error:  # the session was stopped: its jobs are gone as well
            logger.debug("lane %d's job not cancelled: %r", lane, error)

    def executor_of(self, lane: int) -> str | None:
        """The id of the executor that runs the lane's task (`driver` in local mode); None when Spark does not know."""
        try:
            return self._executor_of(lane)
        except (Py4JError, AttributeError, OSError) as error:
            logger.debug("lane %d's executor not found: %r", lane, error)
            return None

    def is_decommissioned(self, executor_id: str) -> bool:
        """Whether Spark takes this executor away (`spark.decommission.enabled`)."""
        if not self._decommissions:
            return False
        try:
            scheduler = self._context._jsc.sc().taskScheduler()  # noqa: SLF001 - no public API tells
            return bool(scheduler.getExecutorDecommissionState(executor_id).isDefined())
        except (Py4JError, AttributeError, OSError) as error:
            logger.debug("executor %s: not known whether it is decommissioned: %r", executor_id, error)
            return False

    def silence(self) -> str:
        """Nothing: a JVM that is gone ends its jobs."""
        return ""

    def describe(self, lane: int, partitions: tuple[str, ...], figures: str) -> None:
        """Shows the lane's partitions in Spark's UI, and how fast and how far it is."""
        try:
            jobs = self._context.statusTracker().getJobIdsForGroup(self._job_group(lane))
            if jobs:
                describe_job(self._context, max(jobs), lane_words(lane, self._group, partitions, figures))
        except (Py4JError, AttributeError, OSError) as error:
            logger.debug("lane %d not described in Spark's UI: %r", lane, error)

    def join(self, timeout_s: float) -> None:
        """Waits for the jobs' threads."""
        self._threads.join(timeout_s)

    def _job_group(self, lane: int) -> str:
        return f"keylane-{self._run_id}-lane-{lane}"

    def _run(self, lane: int, shipment: bytes) -> JobResult:
        context = self._context
        words = lane_words(lane, self._group)
        try:
            context.setLocalProperty("spark.scheduler.pool", POOL)
            context.setLocalProperty("callSite.short", words)
            context.setJobGroup(self._job_group(lane), words)
            rows = context.parallelize([lane], 1).setName(words)
            if self._profile is not None:
                rows = rows.withResources(self._profile)
            kind, value = rows.mapPartitions(lane_body(shipment, __version__)).collect()
        except Exception as error:  # a job fails in many ways; what they mean is told apart below
            return failure_of_job(error, lambda: is_stopped(context), str(context.pythonExec))
        return result_of(kind, value)

    def _executor_of(self, lane: int) -> str | None:
        """From the status store behind Spark's UI: neither PySpark nor a task's context knows its executor."""
        tracker = self._context.statusTracker()
        store = self._context._jsc.sc().statusStore()  # noqa: SLF001
        for job in sorted(tracker.getJobIdsForGroup(self._job_group(lane)), reverse=True):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else []:
                tasks = store.taskList(stage, 0, 100)
                running = [t for t in map(tasks.apply, range(tasks.size())) if t.status() == "RUNNING"]
                if running:
                    return str(running[-1].executorId())
        return None


def _profile(task_cpus: float) -> Any:
    """What a lane's task asks for instead of `spark.task.cpus`; executors stay as they are."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    return ResourceProfileBuilder().require(TaskResourceRequests().cpus(task_cpus)).build


def result_of(kind: str, value: Any) -> JobResult:
    """What a lane's body returned, which looked before it trusted (`shipping.lane_body`)."""
    if kind == "outcome":
        assert isinstance(value, LaneOutcome)
        return value
    if kind == "missing":
        return UsageError(
            f"the executors' Python cannot import keylane ({value}): install keylane {__version__} there, or "
            "send it with spark-submit --py-files or --archives (docs/lanes.md)"
        )
    if kind == "version":
        return UsageError(
            f"the executors have keylane {value}, the driver has {__version__}: install one version on both"
        )
    return InternalError(f"a lane returned {kind!r}")


MAX_TEXT = 1_000_000
"""Characters of what Spark says that are looked at."""


def failure_of_job(error: Exception, is_stopped: Callable[[], bool], python: str) -> JobFailure | UsageError:
    """What the error of a lane's job means; `is_stopped` asks about its session, whose workers run `python`."""
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else text_of(error, MAX_TEXT)
    if (wrong := wrong_python(text, python)) is not None:
        return wrong
    first = next((line.strip() for line in text.splitlines() if line.strip()), short_class_of(error))
    if any(one in first for one in CANCELLED):  # and not in the stack traces of Java and Python behind it
        return JobFailure("cancelled", first)
    if not is_stopped():
        return JobFailure("died", reason_of(text) or first)
    return JobFailure("session stopped", STOPPED if isinstance(error, AttributeError) else reason_of(text) or first)
