"""What offset servers and `keylane offsets status` ask of servers, purely: two APIs of keylane's own.

With Kafka's primitives (not flexible, request header v1, response header v0), version 0:

    BeginForwarding (27501)  request => client_host STRING             response => error_code INT16
    RequestCounts (27502)    request =>                                response => answered INT64, forwarded INT64

After BeginForwarding a connection's requests are those of another server's client, and are never forwarded again.
RequestCounts tells of requests of groups and offsets since the server's start.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from keylane.kafka.login import LoginError
from keylane.wire import codes
from keylane.wire.own_apis import BEGIN_FORWARDING, VERSION
from keylane.wire.primitives import FieldError, FieldReader, string

if TYPE_CHECKING:
    from collections.abc import Generator

_ERROR = struct.Struct(">h")
_COUNTS = struct.Struct(">qq")


class Counts(NamedTuple):
    """Requests of groups and offsets."""

    answered: int
    """By this server."""
    forwarded: int
    """To the server that leads the group."""


def begin_forwarding(host: str) -> Generator[tuple[int, int, bytes], bytes, None]:
    """The request for a client at this host; sent back is the body of its answer. Raises `LoginError`."""
    answer = yield BEGIN_FORWARDING, VERSION, string(host)
    error = FieldReader(answer).int16()
    if error != codes.NONE:
        raise LoginError(
            f"the server takes no forwarded requests of this one (error code {error}): give all servers the same user "
            "in --servers-config"
        )


def read_host(buffer: bytes, position: int) -> tuple[str, int]:
    """The host in a request that begins at `position`, and the request's size. Raises `FieldError`."""
    reader = FieldReader(buffer, position)
    return reader.string(), reader.at - position


def encode_error(error: int) -> bytes:
    """The body of the answer to BeginForwarding."""
    return _ERROR.pack(error)


def encode_counts(counts: Counts) -> bytes:
    """The body of the answer to RequestCounts."""
    return _COUNTS.pack(*counts)


def read_counts(body: bytes) -> Counts:
    """Raises `FieldError`."""
    if len(body) != _COUNTS.size:
        raise FieldError(f"{len(body)} bytes where two numbers are due")
    return Counts(*_COUNTS.unpack(body))
