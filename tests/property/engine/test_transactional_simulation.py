"""The seeded simulation with transactions: an output is seen if and only if the group has its input complete."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kit.simulation import VARIETY, Settings, Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = [
    replace(one, delivery="transactional")
    for one in VARIETY
    if not one.results and not one.store and one.delivery == "at_least_once"
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("keylane.consumer").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("keylane.consumer").setLevel(logging.NOTSET)


def simulate(seeds: range, steps: int, settings: list[Settings]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        for one in settings:
            simulation = Simulation(seed, one)
            simulation.run(steps)
            simulation.finish()
            seen.update(simulation.seen)
    return seen


def test_the_guarantees_hold_on_any_schedule() -> None:
    """In the last one records of a key are undone while one of its handlers runs."""
    seen = simulate(range(2), 700, SETTINGS) + simulate(range(4, 5), 700, SETTINGS[6:7])
    rare = ("refused", "unknown", "too large", "lost", "revoked")
    ruled = ("hold", "limit", "skip", "passed over", "skipped alone")
    for what in ("transactions", "aborted", "renewed", "began anew", *rare, *ruled):
        assert seen[what] > 0, f"the schedules never reached: {what}"


@pytest.mark.soak
def test_the_guarantees_hold_on_many_schedules() -> None:
    assert simulate(range(1_000, 1_080), 1_500, SETTINGS)["aborted"] > 5_000
