"""From a request's bytes to its answer's: which handler, which schema, which header.

The modules of `keylane.broker.handlers` are the list of APIs: each names its key, its versions and what it lacks. A
handler gets kio's request entity and returns kio's response entity of the same version, or the body already encoded (as
bytes, or as parts to be joined), or None when nothing is to be answered (Produce with acks=0). An API that kio does not
know brings its own `schema(version)`.

A handler is a coroutine function `handle`, or, for the APIs of which thousands wait for one sync, a plain function
`begin`: it does its work at once and returns the answer, or `Later` when the answer has to wait for a disk. That saves
one asyncio task a request.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.broker import handlers
from keylane.broker.sessions import Session
from keylane.errors import PeerError
from keylane.wire.varints import read_unsigned_varint
from keylane.wire.versions import RequestSchema, encode_response, request_schema

if TYPE_CHECKING:
    from keylane.broker.node import Node
    from keylane.storage.shared_sync import Round

API_VERSIONS = 18
UNSUPPORTED_VERSION = 35

NO_SESSION = Session()

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
    session: Session = NO_SESSION


class Later(NamedTuple):
    """An answer that waits for a round of a group commit; `finish` then gives it (or waits on)."""

    durable: Round
    finish: Callable[[], Any]


def after(rounds: Sequence[Round], finish: Callable[[], Any]) -> Any:
    """What `finish` gives when all rounds are over, however they end."""
    for durable in rounds:
        if not durable.done():
            return Later(durable, lambda: after(rounds, finish))
    return finish()


Handle = Callable[[Any, RequestHeader, "Node"], Awaitable[Any]]
Begin = Callable[[Any, RequestHeader, "Node"], Any]


class Api(NamedTuple):
    """One handler module."""

    name: str
    """kio's name of the API, which is the module's: `offset_commit`."""
    key: int
    min_version: int
    max_version: int
    lacks: str
    handle: Handle | None
    begin: Begin | None
    schema: Callable[[int], RequestSchema]
    """How to read a request of a version."""
    has_large_answers: bool
    """Whether it is handled only when its answer could be written: when all before it on its connection are, and the
    client has taken them."""
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
            getattr(loaded, "handle", None),
            getattr(loaded, "begin", None),
            getattr(loaded, "schema", functools.partial(request_schema, module.name)),
            getattr(loaded, "HAS_LARGE_ANSWERS", False),
            getattr(loaded, "MAY_POLL", False),
        )
        assert api.min_version <= api.max_version, module.name
        assert api.handle is not None or not api.has_large_answers, f"{module.name} waits, and needs `handle` for it"
        assert (api.handle is None) is not (api.begin is None), f"{module.name} has one of handle and begin"
        apis.append(api)
    return {api.key: api for api in sorted(apis, key=lambda api: api.key)}


class Call(NamedTuple):
    """A decoded request, ready to be handled."""

    api: Api
    header: RequestHeader
    schema: RequestSchema
    request: Any


def decode_request(frame: bytes, client_host: str, apis: dict[int, Api], session: Session = NO_SESSION) -> Call:
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
    header = RequestHeader(key, version, correlation_id, client_id, client_host, session)
    if not api.min_version <= version <= api.max_version:
        if key != API_VERSIONS:
            raise MalformedRequestError(
                f"{api.name} version {version} is not offered by this broker, which takes "
                f"{api.min_version} to {api.max_version}"
            )
        schema = api.schema(0)
        return Call(api, header, schema, schema.read(b"", 0)[0])
    schema = api.schema(version)
    try:
        if schema.is_flexible:
            position = _skip_tagged_fields(frame, position)
        request, _ = schema.read(frame, position)
    except Exception as error:
        raise MalformedRequestError(f"{api.name} version {version} cannot be read: {error}") from error
    return Call(api, header, schema, request)


def response_frame(call: Call | None, response: Any) -> list[bytes] | None:
    """The whole frame in parts, for what a handler returned; None when there is nothing to answer."""
    if response is None:
        return None
    if call is None:  # it is a frame already
        return [response]
    if isinstance(response, list):
        parts = response
    else:
        parts = [response if isinstance(response, bytes) else encode_response(response)]
    size = sum(map(len, parts))
    if call.schema.has_flexible_response_header:
        return [_RESPONSE_PREFIX.pack(size + 5, call.header.correlation_id), b"\0", *parts]
    return [_RESPONSE_PREFIX.pack(size + 4, call.header.correlation_id), *parts]


def _skip_tagged_fields(frame: bytes, position: int) -> int:
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
    if position > len(frame):
        raise MalformedRequestError("tagged fields of the header run past the request")
    return position
