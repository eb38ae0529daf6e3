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
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
from aiohttp.resolver import AsyncResolver

from keylane.errors import UsageError
from keylane.http.addresses import is_public

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import SimpleNamespace

    from aiohttp.connector import Connection

AT_ONCE = 256
"""Some tenths of a second of the loop's work."""
TURN_S = 1.0


class RefusedAddressError(OSError):
    """A connection to an address of one's own networks, which `refuse_private_addresses` forbids."""


class Deadline:
    """Of one request: it begins when the request has a place in the pool. Thread safety: its loop's."""

    __slots__ = ("_begun", "_timeout", "_timeout_s", "has_begun")

    def __init__(self, timeout_s: float, begun: Callable[[], None]) -> None:
        """`begun` is called when it begins."""
        self._timeout_s = timeout_s
        self._timeout = asyncio.timeout(None)
        self._begun = begun
        self.has_begun = False

    @property
    def timeout(self) -> asyncio.Timeout:
        """The context in which the request runs."""
        return self._timeout

    def begin(self) -> None:
        """The first connection that the request gets, or begins to make, starts the clock."""
        if not self.has_begun:
            self.has_begun = True
            self._begun()
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._timeout_s)


class Turns:
    """One pool's turns in making connections, and the beginnings of its requests. Thread safety: its loop's."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)
        self._taken: dict[int, asyncio.TimerHandle] = {}
        """By the identity of what aiohttp keeps for a request until it has ended; each ends the turn."""

    def of_a_session(self) -> aiohttp.TraceConfig:
        """For its `trace_configs`."""
        config = aiohttp.TraceConfig()
        config.on_connection_create_start.append(self._begin)
        config.on_connection_create_end.append(self._ended)
        config.on_request_exception.append(self._ended)
        config.on_connection_reuseconn.append(_begin_deadline)
        return config

    async def _begin(self, session: aiohttp.ClientSession, request: SimpleNamespace, params: object) -> None:
        await self._free.acquire()
        self._taken[id(request)] = asyncio.get_running_loop().call_later(TURN_S, self._give_away, id(request))
        await _begin_deadline(session, request, params)

    async def _ended(self, _session: aiohttp.ClientSession, request: SimpleNamespace, _params: object) -> None:
        if id(request) in self._taken:
            self._give_away(id(request))

    def _give_away(self, request: int) -> None:
        self._taken.pop(request).cancel()
        self._free.release()


async def _begin_deadline(_session: aiohttp.ClientSession, request: SimpleNamespace, _params: object) -> None:
    deadline = getattr(request, "trace_request_ctx", None)
    if isinstance(deadline, Deadline):
        deadline.begin()


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
    connector = aiohttp.TCPConnector(
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
        trace_configs=[Turns().of_a_session()],
    )
