"""The page's HTTP: files, a stream of events for each page, and what is asked for once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING
from weakref import WeakSet

from aiohttp import web

from keylane.errors import KeylaneError, UsageError
from keylane.ui.guard import HEADERS
from keylane.ui.watch import Hub
from keylane.version import __version__

if TYPE_CHECKING:
    from keylane.desk import Report
    from keylane.kafka.admin import Admin
    from keylane.kafka.redriving import Settings
    from keylane.ui.actions import Actions
    from keylane.ui.guard import Guard

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ASKED_AT_ONCE = 6
"""Questions and commands that run at the same time; others wait."""
ALIVE_S = 10.0
"""A silent stream says that it is alive, so that proxies leave it open."""
BODY_S = 10.0
"""Within which a page has to send what it has begun to send."""
MOST_BYTES = 64 * 1024
"""Of what a page sends."""

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Server:
    """The application of one page."""

    def __init__(self, kafka: Settings, admin: Admin, actions: Actions, guard: Guard) -> None:
        self._kafka, self._admin, self._actions, self._guard = kafka, admin, actions, guard
        self._pool = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="keylane-ui-asks")
        self._files = {one.name: one.read_bytes() for one in (files("keylane.ui") / "static").iterdir()}
        self._hub: Hub | None = None
        self._asked: WeakSet[asyncio.BaseTransport] = WeakSet()
        """Connections on which a request has come."""

    def application(self) -> web.Application:
        """To be run by one loop, once."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guarded(request, handler)

        app = web.Application(middlewares=[guarded], client_max_size=MOST_BYTES)
        app.on_startup.append(self._begin)
        app.on_response_prepare.append(_add_headers)
        app.on_shutdown.append(self._end)
        ask, act = self._actions, self._acting
        app.add_routes(
            [
                web.get("/", self._file),
                web.get("/static/{name}", self._file),
                web.get("/api/about", self._about),
                web.get("/api/events", self._events),
                web.get("/api/topics", self._asking(lambda _: ask.topics())),
                web.get("/api/letters", self._asking(ask.letters)),
                web.get("/api/letter", self._asking(ask.letter)),
                web.post("/api/unlock", act(lambda _: {})),
                web.post("/api/payload", act(partial(ask.letter, payloads=True))),
                web.get("/api/record", self._asking(ask.record)),
                web.post("/api/record", act(partial(ask.record, payloads=True))),
                web.post("/api/operate", act(ask.operate)),
                web.post("/api/redrive", act(ask.redrive)),
                web.post("/api/purge", act(ask.purge)),
            ]
        )
        return app

    async def _begin(self, _: web.Application) -> None:
        self._hub = Hub(self._kafka, self._admin)

    async def _end(self, _: web.Application) -> None:
        if self._hub is not None:
            await self._hub.close()
        await asyncio.to_thread(self._pool.shutdown)  # what was asked for is done, or has told why not

    # --- every request ---

    def has_asked(self, transport: asyncio.BaseTransport) -> bool:
        """Whether a request has come on this connection."""
        return transport in self._asked

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.transport is not None:
            self._asked.add(request.transport)
        if (refusal := self._guard.refusal(request.method, request.path, request.headers)) is not None:
            return _refused(refusal.status, refusal.text)
        try:
            return await handler(request)
        except UnicodeEncodeError:
            return _refused(400, "the request holds text that UTF-8 cannot carry: a lone surrogate")
        except UsageError as error:
            return _refused(400, " ".join(str(error).split()))
        except KeylaneError as error:
            return _refused(502, " ".join(str(error).split()))

    def _asking(self, ask: Callable[[dict[str, str]], Report]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            return web.json_response(await self._in_pool(partial(ask, dict(request.query))))

        return handler

    def _acting(self, act: Callable[[Report], Report]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            try:
                async with asyncio.timeout(BODY_S):
                    body = json.loads(await request.read())
            except TimeoutError:
                return _refused(408, f"the rest of the request did not come in {BODY_S:.0f} s")
            except (ValueError, RecursionError):  # the latter: a thousand brackets and more
                raise UsageError("send one object of JSON") from None
            if not isinstance(body, dict):
                raise UsageError("send one object of JSON")
            return web.json_response(await self._in_pool(partial(act, body)))

        return handler

    async def _in_pool(self, call: Callable[[], Report]) -> Report:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    # --- what is shown ---

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        if name not in self._files:
            return _refused(404, f"there is no {request.path}")
        return web.Response(body=self._files[name], content_type=TYPES[name.rpartition(".")[2]], charset="utf-8")

    async def _about(self, _: web.Request) -> web.Response:
        servers = str(self._kafka["bootstrap.servers"])
        return web.json_response({"keylane": __version__, "servers": servers, "acts": self._guard.token is not None})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        assert self._hub is not None, "before the start"
        group = request.query.get("group", "")
        page = self._hub.join(group)
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b": keylane\n\n")
            while (told := await _next(page)) is not None:
                await response.write(b"data: " + told + b"\n\n" if told else b": alive\n\n")
        except ConnectionResetError:  # the page was closed
            pass
        finally:
            self._hub.leave(group, page)
        return response


async def _next(page: asyncio.Queue[bytes | None]) -> bytes | None:
    """What a page is to be told; empty when there was nothing for a while."""
    try:
        return await asyncio.wait_for(page.get(), ALIVE_S)
    except TimeoutError:
        return b""


def _refused(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
