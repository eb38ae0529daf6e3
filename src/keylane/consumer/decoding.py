"""Deserializers: `record.key` and `record.value` as the user's code wants them, made in the worker.

The idea: the engine goes by bytes throughout. The handler is wrapped: it gets a `DecodedRecord`, and what a decoder
raises is a failed attempt like any other, so that an undecodable record takes the retry and dead-letter path with its
bytes as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.options import is_coroutine_function, takes_context
from keylane.records import DecodedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.pipeline import Pipeline
    from keylane.records import Context, Record

Deserializer = Any
"""A function of (bytes or None, context)."""


class Field:
    """What a deserializer is told beside the bytes; as in confluent-kafka's `SerializationContext`."""

    __slots__ = ("field", "headers", "topic")

    def __init__(self, topic: str, field: str, headers: list[tuple[str, bytes | None]]) -> None:
        self.topic = topic
        self.field = field
        """"key" or "value"."""
        self.headers = headers


class Decoder:
    """Applies a pipeline's deserializers."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value

    def decoded(self, record: Record) -> DecodedRecord:
        """Raises what a deserializer raises."""
        return DecodedRecord.of(
            record,
            self._made(self._key, record, "key", record.raw_key),
            self._made(self._value, record, "value", record.raw_value),
        )

    def decoded_batch(self, records: Sequence[Record]) -> tuple[list[DecodedRecord], list[Exception | None]]:
        """Those that can be decoded, and for every record what went wrong, or None."""
        made: list[DecodedRecord] = []
        errors: list[Exception | None] = []
        for record in records:
            try:
                made.append(self.decoded(record))
                errors.append(None)
            except Exception as error:  # that record's failure, not its batch's
                errors.append(error)
        return made, errors

    def _made(self, deserializer: Deserializer | None, record: Record, field: str, raw: bytes | None) -> Any:
        return raw if deserializer is None else deserializer(raw, Field(record.topic, field, record.headers))


def decoding(pipeline: Pipeline) -> Callable[..., Any]:
    """The pipeline's handler, which is given decoded records; itself without deserializers."""
    if pipeline.key_deserializer is None and pipeline.value_deserializer is None:
        return pipeline.handler
    decoder = Decoder(pipeline.key_deserializer, pipeline.value_deserializer)
    of_one, of_batch = _of_one(pipeline.handler, decoder), _of_batch(pipeline.handler, decoder)
    return of_batch if pipeline.batch is not None else of_one


def _of_one(handler: Callable[..., Any], decoder: Decoder) -> Callable[..., Any]:
    takes = takes_context(handler)

    def call(record: Record, context: Context) -> Any:
        made = decoder.decoded(record)
        return handler(made, context) if takes else handler(made)

    async def call_async(record: Record, context: Context) -> Any:
        made = decoder.decoded(record)
        return await (handler(made, context) if takes else handler(made))

    return call_async if is_coroutine_function(handler) else call


def _of_batch(handler: Callable[..., Any], decoder: Decoder) -> Callable[..., Any]:
    takes = takes_context(handler)

    def call(records: Sequence[Record], context: Context) -> Any:
        made, errors = decoder.decoded_batch(records)
        result = (handler(made, context) if takes else handler(made)) if made else []
        return _merged(result, errors)

    async def call_async(records: Sequence[Record], context: Context) -> Any:
        made, errors = decoder.decoded_batch(records)
        result = (await (handler(made, context) if takes else handler(made))) if made else []
        return _merged(result, errors)

    return call_async if is_coroutine_function(handler) else call


def _merged(result: Any, errors: list[Exception | None]) -> Any:
    """One outcome a record: the handler's for those that it got. What is no list of the right length is left to the
    engine to refuse."""
    if not any(errors):
        return result
    count = errors.count(None)
    outcomes = [None] * count if result is None else result
    if not isinstance(outcomes, list | tuple) or len(outcomes) != count:
        return result
    following = iter(outcomes)
    return [next(following) if error is None else error for error in errors]
