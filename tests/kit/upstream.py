"""Who answers in place of an offset server, as a test tells it to."""

from __future__ import annotations

import asyncio
import struct


class Broker:
    """Takes what comes, and answers when it is told to."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.came = asyncio.Event()
        self.left = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                self.frames.append(await reader.readexactly(size))
                self.came.set()
        except asyncio.IncompleteReadError:
            writer.close()
            self.left.set()

    async def has(self, count: int) -> list[bytes]:
        while len(self.frames) < count:
            self.came.clear()
            await self.came.wait()
        return self.frames

    def answer(self, number: int, body: bytes) -> None:
        frame = struct.pack(">i", number) + body
        self.writers[0].write(struct.pack(">i", len(frame)) + frame)

    def close(self) -> None:
        self._server.close()
        for writer in self.writers:
            writer.close()
