"""`parallel_map`: a function over the rows of a DataFrame, many at once, in order by key, with retries.

The idea: a step for `DataFrame.transform`. Spark places the tasks and moves the rows; in each task they run through a
flow (`row_engine`). With a `CarryOver`, what could not be finished leaves the batch (docs/adr/0040).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType, _parse_datatype_string

from keylane.errors import UsageError
from keylane.options import RENAMED
from keylane.spark.structured.arrow_map import map_in_arrow
from keylane.spark.structured.kept_rows import check_step
from keylane.spark.structured.ordering import by_key, check_whole_partitions, with_keys
from keylane.spark.structured.row_options import RowOptions
from keylane.spark.structured.row_task import MapTask
from keylane.spark.structured.running import CARRYING_STEP
from keylane.spark.structured.schema_checks import check_schema
from keylane.telling import with_named_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from keylane.consumer.snapshot import Snapshot

STEP = "parallel_map"
"""How the function of a step without carry-over is called in Spark's plans."""


@with_named_options("parallel_map", **RENAMED)
@dataclass(frozen=True, slots=True)
class RowMap(RowOptions):
    """A step for `DataFrame.transform`: each row through `handler`, up to `max_concurrency` at once in each task.

    The options are those of `Flow`, and count for each task: concurrency, rates, the automatic limit. `handler` takes a
    Row, or a Row and a `keylane.Context`, and returns a dict or a tuple with the columns of `returns`, a list of them
    for any number of rows, or None for none. With `batch` it takes a list of Rows, and returns None or a list with one
    such result a row, in which an exception fails its row alone. The resource is made once a task, or once a worker
    process.

    Raises `UsageError` for what cannot work, when it is called or when the step is applied.
    """

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The frame of what the handler returns for each row of `frame`."""
        for name in (*(self.keys or ()), *self.sorted_by):
            if name not in frame.columns:
                raise UsageError(f"parallel_map: there is no column {name!r} among {', '.join(frame.columns)}")
        self.check_columns(dict(frame.dtypes))
        if self.guarantee == "exactly_once":
            check_step(self, frame)
        if self.order_by:
            frame = by_key(frame, self.keys or (), self.sorted_by)
        elif self.keys is not None:
            check_whole_partitions(frame)
        check_schema("parallel_map: the frame", frame.schema)
        task = MapTask(self, frame.schema, _schema(self.returns), frame.isStreaming)
        check_schema("returns=… with what outcome=True adds" if self.outcome else "returns=…", task.output)
        if self.carry_over is not None:
            self.carry_over.check(dict(frame.dtypes))
            self.carry_over.begin(frame.sparkSession)
        self.counts.begin(frame.sparkSession)
        return map_in_arrow(
            with_keys(frame, self.keys), task, task.output, STEP if self.carry_over is None else CARRYING_STEP
        )

    def snapshot(self) -> Snapshot:
        """What the tasks of this step have done that have ended, all together: counters, latency and failures, for
        `keylane.metrics`. Spark counts a task that it runs again twice where others needed its output.

        Raises `UsageError` through Spark Connect.
        """
        return self.counts.snapshot()


parallel_map = RowMap


def _schema(returns: str | StructType) -> StructType:
    schema = _parse_datatype_string(returns) if isinstance(returns, str) else returns
    if not isinstance(schema, StructType) or not schema.fields:
        raise UsageError(f"returns={returns!r}: give columns and types, like 'delay double, carrier string'")
    if isinstance(returns, str) and "timestamp_ntz" not in returns.lower() and "timestamp_ntz" in schema.simpleString():
        raise UsageError(
            f"returns={returns!r}: timestamp means timestamp_ntz in this session (spark.sql.timestampType), which "
            "takes what the workers' clocks show: write timestamp_ltz for an instant, or timestamp_ntz"
        )
    return schema
