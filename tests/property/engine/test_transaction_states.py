"""The states of a transaction under any order of events: what is in it is known, and an abort leaves nothing behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from keylane.engine.transactions import FIRST_WAIT_S, MOST_WAIT_S, State, Transaction


class Delivered:
    """As much of a delivery as a transaction looks at."""

    def __init__(self, owner: int) -> None:
        self.work = SimpleNamespace(assignment=owner)
        self.entered = False


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.made: Any = Transaction()
        self.waiting: list[Any] = []
        self.late: list[Any] = []
        self.entered: set[int] = set()
        self.aborts = 0

    @precondition(lambda self: self.made.state is State.STARTING)
    @rule()
    def start(self) -> None:
        assert not self.made.opened()

    @precondition(lambda self: self.made.state is State.OPEN)
    @rule(owners=st.lists(st.integers(0, 3), max_size=4))
    def put(self, owners: list[int]) -> None:
        new = [Delivered(owner) for owner in owners]
        self.made.put(new)
        self.waiting += new

    @precondition(lambda self: self.waiting)
    @rule(entered=st.booleans())
    def answer(self, entered: bool) -> None:
        one = self.waiting.pop(0)
        one.entered = entered
        self.made.answered(one)
        if entered:
            self.entered.add(one.work.assignment)

    @precondition(lambda self: self.late)
    @rule()
    def answer_late(self) -> None:
        """Of a transaction that was aborted meanwhile."""
        one = self.late.pop(0)
        one.entered = True
        self.made.answered(one)

    @precondition(lambda self: self.made.state is State.OPEN)
    @rule()
    def close(self) -> None:
        self.made.close()

    @precondition(lambda self: self.made.is_flushed)
    @rule()
    def end(self) -> None:
        if self.made.is_empty:
            self.made.reopen()
            return
        self.made.commit()
        self._no_results_are_taken()
        assert not self.made.opened()
        self.entered.clear()
        self.aborts = 0

    @precondition(lambda self: self.made.state in (State.OPEN, State.CLOSING))
    @rule(fenced=st.booleans())
    def abort(self, fenced: bool) -> None:
        self.aborts += 1
        self.made.abort(fenced=fenced)
        self.late += self.waiting
        self.waiting.clear()
        self.entered.clear()
        assert self.made.is_empty
        assert self.made.is_undone
        expected = 0.0 if self.aborts == 1 else min(FIRST_WAIT_S * 2 ** (self.aborts - 1), MOST_WAIT_S)
        assert self.made.wait_s == pytest.approx(expected)
        self._no_results_are_taken()
        if fenced:
            self.made.abort(fenced=True)  # the new one is fenced as well
        assert self.made.opened(), "it was undone"

    def _no_results_are_taken(self) -> None:
        with pytest.raises(AssertionError):
            self.made.put([Delivered(0)])

    @invariant()
    def what_is_in_it_is_known(self) -> None:
        assert self.made.touched == self.entered
        owners = self.entered | {one.work.assignment for one in self.waiting}
        assert [self.made.may_hold({owner}) for owner in range(4)] == [owner in owners for owner in range(4)]
        assert self.made.is_flushed == (self.made.state is State.CLOSING and not self.waiting)


TestTransaction = Machine.TestCase
TestTransaction.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
