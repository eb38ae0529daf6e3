"""The server: `python -m http_calls.service LATENCY_MS`. Says its port, and for each line of input the most at once."""

from __future__ import annotations

import asyncio
import sys

from aiohttp import web

BACKLOG = 10_000


class Service:
    """Answers every request after the same time."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self.inside = self.most = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(self._latency_s)
        self.inside -= 1
        return web.Response(text="ok")


async def main(latency_ms: int) -> None:
    service = Service(latency_ms / 1000)
    app = web.Application()
    app.router.add_get("/{key}", service.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=BACKLOG).start()
    print(runner.addresses[0][1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(service.most, flush=True)
        service.most = 0
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
