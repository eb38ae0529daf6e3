"""Deserializers: `record.key` and `record.value` as the user's code wants them, made in the worker.

The idea: the engine goes by bytes throughout. The handler is wrapped: it gets a `DecodedRecord`, and what a decoder
raises is a failed attempt like any other, so that an undecodable record takes the retry and dead-letter path with its
bytes as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.foreign_errors import judged_decoding
from keylane.options import is_coroutine_function, takes_context
from keylane.records import DecodedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.pipeline import Pipeline
    from keylane.records import Context, Record

    Handler = Callable[..., Any]

Deserializer = Any
"""A function of (bytes or None, context)."""
Seen = Any
"""What user code gets, or returns."""
Decoded = Any
"""A function of what a handler would get that returns what it gets instead."""
Headers = list[tuple[str, bytes | None]]


class Field:
    """What a deserializer is told beside the bytes; as in confluent-kafka's `SerializationContext`."""

    __slots__ = ("_headers", "field", "topic")

    def __init__(self, topic: str, field: str, headers: Headers | Callable[[], Headers]) -> None:
        self.topic = topic
        self.field = field
        """"key" or "value"."""
        self._headers = headers

    @property
    def headers(self) -> Headers:
        """The record's. Raises `keylane.errors.UnreadableHeadersError`, as they do."""
        return self._headers() if callable(self._headers) else self._headers


class Decoder:
    """Applies a pipeline's deserializers."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value

    def decoded(self, record: Record) -> DecodedRecord:
        """Raises what a deserializer raises."""
        topic = record.topic

        def headers() -> Headers:
            return record.headers

        key = made_of(self._key, record.raw_key, topic, "key", headers)
        return DecodedRecord.of(record, key, made_of(self._value, record.raw_value, topic, "value", headers))


def made_of(
    deserializer: Deserializer | None,
    raw: bytes | None,
    topic: str,
    field: str,
    headers: Callable[[], Headers],
) -> Seen:
    """Raises what the deserializer raises: as an `UndecodableError` or an `OutageError`, where it is clear which."""
    if deserializer is None:
        return raw
    try:
        return deserializer(raw, Field(topic, field, headers))
    except Exception as error:
        judged = judged_decoding(error)
        if judged is error:
            raise
        raise judged from error


def decoding(pipeline: Pipeline) -> Handler:
    """The pipeline's handler, which is given decoded records; itself without deserializers."""
    if pipeline.key_deserializer is None and pipeline.value_deserializer is None:
        return pipeline.handler
    decoder = Decoder(pipeline.key_deserializer, pipeline.value_deserializer)
    return given_decoded(pipeline.handler, decoder.decoded, of_batches=pipeline.batch is not None)


def given_decoded(handler: Handler, decoded: Decoded, *, of_batches: bool) -> Handler:
    """The handler, which is given what `decoded` makes of a record. In a batch, what that raises is the failure of its
    record alone."""
    return _of_batch(handler, decoded) if of_batches else _of_one(handler, decoded)


def _of_one(handler: Handler, decoded: Decoded) -> Handler:
    takes = takes_context(handler)

    def call(record: Seen, context: Context) -> Seen:
        made = decoded(record)
        return handler(made, context) if takes else handler(made)

    async def call_async(record: Seen, context: Context) -> Seen:
        made = decoded(record)
        return await (handler(made, context) if takes else handler(made))

    return call_async if is_coroutine_function(handler) else call


def _of_batch(handler: Handler, decoded: Decoded) -> Handler:
    takes = takes_context(handler)

    def call(records: Sequence[Seen], context: Context) -> Seen:
        made, errors = _decoded_batch(records, decoded)
        result = (handler(made, context) if takes else handler(made)) if made else []
        return _merged(result, errors)

    async def call_async(records: Sequence[Seen], context: Context) -> Seen:
        made, errors = _decoded_batch(records, decoded)
        result = (await (handler(made, context) if takes else handler(made))) if made else []
        return _merged(result, errors)

    return call_async if is_coroutine_function(handler) else call


def _decoded_batch(records: Sequence[Seen], decoded: Decoded) -> tuple[list[Seen], list[Exception | None]]:
    """Those that can be decoded, and for every record what went wrong, or None."""
    made: list[Seen] = []
    errors: list[Exception | None] = []
    for record in records:
        try:
            made.append(decoded(record))
            errors.append(None)
        except Exception as error:  # that record's failure, not its batch's
            errors.append(error)
    return made, errors


def _merged(result: Seen, errors: list[Exception | None]) -> Seen:
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
