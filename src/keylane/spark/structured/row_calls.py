"""Calls of the user's function on rows: what it gets, what it returns, and how long it took.

The idea: `function_of` makes of the options one function that is the same for every kind of workers. It never raises:
a call comes to its row, with what the function returned and its time, or to a `Failed`; both also travel from a worker
process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from keylane.consumer.decoding import given_decoded, judged, kind_of_bytes, made_of, waits
from keylane.consumer.tracing import around, noted, spans, wants_tracing
from keylane.errors import Fatal, ProcessedError
from keylane.flow.outcomes import Failure
from keylane.flow.workers import places
from keylane.flow.workers.calls import failure_of
from keylane.flow.workers.made import timed
from keylane.options import is_coroutine_function, takes_context
from keylane.records import PlainMessage, Record
from keylane.spark.structured.rows import column, headers_of, place_of, replaced, size_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span
    from pyspark.sql import Row

    from keylane.consumer.decoding import Deserializer
    from keylane.flow.outcomes import Outcome
    from keylane.records import Context
    from keylane.spark.structured.row_engine import Handler
    from keylane.spark.structured.row_options import RowOptions
    from keylane.spark.structured.rows import Returns, TaskRow


class Failed(Failure):
    """What the function raised for a row."""

    __slots__ = ("seconds",)

    def __init__(self, failure: Failure, seconds: float) -> None:
        super().__init__(
            failure.error,
            final=failure.final,
            halts=failure.halts,
            places=failure.places,
            is_shared=failure.is_shared,
        )
        self.seconds = seconds

    def with_error(self, error: BaseException) -> Failed:
        return Failed(super().with_error(error), self.seconds)

    def __reduce__(self) -> tuple[type[Failed], tuple[Failure, float]]:
        failure = Failure(self.error, final=self.final, halts=self.halts, places=self.places, is_shared=self.is_shared)
        return Failed, (failure, self.seconds)


def function_of(handler: Handler, options: RowOptions, returns: Returns, *, is_of_records: bool) -> Handler:
    """A handler as the flow's: of a `TaskRow` and a context, or of a list of them. `is_of_records`: the rows have the
    columns of the source."""
    of_batches = options.batch is not None
    deserializers = {
        name: one for name, one in (("key", options.key_deserializer), ("value", options.value_deserializer)) if one
    }
    if deserializers:
        decoded = partial(_decoded, deserializers, may_wait=is_coroutine_function(handler))
        handler = given_decoded(handler, decoded, _kind_of_row, of_batches=of_batches)
    if wants_tracing(options) and is_of_records:
        span_of = spans(None, of_batches=of_batches)
        handler = around(handler, partial(_batch_span if of_batches else _row_span, span_of), noted)
    handler, _ = timed(replace(options, handler=handler))
    call = RowCall(handler, takes_context(handler), returns)
    if is_coroutine_function(handler):
        return call.batch_async if of_batches else call.one_async
    return call.batch if of_batches else call.one


@dataclass(frozen=True, slots=True)
class RowCall:
    """A handler of rows, or of lists of them."""

    handler: Handler
    takes_context: bool
    returns: Returns

    def one(self, row: TaskRow, context: Context) -> TaskRow | Failed:
        began = monotonic()
        try:
            returned = self.handler(row.row, context) if self.takes_context else self.handler(row.row)
            row.values = values = self.returns.rows(returned)
        except Exception as error:  # the row's failure
            return _failed(error, began)
        row.size = size_of(values)
        row.seconds = monotonic() - began
        return row

    async def one_async(self, row: TaskRow, context: Context) -> TaskRow | Failed:
        began = monotonic()
        try:
            returned = await (self.handler(row.row, context) if self.takes_context else self.handler(row.row))
            row.values = values = self.returns.rows(returned)
        except Exception as error:  # as above
            return _failed(error, began)
        row.size = size_of(values)
        row.seconds = monotonic() - began
        return row

    def batch(self, rows: list[TaskRow], context: Context) -> list[TaskRow | Failed]:
        began, given = monotonic(), [row.row for row in rows]
        try:
            returned = self.handler(given, context) if self.takes_context else self.handler(given)
        except Exception as error:  # the failure of all
            return [_failed(error, began, is_shared=len(rows) > 1)] * len(rows)
        return self._of_batch(rows, returned, began)

    async def batch_async(self, rows: list[TaskRow], context: Context) -> list[TaskRow | Failed]:
        began, given = monotonic(), [row.row for row in rows]
        try:
            returned = await (self.handler(given, context) if self.takes_context else self.handler(given))
        except Exception as error:  # as above
            return [_failed(error, began, is_shared=len(rows) > 1)] * len(rows)
        return self._of_batch(rows, returned, began)

    def _of_batch(self, rows: list[TaskRow], returned: Outcome, began: float) -> list[TaskRow | Failed]:
        try:
            results = self.returns.of_each(returned, len(rows))
        except Fatal as wrong:
            return [_failed(wrong, began)] * len(rows)
        return [self._in_batch(row, one, began) for row, one in zip(rows, results, strict=True)]

    def _in_batch(self, row: TaskRow, returned: Outcome, began: float) -> TaskRow | Failed:
        if isinstance(returned, BaseException):
            return _failed(returned, began)
        try:
            row.values = values = self.returns.rows(returned)
        except Fatal as wrong:
            return _failed(wrong, began)
        row.size = size_of(values)
        row.seconds = monotonic() - began
        return row


def _failed(error: BaseException, began: float, *, is_shared: bool = False) -> Failed:
    failure = failure_of(error, places.of_traceback(error.__traceback__), is_shared=is_shared)
    if isinstance(error, ProcessedError):  # to leave the row out would lose what it came to
        failure = Failure(error, halts=True, places=failure.places)
    return Failed(failure, monotonic() - began)


def _decoded(deserializers: Mapping[str, Deserializer], row: Row, *, may_wait: bool) -> Row | Awaitable[Row]:
    """The row, to be awaited where a deserializer is, with what they make of their columns. Raises what they raise."""
    headers = partial(headers_of, row)
    made = {
        name: made_of(one, row[name], row["topic"], name, headers, may_wait=may_wait)
        for name, one in deserializers.items()
    }
    return _awaited(row, made) if may_wait and any(map(waits, made.values())) else replaced(row, made)


async def _awaited(row: Row, made: Mapping[str, Any]) -> Row:
    with judged():
        return replaced(row, {name: await one if waits(one) else one for name, one in made.items()})


def _kind_of_row(row: Row) -> Hashable:
    return column(row, "topic"), kind_of_bytes(column(row, "key")), kind_of_bytes(column(row, "value"))


def _row_span(
    span_of: Callable[[Record, Context], AbstractContextManager[Span]], row: Row, context: Context
) -> AbstractContextManager[Span]:
    return span_of(_record(row), context)


def _batch_span(
    span_of: Callable[[list[Record], Context], AbstractContextManager[Span]], rows: Sequence[Row], context: Context
) -> AbstractContextManager[Span]:
    return span_of([_record(row) for row in rows], context)


def _record(row: Row) -> Record:
    """The record that a row is, as far as a span tells of it."""
    topic, partition, offset = place_of(row) or ("", -1, -1)
    key, value = column(row, "key"), column(row, "value")
    return Record(PlainMessage(topic, partition, offset, key, value, tuple(headers_of(row))))
