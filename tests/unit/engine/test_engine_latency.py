"""Histograms of powers of two, and the sampling that fills them."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from keylane.flow.workers import BUCKETS, LEFT_OUT, QUICK_NS, Histogram, Meter, merged, upper_bound_s

DURATIONS = st.lists(st.integers(min_value=0, max_value=10**14))


def filled(durations_ns: list[int]) -> Meter:
    meter = Meter()
    for one in durations_ns:
        meter.add(one)
    return meter


@given(DURATIONS)
def test_a_duration_is_in_the_bucket_that_holds_it(durations_ns: list[int]) -> None:
    found = filled(durations_ns).histogram()
    for bucket in range(BUCKETS):
        low = 0 if bucket == 0 else upper_bound_s(bucket - 1)
        held = [one for one in durations_ns if (low < one / 1e9 or bucket == 0) and one / 1e9 <= upper_bound_s(bucket)]
        assert found.counts[bucket] == len(held)
    assert found.count == len(durations_ns)
    assert abs(found.sum_s - sum(durations_ns) / 1e9) < 1e-6


@given(DURATIONS, DURATIONS)
def test_merging_is_filling_one(first: list[int], second: list[int]) -> None:
    both = Histogram.merged([filled(first).histogram(), filled(second).histogram()])
    assert both.counts == filled(first + second).histogram().counts
    assert merged([filled(first), filled(second)]) == both


def test_quantiles_are_upper_bounds() -> None:
    found = filled([500_000] * 98 + [40_000_000, 5_000_000_000]).histogram()
    assert found.quantile_s(0.5) == upper_bound_s(9)
    assert 0.0005 < (found.quantile_s(0.5) or 0) < 0.001
    assert 0.04 < (found.quantile_s(0.99) or 0) < 0.08
    assert 5 < (found.quantile_s(1.0) or 0) < 10
    assert Histogram().quantile_s(0.5) is None
    assert {name: value for name, value in Histogram().to_dict().items() if value} == {}


def measured(durations_ns: list[int]) -> tuple[Histogram, int]:
    """What is found of calls that take so long one after another, and how many were measured."""
    meter, times, unmeasured, left_out = Meter(), 0, 0, 0
    for one in durations_ns:
        if unmeasured:
            unmeasured -= 1
        else:
            times += 1
            unmeasured = left_out = meter.add(one, left_out)
    return meter.histogram(), times


def test_what_is_not_quick_is_measured_each_time() -> None:
    found, times = measured([QUICK_NS] * 100)
    assert (found.count, times) == (100, 100)


def test_of_what_is_quick_one_in_sixteen_is_measured_and_stands_for_those_before_it() -> None:
    found, times = measured([1_000] * 1_601)
    assert (found.count, times) == (1_601, 1 + 1_600 // (LEFT_OUT + 1))


def test_sampling_does_not_favour_the_quick_or_the_slow() -> None:
    rng = random.Random(4)
    durations = [rng.choice((1_000, 1_000_000)) for _ in range(100_000)]
    found, times = measured(durations)
    slow = sum(one > QUICK_NS for one in durations) / len(durations)
    assert times < len(durations) / 4
    assert abs(sum(found.counts[5:]) / found.count - slow) < 0.01
