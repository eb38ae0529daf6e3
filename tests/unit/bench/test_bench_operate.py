"""What `make bench-operate` makes of its stretches: a drift of the machine is no cost, and a cost is seen."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from operate.__main__ import beside_neighbours, interval, summary

RATE, SECONDS = 10_000, 8


def stretches(turns: int, us: float, more: float, drift: float, noise: float) -> list[dict[str, float]]:
    """Of a machine on which each stretch costs `drift` more than the one before."""
    chosen = random.Random(3)
    records = RATE * SECONDS
    costs = [
        us * (1 + drift * at) * (1 + (more if at % 2 else 0)) * chosen.gauss(1, noise) for at in range(2 * turns + 1)
    ]
    return [{"processor_s": one * records / 1e6, "seconds": SECONDS, "records": records} for one in costs]


@pytest.mark.parametrize("more", [0.0, 0.006, 0.02])
def test_what_operations_cost_is_found_beneath_drift_and_noise(more: float) -> None:
    idle = stretches(5, 0.5, 0.3, 0.0, 0.0)
    found = summary(stretches(40, 25, more, 0.001, 0.008), idle)
    low, high = found["interval_percent"]
    assert low <= 100 * more <= high
    assert high - low < 2, "noise is below what is asked for"
    assert found["overhead_percent"] == pytest.approx(100 * more, abs=0.6)
    assert (found["turns"], found["slowest"]) == (40, RATE)
    assert found["idle_more_ms"] == pytest.approx(0.3 * found["idle_off_ms"], abs=0.01)


def test_a_steady_drift_alone_costs_nothing() -> None:
    values = [1.0 + 0.1 * at for at in range(9)]
    assert all(on == pytest.approx(off) for on, off in beside_neighbours(values))
    assert len(beside_neighbours(values)) == 4


def test_the_interval_narrows_with_the_number_of_turns() -> None:
    chosen = random.Random(5)
    widths = []
    for count in (10, 40, 160):
        low, high = interval([chosen.gauss(0, 1) for _ in range(count)])
        assert low <= 0 <= high
        widths.append(high - low)
    assert all(later < earlier for earlier, later in pairwise(widths))
