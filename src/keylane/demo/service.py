"""The slow service that the demo's pipeline asks: weather by airport and hour, in a process and session of its own.

It counts the requests that it holds at once, so that concurrency is measured where it arrives and not where it is
claimed. Started as a child, it ends when its standard input closes: however its parent goes, SIGKILL included.

`GET /weather?origin=EWR&hour=2013-01-01T10:00:00Z` answers the table's row as JSON after the latency, or 404 when the
table has none; `GET /stats` answers at once with the counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import asdict, dataclass

from aiohttp import web

from keylane.demo.data import Hour, Value, read_weather

BACKLOG = 1024
"""Connections that may wait to be accepted: all lanes connect in the same instant."""


@dataclass(slots=True)
class Stats:
    """What the service saw. A request is held from its arrival to its answer, the latency included."""

    in_flight: int = 0
    peak_in_flight: int = 0
    recent_peak: int = 0
    """The peak since the last `GET /stats`: requests come and go many times between two looks."""
    total: int = 0
    """Requests answered."""


class WeatherService:
    """The handlers, over one table and one count."""

    def __init__(self, table: dict[Hour, dict[str, Value]], latency_ms: int) -> None:
        self._table = table
        self._latency_s = latency_ms / 1000
        self.stats = Stats()

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/weather", self.weather)
        app.router.add_get("/stats", self.show_stats)
        return app

    async def weather(self, request: web.Request) -> web.Response:
        stats = self.stats
        stats.in_flight += 1
        stats.recent_peak = max(stats.recent_peak, stats.in_flight)
        stats.peak_in_flight = max(stats.peak_in_flight, stats.in_flight)
        try:
            await asyncio.sleep(self._latency_s)
            origin, hour = request.query.get("origin", ""), request.query.get("hour", "")
            row = self._table.get((origin, hour))
            if row is None:
                return web.json_response({"error": f"no weather for {origin!r} at {hour!r}"}, status=404)
            return web.Response(body=json.dumps(row).encode(), content_type="application/json")
        finally:
            stats.in_flight -= 1
            stats.total += 1

    async def show_stats(self, _request: web.Request) -> web.Response:
        told = asdict(self.stats)
        self.stats.recent_peak = self.stats.in_flight
        return web.json_response(told)


async def serve(listener: socket.socket, service: WeatherService, stop: asyncio.Event) -> None:
    """Serve on a listening socket until `stop`; print the address when ready."""
    runner = web.AppRunner(service.application(), access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=BACKLOG, shutdown_timeout=0).start()
        host, port = listener.getsockname()[:2]
        sys.stdout.write(f"{host}:{port}\n")
        sys.stdout.flush()
        await stop.wait()
    finally:
        await runner.cleanup()


async def run(port: int, latency_ms: int, until_stdin_closes: bool) -> None:
    service = WeatherService(read_weather(), latency_ms)
    listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        threading.Thread(target=_call_at_eof, args=(loop, stop), name="stdin", daemon=True).start()
    await serve(listener, service, stop)


def _call_at_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    loop.call_soon_threadsafe(stop.set)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m keylane.demo.service", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--latency-ms", type=int, default=50)
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when standard input does")
    args = parser.parse_args()
    asyncio.run(run(args.port, args.latency_ms, args.until_stdin_closes))


if __name__ == "__main__":
    main()
