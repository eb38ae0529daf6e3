"""One connection to a broker for APIs that librdkafka does not have: a question, then its answer, in Kafka's frames."""

from __future__ import annotations

import select
import socket
import ssl
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.kafka.login import Login, LoginError, exchange

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE = 17, 18, 36
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 0
_HEADER = struct.Struct(">hhi")
_OFFERED = struct.Struct(">hhh")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_CLIENT_ID = b"\0\7keylane"


class Link:
    """Connected and logged in when it is made. Raises `OSError` for whatever goes wrong on the way, and `LoginError`.

    Thread safety: one thread at a time.
    """

    def __init__(self, address: tuple[str, int], login: Login, timeout_s: float) -> None:
        self._correlation_id = 0
        self._answered_id = 0
        self._socket = socket.create_connection(address, timeout_s)
        try:
            if login.tls is not None:
                self._socket = login.tls.wrap_socket(self._socket, server_hostname=address[0])
            self._log_in(login)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def is_closed_by_peer(self) -> bool:
        """Whether there is something to read where no answer is due: the end of the stream."""
        timeout_s = self._socket.gettimeout()
        self._socket.setblocking(False)
        try:
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        else:
            return True
        finally:
            self._socket.settimeout(timeout_s)

    def wait_at_most(self, timeout_s: float) -> None:
        """For each part of an answer, from now on."""
        self._socket.settimeout(timeout_s)

    def ask(self, key: int, version: int, body: bytes) -> bytes:
        """Send one request (with header version 1); the body of its answer. Raises `OSError`."""
        self.send(key, version, body)
        return self.receive()

    def send(self, key: int, version: int, body: bytes) -> None:
        """Send one request; its answer comes behind those of all before. Raises `OSError`."""
        self._correlation_id += 1
        self._socket.sendall(request_frame(key, version, body, correlation_id=self._correlation_id))

    def receive(self) -> bytes:
        """The body of the next answer. Raises `OSError`."""
        self._answered_id += 1
        (size,) = _I32.unpack(self._read(_I32.size))
        answer = self._read(size)
        if size < _I32.size or answer[: _I32.size] != _I32.pack(self._answered_id):
            raise ConnectionError("the broker answered something else")
        return answer[_I32.size :]

    def has_answer(self, timeout_s: float, other: socket.socket) -> bool:
        """Wait until an answer begins to arrive, or `other` has something to read, or so long; whether it is the
        answer."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        readable, _, _ = select.select([self._socket, other], [], [], timeout_s)
        return self._socket in readable

    def offers(self, key: int, version: int) -> bool:
        """Whether the broker lists this version of an API in ApiVersions. Raises `OSError`."""
        first, last = self.offered().get(key, (0, -1))
        return first <= version <= last

    def offered(self) -> dict[int, tuple[int, int]]:
        """The oldest and the newest version of each API, by key. Raises `OSError`."""
        rows = _OFFERED.iter_unpack(self.ask(_API_VERSIONS, 0, b"")[_I16.size + _I32.size :])
        return {key: (first, last) for key, first, last in rows}

    def _log_in(self, login: Login) -> None:
        requests = login_requests(login)
        with suppress(StopIteration):
            request = next(requests)
            while True:
                request = requests.send(self.ask(*request))

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return bytes(data)


def request_frame(key: int, version: int, body: bytes, *, correlation_id: int) -> bytes:
    """A request with header version 1, and its size before it."""
    message = _HEADER.pack(key, version, correlation_id) + _CLIENT_ID + body
    return _I32.pack(len(message)) + message


def login_requests(login: Login) -> Generator[tuple[int, int, bytes], bytes, None]:
    """Key, version and body of the requests that log in, each sent when the body of the answer to the one before is
    there; none without SASL. Raises `LoginError`."""
    if login.mechanism is None:
        return
    mechanism = login.mechanism.encode()
    answer = yield _SASL_HANDSHAKE, _HANDSHAKE_VERSION, _I16.pack(len(mechanism)) + mechanism
    if _I16.unpack_from(answer)[0] != 0:
        raise LoginError(f"the broker does not take {login.mechanism}: set another one as sasl.mechanisms")
    messages = exchange(login)
    message = next(messages)
    with suppress(StopIteration):
        while True:
            answer = yield _SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, _I32.pack(len(message)) + message
            message = messages.send(_authenticated(answer))


def address_of(text: str, name: str = "bootstrap.servers") -> tuple[str, int]:
    """Host and port; `name` is what gave them. Raises `UsageError`."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{name} {text!r}: give HOST:PORT, or several with commas")
    return host.strip("[]"), int(port)


def addresses_of(settings: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Host and port of each bootstrap server. Raises `UsageError`."""
    return addresses_in(str(settings.get("bootstrap.servers", "")), "bootstrap.servers")


def addresses_in(text: str, name: str) -> list[tuple[str, int]]:
    """Host and port of each server in a list with commas; `name` is what gave it. Raises `UsageError`."""
    return [address_of(one, name) for one in text.split(",")]


def _authenticated(answer: bytes) -> bytes:
    """The broker's message. Raises `LoginError` with its words."""
    error, size = _I16.unpack_from(answer)[0], _I16.unpack_from(answer, 2)[0]
    at = 4 + max(size, 0)
    if error != 0:
        raise LoginError(f"the broker refuses the login: {answer[4:at].decode(errors='replace') or error}")
    return answer[at + _I32.size : at + _I32.size + _I32.unpack_from(answer, at)[0]]
