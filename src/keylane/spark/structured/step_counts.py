"""`StepCounts`: what the tasks of one `parallel_map` have done, merged in the driver.

The idea: each task ends with one `Snapshot`, and an accumulator of Spark's adds them up; nothing travels in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.accumulators import AccumulatorParam

from keylane.consumer.snapshot import Snapshot
from keylane.errors import UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession


class _Snapshots(AccumulatorParam[Snapshot]):
    def zero(self, value: Snapshot) -> Snapshot:  # noqa: ARG002 - Spark's
        return Snapshot()

    def addInPlace(self, value1: Snapshot, value2: Snapshot) -> Snapshot:  # noqa: N802
        return value1.merge(value2)


class StepCounts:
    """Thread safety: any thread."""

    def __init__(self) -> None:
        self.step = uuid4().hex
        """Names the step in the processes that run its tasks."""
        self._told: Accumulator[Snapshot] | None = None
        self._context: SparkContext | None = None
        self._is_remote = False

    def begin(self, spark: SparkSession) -> None:
        """The step is applied: tasks tell the driver of this session, unless that is elsewhere (Spark Connect)."""
        context = getattr(spark, "sparkContext", None)
        self._is_remote = context is None
        if context is not None and context is not self._context:
            self._told, self._context = context.accumulator(Snapshot(), _Snapshots()), context

    def add(self, task: Snapshot) -> None:
        """A task has ended."""
        if self._told is not None:
            self._told.add(task)

    def snapshot(self) -> Snapshot:
        """Raises `UsageError` through Spark Connect."""
        if self._is_remote:
            raise UsageError("snapshot() needs a Spark session in this process: Spark Connect has no accumulators")
        return Snapshot() if self._told is None else self._told.value

    def __getstate__(self) -> dict[str, Any]:
        """What travels with a task."""
        return {"step": self.step, "_told": self._told, "_context": None, "_is_remote": self._is_remote}
