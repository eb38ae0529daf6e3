"""From the bytes of a connection to requests, and to answers: frames, which handler, which schema, which header.

The modules of `keylane.broker.handlers` are the list of APIs: each names its key, its versions and what it lacks. A
handler gets kio's request entity and returns kio's response entity of the same version, or the body already encoded (as
bytes, or as parts to be joined), or None when nothing is to be answered (Produce with acks=0). An API that kio does not
know brings its own `schema(version)`.

A handler is a coroutine function `handle`, or, for the APIs of which thousands wait for one sync, a plain function
`begin`: it does its work at once and returns the answer, or `Later` when the answer has to wait for a disk. That saves
one asyncio task a request. Work that may take long is returned as a `Preparation`: steps, between which others are
served. A request of many items is decoded in a thread, its items are handled `in_slices`, and its answer is encoded in
a thread (`answer_of`). Even to free so many objects takes long: that is done item by item (`let_go`).

Such a handler may offer a `SHORT_WAY`: clients commit and fetch the same partitions again and again, and then all of a
frame but its correlation id, and an offset, was decoded before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import pkgutil
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from keylane.broker import handlers
from keylane.broker.memory import UNBOUNDED, AnswerRoom
from keylane.broker.sessions import Session
from keylane.errors import PeerError
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.primitives import MAX_ITEMS, TooManyItemsError, read_unsigned_varint
from keylane.wire.versions import RequestSchema, arrays_in, count_items, encode_response, request_schema

if TYPE_CHECKING:
    from keylane.broker.node import Node
    from keylane.storage.shared_sync import Round

API_VERSIONS = 18
UNSUPPORTED_VERSION = 35

T = TypeVar("T")

NO_SESSION = Session()

_REQUEST_PREFIX = struct.Struct(">hhi")
_NULLABLE_STRING = struct.Struct(">h")
_RESPONSE_PREFIX = struct.Struct(">ii")

SIZE_BYTES = 4
"""A frame is a signed 32-bit size, and then so many bytes."""
MIN_FRAME_BYTES = 10
"""API key, version, correlation id, and the length of the client id."""
TLS_HANDSHAKE = 0x1603
"""How a TLS client begins: record type 22, version 3."""


class FrameError(PeerError):
    """The stream holds no request frames, or one that is larger than allowed; nothing after it can be read."""


class FrameReader:
    """Collects what arrives and gives whole frames, each as bytes of its own."""

    def __init__(self, max_frame_bytes: int, min_frame_bytes: int = MIN_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._min_frame_bytes = min_frame_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = SIZE_BYTES
        """Bytes at which the next frame may be whole: a large frame is joined once, not at every arrival."""

    @property
    def arriving(self) -> int:
        """Bytes of the request that has begun to arrive, all of it; 0 between two requests."""
        return self._wanted - SIZE_BYTES

    @property
    def received(self) -> int:
        """Bytes of it that are here."""
        return self._size

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes. Raises `FrameError`."""
        if not self._parts and self._is_one_frame(data):
            return [data[SIZE_BYTES:]]
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        frames = []
        buffer = data
        if len(self._parts) > 1 and len(self._parts[0]) >= SIZE_BYTES and self._wanted > SIZE_BYTES:
            # The one that was waited for is put together without its size and what follows: it may be large.
            own = len(data) - (self._size - self._wanted)
            head, *between, _ = self._parts
            frames.append(b"".join((memoryview(head)[SIZE_BYTES:], *between, memoryview(data)[:own])))
            buffer = data[own:]
        elif len(self._parts) > 1:
            buffer = b"".join(self._parts)
        position = 0
        while (left := len(buffer) - position) >= SIZE_BYTES:
            size = int.from_bytes(buffer[position : position + SIZE_BYTES], "big", signed=True)
            if not self._min_frame_bytes <= size <= self.max_frame_bytes:
                hint = ": the client speaks TLS, and this listener does not" if size >> 16 == TLS_HANDSHAKE else ""
                raise FrameError(
                    f"a request of {size} bytes: the limit is {self.max_frame_bytes} (socket.request.max.bytes), "
                    f"and none is shorter than {self._min_frame_bytes}{hint}"
                )
            if left < SIZE_BYTES + size:
                self._wanted = SIZE_BYTES + size
                break
            frames.append(buffer[position + SIZE_BYTES : position + SIZE_BYTES + size])
            position += SIZE_BYTES + size
        else:
            self._wanted = SIZE_BYTES
        rest = buffer[position:] if position else buffer
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return frames

    def _is_one_frame(self, data: bytes) -> bool:
        """What a client that waits for each answer sends."""
        size = len(data) - SIZE_BYTES
        is_allowed = self._min_frame_bytes <= size <= self.max_frame_bytes
        return is_allowed and data.startswith(size.to_bytes(SIZE_BYTES, "big"))


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
    room: AnswerRoom = UNBOUNDED
    """What an answer of many bytes asks before these are read."""


FEW_ITEMS = 5_000
"""Items of a request or an answer that are decoded or encoded at once: a few milliseconds. More take a thread."""


class Unencoded(NamedTuple):
    """An answer of many items: what a handler returns is made, and encoded, in a thread."""

    make: Callable[[], Any]
    """It only reads what no longer changes."""


def answer_of(items: int, make: Callable[[], Any]) -> Any:
    """What `make` gives, of so many items: made in a thread when these are many."""
    return make() if items <= FEW_ITEMS else Unencoded(make)


class Later(NamedTuple):
    """An answer that waits for a round of a group commit; `finish` then gives it (or waits on)."""

    durable: Round
    finish: Callable[[], Any]


Work = Callable[[], Any]
Steps = Generator[Work | None, Any, None]
"""Work in steps of a few milliseconds at most. What takes longer, and leaves the interpreter to others, is yielded:
it is done in a thread, and its result is sent back."""
SLICE_S = 0.005
"""How long work in slices holds the event loop at a time, by the wall's clock: a thread's takes over a microsecond to
ask."""


class Slices:
    """What a loop gives to work in slices: `SLICE_S` a turn, for all requests together. One that has used it up waits
    in line for another turn: each turn is the next one's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.until = 0.0
        """When this turn's slice is over."""
        self._is_begun = False
        self._line: deque[asyncio.Future[None]] = deque()

    def begin(self) -> None:
        """Somebody works in this turn; perhaps others did."""
        if not self._is_begun:
            self._is_begun = True
            self.until = time.perf_counter() + SLICE_S
            self.loop.call_soon(self._end)

    async def next(self) -> None:
        """Wait in line for another turn."""
        turn: asyncio.Future[None] = self.loop.create_future()
        self._line.append(turn)
        if len(self._line) == 1:
            self.loop.call_soon(self._call_first)
        await turn
        self.begin()

    def _end(self) -> None:
        self._is_begun = False

    def _call_first(self) -> None:
        turn = self._line.popleft()
        if not turn.done():  # its request may be dropped
            turn.set_result(None)
        if self._line:
            self.loop.call_soon(self._call_first)


class _OfThread(threading.local):
    slices: Slices | None = None


_of_thread = _OfThread()


def slices_begun() -> Slices:
    """Those of the running loop; its slice of this turn has begun."""
    loop = asyncio.get_running_loop()
    found = _of_thread.slices
    if found is None or found.loop is not loop:
        found = _of_thread.slices = Slices(loop)
    found.begin()
    return found


class Preparation:
    """What has to be done before a request can be handled, and takes long: nothing behind it on its connection starts
    before."""

    def __init__(self, steps: Steps, finish: Callable[[], Any]) -> None:
        self._steps = steps
        self.finish = finish
        self.work: Work | None = None
        """What it needs the result of, from a thread."""
        self.is_over = False

    async def go_on(self) -> None:
        """The next slice, in another turn of the loop."""
        result = None
        if self.work is None:
            await slices_begun().next()
        else:
            result = await asyncio.get_running_loop().run_in_executor(None, self.work)
        self.advance(result)

    def advance(self, result: object = None) -> None:
        """As many steps as there is time for. `result` is that of `work`."""
        slices = slices_begun()
        self.work = None
        try:
            while self.work is None:
                self.work, result = self._steps.send(result), None
                if time.perf_counter() > slices.until:
                    return
        except StopIteration:
            self.is_over = True


def prepared(steps: Steps, finish: Callable[[], Any]) -> Any:
    """What `finish` gives after these steps: at once if they are short."""
    preparation = Preparation(steps, finish)
    preparation.advance()
    return finish() if preparation.is_over else preparation


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of them. Others are served meanwhile, whenever what is done with them has held the loop for `SLICE_S`."""
    slices = slices_begun()
    for item in items:
        yield item
        if time.perf_counter() > slices.until:
            await slices.next()


ROWS_AT_ONCE = 1_000
"""Topics and partitions: some milliseconds, whatever is done with them."""
LONGEST_TOPIC = 10_000
"""Partitions of a topic that are given at once: none has more."""


def in_pieces(
    topics: Iterable[tuple[T, Sequence[int]]], longest: int = LONGEST_TOPIC
) -> Iterator[list[tuple[T, Sequence[int]]]]:
    """These topics with their partitions, about `ROWS_AT_ONCE` at a time, and `longest` of one topic; the last piece
    may have none, and is the one of a request without topics."""
    piece: list[tuple[T, Sequence[int]]] = []
    rows = 0
    for topic, partitions in topics:
        for start in range(0, len(partitions) or 1, longest):
            some = partitions[start : start + longest]
            piece.append((topic, some))
            rows += 1 + len(some)
            if rows >= ROWS_AT_ONCE:
                yield piece
                piece, rows = [], 0
    yield piece


async def counted(items: Iterable[T]) -> Counter[T]:
    """How often each of them is there."""
    found: Counter[T] = Counter()
    async for item in in_slices(items):
        found[item] += 1
    return found


async def by_partition(topics: Iterable[Any]) -> dict[str, dict[int, list[Any]]]:
    """What a request has of each partition of each topic: more than one where it names a partition more than once."""
    found: dict[str, dict[int, list[Any]]] = {}
    async for topic in in_slices(topics):
        of_topic = found.setdefault(topic.name, {})
        async for one in in_slices(topic.partitions):
            of_topic.setdefault(one.partition_index, []).append(one)
    return found


async def seen_through(result: Any) -> Any:
    """What a handler's result comes to in the end."""
    while True:
        if type(result) is Later:
            await asyncio.wait([result.durable])
        elif type(result) is Preparation:
            while not result.is_over:
                await result.go_on()
        else:
            return result
        result = result.finish()


def failure_of(durable: Round | None) -> int:
    """What clients are told of a round that is over: NONE where it is over well, or where there was none."""
    error = None if durable is None else durable.exception()
    if error is None:
        return codes.NONE
    return error.code if isinstance(error, StorageError) else codes.KAFKA_STORAGE_ERROR


def after(rounds: Sequence[Round], finish: Callable[[], Any]) -> Any:
    """What `finish` gives when all rounds are over, however they end."""
    for durable in rounds:
        if not durable.done():
            return Later(durable, lambda: after(rounds, finish))
    return finish()


Handle = Callable[[Any, RequestHeader, "Node"], Awaitable[Any]]
Begin = Callable[[Any, RequestHeader, "Node"], Any]


class ShortWay(NamedTuple):
    """How an API serves a request that is like one before, without decoding it."""

    begin: Begin
    """Whose short way it is: another handler in its place gets every request."""
    key: Callable[[bytes], bytes | None]
    """What requests of one version that are alike have in common; None when there is no short way for it."""
    know: Callable[[bytes, Any, Node], object]
    """What to remember of a frame and its request; None for nothing."""
    answer: Callable[[Any, bytes, Node], Later | bytes | None]
    """The whole frame of the answer, or `Later` with it, to what is remembered and a frame like it; None when the
    request has to be decoded nonetheless."""


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
    """Whether it may take long, on behalf of its client only: dropped when the client is gone, or the broker stops."""
    short_way: ShortWay | None


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
            getattr(loaded, "SHORT_WAY", None),
        )
        assert api.min_version <= api.max_version, module.name
        assert api.handle is not None or not api.has_large_answers, f"{module.name} waits, and needs `handle` for it"
        assert (api.handle is None) is not (api.begin is None), f"{module.name} has one of handle and begin"
        apis.append(api)
    return {api.key: api for api in sorted(apis, key=lambda api: api.key)}


MAX_KNOWN_BYTES = 32 * 1024 * 1024
MAX_KNOWN_FRAME_BYTES = 64 * 1024
"""Longer requests are decoded each time: what they ask for takes longer than that."""
KNOWN_ENTRY_BYTES = 500
"""What an entry takes beside its key, about."""
_VERSION_END = 4
"""A frame begins with API key and version."""
_NO_WAY: tuple[None, dict[bytes, object]] = (None, {})


class KnownRequests:
    """What is remembered of requests, by the bytes that stay the same. Bounded: when it is full, all is forgotten and
    learned anew."""

    def __init__(self, node: Node, apis: dict[int, Api]) -> None:
        self._node = node
        self._ways: dict[bytes, tuple[ShortWay, dict[bytes, object]]] = {
            struct.pack(">hh", api.key, version): (api.short_way, {})
            for api in apis.values()
            if api.short_way is not None and api.begin is api.short_way.begin
            for version in range(api.min_version, api.max_version + 1)
        }
        """By how a frame begins: what is remembered of such frames, by the key that its way gives."""
        self._size = 0

    def recognise(self, frame: bytes) -> Later | bytes | None:
        """The whole frame of the answer, or `Later` with it; None: the request has to be decoded."""
        way, known = self._way_of(frame)
        if way is None or (key := way.key(frame)) is None or (found := known.get(key)) is None:
            return None
        return way.answer(found, frame, self._node)

    def remember(self, frame: bytes, request: object) -> None:
        """It was decoded, and another one of its form may follow."""
        way, known = self._way_of(frame)
        if way is None or (key := way.key(frame)) is None or (found := way.know(frame, request, self._node)) is None:
            return
        if key not in known:
            self._size += len(key) + KNOWN_ENTRY_BYTES
        if self._size > MAX_KNOWN_BYTES:
            for _, others in self._ways.values():
                others.clear()
            self._size = len(key) + KNOWN_ENTRY_BYTES
        known[key] = found

    def _way_of(self, frame: bytes) -> tuple[ShortWay | None, dict[bytes, object]]:
        return _NO_WAY if len(frame) > MAX_KNOWN_FRAME_BYTES else self._ways.get(frame[:_VERSION_END], _NO_WAY)


class Call(NamedTuple):
    """A decoded request, ready to be handled."""

    api: Api
    header: RequestHeader
    schema: RequestSchema
    request: Any
    is_large: bool = False
    """Whether it was decoded in a thread."""


def decode_request(
    frame: bytes,
    client_host: str,
    apis: dict[int, Api],
    session: Session = NO_SESSION,
    room: AnswerRoom = UNBOUNDED,
    max_items: int = MAX_ITEMS,
) -> Call:
    """Read header and body of one frame (without its size). Raises `MalformedRequestError`, or `TooManyItemsError` for
    one with more than `max_items` items, where that is less than any request may have.

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
    header = RequestHeader(key, version, correlation_id, client_id, client_host, session, room)
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
        request, _ = schema.read(frame, position, max_items)
    except Exception as error:
        if isinstance(error, TooManyItemsError) and max_items < MAX_ITEMS:
            raise
        raise MalformedRequestError(f"{api.name} version {version} cannot be read: {error}") from error
    return Call(api, header, schema, request)


def is_encoded_aside(response: Any) -> bool:
    """Whether what a handler returned takes long to encode."""
    if type(response) is Unencoded:
        return True
    return dataclasses.is_dataclass(response) and count_items(response, FEW_ITEMS) > FEW_ITEMS


def encode_aside(call: Call, held: list[Any]) -> bytes:
    """The whole frame of a large answer, for a thread. `held` is the response and the request, which nobody else holds
    any more; it is emptied."""
    if type(held[0]) is Unencoded:
        held[0] = held[0].make()
    frame = b"".join(response_frame(call, held[0]) or ())
    let_go(held)
    return frame


def let_go(held: list[Any]) -> None:
    """Free these, each item of theirs by itself: Python frees an array of many in one go, and nothing else runs
    meanwhile, in no thread."""
    while held:
        one = held.pop()
        if isinstance(one, list | tuple):
            held += one
        elif dataclasses.is_dataclass(one):
            held += chain.from_iterable(arrays_in(one))


def response_frame(call: Call, response: Any) -> list[bytes] | None:
    """The whole frame in parts, for what a handler returned; None when there is nothing to answer."""
    if response is None:
        return None
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
