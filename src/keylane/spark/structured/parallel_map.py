"""`parallel_map`: a function over the rows of a DataFrame, many at once, in order by key, with retries.

The idea: a step for `DataFrame.transform` whose options are checked here, before Spark has anything to run; the rows go
through the function in `map_task`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.types import StructType, _parse_datatype_string

from keylane.errors import UsageError
from keylane.guarantees import check_dataframe_delivery
from keylane.options import Retries, is_coroutine_function
from keylane.spark.structured.arrow_map import map_in_arrow
from keylane.spark.structured.map_task import MapOptions, MapTask
from keylane.spark.structured.row_engine import RowOptions
from keylane.telling import by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from keylane.guarantees import Delivery
    from keylane.options import WorkersKind
    from keylane.spark.structured.carry_over import CarryOver

Ordering = Literal["unordered", "key", "partition"]

PARTITION_KEY = ("topic", "partition")


@by_name
def parallel_map(
    function: Callable[..., Any],
    returns: str | StructType,
    *,
    ordering: Ordering = "unordered",
    key: str | Sequence[str] | None = None,
    order_by: str | Sequence[str] = (),
    max_concurrency: int = 100,
    threads: int = 16,
    workers: WorkersKind = "auto",
    processes: int = 1,
    retries: Retries | None = None,
    timeout_ms: int | None = None,
    resource: Callable[[], Any] | None = None,
    outcome: bool = False,
    carry_over: CarryOver | None = None,
    delivery: Delivery = "at_least_once",
) -> Callable[[DataFrame], DataFrame]:
    """A step for `DataFrame.transform`: each row through `function`, up to `max_concurrency` at once in each task.

    - `function` takes a Row, or a Row and a `keylane.Context`, and returns a dict or a tuple with the columns of
      `returns` (a DDL string or a StructType), a list of them for any number of rows, or None for none. A coroutine
      function runs on asyncio, another one in `threads`, or with `workers="process"` in `processes` of each task, for
      functions that compute: Spark gives a task `spark.task.cpus` cores.
    - `ordering`: "key" runs rows with the same values in the columns `key` one after another, in the order in which
      their task gets them; "partition" those of one Kafka partition. With `order_by` (columns), rows are first brought
      together by key across tasks, and sorted within.
    - `retries`: `Retries()` by default. A row that failed for the last time, or raised `keylane.Fatal`, fails the task
      with a `HandlerError`; with `outcome` it becomes a row of nulls with its `error`, `attempts` and `seconds`.
    - `timeout_ms` ends one attempt of a coroutine function, or kills its worker process.
    - `resource`: as in `Pipeline`, made once a task, or once a worker process.
    - `carry_over`: for streams that end in `acknowledged`; see docs/dataframes.md.
    - `delivery`: as in `Pipeline`; anything but "at_least_once" is refused, with the reason.

    Raises `UsageError` for what cannot work, when it is called or when the step is applied.
    """
    tries = Retries() if retries is None else retries
    _check(function, tries, carry_over, outcome=outcome)
    _check_workers(function, workers, processes, timeout_ms)
    in_processes = workers == "process"
    check_dataframe_delivery(delivery)
    keys = _keys(ordering, key)
    by = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    if by and keys is None:
        raise UsageError(f"order_by={order_by!r} needs ordering='key' or 'partition'")
    rows = RowOptions(
        handler=function,  # wrapped in the task
        ordering="unordered" if keys is None else "key",
        max_concurrency=max_concurrency,
        threads=processes if in_processes else threads,
        retries=tries,
        resource=None if in_processes else resource,
    )
    rows.pipeline()  # checks the rest

    def step(frame: DataFrame) -> DataFrame:
        for name in (*(keys or ()), *by):
            if name not in frame.columns:
                raise UsageError(f"parallel_map: there is no column {name!r} among {', '.join(frame.columns)}")
        if by:
            frame = frame.repartition(*(keys or ()))
        if carry_over is not None:
            carry_over.check(dict(frame.dtypes))
        options = MapOptions(
            function, frame.schema, _schema(returns), keys, by, rows, timeout_ms, outcome, carry_over,
            processes if in_processes else None, resource if in_processes else None,
        )  # fmt: skip
        if carry_over is not None:
            carry_over.begin(frame.sparkSession)
        return map_in_arrow(frame, MapTask(options), options.output)

    return step


def _check(function: Any, retries: Any, carry_over: CarryOver | None, *, outcome: bool) -> None:
    if not callable(function):
        raise UsageError(f"parallel_map({function!r}): give a function of (row) or (row, context)")
    if not isinstance(retries, Retries):
        raise UsageError(f"retries={retries!r}: give keylane.Retries(...)")
    if carry_over is not None and outcome:
        raise UsageError("outcome=True and carry_over=…: a row that fails is carried, so no row has an error")


def _check_workers(function: Any, workers: Any, processes: Any, timeout_ms: Any) -> None:
    if workers not in ("auto", "process"):
        raise UsageError(f"workers={workers!r}: give 'auto' or 'process'")
    if not isinstance(processes, int) or processes < 1:
        raise UsageError(f"processes={processes!r}: give a whole number of at least 1")
    if workers == "process" and is_coroutine_function(function):
        raise UsageError("workers='process' runs plain functions: give one, or leave workers='auto' to a coroutine")
    if timeout_ms is None:
        return
    if not isinstance(timeout_ms, int) or timeout_ms < 1:
        raise UsageError(f"timeout_ms={timeout_ms!r}: give a whole number of at least 1")
    if workers == "auto" and not is_coroutine_function(function):
        raise UsageError(
            "timeout_ms needs what can be ended, and a thread cannot: declare the function `async def`, or run it with "
            "workers='process'"
        )


def _keys(ordering: Ordering, key: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if ordering not in ("unordered", "key", "partition"):
        raise UsageError(f"ordering={ordering!r}: give 'unordered', 'key' or 'partition'")
    if ordering == "key" and not key:
        raise UsageError("ordering='key' needs key=…: the column, or columns, whose rows stay in order")
    if ordering != "key" and key:
        raise UsageError(f"key={key!r} needs ordering='key'")
    if ordering == "partition":
        return PARTITION_KEY
    return None if key is None else (key,) if isinstance(key, str) else tuple(key)


def _schema(returns: str | StructType) -> StructType:
    schema = _parse_datatype_string(returns) if isinstance(returns, str) else returns
    if not isinstance(schema, StructType) or not schema.fields:
        raise UsageError(f"returns={returns!r}: give columns and types, like 'delay double, carrier string'")
    return schema
