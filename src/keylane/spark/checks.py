"""What must hold before lanes start, each refused in one line that names the thing, the figures and the way out."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

EXECUTORS_TIMEOUT_S = 15.0
"""How long a cluster's executors may take to register before their missing slots count as missing."""
EXECUTORS_POLL_S = 0.25


def check_session(spark: SparkSession) -> SparkContext:
    """The session's context. Refuses Spark Connect, a stopped session, and speculation that would run a lane twice."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UsageError(
            "lanes cannot run through Spark Connect, which runs no jobs of the client's own: start them from a classic "
            "session (`keylane.spark.session()`, spark-submit, or SparkSession.builder with a master)"
        )
    context = spark.sparkContext
    if context._jsc is None:  # noqa: SLF001 - None after stop(); there is no public way to ask
        raise UsageError("the Spark session is stopped: start a new one")
    _check_settings(dict(context.getConf().getAll()))
    if str(context._jsc.sc().getSchedulingMode()) != "FAIR":  # noqa: SLF001
        logger.info(
            "spark.scheduler.mode is FIFO: lanes start first whenever slots are short; FAIR (set before the session "
            "starts, as keylane.spark.session does) shares them with your other jobs"
        )
    return context


def _check_settings(settings: Mapping[str, str]) -> None:
    threshold = settings.get("spark.speculation.task.duration.threshold")
    if threshold is not None and _is_true(settings, "spark.speculation"):
        raise UsageError(
            f"spark.speculation.task.duration.threshold={threshold} makes Spark start each lane twice, since lanes run "
            "long: leave it out, or set spark.speculation=false"
        )
    idle = settings.get("spark.python.worker.idleTimeoutSeconds", "0")
    if idle.strip("s") != "0" and _is_true(settings, "spark.python.worker.killOnIdleTimeout"):
        raise UsageError(
            f"spark.python.worker.killOnIdleTimeout=true kills lanes after {idle} s, since they send Spark nothing "
            "until they end: set it to false"
        )


def _is_true(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "false").lower() == "true"


def check_trigger(trigger: Mapping[str, Any] | None) -> bool:
    """Whether the query ends when what is there now is done. None is continuous."""
    if trigger is None:
        return False
    if dict(trigger) == {"availableNow": True}:
        return True
    raise UsageError(
        f"trigger={trigger!r}: give {{'availableNow': True}} to end when what is there now is done, or leave it out "
        "to run until stop()"
    )


def check_slots(context: SparkContext, lanes: int | None, partitions: int, *, allow_all_slots: bool) -> int:
    """How many lanes to run: `lanes`, or as many as leave a slot free, at most one a partition.

    Raises `UsageError` when no task slot would stay free: FAIR does not preempt, so lanes that hold every slot would
    keep the user's other jobs waiting until they end.
    """
    if lanes is not None and (isinstance(lanes, bool) or not isinstance(lanes, int) or lanes < 1):
        raise UsageError(f"lanes={lanes!r}: give a whole number of at least 1")
    free = 0 if allow_all_slots else 1
    wanted = lanes or 1
    if _is_true(dict(context.getConf().getAll()), "spark.dynamicAllocation.enabled"):
        return lanes or max(1, min(partitions, task_slots(context) - free))  # Spark adds executors for waiting lanes
    slots = _wait_for(lambda: task_slots(context), wanted + free, local=(context.master or "").split("[")[0] == "local")
    if slots < wanted + free:
        raise UsageError(
            f"lanes={wanted} on {context.master} would leave no task slot free of {slots}: run at most "
            f"{max(0, slots - 1)} lanes, give Spark at least {wanted + 1} slots, or pass allow_all_slots=True"
        )
    return lanes or max(1, min(partitions, slots - free))


def task_slots(context: SparkContext) -> int:
    """Tasks that the registered executors can run at once."""
    store = context._jsc.sc().statusStore()  # noqa: SLF001 - what Spark's UI reads; defaultParallelism can be configured
    executors = store.executorList(True)
    return sum(int(executors.apply(index).maxTasks()) for index in range(executors.size()))


def _wait_for(slots: Callable[[], int], enough: int, *, local: bool) -> int:
    deadline = time.monotonic() + (0.0 if local else EXECUTORS_TIMEOUT_S)
    while (now := slots()) < enough and time.monotonic() < deadline:
        time.sleep(EXECUTORS_POLL_S)
    return now
