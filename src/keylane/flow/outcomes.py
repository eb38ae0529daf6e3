"""What one attempt came to: `Failure`, `NotRun`, `Later`, or what the function returned; `Notes`, who hears of it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from keylane.errors import ExpiredError
from keylane.foreign_errors import class_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.flow.workers.places import Place


class NotRun(Enum):
    """The function never began on it (it was withdrawn), or was cancelled because nobody wanted it any more."""

    NOT_RUN = "not run"


NOT_RUN = NotRun.NOT_RUN


class Failure:
    """A failed attempt: what the function raised, or why an output was not delivered."""

    __slots__ = ("error", "final", "halts", "is_shared", "places")

    def __init__(
        self,
        error: BaseException,
        *,
        final: bool = False,
        halts: bool = False,
        places: Sequence[Place] = (),
        is_shared: bool = False,
    ) -> None:
        self.error = error
        self.is_shared = is_shared
        """Whether it is that of a call for several items, and may be no fault of this one."""
        self.final = final or halts
        """True when another attempt cannot help (`keylane.Fatal`, a function that returned something else)."""
        self.halts = halts
        """Whether the run ends with it, whatever is to become of what failed for the last time."""
        self.places = places
        """Where it was raised, when that was in another process: the traceback of an error does not travel."""

    @property
    def is_expiry(self) -> bool:
        """Whether there was no attempt, because it was too late for one."""
        return type(self.error) is ExpiredError

    def __repr__(self) -> str:
        return f"Failure({class_of(self.error)}, final={self.final})"

    def with_error(self, error: BaseException) -> Failure:
        """The same, with another error in place of its own."""
        return Failure(error, final=self.final, halts=self.halts, places=self.places, is_shared=self.is_shared)


class Later:
    """It is scheduled for later: no attempt was made."""

    __slots__ = ("delay_s",)

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s


Outcome: TypeAlias = Any
"""What one attempt came to. None: it is through. `Failure`, `NotRun` and `Later` are the flow's; anything else is what
the function returned, and the owner's to see through."""


class Notes(Protocol):
    """Who hears of failed attempts."""

    def note(self, failure: Failure, name: str, attempt: int, now: float) -> None: ...
    def tell(self, text: str) -> None:
        """A service went down, or is back."""
