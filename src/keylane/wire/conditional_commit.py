"""ConditionalCommit (27500), version 0: keylane's own API. Set offsets to x if, and only if, they are y.

Both sides, the broker's and the client's, with Kafka's primitives (not flexible, request header v1, response v0):

    request  => group_id STRING, generation_id INT32 (-1 without membership), member_id STRING,
                group_instance_id NULLABLE_STRING,
                topics ARRAY of (name STRING, partitions ARRAY of (
                    partition_index INT32, expected_offset INT64 (-1: none is committed), committed_offset INT64,
                    committed_leader_epoch INT32, committed_metadata NULLABLE_STRING))
    response => throttle_time_ms INT32, error_code INT16,
                topics ARRAY of (name STRING, partitions ARRAY of (
                    partition_index INT32, error_code INT16, current_offset INT64))

Everything is committed (error_code 0), or nothing is, or nobody knows which (27501). The key is the two letters "kl";
Kafka's own are below 100, and brokers that do not list it in ApiVersions close the connection on it.

Source: S1's open question ("update the offset to x, iff the current offset is y").
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import PeerError
from keylane.wire.primitives import MAX_ITEMS, FieldError, FieldReader, ItemCount, array_length, int16, int32, string

if TYPE_CHECKING:
    from collections.abc import Sequence

API_KEY = int.from_bytes(b"kl", "big")
VERSION = 0
CONDITION_FAILED = 27_500
"""An error code of this API only: a partition's current offset is not the expected one."""
OUTCOME_UNKNOWN = 27_501
"""An error code of this API only: it was about to be committed when the coordinator lost its log, or was lost itself.
Kafka's own errors would say that it can be tried again, and the second try would fail on the first one's success."""
NO_OFFSET = -1

_CONDITION = struct.Struct(">iqqi")
_OUTCOME = struct.Struct(">ihq")


class ConditionalCommitError(PeerError):
    """Bytes that are no request or response of this API."""


class Condition(NamedTuple):
    """One partition: what is to be committed, and what must be committed now."""

    partition: int
    expected: int
    offset: int
    leader_epoch: int
    metadata: str | None


class Request(NamedTuple):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    topics: Sequence[tuple[str, Sequence[Condition]]]


class Outcome(NamedTuple):
    """One partition: its error, and the offset that it had when the condition was looked at."""

    partition: int
    error: int
    current: int


class Response(NamedTuple):
    error: int
    topics: Sequence[tuple[str, Sequence[Outcome]]] = ()


def encode_request(request: Request) -> bytes:
    """The body of a request."""
    group, generation, member, instance, topics = request
    parts = [string(group), int32(generation), string(member), string(instance), array_length(len(topics))]
    for topic, conditions in topics:
        parts += string(topic), array_length(len(conditions))
        for partition, expected, offset, epoch, metadata in conditions:
            parts += _CONDITION.pack(partition, expected, offset, epoch), string(metadata)
    return b"".join(parts)


def read_request(frame: bytes, position: int, max_items: int = MAX_ITEMS) -> tuple[Request, int]:
    """The request that begins at `position`, and its size. Raises `ConditionalCommitError` and `TooManyItemsError`."""
    reader = FieldReader(frame, position, count=ItemCount(max_items))
    try:
        group, generation, member, instance = reader.string(), reader.int32(), reader.string(), reader.nullable_string()
        topics = [(reader.string(), [_read_condition(reader) for _ in reader.items()]) for _ in reader.items()]
    except FieldError as error:
        raise ConditionalCommitError(str(error)) from error
    return Request(group, generation, member, instance, topics), reader.at - position


def _read_condition(reader: FieldReader) -> Condition:
    partition, expected, offset, leader_epoch = reader.numbers(_CONDITION)
    return Condition(partition, expected, offset, leader_epoch, reader.nullable_string())


def encode_response(response: Response) -> bytes:
    """The body of a response."""
    parts = [int32(0), int16(response.error), array_length(len(response.topics))]
    for topic, outcomes in response.topics:
        parts += string(topic), array_length(len(outcomes))
        parts += (_OUTCOME.pack(*outcome) for outcome in outcomes)
    return b"".join(parts)


def read_response(buffer: bytes, position: int = 0) -> Response:
    """Raises `ConditionalCommitError`."""
    reader = FieldReader(buffer, position)
    try:
        reader.int32()  # the throttle time
        code = reader.int16()
        topics = [
            (reader.string(), [Outcome(*reader.numbers(_OUTCOME)) for _ in reader.items()]) for _ in reader.items()
        ]
        reader.finish()
    except FieldError as error:
        raise ConditionalCommitError(str(error)) from error
    return Response(code, topics)
