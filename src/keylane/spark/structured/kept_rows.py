"""`KeptRows`: rows exactly once, inside one Spark task: what they are known by, what is kept of them, what is purged.

The idea: what pipelines have (`keylane.delivery.transactions`), and the outputs that are kept are the rows which the
function returned, as an Arrow IPC stream, which tells its own columns. So Spark may run a row as often as it likes. The
first task of a batch that meets a topic purges what no restart can ask for any more (docs/adr/0085).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

from keylane.delivery import stored_steps
from keylane.delivery.stores import Identity
from keylane.delivery.transactions import (
    Transactions,
    answering,
    check_transaction,
    key_of,
    once_of,
)
from keylane.errors import Fatal, HandlerError, ProcessedError, UsageError
from keylane.flow.outcomes import Failure
from keylane.flow.workers.calls import as_it_is, failure_of
from keylane.spark.checks import check_store
from keylane.spark.structured.carry_over import BATCH_ID
from keylane.spark.structured.rows import RECORD, RowWriter, place_of
from keylane.spark.structured.running import QUERY_ID
from keylane.spark.structured.settled import Settled
from keylane.spark.structured.values import Instant, arrow_schema, as_numbers, to_python

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pyarrow as pa
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import DataType

    from keylane.delivery.stores import Processed, Transaction
    from keylane.flow.items import Carried
    from keylane.flow.outcomes import Outcome
    from keylane.spark.structured.row_options import RowOptions
    from keylane.spark.structured.rows import Returns, Values

RUN_ID = "spark.jobGroup.id"
"""The local property under which Spark names the run of a query to its tasks."""

TIMESTAMP = "timestamp"
"""The source's column."""

TURNS = 10
"""Without batches: how often it is purged in the time for which identities are kept."""

TURNS_KNOWN = 1_000
"""That a process remembers; for others its tasks ask the store."""

STEP = b"step"
"""In the metadata of kept rows: the run of the query, and the step, that made them."""

PURGED = (
    "it was processed before, and the store has no outputs of it: they are purged once Spark's checkpoint has their "
    "batch, so this is a task that nobody waits for any more, a query that begins below what an earlier one of this "
    "ExactlyOnce.scope has done (then give another scope, or begin where that one ended), or a store that keeps nothing"
)


# --- the driver's ---


def check_step(options: RowOptions, frame: DataFrame) -> None:
    """Raises `UsageError` when rows of a frame cannot be known again, or its tasks cannot share the store."""
    once, columns = once_of(options), dict(frame.dtypes)
    if isinstance(once.identity, str) and columns.get(once.identity) not in ("string", "binary"):
        raise UsageError(
            f"ExactlyOnce.identity: the column {once.identity} is {columns.get(once.identity, 'not there')}: name one "
            "of strings or binary values, or give a function of the row"
        )
    if once.identity is None and (missing := sorted(RECORD - columns.keys())):
        raise UsageError(
            f"ExactlyOnce: the frame has no column {', '.join(missing)}, by which a row is known: keep the source's up "
            "to parallel_map, or give identity=…: a column, or a function of the row"
        )
    context = getattr(frame.sparkSession, "sparkContext", None)
    in_a_batch = context is not None and context.getLocalProperty(QUERY_ID) is not None  # foreachBatch runs this
    if once.scope is None and not frame.isStreaming and not in_a_batch:
        raise UsageError(
            "ExactlyOnce: a frame that is no stream has no checkpoint, whose id its rows would be kept under: give "
            "scope=…, a name that no other step has"
        )
    check_store(once, frame.sparkSession.conf.get("spark.master", None), "tasks")


# --- a task's ---


@dataclass(frozen=True)
class Asked:
    """On whose behalf Spark runs a task."""

    query: str | None = None
    """The id of the query; None in no stream."""
    batch: int | None = None
    run: str | None = None
    """Of the query."""

    @classmethod
    def of_task(cls) -> Asked:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        if context is None or query is None or batch is None:
            return cls()
        return cls(query, int(batch), context.getLocalProperty(RUN_ID))


class KeptRows:
    """Thread safety: `begin` is the task's thread's, the rest any thread's."""

    def __init__(self, options: RowOptions, returns: Returns, schema: StructType) -> None:
        """`returns` and `schema` are of the rows that the function makes."""
        self._once = once_of(options)
        self._returns = returns
        self._asked = Asked.of_task()
        self._settled = Settled.of_task()
        scope = self._once.scope or self._asked.query
        if scope is None:
            raise UsageError("ExactlyOnce: this is no task of a stream: give scope=…, a name that no other step has")
        self._scope = scope
        self._step = options.counts.step
        self._outputs = KeptOutputs(schema, self._asked.run and f"{self._asked.run} {self._step}")
        self._met: set[str] = set()
        """Topics of the rows that were fed; "" with an identity of the user's."""
        self._has_steps = options.steps is not None
        inside = Transactions(options, self, self._scope if self._has_steps else None)
        self.handler, self.resource, self._store = inside.handler, inside.resource, inside.store

    # --- what rows are known by, and what is kept of them ---

    def identity_of(self, row: Row) -> Identity:
        if (given := self._once.identity) is not None:
            key = row[given] if isinstance(given, str) else given(row)
            return Identity(self._scope, -1, -1, key_of(key, "a row"))
        place = place_of(row)
        if place is None or None in place:
            raise UsageError("ExactlyOnce: a row without a topic, a partition or an offset: give identity=…")
        topic, partition, offset = place
        return Identity(self._scope_of(topic), partition, offset)

    def checksum_of(self, row: Row) -> int | None:
        """Its timestamp, where the frame has it: the one thing of a record that steps before this one leave alone."""
        if self._once.identity is not None or TIMESTAMP not in row or not isinstance(row[TIMESTAMP], datetime):
            return None
        seen: datetime = row[TIMESTAMP]
        return round(seen.timestamp() * 1_000_000) & 0x7FFF_FFFF_FFFF_FFFF

    def is_known(self, identity: Identity) -> bool | None:
        """The store knows: a task has no rows of its own, that it would have read about."""

    def processed(self, identities: Collection[Identity]) -> None:
        """Spark's checkpoint remembers."""

    def outcome(self, result: Outcome) -> tuple[list[Values], bytes]:
        rows = self._returns.rows(result)
        try:
            return rows, self._outputs.kept(rows)
        except HandlerError as wrong:
            raise Fatal(str(wrong)) from None

    def outcomes(self, result: Outcome, count: int) -> list[tuple[Outcome, bytes]]:
        return [self._outcome_in_batch(one) for one in self._returns.of_each(result, count)]

    def _outcome_in_batch(self, result: Outcome) -> tuple[Outcome, bytes]:
        if isinstance(result, BaseException):
            return failure_of(result), b""
        try:
            return self.outcome(result)
        except Fatal as wrong:
            return Failure(wrong, final=True), b""

    def again(self, processed: Processed) -> list[Values]:
        return self._outputs.again(processed.outputs)

    # --- what is purged ---

    def begin(self, rows: list[tuple[Row, bytes | None]]) -> list[tuple[Row, bytes | None]]:
        """Before these rows run. Raises `PeerError` when the store does not answer, `UsageError` for one that lacks
        something."""
        if self._once.identity is not None:
            topics = {""}
        else:
            topics = {topic for row, _ in rows if (topic := row["topic"]) is not None}
        for topic in topics - self._met:
            self._meet(topic)
        self._met |= topics
        return rows

    def _meet(self, topic: str) -> None:
        now_ms = time.time_ns() // 1_000_000
        turn = now_ms * TURNS // self._once.retention_ms if self._asked.batch is None else self._asked.batch
        turns = f"{self._scope_of(topic)}/{self._asked.query or 'no stream'}/turns"
        known = (self._step, turns)
        if _turns.get(known, -1) >= turn:
            return
        with answering(self._store):
            opened = self._store.open()
            try:
                if self._has_steps:
                    stored_steps.make_table(self._store, opened)
                with opened.transaction() as transaction:
                    check_transaction(self._store, transaction)
                    if transaction.purged_below(turns, 0) <= turn:
                        transaction.purge(turns, 0, turn + 1)
                        self._purge(transaction, topic, now_ms)
            finally:
                opened.close()
        if len(_turns) >= TURNS_KNOWN:
            _turns.clear()
        _turns[known] = turn

    def _purge(self, transaction: Transaction, topic: str, now_ms: int) -> None:
        """Nothing that is kept there is of the batch that asks, which is new: so all of it is in Spark's commit log,
        but for what was carried."""
        scope = self._scope_of(topic)
        if self._settled is None or topic not in self._settled.below:
            transaction.purge_before(scope, now_ms - self._once.retention_ms)
            if self._has_steps:
                stored_steps.purge_before(transaction, scope, now_ms - self._once.retention_ms)
            return
        for partition, below in sorted(self._settled.below[topic].items()):
            if transaction.purged_below(scope, partition) < below:
                transaction.purge(scope, partition, below)
                if self._has_steps:
                    stored_steps.purge(transaction, scope, partition, below)

    def _scope_of(self, topic: str) -> str:
        return f"{self._scope}/{topic}" if topic else self._scope


_turns: dict[tuple[str, str], int] = {}
"""By step and scope, the last turn that a task of this process has come to; one task runs in it at a time."""


class KeptOutputs:
    """The rows that a function returned, as a store keeps them. Thread safety: any thread."""

    def __init__(self, returns: StructType, step: str | None) -> None:
        """`step` names this one and the run of its query; None where there is no such run."""
        import pyarrow as pa

        self._step = step
        self._writer = RowWriter(returns)
        self._converters = [kept_values(one.dataType) for one in returns.fields]
        self._schema = arrow_schema(returns)
        if step is not None:
            self._schema = self._schema.with_metadata({STEP: step})
        self._arrow = pa

    def kept(self, rows: list[Values]) -> bytes:
        """Raises `HandlerError` for a value that is not of its column's type."""
        made = self._arrow.BufferOutputStream()
        with self._arrow.ipc.new_stream(made, self._schema) as stream:
            if rows:
                stream.write_batch(self._writer.batch(rows))
        return bytes(made.getvalue())

    def again(self, kept: bytes) -> list[Values]:
        """Raises `ProcessedError` for what this step has not kept."""
        if not kept:
            raise ProcessedError(PURGED)
        try:
            with self._arrow.ipc.open_stream(kept) as stream:
                schema, batches = stream.schema, [*stream]
        except self._arrow.ArrowInvalid:
            raise ProcessedError(
                "it was processed before, and what is kept of it are no rows: give ExactlyOnce.scope a name of its own"
            ) from None
        self._check(schema)
        found: list[Values] = []
        for batch in batches:
            columns = zip(self._converters, batch.columns, strict=True)
            found += zip(*([of(one) for one in as_numbers(column).to_pylist()] for of, column in columns), strict=True)
        return found

    def _check(self, schema: pa.Schema) -> None:
        if not schema.equals(self._schema):
            raise ProcessedError(
                f"it was processed before, with the columns {_columns(schema)}, and returns= has "
                f"{_columns(self._schema)}: finish the batch with the earlier ones, or give another ExactlyOnce.scope, "
                "under which its rows are processed anew"
            )
        step = (schema.metadata or {}).get(STEP, b"").decode()
        if self._step is not None and step != self._step and step.partition(" ")[0] == self._step.partition(" ")[0]:
            raise ProcessedError(
                "another step of this query has processed it under the same name: give each an ExactlyOnce.scope"
            )


def kept_values(kind: DataType) -> Callable[[Carried], Carried]:
    """Makes of a value of a column `as_numbers` one that a function may return. Instants stay what they are: as local
    times they would depend on the machine's clock."""
    if isinstance(kind, TimestampType):
        return lambda value: None if value is None else Instant(value)
    if isinstance(kind, ArrayType):
        of = kept_values(kind.elementType)
        return lambda value: None if value is None else [of(one) for one in value]
    if isinstance(kind, MapType):
        key_of_map, of = kept_values(kind.keyType), kept_values(kind.valueType)
        return lambda value: None if value is None else {key_of_map(key): of(one) for key, one in value}
    if isinstance(kind, StructType):
        each = [kept_values(one.dataType) for one in kind.fields]
        return lambda value: (
            None if value is None else tuple(of(one) for of, one in zip(each, value.values(), strict=True))
        )
    return to_python(kind) or as_it_is


def _columns(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{one.name} {one.type}{'' if one.nullable else ' not null'}" for one in schema) + ")"
