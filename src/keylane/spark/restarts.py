"""When a lane that failed starts again: pure, with the time passed in.

A lane starts again after a wait that doubles with each failure in the window, and no more once the window holds too
many: then what makes it fail is not chance, and the user must read the cause.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from keylane.errors import UsageError

FIRST_WAIT_S = 0.25
"""Before the first new start: enough for Spark to notice what died; the partitions wait meanwhile."""
LONGEST_WAIT_S = 30.0
"""A broker or service that is down for long is not asked more often than this."""


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """`max_failures` of one lane within `window_ms` are followed by a new start, one more ends the query."""

    max_failures: int = 5
    window_ms: int = 600_000

    def __post_init__(self) -> None:
        if self.max_failures < 0:
            raise UsageError(f"max_lane_failures={self.max_failures}: give 0 (never start a lane again) or more")
        if self.window_ms < 1:
            raise UsageError(f"lane_failure_window_ms={self.window_ms}: give at least 1")


@dataclass(slots=True)
class Restarts:
    """The failures of one lane."""

    limits: RestartLimits
    _failures: deque[float] = field(default_factory=deque)

    def failed(self, now: float) -> float | None:
        """Notes a failure at `now` (seconds); returns when to start again, or None when it is one too many."""
        self._failures.append(now)
        while self._failures[0] < now - self.limits.window_ms / 1000:
            self._failures.popleft()
        count = len(self._failures)
        if count > self.limits.max_failures:
            return None
        return now + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (count - 1))

    @property
    def in_window(self) -> int:
        """Failures that counted when the last one was noted."""
        return len(self._failures)
