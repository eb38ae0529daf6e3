"""What one member may spend, and what it asks for: without a broker and without a clock."""

from __future__ import annotations

from keylane.budgets.line import ComeLater, Granted
from keylane.budgets.purse import AWAY_S, FORGET_S, LOST_S, Amounts, GiveBack, Purse
from keylane.flow.rates import UNLIMITED
from keylane.limits import ONE, Budget, Cap, Per

TOKENS = Budget("m", Per(60_000, "tokens", per_ms=60_000, burst=5_000), lease_ms=2_000)
S = 1_000_000_000
SEQ = 7


def some(tokens: int) -> dict[str, int]:
    return {"tokens": tokens * ONE}


def granted(purse: Purse, now: float, wait_s: float = 0) -> Amounts:
    """What it asks for is granted at once."""
    asked = purse.ask(SEQ, now)
    assert asked is not None
    purse.answered(SEQ, Granted(int(wait_s * S)), now)
    return asked


def test_what_is_granted_is_spent_from_its_time_on_and_while_the_lease_runs() -> None:
    purse = Purse(TOKENS, 0)
    assert purse.ask(SEQ, 0) is None
    assert purse.spend("a", some(100), 0) is not None
    assert granted(purse, 0.1, wait_s=1) == some(100)
    assert purse.spend("a", some(100), 1.0) == 1.1
    assert purse.room(1.0) == 0
    assert purse.spend("a", some(100), 1.1) is None
    assert purse.spend("b", some(100), 1.1) is not None
    granted(purse, 1.2)
    assert purse.spend("b", some(100), 3.2) is not None  # the lease began when it was sent


def test_the_lease_counts_from_the_sending() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("a", some(100), 0)
    asked = purse.ask(SEQ, 0)
    assert asked is not None
    purse.answered(SEQ, Granted(0), 1.9)  # read late
    assert purse.spend("a", some(100), 2.0) is not None


def test_blocks_grow_to_a_second_of_what_is_spent_and_of_the_rate() -> None:
    purse, now, sizes, served = Purse(TOKENS, 0), 0.0, [], 0
    for _ in range(400):
        now += 0.02
        if purse.spend(served, some(100), now) is None:
            served += 1
        if (asked := purse.ask(SEQ, now)) is not None:
            sizes.append(asked["tokens"] // ONE)
            purse.answered(SEQ, Granted(0), now)
    assert sizes[0] == 100
    assert sizes[-1] == max(sizes) == 1_000


def test_the_first_that_lacks_something_is_served_before_smaller_ones() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("small", some(100), 0)
    granted(purse, 0)
    assert purse.spend("small", some(100), 0) is None
    assert purse.spend("large", some(5_000), 0.1) is not None
    purse.spend("small", some(100), 0.1)
    assert granted(purse, 0.2) == some(5_000)
    assert purse.spend("small", some(1), 0.3) is not None
    assert purse.spend("large", some(5_000), 0.3) is None


def test_one_that_does_not_come_again_keeps_nothing() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("gone", some(100), 0)
    granted(purse, 0.1)
    purse.spend("other", some(100), 0.2)
    later = 0.2 + FORGET_S + 1
    purse.spend("other", some(100), later)
    granted(purse, later)
    assert purse.spend("other", some(100), later) is None


def test_one_that_does_not_come_again_holds_up_nobody_who_comes_all_the_time() -> None:
    purse, now = Purse(TOKENS, 0), 0.0
    purse.spend("gone", some(100), 0)
    while now < FORGET_S + 2:
        if (asked := purse.ask(SEQ, now)) is not None:
            purse.answered(SEQ, Granted(0), now)
        if (due := purse.spend("other", some(100), now + 0.001)) is None:
            return
        now = max(now + 0.001, due)
    raise AssertionError(asked)


def test_what_is_left_is_given_back_before_the_lease_ends_and_not_behind() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("a", some(100), 0)
    granted(purse, 0)
    assert purse.give_back(1.0) == []
    assert purse.give_back(1.3) == [GiveBack(SEQ, some(100))]
    assert purse.give_back(1.4) == []
    late = Purse(TOKENS, 0)
    late.spend("a", some(100), 0)
    granted(late, 0)
    assert late.give_back(2.0, all_of_it=True) == []


def test_the_end_gives_back_what_is_left() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("a", some(100), 0)
    granted(purse, 0)
    assert purse.give_back(0.1, all_of_it=True) == [GiveBack(SEQ, some(100))]


def test_a_cap_that_is_used_up_is_asked_for_the_first_one_alone_and_then_waits() -> None:
    purse = Purse(Budget("m", Cap(1, "usd")), 0)
    for _ in range(3):
        purse.spend("a", {"usd": ONE // 10}, 0)
        if (asked := purse.ask(SEQ, 0)) is not None:
            purse.answered(SEQ, Granted(0), 0)
    purse.give_back(1.5)
    purse.spend("b", {"usd": ONE // 10}, 1.5)
    asked = purse.ask(SEQ, 1.5)
    assert asked is not None
    assert asked["usd"] > ONE // 10
    purse.answered(SEQ, ComeLater(3_600 * S, "usd"), 1.5)
    again = purse.ask(SEQ, 1.5)
    assert again is not None
    assert again == {"usd": ONE // 10}
    purse.answered(SEQ, ComeLater(3_600 * S, "usd"), 1.5)
    assert purse.used_up == ("usd", 3_601.5)
    assert purse.ask(SEQ, 1.6) is None
    assert purse.spend("b", {"usd": ONE // 10}, 1.6) == 2.6


def test_without_a_broker_a_rate_goes_on_with_its_last_share_and_settles_it() -> None:
    purse, now = Purse(TOKENS, 0), 0.0
    for turn in range(60):
        now += 1.0
        while purse.spend(turn, some(600), now) is not None:
            granted(purse, now)
    purse.give_back(now + 0.5, all_of_it=True)
    purse.spend("first", some(600), now + 0.5)
    asked = purse.ask(SEQ, now + 0.5)
    assert asked is not None
    spent, begin = 0, now + 0.5 + AWAY_S
    for turn in range(1_000):
        now = begin + turn * 0.05
        purse.ask(SEQ, now)
        if purse.spend("first", some(60), now) is None:
            spent += 60
    assert 0.9 * 600 * 50 <= spent <= 1.02 * 600 * 50
    assert purse.pop_owed() == {}
    purse.answered(SEQ, Granted(0), now)
    assert purse.pop_owed() == some(spent)


def test_without_a_broker_money_waits() -> None:
    purse, now = Purse(Budget("m", Per(600, "requests", per_ms=60_000), Cap(5, "usd")), 0), 0.0
    cost = {"requests": ONE, "usd": ONE // 100}
    for turn in range(60):
        now += 1.0
        while purse.spend(turn, cost, now) is not None:
            granted(purse, now)
    purse.give_back(now, all_of_it=True)
    purse.spend("b", cost, now)
    assert purse.ask(SEQ, now) is not None
    for turn in range(1_000):
        purse.ask(SEQ, now + turn * 0.05)
        assert purse.spend("b", cost, now + turn * 0.05) is not None


def test_an_ask_that_was_given_up_is_written_again() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("a", some(100), 0)
    assert purse.ask(SEQ, 0) == some(100)
    assert purse.ask(SEQ, AWAY_S) is None
    purse.spend("a", some(100), LOST_S)
    assert purse.ask(SEQ, LOST_S) == some(100)


def test_a_cool_down_takes_what_was_granted() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("a", some(100), 0)
    granted(purse, 0)
    purse.void()
    assert purse.spend("a", some(100), 0.1) is not None


def test_what_was_not_run_may_be_spent_while_its_lease_runs_and_is_given_back() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("a", some(100), 0)
    granted(purse, 0)
    assert purse.spend("a", some(100), 0.1) is None
    assert purse.give_back(1.5) == []
    purse.end("a", has_run=False)
    assert purse.spend("b", some(100), 1.5) is None
    purse.end("b", has_run=False)
    purse.end("b", has_run=False)
    assert purse.give_back(1.6) == [GiveBack(SEQ, some(100))]
    assert purse.spend("b", some(100), 1.6) is not None


def test_what_was_not_run_is_neither_spent_nor_given_back_behind_its_lease() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("a", some(100), 0)
    granted(purse, 0)
    purse.spend("a", some(100), 0.1)
    purse.end("a", has_run=False)
    assert purse.give_back(2.1, all_of_it=True) == []
    assert purse.spend("b", some(100), 2.1) is not None


def test_what_ran_is_spent() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("a", some(100), 0)
    granted(purse, 0)
    purse.spend("a", some(100), 0.1)
    purse.end("a", has_run=True)
    assert purse.spend("b", some(100), 0.2) is not None
    assert purse.give_back(0.2, all_of_it=True) == []


def test_what_was_not_run_is_not_spent_in_a_cool_down() -> None:
    purse = Purse(TOKENS, 0)
    purse.spend("a", some(100), 0)
    granted(purse, 0)
    purse.spend("a", some(100), 0.1)
    purse.void()
    purse.end("a", has_run=False)
    assert purse.spend("b", some(100), 0.2) is not None


def test_room_is_about_what_the_last_cost_leaves() -> None:
    purse = Purse(TOKENS, 0)
    assert 1 <= purse.room(0) <= UNLIMITED
    purse.spend("a", some(1_000), 0)
    assert purse.room(0) == 0
    granted(purse, 0.1)
    assert purse.room(0.2) == 1
