"""`parallel_map`: a function over the rows of a DataFrame, many at once, in order by key, with retries.

The idea: a step for `DataFrame.transform` whose options are those of every flow (`keylane.options.Flow`), checked
before Spark has anything to run. Spark places the tasks and moves the rows; in each task they run through a flow
(`row_engine`). With a `CarryOver`, what could not be finished leaves the batch (docs/adr/0040).
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

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
from keylane.flow.outcomes import Failure
from keylane.flow.workers.made import timed
from keylane.options import RENAMED, Flow, Ordering, Processes, Threads, takes_context
from keylane.spark.structured.arrow_map import map_in_arrow
from keylane.spark.structured.row_engine import FAILURES, RowEngine
from keylane.spark.structured.row_processes import RowProcesses
from keylane.spark.structured.rows import Outcome, RowReader, RowWriter
from keylane.telling import with_named_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, Row

    from keylane.options import Retries
    from keylane.records import Context
    from keylane.spark.structured.carry_over import CarryOver, TaskCarry
    from keylane.spark.structured.row_engine import FedRow

PARTITION_KEY = ("topic", "partition")

NOT_FOR_ROWS = {
    "batch": "rows go to the function one at a time",
    "rates": "a task sees its own rows alone, and Spark says how many tasks run at once",
    "not_before": "a batch of Spark's ends when its rows are through, so that one that waits would hold up all",
    "on_exhausted": "a row that fails for the last time fails its task; with outcome=True it is a row of its own, and "
    "with carry_over=CarryOver(dead_letter=...) a dead letter",
    "traversal": "the rows of a task are one source",
}
"""Options of a flow that are refused here, and why."""

NOT_FROM_SPARK = {
    "at_most_once": "Spark runs the tasks of a batch that failed again",
    "almost_once": "Spark's checkpoint goes on batch by batch, not record by record",
    "transactional": "a stream's progress is in Spark's checkpoint, which no Kafka transaction covers",
    "exactly_once": "a row that was processed before has no result to hand on",
}
"""Guarantees that are refused here, and why."""

OUTCOME = [
    StructField("error", StringType()),
    StructField("attempts", IntegerType()),
    StructField("seconds", DoubleType()),
]
"""What `outcome=True` adds: null or what the last attempt raised, attempts made, and how long the last one took."""

BATCH_ROWS = 1_000
"""Rows of an Arrow batch that goes back to Spark."""
_MANY = 250
"""Rows that are made at once: the first calls run while the others are made."""


@with_named_options("parallel_map", **RENAMED)
@dataclass(frozen=True, slots=True)
class RowMap(Flow):
    """A step for `DataFrame.transform`: each row through `handler`, up to `max_concurrency` at once in each task.

    The options are those of `Flow`. `handler` takes a Row, or a Row and a `keylane.Context`, and returns a dict or a
    tuple with the columns of `returns`, a list of them for any number of rows, or None for none. A row that failed for
    the last time, or raised `keylane.Fatal`, fails the task with a `HandlerError`. The resource is made once a task, or
    once a worker process.

    Raises `UsageError` for what cannot work, when it is called or when the step is applied.
    """

    handler: Callable[..., Any]
    returns: str | StructType
    """Columns and types: a DDL string or a StructType."""
    _: KW_ONLY
    ordering: Ordering = "unordered"
    """"key" runs rows with the same values in the columns `key` one after another, in the order in which their task
    gets them; "partition" those of one Kafka partition."""
    key: str | Sequence[str] | None = None
    order_by: str | Sequence[str] = ()
    """Columns: rows are first brought together by key across tasks, and sorted within."""
    outcome: bool = False
    """Whether a row that failed for the last time becomes a row of nulls with its `error`, `attempts` and `seconds`."""
    carry_over: CarryOver | None = None
    """For streams that end in `acknowledged`; see docs/dataframes.md."""

    def __post_init__(self) -> None:
        Flow.__post_init__(self)
        for option in fields(Flow):
            if option.name in NOT_FOR_ROWS and getattr(self, option.name) != _default(option):
                raise UsageError(f"parallel_map has no {option.name}: {NOT_FOR_ROWS[option.name]}")
        if self.guarantee != "at_least_once":
            raise UsageError(
                f"delivery={self.delivery!r} is for pipelines in one process and in lanes: "
                f"{NOT_FROM_SPARK[self.guarantee]}"
            )
        if self.max_concurrency == "auto":
            raise UsageError("max_concurrency='auto': each task would look for a limit of its own: give a number")
        if self.tracing == "on":
            raise UsageError("tracing='on': rows have no headers that name a trace: leave it out")
        if self.carry_over is not None and self.outcome:
            raise UsageError("outcome=True and carry_over=…: a row that fails is carried, so no row has an error")
        if self.handler_timeout_ms and not self.is_async and not isinstance(self.workers, Processes):
            raise UsageError(
                "handler_timeout_ms needs what can be ended, and a thread cannot: declare the function `async def`, or "
                "run it with workers=Processes()"
            )
        if self.ordering == "key" and not self.key:
            raise UsageError("ordering='key' needs key=…: the column, or columns, whose rows stay in order")
        if self.ordering != "key" and self.key:
            raise UsageError(f"key={self.key!r} needs ordering='key'")
        if self.order_by and self.keys is None:
            raise UsageError(f"order_by={self.order_by!r} needs ordering='key' or 'partition'")

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The columns whose rows stay in order."""
        return PARTITION_KEY if self.ordering == "partition" else _columns(self.key) or None

    @property
    def sorted_by(self) -> tuple[str, ...]:
        return _columns(self.order_by)

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The frame of what the handler returns for each row of `frame`."""
        for name in (*(self.keys or ()), *self.sorted_by):
            if name not in frame.columns:
                raise UsageError(f"parallel_map: there is no column {name!r} among {', '.join(frame.columns)}")
        if self.order_by:
            frame = frame.repartition(*(self.keys or ()))
        task = MapTask(self, frame.schema, _schema(self.returns))
        if self.carry_over is not None:
            self.carry_over.check(dict(frame.dtypes))
            self.carry_over.begin(frame.sparkSession)
        return map_in_arrow(frame, task, task.output)


parallel_map = RowMap


def _default(option: Any) -> Any:
    return option.default_factory() if callable(option.default_factory) else option.default


def _columns(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _schema(returns: str | StructType) -> StructType:
    schema = _parse_datatype_string(returns) if isinstance(returns, str) else returns
    if not isinstance(schema, StructType) or not schema.fields:
        raise UsageError(f"returns={returns!r}: give columns and types, like 'delay double, carrier string'")
    return schema


@dataclass(frozen=True)
class MapTask:
    """The function that Spark calls with the batches of one task; picklable."""

    options: RowMap
    schema: StructType
    """Of the rows that come in."""
    returns: StructType

    @property
    def output(self) -> StructType:
        return StructType([*self.returns.fields, *OUTCOME]) if self.options.outcome else self.returns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if TaskContext.get() is not None:
            _spare_modules_from_gc()
        options = self.options
        carry = None if options.carry_over is None else options.carry_over.task(options.tries)
        writer = RowWriter(self.returns)
        output = RowWriter(self.output)
        reader = RowReader(self.schema, options.keys)
        rows: list[tuple[Any, ...]] = []
        for outcome in _outcomes(options, reader, writer, carry, batches):
            if carry is not None and carry.takes(outcome):
                continue
            rows += _emitted(outcome, writer, has_outcome=options.outcome)
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
    options: RowMap,
    reader: RowReader,
    writer: RowWriter,
    carry: TaskCarry | None,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[Outcome]:
    """Every row's outcome, as they come."""
    retries = options.tries
    if carry is not None and not carry.is_frozen:
        retries = replace(retries, max_attempts=1)  # what failed leaves the batch
    feeds = _in_order(batches, reader, options.sorted_by)
    if carry is not None:
        feeds = map(carry.wanted, feeds)
    with _processes(options) as (calls, local):
        handler = _handler(local, writer, carry, retries)
        engine = RowEngine(replace(local, handler=handler, retries=retries))
        with engine, _stopped_in_time(engine, calls, carry):
            yield from engine.run(feeds)
        left = [*engine.pending.values(), *(row for rows in feeds for row in rows)]
    for row, key in left:  # of a batch that came to its deadline
        yield Outcome(row, None, None, 0, 0.0, key, carried=True)


@contextmanager
def _processes(options: RowMap) -> Iterator[tuple[RowProcesses | None, RowMap]]:
    """The worker processes of the task, when it has some, and the options of what runs in its own process."""
    if not isinstance(options.workers, Processes):
        yield None, options
        return
    calls = RowProcesses(options.handler, options.resource, options.handler_timeout_ms / 1000 or None)
    count = options.workers.count or _task_cpus()
    try:
        yield calls, replace(options, handler=calls, resource=None, workers=Threads(count), handler_timeout_ms=0)
    finally:
        calls.close()


def _task_cpus() -> int:
    context = TaskContext.get()
    return 1 if context is None else context.cpus()


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
    options: RowMap, writer: RowWriter, carry: TaskCarry | None, retries: Retries
) -> Callable[[FedRow, Context], Any]:
    function, _ = timed(options)
    call = RowCall(function if takes_context(function) else lambda row, _: function(row), writer, carry, retries)
    return call.run_async if options.is_async else call.run


@dataclass(frozen=True)
class RowCall:
    """The user's function as the flow's function: its result, or its last failure, as an `Outcome`."""

    function: Callable[[Any, Context], Any]
    writer: RowWriter
    carry: TaskCarry | None
    retries: Retries

    def run(self, row: FedRow, context: Context) -> Outcome:
        if self.carry is not None and (held := self.carry.held(row)) is not None:
            return held
        began, returned, error = time.monotonic(), None, None
        try:
            returned = self.function(row.value, context)
        except Exception as raised:  # judged below
            error = raised
        return self._ended(row, context.attempt, began, returned, error)

    async def run_async(self, row: FedRow, context: Context) -> Outcome:
        if self.carry is not None and (held := self.carry.held(row)) is not None:
            return held
        began, returned, error = time.monotonic(), None, None
        try:
            returned = await self.function(row.value, context)
        except Exception as raised:  # judged below
            error = raised
        return self._ended(row, context.attempt, began, returned, error)

    def _ended(self, row: FedRow, attempt: int, began: float, returned: Any, error: Exception | None) -> Outcome:
        values = None
        if error is None:
            try:
                values = self.writer.values(returned)
            except HandlerError as wrong:
                error = Fatal(str(wrong))
        if error is not None and self.retries.allow(attempt) and not isinstance(error, Fatal):
            raise error  # noted by the flow
        outcome = Outcome(row.value, values, error, attempt, time.monotonic() - began, row.key(), number=row.number)
        if error is not None:
            FAILURES.note(Failure(error), _name(outcome), attempt, time.monotonic())
        return outcome if self.carry is None else self.carry.judged(outcome)


def _emitted(outcome: Outcome, writer: RowWriter, *, has_outcome: bool) -> list[tuple[Any, ...]]:
    """The rows for Spark. Raises `HandlerError` for a failed row, unless errors are a column."""
    if outcome.values is None:
        error = outcome.error
        text = f"{type(error).__name__}: {error}"
        if not has_outcome:
            raise HandlerError(f"{_name(outcome)}: failed after {outcome.attempts} attempts: {text}") from error
        return [(*writer.nothing, text, outcome.attempts, outcome.seconds)]
    if not has_outcome:
        return outcome.values
    return [(*values, None, outcome.attempts, outcome.seconds) for values in outcome.values]


def _name(outcome: Outcome) -> str:
    """How errors name a row, of which they never show more: as its record, where the frame has the source's columns."""
    row: Any = outcome.row
    if {"topic", "partition", "offset"} <= set(row.__fields__):
        return f"{row['topic']}-{row['partition']}@{row['offset']}"
    context = TaskContext.get()
    where = "its task" if context is None else f"Spark's partition {context.partitionId()}"
    return f"row {outcome.number + 1} of {where}"
