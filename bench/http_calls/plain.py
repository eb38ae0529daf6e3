"""The requests of the bench without keylane: tasks of one loop that share aiohttp's session, as a program by hand has them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable


def run(url: str, keys: int, at_once: int, loop: Callable[[], asyncio.AbstractEventLoop] | None) -> float:
    """How many seconds pass from the first request to the last answer; on a loop that `loop` makes, or asyncio's."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(_all(url, keys, at_once))


async def _all(url: str, keys: int, at_once: int) -> float:
    room = asyncio.Semaphore(at_once)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def one(key: int) -> None:
            async with room, session.get(f"{url}/{key}") as answer:
                await answer.read()

        start = time.perf_counter()
        await asyncio.gather(*map(one, range(keys)))
        return time.perf_counter() - start
