"""The seeded simulation: the engine keeps its guarantees. That it notices when one is broken is shown by mutants."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kit import engines, replay
from kit.seam import Commit
from kit.simulation import VARIETY, Simulation, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = range(2)
STEPS = 1_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("keylane.consumer").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("keylane.consumer").setLevel(logging.NOTSET)


def simulate(seeds: range, steps: int) -> tuple[int, Counter[str]]:
    seen: Counter[str] = Counter()
    total = 0
    for seed in seeds:
        for settings in VARIETY:
            simulation = Simulation(seed, settings)
            simulation.run(steps)
            simulation.finish()
            simulation.close()
            seen.update(simulation.seen)
            total += simulation.steps
    return total, seen


def test_the_guarantees_hold_on_any_schedule() -> None:
    total, seen = simulate(SEEDS, STEPS)
    assert total >= 50_000
    rare = ("halted", "retention", "too large", "held back", "stale", "lost", "crashed", "stopped", "commit failed")
    new = ("later", "died", "paused by hand", "chains", "same key batches", "settled", "lease ended")
    ruled = ("hold", "limit", "skip", "passed over", "skipped alone", "replayed")
    moved = ("cut", "beyond a cut", "unchecked", "copied", "unmarked")
    common = ("maps", "failed", "paused", "assigned", "revoked")
    for what in (*new, *common, *rare, *ruled, *moved):
        assert seen[what] > 0, f"the schedules never reached: {what}"


@pytest.mark.soak
def test_the_guarantees_hold_on_many_schedules() -> None:
    total, _ = simulate(range(1_000, 1_100), 2_000)
    assert total > 1_000_000


def with_a_store(seeds: range, steps: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        for settings in VARIETY:
            if settings.store:
                simulation = Simulation(seed, settings)
                try:
                    simulation.run(steps)
                    simulation.finish()
                finally:
                    simulation.close()
                seen.update(simulation.seen)
    return seen


def test_no_effect_is_lost_or_repeated_when_the_store_or_the_log_is_another_one() -> None:
    """Seed 1 takes from a store what was processed, under a member that goes on."""
    seen = sum((with_a_store(range(seed, seed + 1), STEPS) for seed in (0, 1, 8, 10, 21)), Counter[str]())
    refused = ("this store has not seen", "has lost", "another record", "is purged")
    for what in (*refused, "store put back", "put back with the log", "made anew", "rewound", "forgotten"):
        assert seen[what] > 0, f"the schedules never reached: {what}"


@pytest.mark.soak
def test_no_effect_is_lost_or_repeated_on_many_schedules() -> None:
    with_a_store(range(1_000, 1_200), 1_000)


def test_nothing_starts_of_a_partition_that_is_given_up_in_the_same_turn() -> None:
    """Its commit is acknowledged just when the revoke has had its time."""
    simulation = Simulation(5, VARIETY[30])
    assert simulation.settings.delivery == "at_most_once"
    simulation.run(1_000)
    simulation.finish()


def test_a_seed_is_a_schedule() -> None:
    def trace(seed: int) -> list[Any]:
        simulation = Simulation(seed)
        simulation.run(500)
        return [simulation.now, simulation.seen, [log.committed for log in simulation.logs]]

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


def commits_one_too_far(patch: pytest.MonkeyPatch) -> None:
    true = engines._commit

    def commit(entries: Any) -> Commit:
        made = true(entries)
        return Commit([one._replace(offset=one.offset + 1, metadata="") for one in made.entries], made.inside)

    patch.setattr(engines, "_commit", commit)


def test_a_failing_seed_is_printed_and_runs_again_by_the_command_that_is_printed_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        commits_one_too_far(patch)
        simulation = Simulation(7, VARIETY[1])
        with pytest.raises(Violation) as caught:
            simulation.run(800)
        _, _, command = str(caught.value).partition("again: PYTHONPATH=tests python -m kit.replay ")
        assert command == "7 1 800"
        assert replay.main(command.split()) == 1
        assert capsys.readouterr().out == f"{caught.value}\n"
    assert replay.main(command.split()) == 0
    assert "every guarantee held" in capsys.readouterr().out
