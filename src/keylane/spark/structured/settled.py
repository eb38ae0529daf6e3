"""`Settled`: below which offsets a query is through for good, as `acknowledged` tells the tasks of its batches.

The idea: while a batch runs, Spark's commit log has all batches before it, so no restart asks for their records again.
The plan of the batch says where each partition goes on; what is carried from earlier batches stays in front of that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext

from keylane.spark.structured.running import QUERY_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from keylane.spark.structured.options import TopicPartition
    from keylane.spark.structured.plans import Plan

PROPERTY = "keylane.settled"


@dataclass(frozen=True)
class Settled:
    """By topic, the offset of each partition below which nothing runs again."""

    below: Mapping[str, Mapping[int, int]]

    @classmethod
    def before(cls, plan: Plan, carried: Iterable[tuple[str, int, int]]) -> Settled:
        """Before the batch of a plan, given the records (topic, partition, offset) that it has from earlier ones."""
        first: dict[TopicPartition, int] = {}
        for topic, partition, offset in carried:
            first[topic, partition] = min(offset, first.get((topic, partition), offset))
        below: dict[str, dict[int, int]] = {}
        for (topic, partition), start in plan.start.items():
            below.setdefault(topic, {})[partition] = min(start, first.get((topic, partition), start))
        return cls(below)

    @classmethod
    def of_task(cls) -> Settled | None:
        """None where nothing is told: outside of `acknowledged`, and in a query that another one's thread has started,
        which has that one's properties."""
        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(PROPERTY)
        if context is None or not text:
            return None
        said = json.loads(text)
        if said["query"] != context.getLocalProperty(QUERY_ID):
            return None
        return cls({topic: {int(one): at for one, at in some.items()} for topic, some in said["below"].items()})

    def tell(self, session: SparkSession) -> None:
        """The tasks of jobs that this thread, which is its query's, starts from now on."""
        context = session.sparkContext
        said = {"query": context.getLocalProperty(QUERY_ID), "below": self.below}
        context.setLocalProperty(PROPERTY, json.dumps(said))
