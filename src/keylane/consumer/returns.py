"""What a handler's return value means: its outputs, a value for a stream, or a failure.

Shared by all kinds of workers, so that a handler means the same in a thread, on asyncio and in a process.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from keylane.errors import HandlerError
from keylane.flow.outcomes import Failure
from keylane.flow.workers.calls import failure_of
from keylane.records import DecodedRecord, Output, PlainMessage, Record, Returned, readable_headers_of
from keylane.telling import kind_of

if TYPE_CHECKING:
    from keylane.flow.outcomes import Outcome
    from keylane.records import Message

PlainRecord = tuple[Any, ...]
"""A record as `marshal` takes it: the fields of `PlainMessage`."""


def outcome_of(result: Outcome) -> Outcome:
    """What a handler's return value means: None is done, without outputs; a sequence of `Output` is done once these are
    acknowledged, as those of `Returned`. A wrong type is a failure that another attempt cannot mend."""
    if result is None:
        return None
    if isinstance(result, Output):
        return (result,)
    if isinstance(result, list | tuple):
        for index, one in enumerate(result):
            if not isinstance(one, Output):
                return _wrong(f"a {type(result).__name__} with {kind_of(one)} at index {index}")
        return result or None
    if isinstance(result, Returned):
        return result
    if inspect.iscoroutine(result):
        result.close()
        return _wrong("a coroutine: declare the handler itself with `async def`")
    return _wrong(kind_of(result))


def returned(result: Any, record: Record) -> Any:
    """A handler's value for a stream: of any type, and with the outputs that it is or lists."""
    decoded = record if isinstance(record, DecodedRecord) else None
    if isinstance(result, Returned):
        return Returned(result.value, result.outputs, decoded)
    if inspect.iscoroutine(result):
        return result
    if isinstance(result, Output):
        return Returned(result, (result,), decoded)
    if isinstance(result, list | tuple) and any(isinstance(one, Output) for one in result):
        return Returned(result, result, decoded) if all(isinstance(one, Output) for one in result) else result
    return Returned(result, (), decoded)


def outcomes_of(result: Outcome, count: int) -> list[Outcome]:
    """What a batch handler's return value means for each record. A wrong one is a failure of every record."""
    if result is None:
        return [None] * count
    if inspect.iscoroutine(result):
        result.close()
        return [_wrong_batch("a coroutine: declare the handler itself with `async def`")] * count
    if not isinstance(result, list | tuple):
        return [_wrong_batch(kind_of(result))] * count
    if len(result) != count:
        return [_wrong_batch(f"{len(result)} results for {count} records")] * count
    return [failure_of(one) if isinstance(one, BaseException) else outcome_of(one) for one in result]


def _wrong(what: str) -> Failure:
    return Failure(HandlerError(f"the handler returned {what}; return None, an Output, or a list of them"), final=True)


def _wrong_batch(what: str) -> Failure:
    return Failure(
        HandlerError(f"the batch handler returned {what}; return None, or a list with one result a record"), final=True
    )


def record_departs(message: Message) -> PlainRecord:
    """A record on its way to a worker process."""
    headers = readable_headers_of(message)
    return (
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        None if headers is None else tuple(headers),
        message.timestamp(),
        message.leader_epoch(),
    )


def record_arrives(fields: PlainRecord) -> Record:
    """The same, there."""
    return Record(PlainMessage(*fields))
