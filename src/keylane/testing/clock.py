"""A clock that a test moves: what the broker takes for the time of day, and the timers of its event loop.

The idea: a broker asks for the time in two ways, `now_ms()` for what lasts and its loop's `time()` for what it waits
for. Both add how far the clock was moved, so a timer that is due by then wakes in the loop's next turn.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from keylane.errors import UsageError
from keylane.storage import filesystem

FARTHEST = timedelta(days=36_500)
"""A hundred years in all: what clients show of dates ends with the year 9999."""


class MovableClock:
    """The system's clock, and how far a test has moved it. One thread moves it: that of the loop, while one runs."""

    def __init__(self) -> None:
        self.moved = timedelta(0)

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return filesystem.now_ms() + self.moved // timedelta(milliseconds=1)

    def move(self, by: timedelta) -> None:
        """Raises `UsageError`."""
        if not timedelta(0) < by <= FARTHEST - self.moved:
            raise UsageError(
                f"by={by}: a clock goes forward, and {FARTHEST.days:,} days in all; it is {self.moved} ahead"
            )
        self.moved += by

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop whose timers go by this clock."""
        return _MovedLoop(self)


class _MovedLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock
        super().__init__()

    def time(self) -> float:
        return super().time() + self._clock.moved.total_seconds()
