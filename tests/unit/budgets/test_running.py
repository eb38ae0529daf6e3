"""Which calls of a member run, and what it asks for: without a broker and without a clock."""

from __future__ import annotations

import pytest

from keylane.budgets.purse import LOST_S
from keylane.budgets.running import Running, Wish
from keylane.budgets.slots import Share
from keylane.limits import AtOnce

SEQ = 7


def granted(count: int, *, now: float = 0.0, part: int | None = None) -> Running:
    """One that has so many of 20 slots, by a record that was sent at `now`."""
    running = Running(AtOnce(20, lease_ms=9_000))
    running.lack(now)
    assert running.ask(SEQ, now) is not None
    running.read(Share(count, count if part is None else part, is_short=True), now + 0.1, SEQ)
    return running


def test_the_lease_counts_from_the_sending() -> None:
    running = Running(AtOnce(20, lease_ms=9_000))
    running.lack(1.0)
    assert running.ask(SEQ, 1.0) == Wish(2, 0)
    assert running.room(1.0) == 0
    running.read(Share(2, 2), 8.0, SEQ)  # read late
    assert running.room(9.9) == 2
    assert running.room(10.0) == 0


def test_while_a_record_is_on_its_way_it_keeps_to_what_that_says() -> None:
    running = granted(5, part=3)
    for call in range(3):
        running.begin(call, 0.2)
    assert running.ask(SEQ + 1, 0.3) == Wish(8, 3)
    running.read(Share(5, 5), 0.4)
    assert running.room(0.4) == 0
    running.read(Share(5, 5), 0.5, SEQ + 1)
    assert running.room(0.5) == 2


def test_what_is_beyond_its_part_is_not_begun_and_given_to_others() -> None:
    running = granted(4)
    for call in range(4):
        running.begin(call, 0.2)
    running.read(Share(4, 2, is_short=True), 0.3)
    running.end(0)
    assert running.room(0.4) == 0
    wish = running.ask(SEQ + 1, 0.4)
    assert wish is not None
    assert wish.keeps == 3


def test_it_wants_twice_what_runs_while_something_lacks_a_slot_and_else_what_ran() -> None:
    running = granted(6)
    for call in range(6):
        running.begin(call, 0.2)
    assert running.lack(0.3) > 0.3
    assert running.ask(SEQ + 1, 0.3) == Wish(14, 6)
    running.read(Share(6, 6, is_short=True), 0.4, SEQ + 1)
    for call in range(6):
        running.end(call)
    assert running.ask(SEQ + 2, 1.4) == Wish(6, 6)
    running.read(Share(6, 6, is_short=True), 1.5, SEQ + 2)
    assert running.ask(SEQ + 3, 2.6) == Wish(0, 6)


def test_the_lease_is_renewed_while_calls_run_and_not_behind_the_last() -> None:
    running = granted(1)
    running.read(Share(1, 1), 0.1)
    running.begin("call", 0.2)
    assert running.ask(SEQ + 1, 2.9) is None
    assert running.ask(SEQ + 1, 3.2) == Wish(1, 1)
    running.read(Share(1, 1), 3.3, SEQ + 1)
    running.end("call")
    assert running.ask(SEQ + 2, 6.4) == Wish(0, 1)
    running.read(Share(0, 0), 6.5, SEQ + 2)
    assert running.ask(SEQ + 3, 60) is None
    assert running.last() is None


def test_a_record_that_was_given_up_is_written_again() -> None:
    running = Running(AtOnce(20))
    running.lack(0)
    assert running.ask(SEQ, 0) == Wish(2, 0)
    assert running.ask(SEQ + 1, LOST_S - 1) is None
    assert running.is_away(LOST_S - 1)
    running.lack(LOST_S)
    assert running.ask(SEQ + 1, LOST_S) == Wish(2, 0)


def test_nothing_starts_in_a_cool_down() -> None:
    running = granted(2)
    running.pause(5)
    assert running.room(4.9) == 0
    assert running.lack(1.0) == 5
    assert running.room(5) == 2


@pytest.mark.parametrize("runs", [0, 2])
def test_the_end_keeps_what_runs_still(runs: int) -> None:
    running = granted(4)
    for call in range(runs):
        running.begin(call, 0.2)
    assert running.last() == Wish(0, runs)
