"""The same requests by hand: a task each, on one loop and one session of aiohttp's."""

from __future__ import annotations

import asyncio
import time

import aiohttp

TIMEOUT_S = 120


def run(url: str, keys: int, at_once: int) -> float:
    """How many seconds pass from the first request to the last answer."""
    return asyncio.run(_all(url, keys, at_once))


async def _all(url: str, keys: int, at_once: int) -> float:
    room = asyncio.Semaphore(at_once)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
    )

    async def one(key: int) -> None:
        async with room, session.get(f"{url}/{key}") as answer:
            await answer.read()

    async with session:
        start = time.perf_counter()
        await asyncio.gather(*map(one, range(keys)))
        return time.perf_counter() - start
