"""`Freshness`: what is at the brokers of the log's cluster, asked by who needs it.

The idea: a coordinator decides in one turn, and what groups of KIP-848 need for that is at the brokers. So it is asked
before it: nobody asks while there is no such group, and what is known is as old as the answer may be. Who could not ask
goes on with what it knew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logger_of("keylane.offsets")

AGAIN_S = 1.0
"""Before it is asked again what nobody has answered."""


class Freshness:
    """Belongs to the event loop's thread."""

    def __init__(self, what: str, learn: Callable[[], Awaitable[None]]) -> None:
        """`learn` asks, and takes what it is told, or raises `OSError`."""
        self._what = what
        self._ask = learn
        self._as_of_s: float | None = None
        """When the question began whose answer is known."""
        self._next_s = 0.0
        """When somebody may be asked again."""
        self._asking: asyncio.Task[None] | None = None

    async def reach(self, within_s: float) -> None:
        """Return when what is known is from so long before this call, or later; or when nobody has answered now."""
        since_s = asyncio.get_running_loop().time() - within_s
        while not self._is_from(since_s) and asyncio.get_running_loop().time() >= self._next_s:
            if self._asking is None:
                self._asking = asyncio.get_running_loop().create_task(self._learn())
            await asyncio.shield(self._asking)

    def _is_from(self, since_s: float) -> bool:
        return self._as_of_s is not None and self._as_of_s >= since_s

    async def _learn(self) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            await self._ask()
        except OSError as error:
            logger.warning("the %s cannot be asked: %s", self._what, error)
            self._next_s = asyncio.get_running_loop().time() + AGAIN_S
        else:
            self._as_of_s = began_s
        finally:
            self._asking = None
