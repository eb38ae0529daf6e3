"""`LoopWatch`: a coroutine that blocks the asyncio loop of all handlers is named.

The idea: the flow's loop asks the asyncio loop for a sign four times a second. When none comes for a second although
that one was on time, one coroutine keeps all others waiting, and the thread's own lines say which. What both
loops missed together (a process that was stopped, a machine without time for it) is nobody's fault.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.flow.failures import Failures
    from keylane.flow.workers.places import Place

BLOCKED_S = 1.0
"""A loop that does not turn for so long is blocked: handlers that wait for nothing else are late by as much."""

BEAT_S = 0.25
ON_TIME_S = 0.5
"""A look that comes later than this after the one before says nothing."""


class Watched(Protocol):
    """The workers whose loop is watched."""

    def ask(self, answered: Callable[[], None]) -> None:
        """Have `answered` called when the loop turns."""

    def blocker(self) -> tuple[str, Sequence[Place]]:
        """What the loop runs now (a record, or a task), and its lines."""


class LoopWatch:
    """Looks at one asyncio loop. Thread safety: the flow's loop; the sign comes from the asyncio loop."""

    def __init__(self, workers: Watched, failures: Failures, now: float | None = None) -> None:
        self._workers = workers
        self._failures = failures
        self._asked_at: float | None = None
        self._has_answered = False
        self._is_told = False
        """Of this time."""
        self._looked_at = monotonic() if now is None else now
        self.next_check = self._looked_at + BEAT_S

    def check(self, now: float) -> int:
        """How many coroutines block the loop: 1 or 0. Who does is told once."""
        was_late = now - self._looked_at > ON_TIME_S
        self._looked_at = now
        self.next_check = now + BEAT_S
        if self._asked_at is None or self._has_answered:
            self._has_answered = self._is_told = False
            self._asked_at = now
            self._workers.ask(self._answered)
            return 0
        if was_late and not self._is_told:
            self._asked_at = now
        if now - self._asked_at < BLOCKED_S:
            return 0
        if not self._is_told:
            self._is_told = True
            self._failures.note_blocked(*self._workers.blocker(), now - self._asked_at, now)
        return 1

    def _answered(self) -> None:
        self._has_answered = True
