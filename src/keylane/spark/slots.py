"""Task slots: how many lanes a session holds, with one slot left free for the user's other jobs.

Spark does not preempt: lanes that hold every slot keep all other jobs waiting until they end.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.errors import UsageError
from keylane.spark.versions import TASK_CPUS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark import SparkContext

EXECUTORS_TIMEOUT_S = 60.0
"""How long a cluster's first executor may take to register before its slots count as missing."""
SETTLED_S = 10.0
"""How long after the last one that registered the others may take."""
PATIENCE = "spark.scheduler.maxRegisteredResourcesWaitingTime"
"""Spark's own setting for how long executors may take. Where it is given, all are waited for so long: images are
pulled, and nodes added."""
EXECUTORS_POLL_S = 0.25
LEAST_CORES = "1"
"""Of an executor, where nobody has said more: YARN's and Kubernetes' default. One of a standalone cluster takes all
of its node, which nobody knows before the first."""
ANY_NUMBER = "2147483647"
"""Of executors: Spark's default for the most of dynamic allocation."""
ROUNDING = 1e-9
"""Shares of a core are binary fractions: 0.3 / 0.1 must be 3."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one session, for lanes that ask for `task_cpus` cores each (None: `spark.task.cpus`)."""

    context: SparkContext
    allow_all: bool
    task_cpus: float | None = None

    def __post_init__(self) -> None:
        if self.task_cpus is None:
            return
        if isinstance(self.task_cpus, bool) or not isinstance(self.task_cpus, int | float) or not self.task_cpus > 0:
            raise UsageError(f"task_cpus={self.task_cpus!r}: give a number above 0, for example 0.25")
        TASK_CPUS.need(f"task_cpus={self.task_cpus!r}")
        if self._is_local:
            raise UsageError(
                f"task_cpus={self.task_cpus!r} on {self.context.master}: Spark sizes the tasks of one job only on "
                "clusters; start the local session with spark.task.cpus instead"
            )

    def check(self, lanes: int) -> int:
        """`lanes`, once the session holds them; waits for executors that have yet to register.

        Raises `UsageError` when it does not. With dynamic allocation Spark is trusted to add executors.
        """
        check_count(lanes)
        if self._is_dynamic:
            return lanes
        room = self._settled_room(lanes)
        if room < lanes:
            free = "" if self.allow_all else "leave no task slot free"
            what = f"would {free} of {self._all()}" if free else f"need more task slots than {self._all()}"
            way_out = "" if self.allow_all else ", or pass allow_all_slots=True"
            more = lanes + (not self.allow_all)
            raise UsageError(
                f"lanes={lanes} on {self.context.master} {what}: run at most {max(0, room)} lanes, "
                f"give Spark at least {more} slots{way_out}"
            )
        return lanes

    def default(self, partitions: int) -> int:
        """One lane a partition, as long as a slot stays free; at least one. With dynamic allocation some of them begin
        once Spark has added executors, which it does for tasks that wait."""
        least = 1 if self._is_dynamic else self.check(1)
        return max(least, min(partitions, self.room()))

    def room(self) -> int:
        """How many lanes the executors hold, beside the slot that stays free: those that are registered, or those that
        dynamic allocation may add."""
        return self._all() - (0 if self.allow_all else math.ceil(self._usual_cpus / self._cpus - ROUNDING))

    def _settled_room(self, enough: int) -> int:
        """`room`, as soon as it is enough, or when no more executors seem to come."""
        room, now = self.room(), time.monotonic()
        patience_s = self._patience_s
        until = now if self._is_local else now + (patience_s or (SETTLED_S if self._all() else EXECUTORS_TIMEOUT_S))
        while room < enough and time.monotonic() < until:
            time.sleep(EXECUTORS_POLL_S)
            before, room = room, self.room()
            if room > before and not patience_s:
                until = time.monotonic() + SETTLED_S
        return room

    @property
    def _patience_s(self) -> int:
        """0 where it is not given."""
        return int(self.context._jsc.sc().getConf().getTimeAsSeconds(PATIENCE, "0"))  # noqa: SLF001 - Python has no times

    def _all(self) -> int:
        found = executors(self.context)
        now = sum(tasks if self.task_cpus is None else self._tasks_on(cores) for tasks, cores in found)
        return max(now, self._most_executors * self._tasks_on(self._executor_cores(found))) if self._is_dynamic else now

    def _tasks_on(self, cores: int) -> int:
        return int(cores / self._cpus + ROUNDING)

    def _executor_cores(self, found: Sequence[tuple[int, int]]) -> int:
        """Of an executor that Spark may add: as those that there are; before the first, as Spark's setting says."""
        there = max((cores for _, cores in found), default=0)
        return there or int(self.context.getConf().get("spark.executor.cores", LEAST_CORES) or LEAST_CORES)

    @property
    def _most_executors(self) -> int:
        return int(self.context.getConf().get("spark.dynamicAllocation.maxExecutors", ANY_NUMBER) or ANY_NUMBER)

    @property
    def _usual_cpus(self) -> float:
        return float(self.context.getConf().get("spark.task.cpus", "1") or 1)

    @property
    def _cpus(self) -> float:
        return self._usual_cpus if self.task_cpus is None else self.task_cpus

    @property
    def _is_local(self) -> bool:
        return (self.context.master or "").split("[")[0] == "local"

    @property
    def _is_dynamic(self) -> bool:
        return self.context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"


def check_count(lanes: int) -> None:
    """Raises `UsageError` for what is no number of lanes."""
    if isinstance(lanes, bool) or not isinstance(lanes, int) or lanes < 1:
        raise UsageError(f"lanes={lanes!r}: give a whole number of at least 1")


def executors(context: SparkContext) -> Sequence[tuple[int, int]]:
    """Of each registered executor: the tasks that it can run at once, and its cores."""
    store = context._jsc.sc().statusStore()  # noqa: SLF001 - what Spark's UI reads; defaultParallelism can be configured
    found = store.executorList(True)
    summaries = [found.apply(index) for index in range(found.size())]
    return [(int(one.maxTasks()), int(one.totalCores())) for one in summaries]
