"""The running streaming query, seen from inside `foreachBatch`: its source's options and the plan of the batch.

Spark hands `foreachBatch` a DataFrame and a number. The rest is asked of the query's execution in the JVM, by names
that are internal to Spark: they are used here and nowhere else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from keylane.errors import PeerError, UsageError
from keylane.spark.structured.plans import Plan, is_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID = "sql.streaming.queryId"
"""The local property under which Spark names the query to its own thread."""
CARRYING_STEP = "parallel_map_with_carry_over"
"""How the function of such a step is called in Spark's plans."""
ARROW_NODES = ("MapInArrow", "PythonMapInArrow")
"""Nodes of a plan that run a function over Arrow batches; the second is of Spark 3.5."""
TESTED = "docs/spark-versions.md has those that do"


@dataclass(frozen=True)
class RunningBatch:
    """One batch of a query that reads one source `keylane`."""

    run_id: str
    """Of this run of the query: its other runs, from the same checkpoint, have the same query id."""
    session: SparkSession
    """The one that started the query; the batch's frame has a copy of it, which no listener hears of."""
    plan: Plan
    java_options: Any
    """Of the source, in the JVM."""
    java_plan: Any
    """Of the query, in the JVM."""

    def options(self) -> dict[str, str]:
        """Of the source. Each one asks the JVM some times: not for every batch."""
        return dict(self.java_options)

    def steps_with_carry_over(self) -> int:
        """How often the query's plan runs a `parallel_map` that has one. It walks the plan: not for every batch."""
        return _count_functions(self.java_plan, CARRYING_STEP)


def running_batch(frame: DataFrame) -> RunningBatch:
    """Raises `UsageError` outside of a query with exactly one source `keylane` and a Spark session in this process."""
    context = getattr(frame.sparkSession, "sparkContext", None)
    query_id = None if context is None else context.getLocalProperty(QUERY_ID)
    if context is None or query_id is None:
        raise UsageError("acknowledged(…) works inside foreachBatch, with a Spark session in this process")
    try:
        execution = _execution(frame, query_id)
        session = SparkSession(context, execution.sparkSession())
        found = _sources(execution)
        run_id = str(execution.runId())
    except (Py4JError, AttributeError, TypeError) as error:
        raise PeerError(f"this Spark does not show its running query ({error}): {TESTED}") from error
    if len(found) != 1:
        raise UsageError(f"acknowledged(…) needs a query with one source 'keylane'; this one has {len(found)}")
    ((plan, options),) = found
    return RunningBatch(run_id, session, plan, options, execution.logicalPlan())


def fill(kept: DataFrame) -> None:
    """Make the rows of a frame that `persist` keeps, in one job of one stage. An action such as `count` plans three for
    it, and each of them takes about as long as the calls of a small batch.

    Raises what a task raised, and `PeerError` when this Spark does not show what it keeps.
    """
    frame: Any = kept
    try:
        rows = frame._jdf.queryExecution().withCachedData().cacheBuilder().cachedColumnBuffers()  # noqa: SLF001
    except (Py4JError, AttributeError, TypeError) as error:
        raise PeerError(f"this Spark does not show what it keeps ({error}): {TESTED}") from error
    rows.count()


def _count_functions(plan: Any, name: str) -> int:
    """How many nodes of a plan in the JVM run the Arrow function of this name."""
    children = plan.children()
    found = sum(_count_functions(children.apply(index), name) for index in range(children.length()))
    if plan.nodeName() in ARROW_NODES:
        found += plan.functionExpr().name() == name
    return found


def _execution(frame: DataFrame, query_id: str) -> Any:
    """The `MicroBatchExecution`."""
    session: Any = frame.sparkSession
    jvm = session.sparkContext._jvm  # noqa: SLF001
    uuid = jvm.java.util.UUID.fromString(query_id)
    return session._jsparkSession.sharedState().activeStreamingQueries().get(uuid)  # noqa: SLF001


def _sources(execution: Any) -> list[tuple[Plan, Any]]:
    """The plan of each source `keylane` for the batch that runs, and its options in the JVM. A stream that the query
    splits and unites is a leaf for each part, and one source."""
    leaves = execution.logicalPlan().collectLeaves()
    found = []
    streams: list[Any] = []
    for index in range(leaves.length()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() != "StreamingDataSourceV2ScanRelation":
            continue
        stream = leaf.stream()
        if any(stream.equals(one) for one in streams):
            continue
        streams.append(stream)
        offset = json.loads(execution.availableOffsets().get(stream).get().json())
        if isinstance(offset, dict) and is_plan(offset):
            found.append((Plan.from_json(offset), leaf.relation().options().asCaseSensitiveMap()))
    return found
