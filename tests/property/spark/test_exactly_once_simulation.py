"""The protocol of exactly once into Kafka under every crash that a seed thinks of: each row once, for good.

KEYLANE_SINK_SEEDS says how many seeds (300); a failing seed is printed, and is the same again.
"""

from __future__ import annotations

import os
import random

import pytest

from kit.simulated_sink import PARTITIONS, ROWS, World

SEEDS = int(os.environ.get("KEYLANE_SINK_SEEDS", "300"))
STEPS = 1_200
BATCHES = 6


def all_rows(batches: int) -> list[tuple[int, int]]:
    return [(batch, number) for batch in range(batches) for number in range(PARTITIONS * ROWS)]


def run(seeds: range) -> tuple[int, set[str]]:
    """Kills, and the errors that were met."""
    kills, errors = 0, set[str]()
    for seed in seeds:
        world = World(random.Random(seed), BATCHES)
        world.run(STEPS)
        if "ForgottenError" not in world.errors:  # then nobody knows what became of a batch, and the query ends
            assert sorted(world.kafka.rows) == all_rows(BATCHES), f"seed {seed}"
        kills += world.kills
        errors |= set(world.errors)
    return kills, errors


def test_each_row_is_seen_once_whatever_dies() -> None:
    kills, errors = run(range(SEEDS))
    assert kills > SEEDS
    assert errors >= {"FencedError", "NotOpenError", "LostError"}, "the seeds are too tame"


def test_rows_that_a_replay_puts_elsewhere_end_the_query_and_never_come_twice() -> None:
    errors = set[str]()
    for seed in range(SEEDS):
        world = World(random.Random(seed), BATCHES, is_repeatable=False)
        world.run(STEPS)
        assert set(world.kafka.rows) <= set(all_rows(BATCHES)), f"seed {seed}"
        if "ReplayDiffersError" not in world.errors:
            assert sorted(world.kafka.rows) == all_rows(BATCHES), f"seed {seed}"
        errors |= set(world.errors)
    assert "ReplayDiffersError" in errors


@pytest.mark.soak
def test_many_seeds() -> None:
    run(range(100_000, 100_000 + 20 * SEEDS))
