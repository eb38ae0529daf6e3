"""`parallel_map`: a function over the rows of a DataFrame, many at once, in order by key, with retries.

The idea: inside each Spark task the rows run through keylane's engine (`row_engine`); Spark places the tasks and moves
the rows. With a `CarryOver`, what could not be finished leaves the batch (docs/adr/0040).
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pyspark import TaskContext
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    _parse_datatype_string,
)

from keylane.errors import Fatal, HandlerError, UsageError
from keylane.guarantees import check_dataframe_delivery
from keylane.options import Retries, is_coroutine_function, takes_context
from keylane.spark.structured.arrow_map import map_in_arrow
from keylane.spark.structured.row_engine import RowEngine, RowOptions
from keylane.spark.structured.row_processes import RowProcesses
from keylane.spark.structured.rows import Outcome, RowReader, RowWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, Row

    from keylane.guarantees import Delivery
    from keylane.options import WorkersKind
    from keylane.records import Context, Record
    from keylane.spark.structured.carry_over import CarryOver, TaskCarry

Ordering = Literal["unordered", "key", "partition"]

OUTCOME = [
    StructField("error", StringType()),
    StructField("attempts", IntegerType()),
    StructField("seconds", DoubleType()),
]
"""What `outcome=True` adds: null or what the last attempt raised, attempts made, and how long the last one took."""

PARTITION_KEY = ("topic", "partition")
BATCH_ROWS = 1_000
"""Rows of an Arrow batch that goes back to Spark."""
_MANY = 250
"""Rows that are made at once: the first calls run while the others are made."""


@dataclass(frozen=True)
class MapOptions:
    """All that a task needs; picklable."""

    function: Callable[..., Any]
    schema: StructType
    """Of the rows that come in."""
    returns: StructType
    keys: tuple[str, ...] | None
    order_by: tuple[str, ...]
    rows: RowOptions
    timeout_ms: int | None
    outcome: bool
    carry_over: CarryOver | None
    processes: int | None = None
    """Worker processes of each task, which run the function; None: it runs in the task's own process."""
    process_resource: Callable[[], Any] | None = None

    @property
    def output(self) -> StructType:
        return StructType([*self.returns.fields, *OUTCOME]) if self.outcome else self.returns


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
            carry_over.check(frame.columns)
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


class MapTask:
    """The function that Spark calls with the batches of one task."""

    def __init__(self, options: MapOptions) -> None:
        self._options = options

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if TaskContext.get() is not None:
            _spare_modules_from_gc()
        options = self._options
        carry = None if options.carry_over is None else options.carry_over.task(options.rows.retries)
        writer = RowWriter(options.returns)
        output = RowWriter(options.output)
        rows: list[tuple[Any, ...]] = []
        for outcome in _outcomes(options, writer, carry, batches):
            if carry is not None and carry.takes(outcome):
                continue
            rows += _emitted(outcome, options, writer)
            if len(rows) >= BATCH_ROWS:
                yield output.batch(rows)
                rows = []
        if carry is not None:
            carry.report()
        if rows:
            yield output.batch(rows)


@cache
def _spare_modules_from_gc() -> None:
    """Once in each worker process. Modules are never garbage; going through all of them takes 80 ms, whenever the rows
    of a task bring about a full collection, and Spark runs one after each task."""
    gc.freeze()


def _outcomes(
    options: MapOptions, writer: RowWriter, carry: TaskCarry | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[Outcome]:
    """Every row's outcome, as they come."""
    reader = RowReader(options.schema, options.keys)
    retries = options.rows.retries
    if carry is not None and not carry.is_frozen:
        retries = replace(retries, max_attempts=1)  # what failed leaves the batch
    feeds = _in_order(batches, reader, options.order_by)
    if carry is not None:
        feeds = map(carry.wanted, feeds)
    with _processes(options) as calls:
        function = options.function if calls is None else calls
        handler = _handler(function, None if calls else options.timeout_ms, writer, carry, retries)
        engine = RowEngine(replace(options.rows, handler=handler, retries=retries))
        with engine, _stopped_in_time(engine, calls, carry):
            yield from engine.run(feeds)
        left = [*engine.pending.values(), *(row for rows in feeds for row in rows)]
    for row, key in left:  # of a batch that came to its deadline
        yield Outcome(row, None, None, 0, 0.0, key, carried=True)


@contextmanager
def _processes(options: MapOptions) -> Iterator[RowProcesses | None]:
    """The worker processes of the task, when it has some."""
    if options.processes is None:
        yield None
        return
    timeout_s = None if options.timeout_ms is None else options.timeout_ms / 1000
    calls = RowProcesses(options.function, options.process_resource, timeout_s)
    try:
        yield calls
    finally:
        calls.close()


@contextmanager
def _stopped_in_time(engine: RowEngine, calls: RowProcesses | None, carry: TaskCarry | None) -> Iterator[None]:
    """Stops the engine, and kills what runs in processes, at the deadline of the batch, if it has one."""
    if carry is None or carry.deadline_s is None:
        yield
        return

    def stop() -> None:
        engine.stop()
        if calls is not None:
            calls.kill()

    timer = threading.Timer(carry.deadline_s, stop)
    timer.daemon = True
    carry.on_first_call = timer.start
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()


def _in_order(
    batches: Iterator[pa.RecordBatch], reader: RowReader, order_by: tuple[str, ...]
) -> Iterator[list[tuple[Row, bytes | None]]]:
    """The rows, some at a time; sorted as a whole with `order_by`."""
    if not order_by:
        for batch in batches:
            for start in range(0, batch.num_rows, _MANY):
                yield reader.rows(batch.slice(start, _MANY))
        return
    rows = [row for batch in batches for row in reader.rows(batch)]
    rows.sort(key=lambda pair: tuple(pair[0][name] for name in order_by))
    for start in range(0, len(rows), _MANY):
        yield rows[start : start + _MANY]


def _handler(
    function: Callable[..., Any],
    timeout_ms: int | None,
    writer: RowWriter,
    carry: TaskCarry | None,
    retries: Retries,
) -> Callable[..., Any]:
    """The function as the engine's handler: its result, or its last failure, as an `Outcome`."""
    takes = takes_context(function)
    timeout_s = None if timeout_ms is None else timeout_ms / 1000

    def ended(record: Record, attempt: int, began: float, returned: Any, error: Exception | None) -> Outcome:
        row: Any = record.value
        values = None
        if error is None:
            try:
                values = writer.values(returned)
            except HandlerError as wrong:
                error = Fatal(str(wrong))
        if error is not None and retries.allow(attempt) and not isinstance(error, Fatal):
            raise error
        outcome = Outcome(row, values, error, attempt, time.monotonic() - began, record.key)
        return outcome if carry is None else carry.judged(outcome)

    def call(record: Record, context: Context) -> Outcome:
        if carry is not None and (held := carry.held(record)) is not None:
            return held
        began, returned, error = time.monotonic(), None, None
        try:
            returned = function(record.value, context) if takes else function(record.value)
        except Exception as raised:  # judged by `ended`
            error = raised
        return ended(record, context.attempt, began, returned, error)

    async def call_async(record: Record, context: Context) -> Outcome:
        if carry is not None and (held := carry.held(record)) is not None:
            return held
        began, returned, error = time.monotonic(), None, None
        try:
            if timeout_s is None:
                returned = await (function(record.value, context) if takes else function(record.value))
            else:
                context.deadline = began + timeout_s
                async with asyncio.timeout(timeout_s):
                    returned = await (function(record.value, context) if takes else function(record.value))
        except Exception as raised:  # judged by `ended`
            error = raised
        return ended(record, context.attempt, began, returned, error)

    return call_async if is_coroutine_function(function) else call


def _emitted(outcome: Outcome, options: MapOptions, writer: RowWriter) -> list[tuple[Any, ...]]:
    """The rows for Spark. Raises `HandlerError` for a failed row, unless errors are a column."""
    if outcome.values is None:
        error = outcome.error
        text = f"{type(error).__name__}: {error}"
        if not options.outcome:
            raise HandlerError(f"{outcome.row!r}: failed after {outcome.attempts} attempts: {text}") from error
        return [(*writer.nothing, text, outcome.attempts, outcome.seconds)]
    if not options.outcome:
        return outcome.values
    return [(*values, None, outcome.attempts, outcome.seconds) for values in outcome.values]
