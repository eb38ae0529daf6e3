"""The seeded simulation with transactions: an output is seen if and only if the group has its input complete."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keylane.engine import core
from keylane.engine.commits import Commits
from keylane.engine.outcomes import Outcomes
from keylane.engine.transacting import Transacting
from keylane.engine.transactions import State, Transaction
from kit.simulation import VARIETY, Settings, Simulation, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SETTINGS = [
    replace(one, delivery="transactional") for one in VARIETY if not one.results and one.delivery == "at_least_once"
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("keylane.engine").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("keylane.engine").setLevel(logging.NOTSET)


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
    seen = simulate(range(3), 700, SETTINGS)
    rare = ("refused", "unknown", "too large", "lost", "revoked")
    for what in ("transactions", "aborted", "renewed", "began anew", *rare):
        assert seen[what] > 0, f"the schedules never reached: {what}"


@pytest.mark.soak
def test_the_guarantees_hold_on_many_schedules() -> None:
    assert simulate(range(1_000, 1_080), 1_500, SETTINGS)["aborted"] > 5_000


# --- each part of it, broken on purpose ---


def nothing(*_: Any, **__: Any) -> None:
    pass


def results_go_into_a_closing_transaction(patch: pytest.MonkeyPatch) -> None:
    def take(self: Outcomes, transacting: Transacting) -> Any:
        if transacting.transaction.state not in (State.OPEN, State.CLOSING):
            return []
        produce, self._produce = [one for one in self._produce if one.work.assignment.wanted], []
        transacting.transaction.touched.update(one.work.assignment for one in produce)
        return produce

    patch.setattr(Outcomes, "_take_into_transaction", take)


def what_is_not_acknowledged_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transaction, "is_flushed", property(lambda self: self.state.value == "closing"))


def results_of_lost_partitions_stay_in_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transacting, "has_results_of", lambda *_: False)


def what_was_given_up_is_produced(patch: pytest.MonkeyPatch) -> None:
    def take(self: Outcomes, transacting: Transacting) -> Any:
        if not transacting.is_open:
            return []
        produce, self._produce = self._produce, []
        return transacting.put(produce)

    patch.setattr(Outcomes, "_take_into_transaction", take)


def an_undone_key_starts_beside_its_old_handler(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transacting, "handed_over", nothing)


def a_failed_output_is_an_attempt_like_any_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transacting, "delivered", lambda self, delivery: self.transaction.answered(delivery))


def an_abort_leaves_the_assignments_open(patch: pytest.MonkeyPatch) -> None:
    def undo(self: core.Core, reason: str, *, fenced: bool = False) -> None:
        assert self._transacting is not None
        self._transacting.undo(reason, [], fenced=fenced)

    patch.setattr(core.Core, "_undo", undo)


def undone_partitions_do_not_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """Liveness."""
    patch.setattr(Transacting, "next_check", nothing)
    patch.setattr(Transacting, "plan", lambda self, plan, *_, **__: setattr(plan, "abort", self._abort))


def revoked_partitions_do_not_wait_for_their_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "wait_for", lambda *_: False)
    results_of_lost_partitions_stay_in_it(patch)


@pytest.mark.parametrize(
    "break_it",
    [
        results_go_into_a_closing_transaction,
        what_is_not_acknowledged_is_committed,
        results_of_lost_partitions_stay_in_it,
        what_was_given_up_is_produced,
        an_undone_key_starts_beside_its_old_handler,
        a_failed_output_is_an_attempt_like_any_other,
        an_abort_leaves_the_assignments_open,
        undone_partitions_do_not_begin_anew,
        revoked_partitions_do_not_wait_for_their_commit,
    ],
)
def test_the_oracle_notices(break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)

    def broken() -> None:
        for seed in range(12):
            for settings in (SETTINGS[0], replace(SETTINGS[0], rebalances=5), SETTINGS[3]):
                simulation = Simulation(seed, settings)
                simulation.run(600)
                simulation.finish(limit=500)

    with pytest.raises((Violation, AssertionError)):
        broken()
