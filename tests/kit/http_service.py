"""`Service`: an HTTP server that a test tells what to answer."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable


class Service:
    """A server on a free port, on a thread of its own. Every path is answered as `answer` says; calls are counted."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._tls = tls
        self._host = host
        self.answer: Callable[[web.Request, int], Any] = lambda *_: web.Response(text="ok")
        """From the request, and how often its path was asked before, to a response, or something that is awaited."""
        self.asked: defaultdict[str, int] = defaultdict(int)
        self.inside = self.most = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="service")

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        before = self.asked[request.path]
        self.asked[request.path] += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            answer = self.answer(request, before)
            response = await answer if asyncio.iscoroutine(answer) else answer
        finally:
            self.inside -= 1
        assert isinstance(response, web.StreamResponse)
        return response

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, 0, ssl_context=self._tls)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
