"""How many lanes there should be, with the time passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import UsageError
from keylane.spark.scaling import GROW_AFTER_S, SHRINK_AFTER_S, LaneBounds, Scaler

BOUNDS = LaneBounds(1, 8, 10_000)


def test_lanes_grow_once_they_have_been_too_few_for_a_while() -> None:
    scaler = Scaler(BOUNDS)
    assert scaler.plan(0.0, 2, 10_000, 100.0, 1.0) == 2, "it would take 100 s, but that is one look"
    assert scaler.plan(GROW_AFTER_S - 0.1, 2, 10_000, 100.0, 1.0) == 2
    assert scaler.plan(GROW_AFTER_S, 2, 10_000, 100.0, 1.0) == 4, "at most double"
    assert scaler.plan(GROW_AFTER_S + 0.1, 4, 10_000, 100.0, 1.0) == 4, "the next change waits again"


def test_a_look_that_needs_no_more_lanes_starts_the_wait_anew() -> None:
    scaler = Scaler(BOUNDS)
    scaler.plan(0.0, 2, 10_000, 100.0, 1.0)
    scaler.plan(GROW_AFTER_S / 2, 2, 500, 100.0, 1.0)
    assert scaler.plan(GROW_AFTER_S, 2, 10_000, 100.0, 1.0) == 2


def test_lanes_shrink_one_by_one_when_one_less_is_enough_for_long() -> None:
    scaler = Scaler(BOUNDS)
    assert scaler.plan(0.0, 4, 0, 100.0, 0.2) == 4
    assert scaler.plan(SHRINK_AFTER_S - 0.1, 4, 0, 100.0, 0.2) == 4
    assert scaler.plan(SHRINK_AFTER_S, 4, 0, 100.0, 0.2) == 3


def test_busy_lanes_stay_although_nothing_waits() -> None:
    scaler = Scaler(BOUNDS)
    scaler.plan(0.0, 4, 10, 100.0, 0.9)
    assert scaler.plan(SHRINK_AFTER_S, 4, 10, 100.0, 0.9) == 4


def test_lanes_that_start_or_fail_say_nothing() -> None:
    scaler = Scaler(BOUNDS)
    scaler.plan(0.0, 2, 10_000, 100.0, 1.0)
    scaler.unsettled()
    assert scaler.plan(GROW_AFTER_S, 2, 10_000, 100.0, 1.0) == 2


@pytest.mark.parametrize(("lag", "rate"), [(None, 100.0), (10_000, 0.0)])
def test_what_is_not_known_or_stuck_changes_nothing(lag: int | None, rate: float) -> None:
    scaler = Scaler(BOUNDS)
    assert [scaler.plan(now, 2, lag, rate, 1.0) for now in (0.0, 100.0, 200.0)] == [2, 2, 2]


@given(
    st.lists(
        st.tuples(st.floats(0, 60), st.none() | st.integers(0, 10**9), st.floats(0, 10**6), st.floats(0, 1)),
        max_size=50,
    )
)
def test_lanes_stay_between_their_bounds(looks: list[tuple[float, int | None, float, float]]) -> None:
    scaler, now, lanes = Scaler(LaneBounds(2, 5, 1_000)), 0.0, 2
    for pause, lag, rate, busy in looks:
        now += pause
        lanes = scaler.plan(now, lanes, lag, rate, busy)
        assert 2 <= lanes <= 5


@pytest.mark.parametrize("bounds", [(0, 3, 1), (4, 3, 1), (1, 3, 0)])
def test_bounds_that_make_no_sense_are_refused(bounds: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="give"):
        LaneBounds(*bounds)
