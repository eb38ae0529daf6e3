"""From a request's bytes to its answer's: which handler, which schema, which header.

The modules of `keylane.broker.handlers` are the list of APIs: each names its key, its versions and what it lacks. A
handler gets kio's request entity and returns kio's response entity of the same version, or the body already encoded (as
bytes, or as parts to be joined), or None when nothing is to be answered (Produce with acks=0).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.broker import handlers
from keylane.errors import PeerError
from keylane.wire.versions import RequestSchema, encode_response, request_schema

if TYPE_CHECKING:
    from keylane.broker.node import Node

API_VERSIONS = 18
UNSUPPORTED_VERSION = 35

_REQUEST_PREFIX = struct.Struct(">hhi")
_NULLABLE_STRING = struct.Struct(">h")
_RESPONSE_PREFIX = struct.Struct(">ii")


class MalformedRequestError(PeerError):
    """A client sent bytes that are not a request which this broker takes; its connection is closed."""


class CloseConnectionError(PeerError):
    """A handler refuses to go on with this client: its connection is closed after the reason is logged."""


class RequestHeader(NamedTuple):
    """Who asks what, in which version."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str


Body = bytes | list[bytes] | None
Handle = Callable[[Any, RequestHeader, "Node"], Awaitable[Any]]


class Api(NamedTuple):
    """One handler module."""

    name: str
    """kio's name of the API, which is the module's: `offset_commit`."""
    key: int
    min_version: int
    max_version: int
    lacks: str
    handle: Handle
    may_poll: bool
    """Whether it waits for what may never come, on behalf of its client only: dropped when the client is gone."""


@functools.cache
def load_apis() -> dict[int, Api]:
    """Import every handler module; by API key, in ascending order."""
    apis = []
    for module in pkgutil.iter_modules(handlers.__path__):
        loaded: Any = importlib.import_module(f"{handlers.__name__}.{module.name}")
        api = Api(
            module.name,
            loaded.API_KEY,
            loaded.MIN_VERSION,
            loaded.MAX_VERSION,
            loaded.LACKS,
            loaded.handle,
            getattr(loaded, "MAY_POLL", False),
        )
        assert api.min_version <= api.max_version, module.name
        apis.append(api)
    return {api.key: api for api in sorted(apis, key=lambda api: api.key)}


class Call(NamedTuple):
    """A decoded request, ready to be handled."""

    api: Api
    header: RequestHeader
    schema: RequestSchema
    request: Any


def decode_request(frame: bytes, client_host: str, apis: dict[int, Api]) -> Call:
    """Read header and body of one frame (without its size). Raises `MalformedRequestError`.

    A version of ApiVersions that is not offered is read as version 0, with `header.api_version` as it came: the handler
    answers it with UNSUPPORTED_VERSION in version 0, as Kafka does, so that the client can ask again.
    """
    try:
        key, version, correlation_id = _REQUEST_PREFIX.unpack_from(frame)
        (size,) = _NULLABLE_STRING.unpack_from(frame, 8)
        position = 10 + max(size, 0)
        if size < -1 or position > len(frame):
            raise MalformedRequestError(f"a client id of {size} bytes in a request of {len(frame)}")
        client_id = None if size < 0 else frame[10:position].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedRequestError(f"no request header in {len(frame)} bytes: {error}") from None
    api = apis.get(key)
    if api is None:
        raise MalformedRequestError(f"API key {key} version {version} is not offered by this broker")
    header = RequestHeader(key, version, correlation_id, client_id, client_host)
    if not api.min_version <= version <= api.max_version:
        if key != API_VERSIONS:
            raise MalformedRequestError(
                f"{api.name} version {version} is not offered by this broker, which takes "
                f"{api.min_version} to {api.max_version}"
            )
        schema = request_schema(api.name, 0)
        return Call(api, header, schema, schema.read(b"", 0)[0])
    schema = request_schema(api.name, version)
    try:
        if schema.is_flexible:
            position = _skip_tagged_fields(frame, position)
        request, _ = schema.read(frame, position)
    except Exception as error:
        raise MalformedRequestError(f"{api.name} version {version} cannot be read: {error}") from error
    return Call(api, header, schema, request)


async def answer(call: Call, node: Node) -> list[bytes] | None:
    """Handle a call; the whole response frame in parts, or None when there is nothing to answer."""
    response = await call.api.handle(call.request, call.header, node)
    if response is None:
        return None
    if isinstance(response, bytes):
        parts = [b"", response]
    elif isinstance(response, list):
        parts = [b"", *response]
    else:
        parts = [b"", encode_response(response)]
    tags = b"\0" if call.schema.has_flexible_response_header else b""
    size = 4 + len(tags) + sum(map(len, parts))
    parts[0] = _RESPONSE_PREFIX.pack(size, call.header.correlation_id) + tags
    return parts


def _skip_tagged_fields(frame: bytes, position: int) -> int:
    count, position = _read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = _read_unsigned_varint(frame, position)
        size, position = _read_unsigned_varint(frame, position)
        position += size
    if position > len(frame):
        raise MalformedRequestError("tagged fields of the header run past the request")
    return position


def _read_unsigned_varint(frame: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise MalformedRequestError("a varint of more than five bytes in the request header")
