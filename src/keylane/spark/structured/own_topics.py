"""Topics that a query reads and would write itself: refused, because each record would come back, without end.

The idea: a sink does not see the query that it is in. `acknowledged` does, and tells the tasks of its batches by one of
Spark's local properties, which the sink's tasks look at. The dead-letter topic is checked before the first batch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from keylane.errors import UsageError
from keylane.spark.structured.options import Subscription, parse_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

PROPERTY = "keylane.reads"


@dataclass(frozen=True)
class Reads:
    """What a query reads, and where."""

    servers: list[str]
    subscription: Subscription

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Reads:
        """By the options of its source."""
        source = parse_source(options, streaming=True)
        return cls(_servers(source.settings), source.subscription)

    @classmethod
    def of_task(cls) -> Reads | None:
        """What the query of this task reads, where `acknowledged` has told it."""
        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(PROPERTY)
        if not text:
            return None
        said = json.loads(text)
        partitions = tuple((topic, one) for topic, one in said["subscription"]["partitions"])
        subscription = Subscription(tuple(said["subscription"]["topics"]), said["subscription"]["pattern"], partitions)
        return cls(said["servers"], subscription)

    def tell(self, session: SparkSession) -> None:
        """The tasks of jobs that this thread starts from now on."""
        session.sparkContext.setLocalProperty(PROPERTY, json.dumps(asdict(self)))

    def refuse(self, what: str, topic: str, settings: Mapping[str, Any]) -> None:
        """Raises `UsageError` when `topic` at these settings' brokers is among them."""
        if not set(self.servers).isdisjoint(_servers(settings)) and self.subscription.reads(topic):
            raise UsageError(
                f"{what} {topic!r} is one that the query reads itself ({self.subscription}) and would feed without "
                "end: name another one"
            )


def _servers(settings: Mapping[str, Any]) -> list[str]:
    return sorted(one.strip() for one in settings["bootstrap.servers"].split(","))
