"""`Transaction`: the states of the producer's transactions, and what is in the one that is open (docs/adr/0051).

The idea: there is one transaction at a time, and the next is opened in the same step that ends the one before, so all
that can happen to results is that they go into the open one or wait. Once a closing transaction has no delivery without
an answer, everything in it is complete, and one snapshot of the trackers says exactly what is in it.

Thread safety: none; its owner is the loop.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from keylane.consumer.partitions import Partition, partition_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from keylane.consumer.outputs import Delivery

FIRST_WAIT_S = 0.1
MOST_WAIT_S = 10.0
"""The wait from a second abort to the new epoch: doubled by each further one without a commit in between."""

MOST_ABORTS_FENCED = 5
"""Producers that are fenced one after the other, without a commit in between: something else is wrong."""


class State(Enum):
    STARTING = "starting"
    """The producer has no epoch yet."""
    OPEN = "open"
    """Results go into it; perhaps there are none yet."""
    CLOSING = "closing"
    """Nothing goes in any more; outputs in it have no answer yet."""
    COMMITTING = "committing"
    ABORTING = "aborting"
    FENCED = "fenced"
    """Like aborting, by giving up the producer; another one is made."""


_ALLOWED = {
    State.STARTING: {State.OPEN, State.FENCED},
    State.OPEN: {State.CLOSING, State.ABORTING, State.FENCED},
    State.CLOSING: {State.OPEN, State.COMMITTING, State.ABORTING, State.FENCED},
    State.COMMITTING: {State.OPEN, State.ABORTING, State.FENCED},
    State.ABORTING: {State.OPEN, State.FENCED},
    State.FENCED: {State.OPEN, State.FENCED},
}
"""Where each state may lead; the only table."""


class Transaction:
    """The one that is under way."""

    __slots__ = ("_aborts", "_fences", "_unanswered", "state", "touched")

    def __init__(self) -> None:
        self.state = State.STARTING
        self._unanswered: set[Delivery] = set()
        """Those in it that the broker has not answered."""
        self.touched: set[Partition] = set()
        """Whose outputs are in it, as far as is known by their answers."""
        self._aborts = 0
        """Since the last commit, or the last one that was a record's fault."""
        self._fences = 0

    @property
    def is_flushed(self) -> bool:
        """Whether a snapshot taken now says what is in it."""
        return self.state is State.CLOSING and not self._unanswered

    @property
    def is_empty(self) -> bool:
        return not self.touched and not self._unanswered

    @property
    def is_undone(self) -> bool:
        """Whether nothing of it will be seen by readers."""
        return self.state in (State.ABORTING, State.FENCED)

    @property
    def is_fenced_for_good(self) -> bool:
        return self._fences >= MOST_ABORTS_FENCED

    @property
    def wait_s(self) -> float:
        """How long after this abort to begin anew."""
        return min(FIRST_WAIT_S * 2.0 ** min(self._aborts - 1, 20), MOST_WAIT_S) if self._aborts > 1 else 0.0

    def put(self, deliveries: Iterable[Delivery]) -> None:
        """These go into it."""
        assert self.state is State.OPEN, self.state
        self._unanswered.update(deliveries)

    def answered(self, delivery: Delivery) -> None:
        """All outputs of a delivery are acknowledged, or failed. Those of an aborted transaction may come late."""
        if delivery in self._unanswered:
            self._unanswered.discard(delivery)
            if delivery.entered:
                self.touched.add(partition_of(delivery.item.source))

    def may_hold(self, partitions: Collection[Partition]) -> bool:
        """Whether outputs of these may be in it."""
        return not self.touched.isdisjoint(partitions) or any(
            partition_of(one.item.source) in partitions for one in self._unanswered
        )

    def close(self) -> None:
        self._to(State.CLOSING)

    def reopen(self) -> None:
        """There was nothing to commit."""
        assert self.is_empty, self.touched
        self._to(State.OPEN)

    def commit(self) -> None:
        assert self.is_flushed, (self.state, self._unanswered)
        self._to(State.COMMITTING)

    def abort(self, *, fenced: bool = False) -> None:
        """Nothing in it counts. While it is undone already, only being fenced is new."""
        self._aborts += not self.is_undone
        self._fences += fenced
        self._to(State.FENCED if fenced else State.ABORTING)
        self._unanswered.clear()
        self.touched.clear()

    def forgive(self) -> None:
        """The abort that follows, or is under way, is a record's fault, which has its own wait (`retries`)."""
        self._aborts = 0

    def opened(self) -> bool:
        """It has ended as it should, and the next one is open; returns whether it was undone."""
        undone = self.is_undone
        if self.state is State.COMMITTING:
            self._aborts = self._fences = 0
        self._to(State.OPEN)
        self.touched.clear()
        return undone

    def _to(self, state: State) -> None:
        assert state in _ALLOWED[self.state], f"{self.state} cannot become {state}"
        self.state = state
