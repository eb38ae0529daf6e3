"""`session`: the connections of a worker process, what they cost each other, and whom they may reach.

The idea: a call pays for its own time alone. Its deadline begins when it has a place in the pool; few connections are
made at once; names are resolved without threads, and each look-up has its own end; and nothing that one answer brings
(a cookie, a redirect) is kept for the next call.

Thousands of requests that start together would all make their connections in the same turns of the loop, so that each
takes as long as all of them, and `connect_timeout_ms` would count that as the network's time. A connection that waits
for the network gives its turn away, so that a host which does not answer holds nobody up.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
from aiohttp.resolver import AsyncResolver

from keylane.errors import UsageError
from keylane.http.addresses import is_public

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.connector import Connection

AT_ONCE = 256
"""Some tenths of a second of the loop's work."""
TURN_S = 1.0


class RefusedAddressError(OSError):
    """A connection to an address of one's own networks, which `refuse_private_addresses` forbids."""


class Deadline:
    """Of one request: it begins when the request has a place in the pool. Thread safety: its loop's."""

    __slots__ = ("_begun", "_timeout_s", "has_begun", "timeout")

    def __init__(self, timeout_s: float, begun: Callable[[], None]) -> None:
        """Of the requests that this task makes from now on. `begun` is called when it begins."""
        self._timeout_s = timeout_s
        self.timeout = asyncio.timeout(None)
        """The context in which the request runs."""
        self._begun = begun
        self.has_begun = False
        _CURRENT.set(self)

    def begin(self) -> None:
        """The first connection that the request gets, or begins to make, starts the clock."""
        if not self.has_begun:
            self.has_begun = True
            self._begun()
            self.timeout.reschedule(asyncio.get_running_loop().time() + self._timeout_s)


_CURRENT: ContextVar[Deadline] = ContextVar("deadline")


def _begin_deadline() -> None:
    """Of the request for which this task asks for a connection."""
    deadline = _CURRENT.get(None)
    if deadline is not None:
        deadline.begin()


class _Turn:
    """Of one connection that is made: it ends with that, and after `TURN_S`. Thread safety: its loop's."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(TURN_S, self.end)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._free.release()


class _Connector(aiohttp.TCPConnector):
    """Begins a request's deadline where it gets a connection, and makes a few connections at once. It stands in
    aiohttp's way at two methods: its tracing, which tells the same, takes an eighth of a call's time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._free = asyncio.Semaphore(AT_ONCE)

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Connection:  # noqa: ASYNC109 - aiohttp's signature
        connection = await super().connect(req, traces, timeout)
        _begin_deadline()
        return connection

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109 - and here
        await self._free.acquire()
        turn = _Turn(self._free)
        try:
            _begin_deadline()
            return await super()._create_connection(req, traces, timeout)
        finally:
            turn.end()


class SpoiledConnectionError(aiohttp.ClientConnectionError):
    """Something came over a kept connection that answers no request of ours, such as a proxy's 408 to its silence.
    Nothing was sent over it."""


class _OwnRequest(aiohttp.ClientRequest):
    """A request that is sent only where the next answer is its own: aiohttp would take for it what came before."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        protocol = conn.protocol
        if protocol is not None and protocol.should_close:
            raise SpoiledConnectionError("the kept connection holds what answers no request")
        return await super().send(conn)


class Resolver(AsyncResolver):
    """c-ares on the loop's own sockets: no thread is shared with anybody, and a silent name server ends by itself."""

    def __init__(self, timeout_s: float, **options: Any) -> None:
        """`options`: c-ares' own."""
        super().__init__(timeout=max(timeout_s / 3, 0.1), tries=2, **options)
        self._timeout_s = timeout_s

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await super().resolve(host, port, family)
        except TimeoutError:
            raise OSError(None, f"its name was not resolved within {self._timeout_s:g} s") from None


def _public_socket(address: tuple[Any, ...]) -> socket.socket:
    """The socket for a connection to this address, unless it is in a network of one's own. Here, at the connection:
    a name may lead anywhere, and to another place at each look-up."""
    family, kind, protocol, _, place = address
    if not is_public(place[0]):
        raise RefusedAddressError("its address is in a network of one's own (refuse_private_addresses)")
    return socket.socket(family=family, type=kind, proto=protocol)


def tls_context(
    ca_file: str | None, certificate_file: str | None, key_file: str | None
) -> ssl.SSLContext | Literal[True]:
    """How servers are verified, and how this client names itself. Raises `UsageError` for files that cannot be used."""
    if ca_file is None and certificate_file is None:
        return True
    named = f"ca_file={ca_file!r}"
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate_file is not None:
            named = f"certificate_file={certificate_file!r}, key_file={key_file!r}"
            context.load_cert_chain(certificate_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{named}: {error}: give PEM files that can be read") from error
    return context


def session(
    connect_s: float, limit: int, limit_per_host: int, tls: ssl.SSLContext | Literal[True], *, public_only: bool
) -> aiohttp.ClientSession:
    """A connection pool. `connect_s` is for a name and again for a connection; the limits are of connections, 0 is
    none; `public_only`: no connection to one's own networks. Needs a running loop."""
    connector = _Connector(
        limit=limit,
        limit_per_host=limit_per_host,
        resolver=Resolver(connect_s),
        ssl=tls,
        socket_factory=_public_socket if public_only else None,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        request_class=_OwnRequest,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
    )
