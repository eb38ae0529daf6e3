"""The writer of `delivery=exactly_once`: Spark's calls, and the task that leaves its transaction open.

The idea: Spark makes a writer on the driver before the tasks of each batch, and pickles it into them; commit and abort
get another writer, in another process. So what a start finds travels with the writer, and comes back in the messages.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from keylane.errors import PeerError
from keylane.kafka.missing_topics import NO_NEW_TOPICS
from keylane.spark.structured.exact import driver
from keylane.spark.structured.exact.digest import Digest
from keylane.spark.structured.exact.protocol import writes
from keylane.spark.structured.exact.record import Entry, task_prefix
from keylane.spark.structured.exact.task_ids import TaskIds
from keylane.spark.structured.sink import KeylaneStreamWriter, SinkOptions, arrow_batches, sink_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from keylane.kafka.open_transaction_producer import OpenTransaction
    from keylane.spark.structured.exact.protocol import Plan

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Where Spark tells tasks."""


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    plan: Plan
    query: str
    entry: Entry | None
    """None when it wrote nothing."""


class ExactlyOnceWriter(KeylaneStreamWriter):
    """A streaming write whose batches are seen once (docs/adr/0087)."""

    def __init__(self, options: SinkOptions, schema: StructType, *, is_first: bool) -> None:
        """`is_first`: this one is for tasks, and not for their commit or abort."""
        assert options.sink is not None, "without a name it is another writer"
        super().__init__(options, schema)
        self._sink = driver.Sink(options.sink, options.settings, options.may_begin)
        self._plan = driver.start(self._sink) if is_first else None

    def write(self, iterator: Iterator[Any]) -> Written:
        if self._plan is None:
            raise PeerError("a task has a writer without a plan: this Spark makes writers otherwise than keylane knows")
        return _write(arrow_batches(iterator, self._schema), self._options, self._sink, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        written = [one for one in messages if isinstance(one, Written)]
        if written:  # else there was no task
            entries = [one.entry for one in written if one.entry is not None]
            driver.commit(self._sink, written[0].plan, written[0].query, batchId, entries)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        plan = next((one.plan for one in messages if isinstance(one, Written)), None)
        if plan is not None:  # else nothing says which epoch was the driver's: the next start aborts what is open
            driver.abort(self._sink, plan)


def _write(batches: Iterator[pa.RecordBatch], options: SinkOptions, sink: driver.Sink, plan: Plan) -> Written:
    query, batch, partition = _place()
    if not writes(plan, query, batch, partition):
        for _ in batches:
            pass  # the function runs, and operators with state go on
        return Written(plan, query, None)
    digest = Digest()
    transaction: OpenTransaction | None = None
    with ExitStack() as stack:
        for rows in sink_rows(batches, options):
            if transaction is None and (names := rows.names):
                transaction = stack.enter_context(_begun(sink, options, query, batch, min(names)))
            if transaction is not None:
                rows.produce(transaction)
            digest.add(rows)
    if transaction is None:
        return Written(plan, query, None)
    held = driver.described(sink, transaction.id)
    entry = Entry(partition, transaction.id, *held.producer, digest.rows, digest.sum, held.started_ms)
    return Written(plan, query, entry)


def _begun(sink: driver.Sink, options: SinkOptions, query: str, batch: int, topic: str) -> OpenTransaction:
    from keylane.kafka.open_transaction_producer import OpenTransaction

    name = _ids().take(task_prefix(sink.name), query, batch)
    settings = NO_NEW_TOPICS | dict(options.settings)
    return OpenTransaction(settings["bootstrap.servers"], settings, name, options.transaction_timeout_ms, topic)


_of_process: dict[int, TaskIds] = {}


def _ids() -> TaskIds:
    """By process: workers are forked."""
    return _of_process.setdefault(os.getpid(), TaskIds(lambda: uuid4().hex))


def _place() -> tuple[str, int, int]:
    """The query, the batch and the partition of this task."""
    context = TaskContext.get()
    query, batch = (None, None) if context is None else (context.getLocalProperty(one) for one in (QUERY, BATCH))
    if context is None or not query or batch is None:
        raise PeerError(f"Spark does not tell this task its query and batch ({QUERY}, {BATCH})")
    return query, int(batch), context.partitionId()
