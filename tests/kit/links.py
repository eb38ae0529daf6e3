"""`Links`: connections that a test can cut, or make slow: a port in front of another one of this machine."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

CHUNK_BYTES = 64 * 1024
T = TypeVar("T")


class Links:
    """A context manager. Thread safety: any thread."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        """How long everything is on its way."""
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def to(self, port: int) -> int:
        """A port that leads to this one."""
        return self._run(self._listen(port))

    def cut(self) -> None:
        """Reset all that are there; what comes next gets through."""
        self._run(self._cut())

    def _run(self, step: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result()

    async def _listen(self, port: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open.add(writer)
            try:
                back, forth = await asyncio.open_connection("127.0.0.1", port)
            except OSError:  # nobody listens there now
                self._abort(writer)
                return
            self._open.add(forth)
            for source, target in ((reader, forth), (back, writer)):
                task = self._loop.create_task(self._carry(source, target, (writer, forth)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, both: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        """Until one side ends, which ends the other one."""
        with suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                target.write(data)
                await target.drain()
        for one in both:
            self._abort(one)

    def _abort(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        writer.transport.abort()

    async def _cut(self) -> None:
        for one in list(self._open):
            self._abort(one)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._cut()
        await asyncio.gather(*self._tasks)
