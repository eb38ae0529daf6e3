"""`MapTask`: what one Spark task of `parallel_map` does with its rows, from Arrow batches to Arrow batches.

The idea: rows go through a `RowEngine` and come back as `TaskRow`s in the order in which they end. What failed for the
last time is judged here, on the task's own thread: it fails the task, is left out, becomes a dead letter, or a row.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

from keylane.consumer.snapshot import Snapshot
from keylane.errors import Fatal, HandlerError
from keylane.flow.around import handler_of
from keylane.flow.autoscale import AutoLimit
from keylane.flow.failure_callback import FailureCallback
from keylane.flow.outcomes import Failure
from keylane.foreign_errors import short_class_of, text_of
from keylane.options import DeadLetter, Flow, Processes, Skip
from keylane.records import FailedAttempt
from keylane.spark.structured.dead_letters import DeadLetters
from keylane.spark.structured.kept_rows import KeptRows
from keylane.spark.structured.ordering import sorted_here
from keylane.spark.structured.row_calls import Failed, function_of
from keylane.spark.structured.row_engine import CLOSE_S, FAILURES, RowEngine
from keylane.spark.structured.rows import RECORD, Returns, RowReader, RowWriter, TaskRow, name_of, size_of
from keylane.spark.structured.worker_gc import spare_modules_from_gc
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import Row

    from keylane.flow.failures import FailureKind
    from keylane.flow.outcomes import Outcome
    from keylane.options import Retries
    from keylane.records import FailureOutcome
    from keylane.spark.structured.carry_over import TaskCarry
    from keylane.spark.structured.row_options import RowOptions
    from keylane.spark.structured.rows import Values

    Emitted = tuple[Values, TaskRow]
    """Values that go to Spark, and the row that they are of."""

logger = logger_of("keylane.spark")

OUTCOME = [
    StructField("error", StringType()),
    StructField("attempts", IntegerType()),
    StructField("seconds", DoubleType()),
]
"""What `outcome=True` adds: null or what the last attempt raised, attempts made, and how long the last one took."""

BATCH_ROWS = 1_000
"""Rows of an Arrow batch that goes back to Spark."""
BATCH_BYTES = 16 << 20
"""Of the same, about: Arrow's arrays of bytes end at 2 GB."""
SLICE_BYTES = 4 << 20
"""Of the rows that are made at once."""
_MANY = 250
"""Rows that are made at once: the first calls run while the others are made."""

STEPS_KEPT = 16
"""Steps of which this process keeps what their tasks have found under `max_concurrency="auto"`, the last ones."""


@dataclass(frozen=True)
class MapTask:
    """The function that Spark calls with the batches of one task; picklable."""

    options: RowOptions
    schema: StructType
    """Of the rows that come in."""
    returns: StructType
    is_of_stream: bool = False
    """Whether the rows are a stream's, which Spark does not sort."""

    @property
    def output(self) -> StructType:
        if not self.options.outcome:
            return self.returns
        # A row that failed is one of nulls, whatever the columns are when it does not.
        maybe = [StructField(one.name, one.dataType, nullable=True, metadata=one.metadata) for one in self.returns]
        return StructType([*maybe, *OUTCOME])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if TaskContext.get() is not None:
            spare_modules_from_gc("map")
        options = self.options
        carry = None if options.carry_over is None else options.carry_over.task(options.tries)
        before = FAILURES.kinds
        run = RowRun(options, self.schema, self.returns, carry)
        with run, run.dead_letters as letters:
            output = _Output(run, RowWriter(self.output), letters)
            sort_by = options.sorted_by if self.is_of_stream else ()
            for rows in run.outcomes(batches, sort_by):
                output.add(rows)
                if output.is_full:
                    yield from output.take()
            rest = [*output.take()]
            if carry is not None:
                carry.report()
            options.counts.add(run.snapshot(before, letters))
            yield from rest


class _Output:
    """Rows that go back to Spark, until they are an Arrow batch. Thread safety: the task's thread."""

    def __init__(self, run: RowRun, writer: RowWriter, letters: DeadLetters | None) -> None:
        self._run = run
        self._writer = writer
        self._letters = letters
        self._rows: list[Emitted] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, rows: list[TaskRow]) -> None:
        self._rows += self._run.emitted(rows, self._letters)
        self._bytes += sum([row.size for row in rows])

    def take(self) -> Iterator[pa.RecordBatch]:
        """Once dead letters are acknowledged, one after another. Raises what a row fails its task with."""
        rows, self._rows, self._bytes = self._rows, [], 0
        for made in self._batches(rows):
            self._acknowledge()
            yield made
        self._acknowledge()

    def _acknowledge(self) -> None:
        if self._letters is not None:
            self._letters.acknowledged()

    def _batches(self, rows: list[Emitted]) -> Iterator[pa.RecordBatch]:
        """In parts of bounded size: a row may have become many. A row with a value that is not of its column's type has
        failed, and what becomes of it is as for any other."""
        for part in _parts(rows):
            try:
                made = self._writer.batch([values for values, _ in part])
            except HandlerError:
                yield from self._batches(self._without_misfits(part))
            else:
                yield made

    def _without_misfits(self, rows: list[Emitted]) -> list[Emitted]:
        failed: dict[int, list[Emitted]] = {}
        for values, row in rows:
            if row.number in failed:
                continue
            try:
                self._writer.batch([values])
            except HandlerError as error:
                failed[row.number] = self._run.emitted_of_misfit(row, error, self._letters)
        rest = [pair for pair in rows if pair[1].number not in failed]
        return rest + [pair for some in failed.values() for pair in some]


def _parts(rows: list[Emitted]) -> Iterator[list[Emitted]]:
    part: list[Emitted] = []
    size = 0
    for pair in rows:
        values, row = pair
        part.append(pair)
        size += row.size if row.values is not None and len(row.values) == 1 else size_of((values,))
        if size >= BATCH_BYTES or len(part) >= BATCH_ROWS:
            yield part
            part, size = [], 0
    if part:
        yield part


class RowRun:
    """One run of a task. Thread safety: the task's thread, but for `_made`."""

    def __init__(self, options: RowOptions, schema: StructType, returns: StructType, carry: TaskCarry | None) -> None:
        self._options = options
        self._carry = carry
        self._on_failure = None if options.on_failure is None else FailureCallback(options.on_failure, "keylane-rows")
        self._reader = RowReader(schema, options.keys)
        self._nothing = (None,) * len(returns.fields)
        is_of_records = set(schema.fieldNames()) >= RECORD
        made = Returns(returns.fieldNames())
        self._kept = KeptRows(options, made, returns) if options.guarantee == "exactly_once" else None
        function, resource = handler_of(options), options.resource
        if self._kept is not None:
            function, resource = self._kept.handler, self._kept.resource
        handler = function_of(function, options, made, is_of_records=is_of_records)
        retries = options.tries
        if carry is not None and not carry.is_frozen:
            retries = _before_it_leaves(options)
        self._engine = RowEngine(
            flow_of(options, handler=handler, around=None, expires_ms=None, retries=retries, resource=resource),
            self._settle,
            name_of,
            held=None if carry is None else carry.held,
            auto=partial(limit_of, options.counts.step),
            on_failure=None if self._on_failure is None and carry is None else self._hear_failed,
        )
        self._processed = self._skipped = self._put_off = 0

    def __enter__(self) -> RowRun:
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_failure is not None:
            self._on_failure.close(CLOSE_S)

    @property
    def dead_letters(self) -> DeadLetters | nullcontext[None]:
        rule = self._options.on_exhausted
        return DeadLetters(rule.topic, self._options.kafka or {}) if isinstance(rule, DeadLetter) else nullcontext()

    def outcomes(self, batches: Iterator[pa.RecordBatch], sort_by: tuple[str, ...]) -> Iterator[list[TaskRow]]:
        """Every row with what became of it, as they come; the rows are sorted first by the columns `sort_by`."""
        engine, carry = self._engine, self._carry
        if sort_by:
            batches = sorted_here(batches, sort_by, _MANY)
        feeds = self._rows_of(batches)
        if carry is not None:
            feeds = map(carry.wanted, feeds)
        if self._kept is not None:
            feeds = map(self._kept.begin, feeds)
        with engine, _stopped_in_time(engine, carry):
            yield from engine.run(feeds)
        pending = [(row.row, row.key(), row.number) for row in engine.pending.values()]  # a call may still run in those
        for row, key, number in [*pending, *((*pair, -1) for rows in feeds for pair in rows)]:
            left = TaskRow(row, key, number)  # of a batch that came to its deadline
            left.carried = True
            yield [left]

    def _rows_of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[tuple[Row, bytes | None]]]:
        """Few rows at a time, of which the first run while the others are made; fewer where they are large."""
        for batch in batches:
            size = batch.nbytes / max(1, batch.num_rows)
            count = max(1, min(_MANY, int(SLICE_BYTES / max(1.0, size))))
            for start in range(0, batch.num_rows, count):
                self._engine.bytes_a_row = size
                yield self._reader.rows(batch.slice(start, count))

    def _settle(self, row: TaskRow, result: Outcome, attempt: int, since_s: float) -> None:
        """The loop's: what a row came to that its worker has not given to the task's thread."""
        if row.carried:
            return  # it was held
        row.attempts = attempt
        if isinstance(result, Failure):
            row.attempts -= result.is_expiry
            row.error = result.error
            row.seconds = result.seconds if isinstance(result, Failed) else since_s
            if self._carry is not None:
                self._carry.judge(row)
            self._tell_failed(row)
        else:
            row.values, row.size, row.seconds = result.values, result.size, result.seconds

    def _hear_failed(self, failed: FailedAttempt) -> None:
        """The loop's: of an attempt that another one follows."""
        if self._carry is not None and failed.outcome == "throttled" and failed.delay_ms is not None:
            self._carry.throttled(failed.record, failed.delay_ms)
        if self._on_failure is not None:
            self._on_failure.tell(failed)

    def _tell_failed(self, row: TaskRow) -> None:
        """User code hears of a last attempt that failed."""
        if self._on_failure is not None and row.error is not None:
            self._on_failure.tell(FailedAttempt(row.row, row.error, row.attempts, self._fate_of(row)))

    def _fate_of(self, row: TaskRow) -> FailureOutcome:
        """What becomes of a row that has failed, as `emitted` has it."""
        if row.carried:
            return "carried_over"
        if isinstance(self._options.on_exhausted, DeadLetter):
            return "dead_lettered"
        if self._carry is not None and not self._carry.is_frozen and self._carry.carry_over.dead_letter is not None:
            return "dead_lettered"
        if isinstance(self._options.on_exhausted, Skip):
            return "skipped"
        return "returned" if self._options.outcome else "halted"

    def emitted(self, rows: list[TaskRow], letters: DeadLetters | None) -> list[Emitted]:
        """What goes to Spark of them. Raises `HandlerError` for a row that fails its task."""
        emitted: list[Emitted] = []
        for row in rows:
            if self._carry is not None and self._carry.takes(row):
                self._put_off += row.carried and row.error is not None
            elif row.values is None:
                emitted += self._emitted_of_failed(row, letters)
            else:
                self._processed += 1
                for values in row.values:
                    emitted.append(
                        ((*values, None, row.attempts, row.seconds) if self._options.outcome else values, row)
                    )
        return emitted

    def _emitted_of_failed(self, row: TaskRow, letters: DeadLetters | None) -> list[Emitted]:
        error, name = row.error, name_of(row.row, row.number)
        text = "" if error is None else f"{short_class_of(error)}: {text_of(error)}"
        if letters is not None:
            letters.bury(row)
        elif isinstance(self._options.on_exhausted, Skip):
            self._skipped += 1
            logger.info("skipped %s", name)
        elif not self._options.outcome:
            raise HandlerError(f"{name}: failed after {row.attempts} attempts: {text}") from error
        return [((*self._nothing, text, row.attempts, row.seconds), row)] if self._options.outcome else []

    def emitted_of_misfit(self, row: TaskRow, error: HandlerError, letters: DeadLetters | None) -> list[Emitted]:
        """The same for a row whose values are not of their columns' types. It has run, and does not run again."""
        if row.values is None or self._kept is not None:
            raise error
        self._processed -= 1
        row.values, row.size, row.error = None, 0, Fatal(str(error))
        self._tell_failed(row)
        return self.emitted([row], letters)

    def snapshot(self, before: tuple[FailureKind, ...], letters: DeadLetters | None) -> Snapshot:
        """What the task has done; `before` it had failed so often in this process."""
        counters = self._engine.counters
        dead = (0 if letters is None else letters.delivered) + (0 if self._carry is None else self._carry.buried)
        return Snapshot(
            processed=self._processed,
            failed=counters["failed"],
            retried=counters["retried"] + self._put_off,
            dead_lettered=dead,
            skipped=self._skipped,
            produced=dead,
            workers_died=counters["workers_died"],
            held=counters["held"],
            throttled=counters["throttled"],
            expired=counters["expired"],
            handler_latency=self._engine.latency,
            failures=_since(before),
        )


def flow_of(options: RowOptions, **changes: Any) -> Flow:
    """A step's options as those of the flow in a task: its keys are those of the rows, whatever they are made of."""
    rates = options.rates
    if rates.per_partition is not None:  # of `ordering="partition"`: the key is the partition
        rates = replace(rates, per_key=rates.per_partition, per_partition=None)
    workers = options.workers
    if isinstance(workers, Processes):
        workers = Processes(workers.count or _task_cpus())
    given = {one.name: getattr(options, one.name) for one in fields(Flow)}
    ordering = "unordered" if options.keys is None else "key"
    return Flow(**(given | {"ordering": ordering, "rates": rates, "workers": workers} | changes))


def _before_it_leaves(options: RowOptions) -> Retries:
    """What failed leaves Spark's batch. A row of a call for many is tried once more, alone: those that failed with
    another one's error must not meet it in the next batch again, and be given up with it."""
    tries = 1 if options.batch is None or not options.tries.allow(1) else 2
    return replace(options.tries, max_attempts=tries, delay_ms=0, max_age_ms=None)


def _task_cpus() -> int:
    context = TaskContext.get()
    return 1 if context is None else context.cpus()


@lru_cache(STEPS_KEPT)
def limit_of(step: str, most: int) -> AutoLimit:  # noqa: ARG001 - what it is known by
    """What tasks of this process have found of the step's limit: the next one goes on from there."""
    return AutoLimit(most)


def _since(before: tuple[FailureKind, ...]) -> tuple[FailureKind, ...]:
    """What has failed in this process since then. One task runs in it at a time."""
    counts = {one.name: one.count for one in before}
    now = (replace(one, count=one.count - counts.get(one.name, 0)) for one in FAILURES.kinds)
    return tuple(one for one in now if one.count)


@contextmanager
def _stopped_in_time(engine: RowEngine, carry: TaskCarry | None) -> Iterator[None]:
    """Stops the engine, and kills what runs in processes, at the deadline of the batch, if it has one."""
    if carry is None or carry.deadline_s is None:
        yield
        return
    timer = threading.Timer(carry.deadline_s, engine.stop)
    timer.daemon = True
    carry.on_first_call = timer.start
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
