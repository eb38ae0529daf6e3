"""`Turns`: a pool makes few of its connections at once.

The idea: thousands of requests that start together would all make their connections in the same turns of the loop, so
that each takes as long as all of them, and `connect_timeout_ms` would count that as the network's time. A connection
that waits for the network gives its turn away, so that a host which does not answer holds nobody up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from types import SimpleNamespace

AT_ONCE = 256
"""Some tenths of a second of the loop's work."""
TURN_S = 1.0


class Turns:
    """One pool's. Thread safety: its loop's."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)
        self._taken: dict[int, asyncio.TimerHandle] = {}
        """By the identity of what aiohttp keeps for a request until it has ended; each ends the turn."""

    def of_a_session(self) -> aiohttp.TraceConfig:
        """For its `trace_configs`."""
        config = aiohttp.TraceConfig()
        config.on_connection_create_start.append(self._begin)
        config.on_connection_create_end.append(self._ended)
        config.on_request_exception.append(self._ended)
        return config

    async def _begin(self, _session: aiohttp.ClientSession, request: SimpleNamespace, _params: object) -> None:
        await self._free.acquire()
        self._taken[id(request)] = asyncio.get_running_loop().call_later(TURN_S, self._give_away, id(request))

    async def _ended(self, _session: aiohttp.ClientSession, request: SimpleNamespace, _params: object) -> None:
        if id(request) in self._taken:
            self._give_away(id(request))

    def _give_away(self, request: int) -> None:
        self._taken.pop(request).cancel()
        self._free.release()
