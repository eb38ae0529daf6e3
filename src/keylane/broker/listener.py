"""`Listener`: accepts connections while there are descriptors for them, and keeps a share of these for files.

The idea: a connection that says nothing costs a descriptor as one that works, and a broker without descriptors can
open no segment. So connections have two thirds of what the process may open. Above that, those that never sent a
request make room, the oldest first; where there are none, nobody is accepted until somebody leaves.
"""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from keylane.telling import logger_of

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable

logger = logger_of("keylane.broker")

BACKLOG = 1_024
"""Connections that the system keeps until they are accepted."""
AT_ONCE = 64
"""Connections accepted in one turn of the loop."""
FILES_SHARE = 1 / 3
"""Of the descriptors, kept for files."""
TLS_HANDSHAKE_TIMEOUT_S = 10.0
TRY_AGAIN_S = 1.0
"""After the system had no descriptor or memory for a connection."""
TOLD_EVERY_S = 60.0

_NONE_LEFT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def most_connections() -> int:
    """How many connections there may be beside the files, by the limit of the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, int(limit * (1 - FILES_SHARE)))


class Listener:
    """The listening sockets of one server. Thread safety: its loop's."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        new_connection: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        make_room: Callable[[], bool],
    ) -> None:
        """`make_room` ends a connection that never sent a request, and says whether there was one."""
        self._loop = loop
        self._new_connection = new_connection
        self._tls = tls
        self._make_room = make_room
        self._sockets: list[socket.socket] = []
        self._is_accepting = False
        self._count = 0
        """Accepted connections that are not lost yet."""
        self._most = most_connections()
        self._handshakes: set[asyncio.Task[object]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._told_at: float | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen on each address of the host; the first one. Raises `OSError` when the port is in use."""
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._sockets.append(_listening(family, address))
        except OSError:
            self.stop()
            raise
        self._accept_again()
        address = self._sockets[0].getsockname()
        return address[0], address[1]

    def stop(self) -> None:
        """Accept nobody any more, and give up handshakes that are under way."""
        self._pause()
        if self._again is not None:
            self._again.cancel()
        for one in self._sockets:
            one.close()
        self._sockets = []
        for task in self._handshakes:
            task.cancel()

    def left(self) -> None:
        """A connection is lost."""
        self._count -= 1
        self._go_on()

    def _go_on(self) -> None:
        """There may be room now, where there was none."""
        if not self._is_accepting and self._again is None and self._sockets:
            self._accept_again()

    def _accept_again(self) -> None:
        self._again = None
        self._is_accepting = True
        for one in self._sockets:
            self._loop.add_reader(one.fileno(), self._accept, one)

    def _pause(self) -> None:
        self._is_accepting = False
        for one in self._sockets:
            self._loop.remove_reader(one.fileno())

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if self._count >= self._most:
                self._tell(f"{self._count} connections: the other descriptors of the process are kept for files")
                if not self._make_room():
                    self._pause()
                    return
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NONE_LEFT:
                    raise
                self._tell(f"no connection is accepted for {TRY_AGAIN_S:.0f} s: {error.strerror}")
                self._pause()
                self._again = self._loop.call_later(TRY_AGAIN_S, self._accept_again)
                return
            accepted.setblocking(False)
            self._count += 1
            task = self._loop.create_task(self._connect(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        """A connection from what was accepted; with TLS, once hands are shaken."""
        timeout = None if self._tls is None else TLS_HANDSHAKE_TIMEOUT_S
        is_connected = False
        try:
            with suppress(OSError, TimeoutError):  # a client that went away, or speaks no TLS
                await self._loop.connect_accepted_socket(
                    self._new_connection, accepted, ssl=self._tls, ssl_handshake_timeout=timeout
                )
                is_connected = True
                self._go_on()  # it can make room from now on, if it says nothing
        finally:
            if not is_connected:
                accepted.close()
                self.left()

    def _tell(self, what: str) -> None:
        now = self._loop.time()
        if self._told_at is None or now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            logger.warning(
                "%s (the process may have %d open); connections that never sent a request are closed first",
                what,
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    """What it accepts names its protocol as it does: only then does asyncio set TCP_NODELAY, without which a small
    answer may wait for 40 ms."""
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
