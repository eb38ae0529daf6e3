"""`Work`: one record, from the moment it is handed over.

The idea: a record waits as the client's message, and becomes a `Work` when it goes to the workers. Works are handed
over, never shared: the loop owns a work until it gives it to the workers, they own it until they report it with its
`outcome`. It names the assignment that it belongs to; once that is closed (revoked, lost), whatever happens to it
changes nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.engine.assignment import Assignment
    from keylane.engine.deliveries import DeadLetterState, Delivery
    from keylane.engine.places import Place
    from keylane.records import Message, Output, Returned


class NotRun(Enum):
    """The handler never began on this record (it was withdrawn), or was cancelled because nobody wanted it any more."""

    NOT_RUN = "not run"


NOT_RUN = NotRun.NOT_RUN


class Failure:
    """A failed attempt: what the handler raised, or why an output was not delivered."""

    __slots__ = ("error", "final", "places")

    def __init__(self, error: BaseException, *, final: bool = False) -> None:
        self.error = error
        self.places: Sequence[Place] = ()
        """Where it was raised, when that was in another process: the traceback of an error does not travel."""
        self.final = final
        """True when another attempt cannot help (`keylane.Fatal`, a handler that returned something else)."""

    def __repr__(self) -> str:
        return f"Failure({self.error!r}, final={self.final})"


class Later:
    """The record is scheduled for later: no attempt was made."""

    __slots__ = ("delay_s",)

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s


Outcome: TypeAlias = "Sequence[Output] | Returned | Failure | NotRun | Later | None"
"""None: done, without outputs. A sequence: done once these outputs are acknowledged, as those of
`Returned`."""


class Work:
    """One record, and what becomes of it. `works_of` makes them."""

    __slots__ = ("assignment", "attempt", "chain", "dead", "first_s", "message", "offset", "outcome")

    assignment: Assignment
    offset: int
    message: Message
    attempt: int
    chain: Chain | None
    """Set while others of its shard are handed over with it."""
    first_s: float | None
    """When the first attempt was handed over; set when that fails."""
    dead: DeadLetterState | None
    """Set once the record is on its way to the dead-letter topic."""
    outcome: Outcome

    def __lt__(self, other: Work) -> bool:
        """By offset: heaps of one partition's work put the oldest first."""
        return self.offset < other.offset

    @property
    def name(self) -> str:
        """How errors and logs name the record."""
        return name_of(self.message)

    def __repr__(self) -> str:
        return f"Work({self.name}, attempt {self.attempt})"


def works_of(assignment: Assignment, offsets: Sequence[int], messages: Sequence[Message]) -> list[Work]:
    """Records of a partition. In one loop, because calls of `Work.__init__` would take twice as long as all of this."""
    works = []
    for offset, message in zip(offsets, messages, strict=True):
        work = Work()
        work.assignment = assignment
        work.offset = offset
        work.message = message
        work.attempt = 1
        work.chain = work.first_s = work.dead = work.outcome = None
        works.append(work)
    return works


class Chain:
    """Records of one shard that were handed over together. They complete in this order, and leave it when they do:
    records and chains that name one another would wait for the garbage collector.

    Thread safety: `works` never changes, and workers may read it; the rest is the loop's.
    """

    __slots__ = ("at", "deliveries", "results", "works")

    def __init__(self, works: Sequence[Work]) -> None:
        self.works = works
        self.at = 0
        """The index of the first that is not complete."""
        self.results: dict[Work, Outcome | Delivery] = {}
        """What records of a batch came to, while an earlier one is not complete; a delivery whose result is to be
        seen."""
        self.deliveries: dict[Work, Delivery] = {}
        """Outputs of records of a batch that are on their way."""
        for work in works:
            work.chain = self

    def undo(self) -> Sequence[Work]:
        """Only the first incomplete record stays out, on its own; returns the others, which have not run."""
        rest = self.works[self.at + 1 :]
        for work in self.works[self.at :]:
            work.chain = None
            if (delivery := self.deliveries.pop(work, None)) is not None:
                delivery.void = True
        return rest


def leave_chain(work: Work) -> bool:
    """A record is complete, the first in its chain that was not; whether it was the last."""
    chain, work.chain = work.chain, None
    assert chain is not None, work
    chain.at += 1
    return chain.at == len(chain.works)


Unit: TypeAlias = "Work | list[Work]"
"""What a worker gets at once: a record, the first of a chain to run one after another, or a batch for one call."""


def works_in(unit: Unit) -> Sequence[Work]:
    """All records of it."""
    if isinstance(unit, list):
        return unit
    return (unit,) if unit.chain is None else unit.chain.works


def name_of(message: Message) -> str:
    """How errors and logs name a record: `topic-partition@offset`."""
    return f"{message.topic()}-{message.partition()}@{message.offset()}"
