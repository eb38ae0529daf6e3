"""Offset servers on a replicated log, under all that a seed thinks of: every history is linearizable.

KEYLANE_SERVER_SEEDS says how many seeds (150); a failing seed is printed, and is the same again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kit.linearizable import Operation, why_not
from kit.simulated_offsets import DESIGN, Rules, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SEEDS = int(os.environ.get("KEYLANE_SERVER_SEEDS", "150"))
STEPS = 250


def violations(seeds: Iterable[int], rules: Rules = DESIGN) -> tuple[dict[int, str], Counter[str]]:
    """By seed, what does not fit; and what happened in all of them."""
    found: dict[int, str] = {}
    seen = Counter[str]()
    for seed in seeds:
        world = World(random.Random(seed), rules)
        world.run(STEPS)
        seen.update(world.seen)
        wrong = world.violation()
        if wrong is not None:
            found[seed] = wrong
            if rules != DESIGN:
                break
    return found, seen


def test_every_history_is_linearizable() -> None:
    found, seen = violations(range(SEEDS))
    assert not found
    assert min(seen.values()) > 0, f"the seeds are too tame: {seen}"


@pytest.mark.parametrize(
    ("rules", "first"),
    [
        (Rules(has_fence=False), 0),
        (Rules(has_fence=False, has_marks=True), 0),
        (Rules(reads="nothing"), 0),
        (Rules(reads="end"), 0),
        (Rules(keeps_late_tombstones=False), 1_700),
    ],
    ids=["no fence", "marks in place of the fence", "a lease", "the log's end", "missed tombstones"],
)
def test_whatever_departs_from_the_design_is_found(rules: Rules, first: int) -> None:
    found, _ = violations(range(first, first + 300), rules)
    assert found


@pytest.mark.soak
def test_many_seeds(record_property: Callable[[str, object], None]) -> None:
    found, seen = violations(range(100_000, 100_000 + 400 * SEEDS))
    for what, count in seen.items():
        record_property(what, count)
    assert not found


def commit(began: int, ended: int | None, *offsets: int) -> Operation:
    return Operation("commit", began, dict(enumerate(offsets)), ended=ended)


def fetch(began: int, ended: int | None, *offsets: int) -> Operation:
    return Operation("fetch", began, ended=ended, found=dict(enumerate(offsets)))


def commit_if(began: int, ended: int | None, was: int, offset: int, found: int | None = None) -> Operation:
    told = None if found is None else {0: found}
    return Operation("commit_if", began, {0: offset}, {0: was}, ended, told)


@pytest.mark.parametrize(
    "history",
    [
        [commit(1, 2, 5, 5), fetch(3, 4, 5, 5)],
        [commit(1, 4, 5, 5), fetch(2, 3, 5, 5), fetch(5, 6, 5, 5)],  # it took effect before its answer
        [commit(1, 4, 5, 5), fetch(2, 3, -1, -1), fetch(5, 6, 5, 5)],
        [commit(1, None, 5, 5), fetch(2, 3, -1, -1), fetch(4, 5, 5, 5)],  # without an answer: later
        [commit(1, None, 5, 5), fetch(2, 3, -1, -1), fetch(4, 5, -1, -1)],  # or never
        [commit(1, 9, 5, 5), commit(2, 8, 6, 6), fetch(10, 11, 5, 5)],  # in any order
        [commit_if(1, 2, -1, 5), commit_if(3, 4, 5, 6), fetch(5, 6, 6)],
        [commit_if(1, 2, -1, 5), commit_if(3, 4, 7, 6, found=5), fetch(5, 6, 5)],
        [commit_if(1, None, -1, 5), commit_if(2, 3, 5, 6)],
        [commit(1, 2, 5), commit(3, None, -1), commit(4, None, -1), fetch(5, 6, -1), commit(7, 8, 6), fetch(9, 10, -1)],
    ],
)
def test_histories_that_can_have_happened(history: list[Operation]) -> None:
    assert why_not(history, 2) is None


@pytest.mark.parametrize(
    "history",
    [
        [commit(1, 2, 5, 5), fetch(3, 4, -1, -1)],  # an acknowledged commit is lost
        [commit(1, 2, 5, 5), commit(3, 4, 6, 6), fetch(5, 6, 5, 5)],  # an old offset
        [commit(1, None, 5, 5), fetch(2, 3, 5, 5), fetch(4, 5, -1, -1)],  # seen, and gone
        [commit(1, 2, 5, 5), commit(3, None, 6, 6), fetch(4, 5, 6, 5)],  # half of a commit
        [commit(1, 9, 5, 5), commit(2, 8, 6, 6), fetch(10, 11, 5, 5), fetch(12, 13, 6, 6)],  # both were last
        [commit_if(1, 2, -1, 5), commit_if(3, 4, -1, 6)],  # one condition held twice
        [commit_if(1, 9, -1, 5), commit_if(2, 8, -1, 6)],  # at once, too
        [commit_if(1, 2, -1, 5), commit_if(3, 4, 5, 6, found=5)],  # refused though it held
        [commit_if(1, 2, -1, 5), commit_if(3, 4, 7, 6, found=7)],  # refused for what was not there
        [fetch(1, 2, 5, 5), commit(3, 4, 5, 5)],  # seen before it was sent
        [commit(1, 2, 5), commit(3, None, -1), fetch(5, 6, -1), commit(7, 8, 6), fetch(9, 10, -1)],  # removed twice
    ],
)
def test_histories_that_cannot(history: list[Operation]) -> None:
    assert why_not(history, 2) is not None
