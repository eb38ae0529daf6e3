"""`Work`: one record on its way from the poll to its completion, and what became of it.

A work is handed over, never shared: the loop owns it until it gives it to the workers, they own it until they report it
with its `outcome`. It names the assignment that it belongs to; once that assignment is closed (revoked, lost), whatever
happens to the work changes nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.engine.assignment import Assignment
    from keylane.engine.deliveries import DeadLetterState
    from keylane.records import Message, Output, Returned


class NotRun(Enum):
    """The handler never began on this record (it was withdrawn), or was cancelled because nobody wanted it any more."""

    NOT_RUN = "not run"


NOT_RUN = NotRun.NOT_RUN


class Failure:
    """A failed attempt: what the handler raised, or why an output was not delivered."""

    __slots__ = ("error", "final")

    def __init__(self, error: BaseException, *, final: bool = False) -> None:
        self.error = error
        self.final = final
        """True when another attempt cannot help (`keylane.Fatal`, a handler that returned something else)."""

    def __repr__(self) -> str:
        return f"Failure({self.error!r}, final={self.final})"


Outcome: TypeAlias = "Sequence[Output] | Returned | Failure | NotRun | None"
"""None: done, without outputs. A sequence: done once these outputs are acknowledged, as those of
`Returned`."""


class Work:
    """One record in the engine. Slotted and flat: there is one for each record, on the hottest path."""

    __slots__ = ("assignment", "attempt", "dead", "key", "message", "offset", "outcome")

    outcome: Outcome

    def __init__(self, assignment: Assignment, offset: int, key: bytes | None, message: Message) -> None:
        self.assignment = assignment
        self.offset = offset
        self.key = key
        self.message = message
        self.attempt = 1
        self.dead: DeadLetterState | None = None
        """Set once the record is on its way to the dead-letter topic."""
        self.outcome = None

    def __lt__(self, other: Work) -> bool:
        """By offset: heaps of one partition's work put the oldest first."""
        return self.offset < other.offset

    @property
    def name(self) -> str:
        """How errors and logs name the record: `topic-partition@offset`."""
        return f"{self.assignment.topic}-{self.assignment.partition}@{self.offset}"

    def __repr__(self) -> str:
        return f"Work({self.name}, attempt {self.attempt})"
