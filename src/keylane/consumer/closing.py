"""How a consumer comes to its end: `Closing`, the phases.

The idea: closing goes one way only. A later request can shorten what an earlier one has begun, and never lengthen it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from keylane.telling import Log

FINAL_COMMIT_S = 10.0
"""How long stopping waits for its last commit to be acknowledged before it leaves the group without."""

CloseMode = Literal["drain", "in_flight", "now"]
"""What is finished before a consumer ends: all that was polled; what is in handlers; nothing."""


class Phase(Enum):
    RUNNING = "running"
    EMPTYING = "emptying"
    """Nothing is polled any more; what was polled is finished."""
    DRAINING = "draining"
    """Nothing starts any more; records in handlers finish, then the last commit goes out."""
    FINISHED = "finished"


class Closing:
    """The phase of a consumer, and how long each may take."""

    __slots__ = ("_deadline", "_log", "_timeout_s", "failure", "last_commit_deadline", "phase")

    def __init__(self, timeout_s: float, log: Log) -> None:
        self._timeout_s = timeout_s
        self._log = log
        self._deadline = 0.0
        self.phase = Phase.RUNNING
        self.failure: BaseException | None = None
        """Why the consumer stops, when it does not stop because it was asked to, or is through."""
        self.last_commit_deadline: float | None = None
        """Set once nobody waits for handlers any more, and only the last commit is left."""

    @property
    def waits_for_last_commit(self) -> bool:
        """Whether nobody waits for handlers any more."""
        return self.last_commit_deadline is not None

    def note(self, error: BaseException) -> None:
        """Something to tell in the end, unless there was something before."""
        self.failure = self.failure or error

    def abandon(self) -> None:
        """Be finished at once."""
        self.phase = Phase.FINISHED

    @property
    def may_start(self) -> bool:
        """Whether handlers may start."""
        return self.phase in (Phase.RUNNING, Phase.EMPTYING)

    def begin(self, mode: CloseMode, now: float, timeout_s: float | None) -> bool:
        """Stop, in this way; returns whether from now on nothing may start any more."""
        if self.phase is Phase.FINISHED:
            return False
        within = 0.0 if mode == "now" else self._timeout_s if timeout_s is None else timeout_s
        self._deadline = now + within if self.phase is Phase.RUNNING else min(self._deadline, now + within)
        if mode == "drain":
            if self.phase is Phase.RUNNING:
                self.phase = Phase.EMPTYING
            return False
        could_start = self.may_start
        self.phase = Phase.DRAINING
        return could_start

    def emptied(self, buffered: int, now: float) -> bool:
        """Whether `EMPTYING` is over: all is complete, or has had its time."""
        if self.phase is not Phase.EMPTYING or (buffered and now < self._deadline):
            return False
        self.phase = Phase.DRAINING
        return True

    def waits_for_handlers(self, now: float, *, busy: bool) -> bool:
        """In `DRAINING`: whether to wait on; if not, the time of the last commit begins."""
        if busy and now < self._deadline:
            return True
        if self.last_commit_deadline is None:
            self.last_commit_deadline = now + FINAL_COMMIT_S
        return False

    def finish(self, now: float, *, is_committed: bool) -> bool:
        """In `DRAINING`, with nothing in handlers: finished once the last commit is through, or has had its time, which
        is what it returns."""
        assert self.last_commit_deadline is not None
        is_late = not is_committed and now >= self.last_commit_deadline
        if is_late:
            self._log.warning("stopping: the last commit was not acknowledged within %d s", FINAL_COMMIT_S)
        if is_committed or is_late:
            self.phase = Phase.FINISHED
        return is_late

    def next_check(self) -> float | None:
        if self.phase in (Phase.RUNNING, Phase.FINISHED):
            return None
        return self.last_commit_deadline or self._deadline
