"""`Upstream`: one connection to who answers requests in place of this server, made when the first one is sent.

The idea: whoever is asked answers in order, so answers find their requests without being read. A connection is made
once: when it ends, or cannot be made, `lost` says so, and nothing is sent again.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING

from keylane.broker.dispatch import SIZE_BYTES, FrameError, FrameReader
from keylane.kafka.link import request_frame
from keylane.kafka.login import LoginError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from keylane.kafka.login import Login
    from keylane.offset_servers.nodes import Address

    Greeting = Generator[tuple[int, int, bytes], bytes, None]
    """Key, version and body of each request; sent back is the body of its answer. Raises `LoginError`."""

CONNECT_S = 10.0
"""How long it may take to be connected and let in."""
MAX_ANSWER_BYTES = 2**31 - 1
SIZE = struct.Struct(">i")


class _Stream(asyncio.Protocol):
    """The bytes of a connection, as whole answers."""

    def __init__(self, answered: Callable[[bytes], None], lost: Callable[[_Stream, str], None]) -> None:
        self._answered = answered
        self._lost = lost
        self._frames = FrameReader(MAX_ANSWER_BYTES, min_frame_bytes=SIZE_BYTES)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._answered(frame)
        except FrameError as error:
            self._lost(self, str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self, str(exc or "it has closed the connection"))


class Upstream:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        addresses: Callable[[], Sequence[Address]],
        login: Login,
        greet: Callable[[], Greeting],
        lost: Callable[[str], None],
    ) -> None:
        """`addresses`: of which the first one is taken that is there; `greet`: what is asked before anything else;
        `lost` is called once, unless `close` was."""
        self._addresses = addresses
        self._tls = login.tls
        self._greet = greet
        self._lost = lost
        self._expected: deque[Callable[[bytes], None]] = deque()
        self._unsent: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None
        self._stream: _Stream | None = None
        self._transport: asyncio.Transport | None = None
        self._greeting: asyncio.Future[bytes] | None = None
        """What answers while this server is let in."""
        self.is_open = False
        """Whether what `send` was given is on its way."""
        self._is_closed = False

    def send(self, frame: bytes, answered: Callable[[bytes], None] | None) -> None:
        """A request's frame, without its size; `answered` takes its answer's. None: no answer is due."""
        if answered is not None:
            self._expected.append(answered)
        whole = SIZE.pack(len(frame)) + frame
        if self.is_open and self._transport is not None:
            self._transport.write(whole)
            return
        self._unsent.append(whole)
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def pause(self) -> None:
        """Take no more answers for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Nobody waits any more."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()

    async def _connect(self) -> None:
        reason = "nobody is known who could be asked"
        for address in self._addresses():
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._begin(address)
            except (OSError, LoginError, TimeoutError) as error:
                reason = f"{address[0]}:{address[1]}: {error or f'no connection within {CONNECT_S:g} s'}"
                self._hang_up()
            else:
                return
        self._end(reason)

    async def _begin(self, address: Address) -> None:
        """Connect, be let in, and send what waits. Raises `OSError` and `LoginError`."""
        self._transport, self._stream = await asyncio.get_running_loop().create_connection(
            lambda: _Stream(self._answered, self._is_lost),
            *address,
            ssl=self._tls,
            server_hostname=None if self._tls is None else address[0],
        )
        await self._be_let_in(self._transport)
        self.is_open = True
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    async def _be_let_in(self, transport: asyncio.Transport) -> None:
        steps = self._greet()
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
            if not self._greeting.done():
                self._greeting.set_result(frame[SIZE_BYTES:])
        elif self._expected:
            self._expected.popleft()(frame)
        else:
            self._end("it answers what nobody has asked")

    def _is_lost(self, stream: _Stream, reason: str) -> None:
        """A connection has ended, perhaps an earlier one."""
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(ConnectionError(reason))
        elif self.is_open and stream is self._stream:
            self._end(reason)

    def _hang_up(self) -> None:
        """Of a connection that did not come about: another address may have one."""
        if self._transport is not None:
            self._transport.close()
        self._transport = self._stream = self._greeting = None

    def _end(self, reason: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()
        self._lost(reason)
