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

Everything is committed (error_code 0), or nothing is. The key is the two letters "kl"; Kafka's own are below 100, and
brokers that do not list it in ApiVersions close the connection on it.

Source: S1's open question ("update the offset to x, iff the current offset is y").
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import PeerError
from keylane.wire.encoders import array_length, int16, int32, string

if TYPE_CHECKING:
    from collections.abc import Sequence

API_KEY = int.from_bytes(b"kl", "big")
VERSION = 0
CONDITION_FAILED = 27_500
"""An error code of this API only: a partition's current offset is not the expected one."""
NO_OFFSET = -1

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
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


def read_request(buffer: bytes, position: int) -> tuple[Request, int]:
    """The request that begins at `position`, and its size. Raises `ConditionalCommitError`."""
    reader = _Reader(buffer, position)
    group, generation, member, instance = reader.text(), reader.int32(), reader.text(), reader.nullable_text()
    topics = [(reader.text(), [_read_condition(reader) for _ in range(reader.count())]) for _ in range(reader.count())]
    return Request(group, generation, member, instance, topics), reader.at - position


def _read_condition(reader: _Reader) -> Condition:
    partition, expected, offset, leader_epoch = reader.fields(_CONDITION)
    return Condition(partition, expected, offset, leader_epoch, reader.nullable_text())


def encode_response(response: Response) -> bytes:
    """The body of a response."""
    parts = [int32(0), int16(response.error), array_length(len(response.topics))]
    for topic, outcomes in response.topics:
        parts += string(topic), array_length(len(outcomes))
        parts += (_OUTCOME.pack(*outcome) for outcome in outcomes)
    return b"".join(parts)


def read_response(buffer: bytes, position: int = 0) -> Response:
    """Raises `ConditionalCommitError`."""
    reader = _Reader(buffer, position)
    reader.int32()  # the throttle time
    (error,) = reader.fields(_I16)
    topics = [
        (reader.text(), [Outcome(*reader.fields(_OUTCOME)) for _ in range(reader.count())])
        for _ in range(reader.count())
    ]
    if reader.at != len(buffer):
        raise ConditionalCommitError(f"{len(buffer) - reader.at} bytes are left behind a response")
    return Response(error, topics)


class _Reader:
    def __init__(self, buffer: bytes, position: int) -> None:
        self._buffer = buffer
        self.at = position

    def _take(self, size: int) -> bytes:
        taken = self._buffer[self.at : self.at + size]
        if size < 0 or len(taken) < size:
            raise ConditionalCommitError(f"{size} bytes are due at byte {self.at} of {len(self._buffer)}")
        self.at += size
        return taken

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self._take(form.size))

    def int32(self) -> int:
        return int(self.fields(_I32)[0])

    def count(self) -> int:
        count = self.int32()
        if not 0 <= count <= len(self._buffer):
            raise ConditionalCommitError(f"an array of {count} items in {len(self._buffer)} bytes")
        return count

    def nullable_text(self) -> str | None:
        (size,) = self.fields(_I16)
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise ConditionalCommitError(f"a text that is not UTF-8: {error}") from error

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise ConditionalCommitError(f"null where a text is due, before byte {self.at}")
        return text
