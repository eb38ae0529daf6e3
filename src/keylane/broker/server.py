"""The socket side: connections that turn bytes into calls and answers into bytes.

Requests of one connection start in the order in which they came and are answered in that order, but are not waited
for: what a handler does before its first `await` (an append, a commit) keeps the order of the requests, and all that
wait for a disk share its sync. A request that takes long to prepare (`Preparation`) holds back those behind it on its
connection and nobody else: one slice of it is done in a turn of the loop. A client that sends faster than it is served,
or reads slower, is not read from for the while; nor when all connections together hold as much memory as they may
(`SharedMemory`). Large answers are written in pieces, as the client takes them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from keylane.broker.dispatch import (
    FEW_ITEMS,
    Api,
    Call,
    CloseConnectionError,
    FrameError,
    FrameReader,
    KnownRequests,
    Later,
    MalformedRequestError,
    Preparation,
    decode_request,
    encode_aside,
    is_encoded_aside,
    response_frame,
)
from keylane.broker.listener import Listener
from keylane.broker.memory import STALL_S, AnswerRoom, Share, SharedMemory
from keylane.broker.security import OPEN
from keylane.broker.sessions import NotAuthenticatedError
from keylane.errors import PeerError
from keylane.telling import logger_of
from keylane.wire.primitives import MAX_ITEMS, TooManyItemsError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from keylane.broker.config import BrokerConfig
    from keylane.broker.node import Node
    from keylane.broker.security import Security
    from keylane.broker.sessions import Session
    from keylane.storage.shared_sync import Round

logger = logger_of("keylane.broker")

T = TypeVar("T")

MAX_BYTES_IN_FLIGHT = 64 * 1024 * 1024
"""Request bytes of one connection that may be under way before it is not read from for the while."""
DRAIN_TIMEOUT_S = 5.0
"""How long a stopping broker waits for requests that are under way, and for clients to take their answers."""
READ_BYTES = 256 * 1024
"""Of one connection at a time, into a buffer that all share: a new one for each read costs more than the rest of it.
A larger request is read once there is memory for it."""
LARGE_FRAME_BYTES = 8 * 1024 * 1024
"""A larger request is decoded in a thread, one at a time: its records are copied, as they were when it came."""
PIECE_BYTES = 512 * 1024
"""Of a large answer, written in a turn of the loop."""


class Client(NamedTuple):
    """Of one connection, what relays know of it."""

    host: str
    session: Session
    close: Callable[[], None]
    """Ends the connection."""


class Relay(Protocol):
    """Of one connection: has some of its requests answered elsewhere."""

    def take(self, frame: bytes, told: Callable[[list[bytes] | None], None]) -> bool:
        """Whether this request is one of them. `told` then takes the whole frame of the answer, in parts; None when
        none is due. Raises `MalformedRequestError`."""
        ...

    def pause(self) -> None:
        """The client takes no more for now."""
        ...

    def resume(self) -> None: ...
    def close(self) -> None: ...


class TooManyConnectionsError(PeerError):
    """A client connected above `max.connections` or `max.connections.per.ip`; the new connection is closed."""


class ConnectionLimits:
    """Counts connections, by the address that they come from."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        """`config` as it is now: limits that are changed hold for those who come then."""
        self._config = config
        self._counts: Counter[str] = Counter()
        self._total = 0

    def enter(self, host: str) -> None:
        """One more, also when it is refused: `leave` follows either way. Raises `TooManyConnectionsError`."""
        self._total += 1
        self._counts[host] += 1
        config = self._config()
        if self._total > config.max_connections:
            raise TooManyConnectionsError(f"there are {config.max_connections} connections already (max.connections)")
        most = config.connection_limits().get(host, config.max_connections_per_ip)
        if self._counts[host] > most:
            raise TooManyConnectionsError(f"{host} has {most} connections already (max.connections.per.ip)")

    def leave(self, host: str) -> None:
        self._total -= 1
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]


class _Answer:
    """The place of one answer in the order of its connection."""

    __slots__ = ("is_ready", "parts", "size", "turn")

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_ready = False
        self.parts: list[bytes] | None = None
        self.turn: asyncio.Future[None] | None = None
        """What its request waits for before it is handled, if its answer may be large."""


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        config = server.node.config
        self._session = server.security.new_session()
        self._must_authenticate = not self._session.is_open
        self._held = 0
        """What the server's memory of requests counts of this connection, beside a large one that arrives."""
        self._arriving = Share(self._regulate_soon, lambda: self._frames.received, self._stop_stalled)
        self._room = AnswerRoom(server.answers, lambda: self._pieces_written, self._stop_stalled)
        self._unwritten: deque[Iterator[bytes]] = deque()
        """Of large answers, the pieces that the client has not taken yet."""
        self._pieces_written = 0
        self._is_closing = False
        self._frames = FrameReader(server.security.frame_limit or config.socket_request_max_bytes)
        self._max_requests = config.keylane_max_requests_in_flight_per_connection
        self._answers: deque[_Answer] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._polls: set[asyncio.Task[None]] = set()
        self._preparing: set[asyncio.Task[None]] = set()
        self._held_back: deque[tuple[bytes, _Answer]] = deque()
        """What came behind requests that are being prepared."""
        self._bytes_in_flight = 0
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._host = ""
        self._relays: Sequence[Relay] = ()
        self._is_reading = True
        self._may_write = True
        self._flush_is_due = False
        self.last_active = 0.0
        """By the clock of the network's time, which no test moves."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername") or ("?", 0)
        self._host, self._peer = address[0], f"{address[0]}:{address[1]}"
        self._relays = self._server.new_relays(Client(self._host, self._session, self.close))
        self._server.connections.add(self)
        self._server.silent[self] = None
        self.last_active = time.monotonic()
        try:
            self._server.limits.enter(self._host)
        except TooManyConnectionsError as error:
            self._refuse(error)
        if self._server.is_stopping:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._unwritten.clear()
        self._server.memory.leave(self._arriving)
        self._room.leave()
        for place in self._answers:
            if place.turn is not None:
                place.turn.cancel()
        self._answers.clear()
        self._server.left(self)
        self._server.limits.leave(self._host)
        self.regulate()
        for poll in self._polls:
            poll.cancel()
        if self._server.is_stopping:
            for preparing in self._preparing:
                preparing.cancel()
        self._session.close()
        for relay in self._relays:
            relay.close()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = time.monotonic()
        try:
            for frame in self._frames.feed(bytes(self._server.read_buffer[:nbytes])):
                self._accept(frame)
        except (FrameError, MalformedRequestError, NotAuthenticatedError) as error:
            self.flush()
            self._refuse(error)
        else:
            self.flush()

    def pause_writing(self) -> None:
        self._may_write = False
        for relay in self._relays:
            relay.pause()
        self.regulate()

    def resume_writing(self) -> None:
        self._may_write = True
        for relay in self._relays:
            relay.resume()
        self._write_on()
        self.regulate()

    async def drain(self) -> None:
        """Take no more requests, answer those under way, and close."""
        if self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()
        for poll in self._polls:
            poll.cancel()
        while under_way := [*self._tasks, *self._server.waiting]:
            await asyncio.wait(under_way)
        self.flush()
        self.close()

    def close(self) -> None:
        """Once the client has taken what is written."""
        self._is_closing = True
        if self._transport is not None and not self._unwritten:
            self._transport.close()

    def abort(self) -> None:
        """Close it without what the client has not taken."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self, since: float) -> None:
        """Close a connection that has been quiet since then."""
        if self.last_active < since and not self._answers:
            if self._unwritten:
                self.abort()
            else:
                self.close()

    def _stop_stalled(self) -> None:
        """Others wait for the memory of what this client neither sends nor takes."""
        if self._unwritten or self._arriving.size:
            what = "takes no more of its answer" if self._unwritten else "sends no more of its request"
            logger.warning("%s: %s, and others wait for the memory; closing the connection", self._peer, what)
            self.abort()

    def _accept(self, frame: bytes) -> None:
        if self._transport is None or self._is_closing or self._transport.is_closing():
            return
        if self._must_authenticate:
            self._session.admit(int.from_bytes(frame[:2], "big"))
        self._server.silent.pop(self, None)
        place = _Answer(len(frame))
        self._answers.append(place)
        self._bytes_in_flight += place.size
        if self._preparing:
            self._held_back.append((frame, place))
        else:
            self._start(frame, place)

    def _start(self, frame: bytes, place: _Answer) -> None:
        if self._relays and self._is_relayed(frame, place):
            return
        answer = self._server.known.recognise(frame)
        if answer is not None:
            self._put(None, place, answer)
        else:
            self._call(frame, place)

    def _is_relayed(self, frame: bytes, place: _Answer) -> bool:
        """Whether this request is answered elsewhere."""
        return any(relay.take(frame, lambda parts: self._answered(place, parts)) for relay in self._relays)

    def _call(self, frame: bytes, place: _Answer) -> None:
        """A request that is not like one before."""
        if len(frame) > LARGE_FRAME_BYTES:
            self._hold_back_until(None, self._decode_aside(frame, place))
            return
        try:
            call = self._decoded(frame, FEW_ITEMS)
        except TooManyItemsError:
            self._hold_back_until(None, self._decode_aside(frame, place))
        else:
            self._server.known.remember(frame, call.request)
            self._begin(call, place)

    def _decoded(self, frame: bytes, max_items: int = MAX_ITEMS) -> Call:
        host = self._session.forwarded_from or self._host
        return decode_request(frame, host, self._server.apis, self._session, self._room, max_items)

    async def _decode_aside(self, frame: bytes, place: _Answer) -> Callable[[], None]:
        call = (await self._server.in_thread(lambda: self._decoded(frame)))._replace(is_large=True)
        return lambda: self._begin(call, place)

    def _begin(self, call: Call, place: _Answer) -> None:
        if call.api.begin is not None:
            begin = call.api.begin
            self.advance(call, place, lambda: begin(call.request, call.header, self._server.node))
        else:
            self._start_task(self._serve(call, place), self._polls if call.api.may_poll else self._tasks)

    def advance(self, call: Call | None, place: _Answer, step: Callable[[], Any]) -> None:
        """The next step of a call that has no task of its own; `flush` afterwards."""
        try:
            self._put(call, place, step())
        except Exception as error:
            self._failed(call, error)

    def _put(self, call: Call | None, place: _Answer, result: Any) -> None:
        """An answer, or what it waits for; without a call it is a whole frame."""
        if type(result) is Later:
            self._server.wait(result.durable, (self, call, place, result.finish))
        elif type(result) is Preparation:
            self._hold_back_until(call, self._prepare(call, place, result))
        elif call is not None and (call.is_large or is_encoded_aside(result)):
            held = [result, call.request]
            self._start_task(self._encode_aside(call._replace(request=None), place, held), self._tasks)
        else:
            place.parts = [result] if call is None else response_frame(call, result)
            place.is_ready = True

    async def _encode_aside(self, call: Call, place: _Answer, held: list[Any]) -> None:
        """`held`: see `encode_aside`."""
        try:
            place.parts = [await self._server.in_thread(lambda: encode_aside(call, held))]
        except Exception as error:
            self._failed(call, error)
        else:
            place.is_ready = True
            self.flush()

    async def _prepare(self, call: Call | None, place: _Answer, preparation: Preparation) -> Callable[[], None]:
        while not preparation.is_over:
            async with self._server.slice:
                await preparation.go_on()
        return lambda: self.advance(call, place, preparation.finish)

    def _start_task(self, coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = self._server.loop.create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def _hold_back_until(self, call: Call | None, preparing: Coroutine[Any, Any, Callable[[], None]]) -> None:
        """What comes behind on this connection starts only after that."""
        self._preparing.add(self._start_task(self._finish(call, preparing), self._tasks))

    async def _finish(self, call: Call | None, preparing: Coroutine[Any, Any, Callable[[], None]]) -> None:
        """To its end, and what it gives; then what was held back starts, of a client that is gone too: it may want no
        answers (acks=0)."""
        task = asyncio.current_task()
        assert task is not None
        try:
            go_on = await preparing
        except Exception as error:
            self._preparing.discard(task)
            self._failed(call, error)
        else:
            self._preparing.discard(task)
            go_on()
        self._start_held_back()
        if self._transport is None:
            for poll in self._polls:
                poll.cancel()

    def _start_held_back(self) -> None:
        try:
            while self._held_back and not self._preparing:
                self._start(*self._held_back.popleft())
        except (MalformedRequestError, NotAuthenticatedError) as error:
            self.flush()
            self._refuse(error)
        except Exception:
            self.close()
            raise
        else:
            self.flush()

    def _answered(self, place: _Answer, parts: list[bytes] | None) -> None:
        """An answer from elsewhere."""
        place.parts = parts
        place.is_ready = True
        self.flush()

    async def _serve(self, call: Call, place: _Answer) -> None:
        assert call.api.handle is not None
        try:
            if call.api.has_large_answers and not self._is_next(place):
                place.turn = self._server.loop.create_future()
                await place.turn
            self._put(call, place, await call.api.handle(call.request, call.header, self._server.node))
        except Exception as error:
            self._failed(call, error)
        else:
            if not self._flush_is_due:
                self._flush_is_due = True
                self._server.loop.call_soon(self.flush)

    def _is_next(self, place: _Answer) -> bool:
        """Whether its answer could be written at once. Large answers are made only then: those of a client that asks
        for many and takes none would all stand in memory."""
        return self._transport is None or (self._may_write and not self._unwritten and self._answers[0] is place)

    def _next_turn(self) -> None:
        first = self._answers[0] if self._answers else None
        may_write = self._may_write and not self._unwritten
        if first is not None and first.turn is not None and may_write and not first.turn.done():
            first.turn.set_result(None)

    def _failed(self, call: Call | None, error: Exception) -> None:
        if isinstance(error, CloseConnectionError | MalformedRequestError):
            self._refuse(error)
            return
        what = "a known request" if call is None else f"{call.api.name} version {call.header.api_version}"
        logger.error("%s: %s failed; closing the connection", self._peer, what, exc_info=error)
        self._held_back.clear()
        self.close()

    def flush(self) -> None:
        """Write all answers that are ready and have none before them that is not, at once."""
        self._flush_is_due = False
        answers = self._answers
        parts: list[bytes] = []
        while answers and answers[0].is_ready:
            place = answers.popleft()
            self._bytes_in_flight -= place.size
            if place.parts is not None:
                parts += place.parts
        if parts and self._transport is not None:
            self._write(parts)
        self._next_turn()
        if self._must_authenticate:
            self._follow_session()
        self.regulate()

    def _write(self, parts: list[bytes]) -> None:
        assert self._transport is not None
        if self._unwritten or sum(map(len, parts)) > PIECE_BYTES:
            self._unwritten.append(pieces(parts))
            self._write_on()
        else:
            self._transport.write(b"".join(parts))
            self._room.settle(0)

    def _write_on(self) -> None:
        """The next piece, in another turn of the loop, or when the client has taken the last."""
        if self._transport is None or not self._may_write:
            return
        while self._unwritten:
            piece = next(self._unwritten[0], None)
            if piece is not None:
                self._transport.write(piece)
                self._pieces_written += 1
                self._server.loop.call_soon(self._write_on)
                return
            self._unwritten.popleft()
        self._room.settle(0)
        if self._is_closing:
            self._transport.close()
        self._next_turn()
        self.regulate()

    def _follow_session(self) -> None:
        """Before a client has authenticated its requests are small; after it has failed there are none."""
        if self._session.is_open:
            self._frames.max_frame_bytes = self._server.node.config.socket_request_max_bytes
        elif self._session.has_failed and not self._answers:
            self.close()

    def regulate(self) -> None:
        """Read from the client while it keeps up and its requests under way are few."""
        arriving = self._frames.arriving
        is_large = arriving > READ_BYTES
        is_over = self._transport is None and not self._preparing
        held = 0 if is_over else self._bytes_in_flight + (0 if is_large else arriving)
        if held != self._held:
            by, self._held = held - self._held, held
            self._server.memory.change(by)
        if is_large or self._arriving.size:
            self._ask_for_memory(arriving if is_large else 0)
        wanted = (
            self._may_write
            and not self._unwritten
            and not self._is_closing
            and (self._arriving.size > 0 if is_large else arriving > 0 or not self._server.memory.is_full)
            and self._bytes_in_flight < MAX_BYTES_IN_FLIGHT
            and len(self._answers) < self._max_requests
            and not self._server.is_stopping
        )
        if wanted is not self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _regulate_soon(self) -> None:
        self._server.loop.call_soon(self.regulate)

    def _ask_for_memory(self, arriving: int) -> None:
        """For a large request of so many bytes; 0: it has arrived."""
        memory, share = self._server.memory, self._arriving
        if share.size != arriving:
            memory.settle(share, 0)
        if arriving and not share.size and self._transport is not None and memory.ask(share, arriving, arriving):
            memory.settle(share, arriving)

    def _refuse(self, error: Exception) -> None:
        logger.warning("%s: %s; closing the connection", self._peer, error)
        self._held_back.clear()
        self.close()


def pieces(parts: Sequence[bytes]) -> Iterator[bytes]:
    """The same bytes, about `PIECE_BYTES` at a time."""
    small: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        for at in range(0, len(part), PIECE_BYTES):
            piece = memoryview(part)[at : at + PIECE_BYTES]
            small.append(piece)
            size += len(piece)
            if size >= PIECE_BYTES:
                yield b"".join(small)
                small, size = [], 0
    if small:
        yield b"".join(small)


_Waiting = tuple[Connection, "Call | None", _Answer, "Callable[[], Any]"]
"""A call that waits for a disk, and how it goes on."""


class BrokerServer:
    """Listens, and knows its connections."""

    def __init__(
        self,
        node: Node,
        apis: dict[int, Api],
        security: Security = OPEN,
        new_relays: Callable[[Client], Sequence[Relay]] = lambda _: (),
    ) -> None:
        """`new_relays` makes a connection's relays: the first that takes a request has it answered."""
        self.node = node
        self.new_relays = new_relays
        self.security = security
        self.limits = ConnectionLimits(lambda: node.config)
        self.memory = SharedMemory(node.config.queued_max_request_bytes, self._regulate_all)
        """Of requests that arrive, or have arrived and are not answered."""
        self.answers = SharedMemory(node.config.keylane_queued_max_answer_bytes)
        """Of records that fetches have read and their clients have not taken."""
        self.apis = apis
        self.known = KnownRequests(node, apis)
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.silent: dict[Connection, None] = {}
        """Those that have not sent a request yet, in the order in which they came."""
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        """Of all connections: what one of them reads is copied out at once."""
        self.waiting: dict[Round, list[_Waiting]] = {}
        """Calls of all connections that wait for a disk, by what they wait for: one wake-up for all of them."""
        self.is_stopping = False
        self.slice = asyncio.Lock()
        """Held for a slice of a preparation: many of them hold the loop no longer than one, and take no more memory."""
        self._last_left: asyncio.Future[None] | None = None
        self._listener = Listener(self.loop, lambda: Connection(self), security.tls, self._make_room)
        self._idle_check: asyncio.TimerHandle | None = None
        self._stall_check: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address that it got. Raises `OSError` when the port is in use."""
        address = await self._listener.start(host, port)
        self._check_idle()
        self._check_stalled()
        return address

    async def stop(self) -> None:
        """Stop listening, finish what is under way within a bound, and close all connections."""
        self.is_stopping = True
        for check in (self._idle_check, self._stall_check):
            if check is not None:
                check.cancel()
        self._listener.stop()
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await asyncio.gather(*(connection.drain() for connection in self.connections))
                await self._nobody_is_left()
        except TimeoutError:
            for connection in self.connections:
                connection.abort()
            await self._nobody_is_left()

    async def _nobody_is_left(self) -> None:
        """Wait for it: a transport that the loop leaves behind warns its program, and in Python 3.13 raises there."""
        if self.connections:
            self._last_left = self.loop.create_future()
            await self._last_left

    def left(self, connection: Connection) -> None:
        """A connection is lost."""
        self.connections.discard(connection)
        self.silent.pop(connection, None)
        self._listener.left()
        if not self.connections and self._last_left is not None and not self._last_left.done():
            self._last_left.set_result(None)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What `work` gives, which only reads and takes long; one at a time."""
        async with self.slice:
            return await self.loop.run_in_executor(None, work)

    def _make_room(self) -> bool:
        """End the oldest connection of those that never sent a request; False without one."""
        oldest = next(iter(self.silent), None)
        if oldest is not None:
            del self.silent[oldest]
            oldest.abort()
        return oldest is not None

    def wait(self, durable: Round, call: _Waiting) -> None:
        """Go on with this call when the round is over."""
        calls = self.waiting.get(durable)
        if calls is None:
            calls = self.waiting[durable] = []
            durable.when_over(self._resume, first=True)
        calls.append(call)

    def _resume(self, durable: Round) -> None:
        calls = self.waiting.pop(durable)
        for connection, call, place, finish in calls:
            connection.advance(call, place, finish)
        for connection in dict.fromkeys(waiting[0] for waiting in calls):
            connection.flush()

    def _regulate_all(self) -> None:
        for connection in list(self.connections):
            self.loop.call_soon(connection.regulate)

    def _check_idle(self) -> None:
        allowed = self.node.config.connections_max_idle_ms / 1_000
        since = time.monotonic() - allowed
        for connection in list(self.connections):
            connection.close_if_idle(since)
        self._idle_check = self.loop.call_later(allowed / 2, self._check_idle)

    def _check_stalled(self) -> None:
        self.memory.stop_idle()
        self.answers.stop_idle()
        self._stall_check = self.loop.call_later(STALL_S, self._check_stalled)
