"""`DeadlineTimer`: wakes a pure registry of groups at its next deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class DeadlineTimer:
    """Calls `tick` once the deadline has passed; `set` it again whenever the deadline may be another one."""

    def __init__(
        self, deadline_ms: Callable[[], int | None], now_ms: Callable[[], int], tick: Callable[[], None]
    ) -> None:
        self._deadline_ms = deadline_ms
        self._now_ms = now_ms
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        """When it wakes."""

    def set(self) -> None:
        """Wake at the next deadline."""
        deadline = self._deadline_ms()
        if deadline is None:
            return
        if self._timer is not None:
            if self._due_ms <= deadline:
                return
            self._timer.cancel()
        self._due_ms = deadline
        self._timer = self._loop.call_later((deadline - self._now_ms() + 1) / 1000, self._due)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        self._tick()
