"""The sockets that the broker accepts."""

from __future__ import annotations

import asyncio
import socket

from keylane.broker.listener import Listener


class Accepted(asyncio.Protocol):
    def __init__(self, came: asyncio.Future[socket.socket]) -> None:
        self._came = came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._came.set_result(transport.get_extra_info("socket"))


def test_small_answers_are_sent_at_once() -> None:
    async def scenario() -> int:
        loop = asyncio.get_running_loop()
        came: asyncio.Future[socket.socket] = loop.create_future()
        listener = Listener(loop, lambda: Accepted(came), None, lambda: False)
        host, port = await listener.start("127.0.0.1", 0)
        with socket.create_connection((host, port)):
            accepted = await came
            waits_for_nothing = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        listener.stop()
        return waits_for_nothing

    assert asyncio.run(scenario()) == 1
