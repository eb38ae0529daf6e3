"""The authenticated TCP socket between a lane and its driver: what each says to the other, and nothing else.

| from | message | when |
|---|---|---|
| lane | `Hello` | once, first |
| driver | `Go`, with what was asked of all lanes so far, and what is to be shown | once: the lane may join its group |
| lane | `Report`: what is new in its snapshot | as often as `Go` says; left out while the driver does not keep up |
| driver | `Ask` | a user pauses, seeks, …: `Answer` follows, in the order in which things were done |
| lane | `Show`: results by number; `Void`: those not wanted any more | user code in the driver is to see them |
| lane | `Told` | a commit was answered, and user code in the driver is to hear of it |
| driver | `Moved`: what became of results, by number, and how much was read and heard | user code got on |
| driver | "left" | nobody reads results any more: the lane stops, and takes what was not read as not run |
| driver | "stop" | the lane drains and ends |

Messages are pickled, one by one. There are no versions of them: before anything else a lane compares its keylane with
the driver's, and another version ends the query.

Both ends prove that they know the query's key (`multiprocessing.connection`'s challenge) before anything is unpickled.
A closed socket is a message too: to the lane, that the driver is gone; to the driver, that the lane's process has
ended, so that a successor never overlaps it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from keylane.consumer.commits import Told
from keylane.consumer.snapshot import Snapshot
from keylane.errors import PeerError
from keylane.foreign_errors import line_of, logged_line_of, short_class_of
from keylane.spark.reports import Heard, Report, Sent
from keylane.telling import kind_of, logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.consumer.outputs import ResultsRule
    from keylane.consumer.settings import Change
    from keylane.flow.outcomes import NotRun
    from keylane.spark.controls import Request, Value
    from keylane.spark.outcome import LaneFailure

logger = logger_of(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
"""How long the other end may take to prove its key: a stray connection must not hold a thread for ever."""
CONNECT_TIMEOUT_S = 10.0
"""How long a lane tries to reach its driver: longer means a firewall, and the user should read so."""
SILENT_PEER_TIMEOUT_S = 20.0
"""Unacknowledged data for this long breaks the socket (TCP_USER_TIMEOUT): a lane must end within 30 s of its driver."""


REPORT_S = 0.25
REPORT_A_LANE_S = 0.00075
"""A lane reports every 0.25 s, of more than 333 lanes each so much less often that the driver gets 1,333 reports a
second, and each of a thousand lanes reports every 0.75 s."""
HEAR_A_LANE_S = 0.00001
"""Between two rounds of the sockets, for each of them: of a thousand lanes a round finds ten that have said something,
where each would have a round of its own otherwise."""

CONNECTIONS_THAT_WAIT = 4_096
"""Lanes that start together connect together. Python's own default is 128: the kernel leaves what comes beyond it
unanswered, and those lanes give up after ten seconds. `net.core.somaxconn` is the kernel's own bound."""
ACCEPTED_AT_ONCE = 100
"""Connections that are let in between two rounds of the sockets: each has a thread until it has proved the key."""
MOST_AT_ONCE = 1 << 16
"""Bytes that are taken from one lane before it is another one's turn."""
LENGTH, LONG_LENGTH = struct.Struct("!i"), struct.Struct("!Q")
"""What `multiprocessing.connection` sends before a message; after a negative one comes the long one."""
ACCEPT_RETRY_S = 0.2
"""After a connection that could not be accepted: with no descriptor left, the next one cannot be either."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where and with which key a lane reaches its driver."""

    host: str
    port: int
    key: bytes

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"  # the key stays out of logs


@dataclass(frozen=True, slots=True)
class Hello:
    """A lane's first message: which lane, and which process runs it."""

    lane: int
    launch: int
    """Which launch of the lane by the supervisor: 1 for the first."""
    task_attempt: int
    """Spark's own attempt number within the launch: 0 for the first."""
    pid: int
    parent_pid: int
    host: str


@dataclass(frozen=True, slots=True)
class Go:
    """Join the group, and begin with this."""

    changes: tuple[Change, ...] = ()
    shows: ResultsRule | None = None
    """What user code in the driver is to see; None: nothing."""
    report_s: float = REPORT_S
    """Send a snapshot so often."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Do this while you run."""

    number: int
    what: Request


@dataclass(frozen=True, slots=True)
class Answer:
    """It is done, or could not be."""

    number: int
    value: Value = None
    failure: LaneFailure | None = None


@dataclass(frozen=True, slots=True)
class Show:
    """Results, by the numbers that their lane gave them."""

    results: tuple[tuple[int, bytes], ...]
    """Each pickled alone: one that cannot be loaded is the failure of its record."""


@dataclass(frozen=True, slots=True)
class Void:
    """These are not wanted any more: their partitions were given up, or they run again."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """User code got on with what the lane has shown and told."""

    settled: tuple[tuple[int, LaneFailure | NotRun | None], ...] = ()
    """What became of results, as `keylane.consumer.outputs.ResultsMoved` has it."""
    passed: int = 0
    """Results that wait no more."""
    heard: int = 0
    """How many `Told` it has heard of."""


Ships: TypeAlias = "Show | Void | Told"
"""What user code in the driver is to see."""
Order: TypeAlias = Go | Ask | Moved | Literal["stop", "left"]
FROM_LANES = (Report, Answer, Show, Void, Told)
FROM_DRIVER = (Go, Ask, Moved, str)


class UnreadableMessageError(ConnectionError):
    """What the other end said is no message of this channel."""


def read_message(data: bytes, kinds: tuple[type, ...]) -> Any:
    """One message, of these kinds. Its sender has proved the key. Raises `UnreadableMessageError` for anything else,
    whatever it does when it is unpickled: another keylane may have sent it."""
    try:
        said = pickle.loads(data)
    except Exception as error:
        raise UnreadableMessageError(f"it cannot be unpickled: {short_class_of(error)}") from error
    if type(said) not in kinds:
        raise UnreadableMessageError(f"it is {kind_of(said)}, and no message of lanes")
    return said


class Messages:
    """Cuts the bytes that a socket brings into the messages that a `Connection` sent at its other end. Pure."""

    def __init__(self) -> None:
        self._held = bytearray()

    def take(self, received: bytes) -> list[bytes]:
        """The messages that end in these bytes."""
        self._held += received
        found = []
        at = 0
        while (span := self._next(at)) is not None:
            begin, at = span
            found.append(bytes(self._held[begin:at]))
        del self._held[:at]
        return found

    def _next(self, at: int) -> tuple[int, int] | None:
        """Where the message lies whose length stands here, if all of it is here."""
        begin = at + LENGTH.size
        if begin > len(self._held):
            return None
        (length,) = LENGTH.unpack_from(self._held, at)
        if length < 0:
            at, begin = begin, begin + LONG_LENGTH.size
            if begin > len(self._held):
                return None
            (length,) = LONG_LENGTH.unpack_from(self._held, at)
        return (begin, begin + length) if begin + length <= len(self._held) else None


class DriverEnd:
    """The driver's end of one lane's socket. `send` is for any thread, receiving for the one of all sockets."""

    def __init__(self, connection: Connection[Any, Any], hello: Hello) -> None:
        self.hello = hello
        self.last_heard = time.monotonic()
        self._connection = connection
        self._messages = Messages()
        self._heard = Heard()
        self._writable = select.poll()
        self._writable.register(connection, select.POLLOUT)
        self._lock = threading.Lock()  # a descriptor must not be closed, and used anew, in the middle of a send

    def __str__(self) -> str:
        return f"lane {self.hello.lane} (process {self.hello.pid} on {self.hello.host})"

    def send(self, order: Order) -> None:
        """Sends an order. A socket that is gone is not an error here: the receiving thread reports it."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.send(order)

    def offer(self, order: Moved | Literal["left"]) -> bool:
        """Sends an order, unless the lane does not keep up; whether it was sent. For callers that must not wait."""
        with self._lock:
            if self._connection.closed or not self._writable.poll(0):
                return False
            with contextlib.suppress(OSError):
                self._connection.send(order)
            return True

    def fileno(self) -> int:
        """For a selector."""
        return self._connection.fileno()

    def receive(self) -> list[Snapshot | Answer | Ships]:
        """What the lane has said, as far as it is whole here; for a socket that has something to read. Raises `OSError`
        or `EOFError` when it is closed."""
        received = os.read(self._connection.fileno(), MOST_AT_ONCE)
        if not received:
            raise EOFError
        self.last_heard = time.monotonic()
        said = [read_message(one, FROM_LANES) for one in self._messages.take(received)]
        return [self._heard.take(one) if isinstance(one, Report) else one for one in said]

    def close(self) -> None:
        with self._lock:
            self._connection.close()


@dataclass(frozen=True, slots=True)
class Arrived:
    """A lane connected."""

    end: DriverEnd


@dataclass(frozen=True, slots=True)
class Reported:
    """A lane reported: the snapshot as it is now, the same one when nothing is other."""

    end: DriverEnd
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Answered:
    """A lane answered what it was asked."""

    end: DriverEnd
    answer: Answer


@dataclass(frozen=True, slots=True)
class Shipped:
    """A lane has something for user code in the driver."""

    end: DriverEnd
    what: Ships


@dataclass(frozen=True, slots=True)
class Departed:
    """A lane's socket is closed: its process has ended, or can no longer be heard."""

    end: DriverEnd


SocketEvent = Arrived | Reported | Answered | Shipped | Departed


class DriverSocket:
    """Listens for lanes and hands over what they send, as `SocketEvent`s, from one thread for all of them.

    Each new connection has a thread of its own until it has proved the key.
    """

    def __init__(self, bind: str, advertise: str, key: bytes, deliver: Callable[[SocketEvent], None]) -> None:
        self._server = socket.create_server((bind, 0), backlog=CONNECTIONS_THAT_WAIT)
        self._server.setblocking(False)
        self.address = Address(advertise, self._server.getsockname()[1], key)
        self._deliver = deliver
        self._proved: queue.SimpleQueue[DriverEnd] = queue.SimpleQueue()
        """Those that the thread has not let in yet."""
        self._lock = threading.Lock()
        self._closed = False
        """Written under the lock: nothing is put into `_proved` after it."""
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="keylane-lanes-sockets", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes the listener and every lane's socket. Lanes that still run take it for the driver's end."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._wake_up()
        self._thread.join()
        self._wake.close()  # not by the thread, which may end before it is woken
        self._woken.close()

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has enough to wake for
            self._wake.send(b"!")

    def _serve(self) -> None:
        ends: set[DriverEnd] = set()
        with selectors.DefaultSelector() as ready, self._server:
            ready.register(self._server, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in ready.select():
                    source: Any = key.fileobj
                    if source is self._server:
                        for _ in range(ACCEPTED_AT_ONCE):
                            if not self._accept():
                                break
                    elif source is self._woken:
                        self._woken.recv(MOST_AT_ONCE)
                    elif not self._hear(source):
                        ready.unregister(source)
                        ends.remove(source)
                        self._depart(source)
                while not self._proved.empty():
                    end = self._proved.get()
                    ends.add(end)
                    ready.register(end, selectors.EVENT_READ)
                    self._deliver(Arrived(end))
                time.sleep(len(ends) * HEAR_A_LANE_S)
        for end in ends:
            self._depart(end)

    def _accept(self) -> bool:
        """Whether somebody came, and another one may wait."""
        try:
            accepted, peer = self._server.accept()
        except BlockingIOError:
            return False
        except OSError as error:  # descriptors ran out, most likely: lanes wait, too, or this would be all that runs
            logger.warning("a lane's connection was not accepted: %r", error)
            time.sleep(ACCEPT_RETRY_S)
            return False
        threading.Thread(target=self._admit, args=(accepted, peer), name="keylane-lane-socket", daemon=True).start()
        return True

    def _admit(self, accepted: socket.socket, peer: object) -> None:
        """One thread for each new connection: its end proves the key, and says hello."""
        try:
            connection = _authenticated(accepted, self.address.key, first=deliver_challenge, then=answer_challenge)
        except Exception as error:  # of `multiprocessing`, which asserts and decodes what strangers send
            told = logged_line_of(error)
            logger.warning("refused a connection from %s that did not prove the query's key: %s", peer, told)
            return
        try:
            end = DriverEnd(connection, read_message(connection.recv_bytes(), (Hello,)))
        except (OSError, EOFError) as error:
            logger.warning("refused a connection from %s that did not say which lane it is: %r", peer, error)
            connection.close()
            return
        with self._lock:
            if not self._closed:
                self._proved.put(end)
                self._wake_up()
                return
        end.close()

    def _hear(self, end: DriverEnd) -> bool:
        """Whether the lane can be heard further."""
        try:
            for message in end.receive():
                self._deliver(_event(end, message))
        except UnreadableMessageError as error:  # one lane's message must not end the thread of all
            logger.error("what %s said cannot be taken (%s): its socket is closed", end, error)  # noqa: TRY400 - ours
            return False
        except (OSError, EOFError) as error:
            logger.debug("lane %d's socket is closed: %r", end.hello.lane, error)
            return False
        except Exception:  # as above: a report that does not follow the one before
            logger.exception("what %s said cannot be taken: its socket is closed", end)
            return False
        return True

    def _depart(self, end: DriverEnd) -> None:
        end.close()
        self._deliver(Departed(end))


def _event(end: DriverEnd, message: Snapshot | Answer | Ships) -> SocketEvent:
    if isinstance(message, Snapshot):
        return Reported(end, message)
    return Answered(end, message) if isinstance(message, Answer) else Shipped(end, message)


class LaneEnd:
    """The lane's end of its socket. `receive` is for one thread at a time, sending for any."""

    def __init__(self, address: Address, hello: Hello) -> None:
        """Connects and says hello. Raises `PeerError` when the driver cannot be reached."""
        try:
            connected = socket.create_connection((address.host, address.port), timeout=CONNECT_TIMEOUT_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENT_PEER_TIMEOUT_S * 1000))
            self._connection = _authenticated(connected, address.key, first=answer_challenge, then=deliver_challenge)
            self._writable = select.poll()
            self._writable.register(self._connection, select.POLLOUT)
            self._sending = threading.Lock()
            self._sent = Sent()
            self._connection.send(hello)
        except Exception as error:  # as at the other end
            raise PeerError(
                f"lane {hello.lane} on {hello.host} does not reach its driver at {address.host}:{address.port} "
                f"({line_of(error)}): executors must be able to connect to the driver's host (spark.driver.host)"
            ) from error

    def receive(self, timeout_s: float) -> Order | None:
        """The driver's next order, or None after the timeout. Raises `ConnectionError` when the driver is gone."""
        try:
            if not self._connection.poll(timeout_s):
                return None
            order: Order = read_message(self._connection.recv_bytes(), FROM_DRIVER)
        except (OSError, EOFError) as error:
            raise ConnectionError(f"the driver is gone: {error!r}") from error
        return order

    def send(self, snapshot: Snapshot) -> None:
        """Reports a snapshot, unless the driver does not keep up: what is new in it is in the next report then. For one
        thread at a time."""
        if self._writable.poll(0):
            self.post(self._sent.report(snapshot))

    def post(self, message: Report | Answer | Ships) -> None:
        """Sends a message that must not be left out: it may have to wait for the driver."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError as error:
            raise ConnectionError(f"the driver is gone: {error!r}") from error

    def close(self) -> None:
        self._connection.close()


def _authenticated(
    plain: socket.socket, key: bytes, *, first: Callable[[Any, bytes], None], then: Callable[[Any, bytes], None]
) -> Connection[Any, Any]:
    """A connection over this socket once both ends have proved the key, within `HANDSHAKE_TIMEOUT_S` a message."""
    plain.setblocking(True)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _receive_timeout(plain, HANDSHAKE_TIMEOUT_S)
    connection: Connection[Any, Any] = Connection(plain.detach())
    try:
        first(connection, key)
        then(connection, key)
        with _socket_of(connection) as view:
            _receive_timeout(view, 0)
    except BaseException:
        connection.close()
        raise
    return connection


def _receive_timeout(plain: socket.socket, seconds: float) -> None:
    """Sets the kernel's own limit, because `Connection` reads the descriptor itself. 0 is no limit."""
    whole = int(seconds)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", whole, int((seconds - whole) * 1e6)))


@contextlib.contextmanager
def _socket_of(connection: Connection[Any, Any]) -> Iterator[socket.socket]:
    """The connection's descriptor as a socket; it stays the connection's to close."""
    view = socket.socket(fileno=connection.fileno())
    try:
        yield view
    finally:
        view.detach()
