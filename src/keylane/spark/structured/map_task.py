"""What `parallel_map` runs inside each Spark task: rows through the user's function, and what it returns to Spark.

The idea: the rows of a task run through a flow (`row_engine`); Spark places the tasks and moves the rows.
With a `CarryOver`, what could not be finished leaves the batch (docs/adr/0040).
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

from keylane.errors import Fatal, HandlerError
from keylane.flow.outcomes import Failure
from keylane.flow.workers.timeouts import in_time
from keylane.options import is_coroutine_function, takes_context
from keylane.spark.structured.row_engine import FAILURES, RowEngine
from keylane.spark.structured.row_processes import RowProcesses
from keylane.spark.structured.rows import Outcome, RowReader, RowWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import Row

    from keylane.options import Retries
    from keylane.records import Context
    from keylane.spark.structured.carry_over import CarryOver, TaskCarry
    from keylane.spark.structured.row_engine import FedRow, RowOptions

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
        timeout_ms = None if calls else options.timeout_ms
        handler = _handler(function, timeout_ms, writer, carry, retries)
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
) -> Callable[[FedRow, Context], Any]:
    timed = function if timeout_ms is None else in_time(function, timeout_ms / 1000)
    call = RowCall(timed if takes_context(timed) else lambda row, _: function(row), writer, carry, retries)
    return call.run_async if is_coroutine_function(function) else call.run


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


def _emitted(outcome: Outcome, options: MapOptions, writer: RowWriter) -> list[tuple[Any, ...]]:
    """The rows for Spark. Raises `HandlerError` for a failed row, unless errors are a column."""
    if outcome.values is None:
        error = outcome.error
        text = f"{type(error).__name__}: {error}"
        if not options.outcome:
            raise HandlerError(f"{_name(outcome)}: failed after {outcome.attempts} attempts: {text}") from error
        return [(*writer.nothing, text, outcome.attempts, outcome.seconds)]
    if not options.outcome:
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
