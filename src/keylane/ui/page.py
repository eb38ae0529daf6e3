"""`Page`: the page's server, on a thread of its own. Needs the extra `ui` (aiohttp)."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Self

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from keylane.errors import PeerError
from keylane.pipeline import Operations
from keylane.telling import logger_of
from keylane.ui.actions import Actions
from keylane.ui.guard import Guard
from keylane.ui.server import Server

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Sequence

    from keylane.kafka.admin import Admin
    from keylane.kafka.redriving import Settings
    from keylane.pipeline import Pipeline

CLOSE_S = 5.0
"""How long open connections may take to end."""
HEAD_S = 10.0
"""Within which a new connection has to send the head of a request."""
MOST_BEGUN = 256
"""Connections younger than that: above it the oldest that has sent nothing whole is ended."""
QUIET_S = 75.0
"""How long a connection may wait between two requests."""


class Page:
    """Serves the page while its `with` block runs. Port 0 takes a free one; `url` says where it is.

    `token` is that of the members: without it the page only shows. `hosts` are names that lead to the page, beside
    localhost and addresses; `pipelines` those whose deserializers show payloads. Raises `UsageError` for a token that
    is too short, `PeerError` when the port cannot be had. Thread safety: one thread.
    """

    def __init__(
        self,
        kafka: Settings,
        admin: Admin,
        *,
        token: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: Iterable[str] = (),
        pipelines: Sequence[Pipeline] = (),
    ) -> None:
        if token is not None:
            Operations(token=token)  # refused here as it is there
        guard = Guard(frozenset(name.lower() for name in hosts), token)
        self._server = Server(kafka, admin, Actions(kafka, admin, token, pipelines), guard)
        self._host, self._port = host, port
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="keylane-ui", daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self._host in ("0.0.0.0", "") else self._host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if isinstance(self._failure, OSError):
            self._thread.join()
            raise PeerError(
                f"the page cannot be served at {self._host}:{self._port}: {self._failure.strerror}; give another --port"
            ) from None
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # told by __enter__
            self._failure = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        runner = web.AppRunner(
            self._server.application(),
            access_log=None,
            logger=_http_log(),
            shutdown_timeout=CLOSE_S,
            keepalive_timeout=QUIET_S,
        )
        await runner.setup()
        assert runner.server is not None
        try:
            connections = Connections(runner.server, self._server.has_asked)
            listening = await self._loop.create_server(connections.new, self._host, self._port)
            self._port = listening.sockets[0].getsockname()[1]
            self._ready.set()
            await self._closing.wait()
            listening.close()
        finally:
            await runner.cleanup()


class Connections:
    """Makes connections, and ends those that send no whole request in time, which aiohttp would wait for."""

    def __init__(self, server: web.Server, has_asked: Callable[[asyncio.BaseTransport], bool]) -> None:
        self._server = server
        self._has_asked = has_asked
        self._begun: dict[web.RequestHandler, None] = {}
        """Those whose time is not over, in the order in which they came."""

    def new(self) -> asyncio.BaseProtocol:
        handler = self._server()
        self._begun[handler] = None
        loop = asyncio.get_running_loop()
        while len(self._begun) > MOST_BEGUN:
            oldest = next(iter(self._begun))
            del self._begun[oldest]
            loop.call_soon(self._end_if_silent, oldest)  # it may have been accepted in this very turn
        loop.call_later(HEAD_S, self._end_if_silent, handler)
        return handler

    def _end_if_silent(self, handler: web.RequestHandler) -> None:
        self._begun.pop(handler, None)
        transport = handler.transport
        if transport is not None and not self._has_asked(transport):
            transport.abort()


def _http_log() -> logging.Logger:
    """What aiohttp has to say, without the bytes that are no HTTP: their sender is told 400, and strangers do not fill
    the log with tracebacks."""
    logger = logger_of("keylane.ui.http")
    logger.addFilter(_is_ours)
    return logger


def _is_ours(line: logging.LogRecord) -> bool:
    return not (line.exc_info and isinstance(line.exc_info[1], HttpProcessingError))
