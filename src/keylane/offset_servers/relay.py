"""Requests that a broker of the log's cluster answers: passed on unchanged, in order, on a connection of their own.

The idea: each client's connection has one to its broker, made for the first request that is passed on. A broker answers
in order, so answers find their requests without being read; those with addresses in them are written anew. When either
connection ends, so does the other: to the client it looks as if its broker had ended it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.dispatch import SIZE_BYTES, FrameError, FrameReader, MalformedRequestError
from keylane.kafka.link import login_requests, request_frame
from keylane.kafka.login import LoginError
from keylane.wire.primitives import FieldError, FieldReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keylane.kafka.login import Login
    from keylane.offset_servers.nodes import Address

logger = logging.getLogger("keylane.offsets")

CONNECT_S = 10.0
"""How long a broker may take to be connected and to let this server in."""
MAX_ANSWER_BYTES = 2**31 - 1
PRODUCE = 0
FLEXIBLE_PRODUCE = 9
TRANSACTIONAL_PRODUCE = 3
_KEY_AND_VERSION = struct.Struct(">hh")
_SIZE = struct.Struct(">i")

Told = "Callable[[list[bytes] | None], None]"


class Passed(NamedTuple):
    """An API whose requests are passed on."""

    name: str
    first: int
    last: int
    rewrite: Callable[[int, bytes], bytes] | None = None
    """An answer's frame of a version, with our nodes in place of the brokers'."""
    applies: Callable[[bytes], bool] | None = None
    """Whether this request is passed on; None: each is."""


class _Expected(NamedTuple):
    """An answer that is due."""

    told: Callable[[list[bytes] | None], None]
    version: int
    rewrite: Callable[[int, bytes], bytes] | None


class _Upstream(asyncio.Protocol):
    """The bytes of a broker's connection, as whole answers."""

    def __init__(self, answered: Callable[[bytes], None], lost: Callable[[str], None]) -> None:
        self._answered = answered
        self._lost = lost
        self._frames = FrameReader(MAX_ANSWER_BYTES, min_frame_bytes=SIZE_BYTES)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._answered(frame)
        except FrameError as error:
            self._lost(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(str(exc or "it has closed the connection"))


class Relay:
    """Of one client's connection."""

    def __init__(
        self,
        passed: Mapping[int, Passed],
        brokers: Callable[[], Sequence[Address]],
        login: Login,
        close: Callable[[], None],
    ) -> None:
        """`brokers`: who may answer, the first one that is there; `close` ends the client's connection."""
        self._passed = passed
        self._brokers = brokers
        self._login = login
        self._close = close
        self._expected: deque[_Expected] = deque()
        self._unsent: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._greeting: asyncio.Future[bytes] | None = None
        """What answers while this server logs in."""
        self._is_open = False
        self._is_closed = False

    def takes(self, frame: bytes) -> bool:
        """Whether this request is to be passed on. Raises `MalformedRequestError` for a version that is not offered."""
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        api = self._passed.get(key)
        if api is None or (api.applies is not None and not api.applies(frame)):
            return False
        if not api.first <= version <= api.last:
            raise MalformedRequestError(
                f"{api.name} version {version} is not offered by this server, which takes {api.first} to {api.last}"
            )
        return True

    def send(self, frame: bytes, told: Callable[[list[bytes] | None], None]) -> None:
        """Pass it on; `told` takes the answer's whole frame in parts, or None when none is due."""
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        if key == PRODUCE and not _wants_answer(frame, version):
            told(None)
        else:
            self._expected.append(_Expected(told, version, self._passed[key].rewrite))
        whole = _SIZE.pack(len(frame)) + frame
        if self._is_open and self._transport is not None:
            self._transport.write(whole)
            return
        self._unsent.append(whole)
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def pause(self) -> None:
        """The client takes no more for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """The client is gone."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()

    async def _connect(self) -> None:
        reason = "no broker of the log's cluster is known"
        for address in self._brokers():
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._begin(address)
            except (OSError, LoginError, TimeoutError) as error:
                reason = f"{address[0]}:{address[1]}: {error or f'no connection within {CONNECT_S:g} s'}"
            else:
                return
        self._lost(reason)

    async def _begin(self, address: Address) -> None:
        """Connect, log in, and send what waits. Raises `OSError` and `LoginError`."""
        is_tls = self._login.tls is not None
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: _Upstream(self._answered, self._lost),
            *address,
            ssl=self._login.tls,
            server_hostname=address[0] if is_tls else None,
        )
        self._transport = transport
        await self._log_in(transport)
        self._is_open = True
        transport.write(b"".join(self._unsent))
        self._unsent.clear()

    async def _log_in(self, transport: asyncio.Transport) -> None:
        steps = login_requests(self._login)
        answer: bytes | None = None
        for number in range(1, 2**31):
            try:
                request = next(steps) if answer is None else steps.send(answer)
            except StopIteration:
                return
            self._greeting = asyncio.get_running_loop().create_future()
            transport.write(request_frame(*request, correlation_id=number))
            answer = await self._greeting
            self._greeting = None

    def _answered(self, frame: bytes) -> None:
        if self._greeting is not None:
            self._greeting.set_result(frame[SIZE_BYTES:])
            return
        if not self._expected:
            self._lost("it answers what nobody has asked")
            return
        told, version, rewrite = self._expected.popleft()
        if rewrite is not None:
            frame = rewrite(version, frame)
        told([_SIZE.pack(len(frame)), frame])

    def _lost(self, reason: str) -> None:
        """The broker's connection is gone, and with it the client's."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(ConnectionError(reason))
        if self._expected or not self._is_open:
            logger.info("a connection to a broker of the log's cluster ends: %s", reason)
        if self._transport is not None:
            self._transport.close()
        self._close()


def _wants_answer(frame: bytes, version: int) -> bool:
    """Whether a Produce asks for an acknowledgement. Raises `MalformedRequestError`."""
    reader = FieldReader(frame, 8)
    try:
        reader.nullable_string()  # the client's id
        reader.is_flexible = version >= FLEXIBLE_PRODUCE
        reader.skip_tags()
        if version >= TRANSACTIONAL_PRODUCE:
            reader.nullable_string()
        return reader.int16() != 0
    except FieldError as error:
        raise MalformedRequestError(f"produce version {version} cannot be read: {error}") from error
