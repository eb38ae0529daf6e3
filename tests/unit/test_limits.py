"""What a budget allows: what cannot be is refused by name."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from keylane.errors import UsageError
from keylane.limits import AtOnce, Budget, Cap, Per

MODEL = Budget("openai", Per(500, "requests", per_ms=60_000), Per(200_000, "tokens", per_ms=60_000, burst=20_000))


def any_of(value: Any) -> Any:
    """To a type checker."""
    return value


def test_amounts_are_whole_millionths() -> None:
    assert MODEL.amounts({"requests": 1, "tokens": 0.1}) == {"requests": 1_000_000, "tokens": 100_000}
    assert Budget("m", Cap(1, "usd")).amounts({"usd": 0.0000001}) == {"usd": 1}


def test_a_burst_that_is_not_given_is_a_tenth_and_one_at_least() -> None:
    assert [Per(500, "r", per_ms=60_000).most_at_once, Per(5, "r", per_ms=1_000).most_at_once] == [50, 1]


def test_a_budget_is_picklable_and_compares_by_value() -> None:
    again = pickle.loads(pickle.dumps(MODEL))
    assert again == MODEL
    assert hash(again) == hash(MODEL)
    assert again != Budget("openai", Per(500, "requests", per_ms=60_000))
    at_once = Budget("m", AtOnce(20))
    assert pickle.loads(pickle.dumps(at_once.cost())) == at_once.cost()
    assert (at_once.limits, at_once.at_once) == ((), AtOnce(20))
    assert at_once != Budget("m", AtOnce(21))
    with pytest.raises(AttributeError, match=r"Budget.name cannot be changed: make another Budget"):
        again.name = "x"


@pytest.mark.parametrize(
    ("cost", "problem"),
    [
        (
            {"tokens": 20_001},
            r"a cost of 20001 tokens, and Per\(.*\) never has more than 20000 at once: give it a burst",
        ),
        ({"words": 1}, r"a cost in 'words', of which it has no limit; it has 'requests', 'tokens'"),
        ({"tokens": -1}, r"the cost of 'tokens'=-1: give a number from 0"),
        ({"tokens": float("nan")}, "give a number"),
        ({"tokens": "7"}, "give a number"),
    ],
)
def test_a_cost_that_cannot_be_is_refused(cost: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        MODEL.amounts(cost)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Budget("a b", Cap(1, "usd")), r"Budget.name='a b'"),
        (lambda: Budget("a"), "has 0 limits"),
        (lambda: Budget("a", any_of("usd")), "'usd' is no limit"),
        (lambda: Budget("a", Cap(1, "usd"), Cap(2, "usd")), "two limits of one unit and one time"),
        (lambda: Budget("a", Cap(1, "usd"), lease_ms=1), "Budget.lease_ms=1"),
        (lambda: Cap(0, "usd"), r"Cap.count=0: give a number from 1e-06"),
        (lambda: Cap(1, "usd", day="Europe/Berlin"), r"Cap.day='Europe/Berlin': give 'UTC', or an offset"),
        (lambda: Cap(1, "usd", day="UTC+99:00"), r"Cap.day='UTC\+99:00'"),
        (lambda: Cap(1, "US dollars"), "Cap.unit='US dollars'"),
        (lambda: Per(1, "r", per_ms=0), "Per.per_ms=0"),
        (lambda: Per(1, "r", per_ms=1, burst=0), "Per.burst=0"),
        (lambda: any_of(Per)(1, "r", per_sec=1), "per_sec"),
        (lambda: AtOnce(0), "AtOnce.count=0: give a whole number from 1"),
        (lambda: AtOnce(any_of(2.5)), "AtOnce.count=2.5: give a whole number"),
        (lambda: AtOnce(1, lease_ms=10), "AtOnce.lease_ms=10: give a whole number from 1000 to 60000"),
        (lambda: Budget("a", AtOnce(1), AtOnce(2)), "AtOnce twice: leave one out"),
        (lambda: Budget("a", Cap(1, "usd")).cost(), "give amounts by unit, or a function"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        make()
