"""Deserializers: `record.key` and `record.value` as the user's code wants them, made in the worker.

The idea: the engine goes by bytes throughout. The handler is wrapped: it gets a `DecodedRecord`, and what a decoder
raises is a failed attempt like any other, so that an undecodable record takes the retry and dead-letter path with its
bytes as they were.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from keylane.errors import UsageError
from keylane.foreign_errors import judged_decoding
from keylane.options import is_coroutine_function, takes_context
from keylane.records import DecodedRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence

    from keylane.pipeline import Pipeline
    from keylane.records import Context, Record

    Handler = Callable[..., Any]

Deserializer = Any
"""A function of (bytes or None, context)."""
Seen = Any
"""What user code gets, or returns."""
Decoded = Any
"""A function of what a handler would get that returns what it gets instead, or an awaitable of it."""
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

    def __init__(self, key: Deserializer | None, value: Deserializer | None, *, may_wait: bool = False) -> None:
        """`may_wait`: what they return may be left to be awaited."""
        self._key = key
        self._value = value
        self._may_wait = may_wait

    def decoded(self, record: Record) -> DecodedRecord | Awaitable[DecodedRecord]:
        """Raises what a deserializer raises."""
        message, may_wait = record.message, self._may_wait

        def headers() -> Headers:
            return record.headers

        topic, key, value = message.topic(), message.key(), message.value()
        is_left = False
        if self._key is not None:
            key = made_of(self._key, key, topic, "key", headers, may_wait=may_wait)
            is_left = may_wait and waits(key)
        if self._value is not None:
            value = made_of(self._value, value, topic, "value", headers, may_wait=may_wait)
            is_left = is_left or (may_wait and waits(value))
        if is_left:
            return _awaited(record, key, value)
        return DecodedRecord.of(record, key, value)


def made_of(
    deserializer: Deserializer | None,
    raw: bytes | None,
    topic: str,
    field: str,
    headers: Callable[[], Headers],
    *,
    may_wait: bool = False,
) -> Seen:
    """Raises what the deserializer raises: as an `UndecodableError` or an `OutageError`, where it is clear which."""
    if deserializer is None:
        return raw
    try:  # not `judged`, which costs as much as a quick deserializer
        made = deserializer(raw, Field(topic, field, headers))
    except Exception as error:
        raise_judged(error)
    if not may_wait and waits(made):
        made.close()
        raise UsageError(
            f"{field}_deserializer returned a coroutine: it goes with a handler that is declared with `async def`"
        )
    return made


@contextmanager
def judged() -> Iterator[None]:
    """Around a deserializer: what it raises, as what it means."""
    try:
        yield
    except Exception as error:
        raise_judged(error)


def raise_judged(error: Exception) -> NoReturn:
    """Raise what a deserializer has raised, as what it means."""
    meant = judged_decoding(error)
    if meant is error:
        raise error
    raise meant from error


def waits(made: Seen) -> bool:
    """Whether it is to be awaited."""
    return hasattr(type(made), "__await__")


async def _awaited(record: Record, key: Seen, value: Seen) -> DecodedRecord:
    """What deserializers made that are coroutine functions."""
    with judged():
        return DecodedRecord.of(record, await key if waits(key) else key, await value if waits(value) else value)


QUICK_S = 0.005
"""A deserializer that takes so long waits for something, or computes too much for the loop of all handlers."""
MAX_KINDS = 10_000
"""Kinds of bytes that are remembered; beyond that, all are forgotten and looked at anew."""
THREADS = 16
"""In which deserializers wait: so many new schemas may be on their way."""


class Beside:
    """Decodes beside an asyncio loop: in threads, until it was quick for the same kind of bytes.

    The idea: what a deserializer has to wait for comes with bytes of a new kind, as a schema that it asks a registry
    for; the next ones of that kind take microseconds, and a hand-over to a thread would take longer. So the loop never
    waits for a first one, and records of known schemas pass meanwhile. Thread safety: the asyncio loop's.
    """

    def __init__(self, decoded: Decoded, kind_of: Callable[[Seen], Hashable]) -> None:
        self._decoded = decoded
        self._kind_of = kind_of
        self._quick: set[Hashable] = set()
        self._threads = ThreadPoolExecutor(THREADS, "keylane-decoding")

    def begin(self, record: Seen) -> Seen:
        """What the handler gets, or an awaitable of it. Raises what a deserializer raises."""
        kind = self._kind_of(record)
        if kind not in self._quick:
            return self._in_thread(record, kind)
        began = perf_counter()
        made = self._decoded(record)
        if perf_counter() - began >= QUICK_S:
            self._quick.discard(kind)
        return made

    async def __call__(self, record: Seen) -> Seen:
        made = self.begin(record)
        return await made if waits(made) else made

    async def _in_thread(self, record: Seen, kind: Hashable) -> Seen:
        run = contextvars.copy_context().run
        made, took_s = await asyncio.get_running_loop().run_in_executor(self._threads, run, self._timed, record)
        if took_s < QUICK_S:
            if len(self._quick) >= MAX_KINDS:
                self._quick.clear()
            self._quick.add(kind)
        return await made if waits(made) else made

    def _timed(self, record: Seen) -> tuple[Seen, float]:
        began = perf_counter()
        return self._decoded(record), perf_counter() - began


SCHEMA_BYTES = 5
"""A zero, and the number of the schema, with which the bytes of a registry's serializers begin."""


def kind_of_bytes(data: object) -> bytes | None:
    """What bytes have in common whose deserializer asks a registry for the same schema."""
    return data[:SCHEMA_BYTES] if isinstance(data, bytes) and data and not data[0] else None


def _kind_of_record(record: Record) -> Hashable:
    message = record.message
    return message.topic(), kind_of_bytes(message.key()), kind_of_bytes(message.value())


def decoding(pipeline: Pipeline) -> Handler:
    """The pipeline's handler, which is given decoded records; itself without deserializers."""
    if pipeline.key_deserializer is None and pipeline.value_deserializer is None:
        return pipeline.handler
    decoder = Decoder(pipeline.key_deserializer, pipeline.value_deserializer, may_wait=pipeline.is_async)
    of_batches = pipeline.batch is not None
    return given_decoded(pipeline.handler, decoder.decoded, _kind_of_record, of_batches=of_batches)


def given_decoded(
    handler: Handler,
    decoded: Decoded,
    kind_of: Callable[[Seen], Hashable],
    *,
    of_batches: bool,
) -> Handler:
    """The handler, which is given what `decoded` makes of a record. In a batch, what that raises is the failure of its
    record alone. `kind_of`: what is alike in records that take `decoded` as long as each other."""
    beside = Beside(decoded, kind_of) if is_coroutine_function(handler) else None
    return _of_batch(handler, decoded, beside) if of_batches else _of_one(handler, decoded, beside)


def _of_one(handler: Handler, decoded: Decoded, beside: Beside | None) -> Handler:
    takes = takes_context(handler)

    def call(record: Seen, context: Context) -> Seen:
        made = decoded(record)
        return handler(made, context) if takes else handler(made)

    async def call_async(record: Seen, context: Context) -> Seen:
        assert beside is not None, "a coroutine function"
        made = beside.begin(record)
        if waits(made):
            made = await made
        return await (handler(made, context) if takes else handler(made))

    return call_async if is_coroutine_function(handler) else call


def _of_batch(handler: Handler, decoded: Decoded, beside: Beside | None) -> Handler:
    takes = takes_context(handler)

    def call(records: Sequence[Seen], context: Context) -> Seen:
        made, errors = _decoded_batch(records, decoded)
        result = (handler(made, context) if takes else handler(made)) if made else []
        return _merged(result, errors)

    async def call_async(records: Sequence[Seen], context: Context) -> Seen:
        assert beside is not None, "a coroutine function"
        found = await asyncio.gather(*map(beside, records), return_exceptions=True)
        made = [one for one in found if not isinstance(one, BaseException)]
        errors = [_failure_among(one) for one in found]
        result = (await (handler(made, context) if takes else handler(made))) if made else []
        return _merged(result, errors)

    return call_async if is_coroutine_function(handler) else call


def _failure_among(one: Seen) -> Exception | None:
    """Raises what is no failure of a record: a cancellation."""
    if isinstance(one, BaseException) and not isinstance(one, Exception):
        raise one
    return one if isinstance(one, Exception) else None


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
