"""The seeded simulation: the core keeps its guarantees, and the oracle notices when it does not."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keylane.engine import commits, core
from keylane.engine.acknowledgements import Acknowledgements
from keylane.engine.assignment import Assignment
from keylane.engine.commit_first import CommitFirst
from keylane.engine.ordering import ByKey
from keylane.engine.rates import Bucket, Buckets
from keylane.engine.retries import Waiting
from keylane.offsets import OffsetMap, PartitionTracker
from keylane.options import Rates
from kit import replay
from kit.simulation import VARIETY, Settings, Simulation, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS = range(3)
STEPS = 1_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("keylane.engine").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("keylane.engine").setLevel(logging.NOTSET)


def simulate(seeds: range, steps: int) -> tuple[int, Counter[str]]:
    seen: Counter[str] = Counter()
    total = 0
    for seed in seeds:
        for settings in VARIETY:
            simulation = Simulation(seed, settings)
            simulation.run(steps)
            simulation.finish()
            seen.update(simulation.seen)
            total += simulation.steps
    return total, seen


def test_the_guarantees_hold_on_any_schedule() -> None:
    total, seen = simulate(SEEDS, STEPS)
    assert total >= 100_000
    rare = ("halted", "retention", "too large", "held back", "stale", "lost", "crashed", "stopped", "commit failed")
    new = ("later", "died", "paused by hand", "chains", "same key batches", "settled", "lease ended")
    common = ("maps", "failed", "paused", "assigned", "revoked")
    for what in (*new, *common, *rare):
        assert seen[what] > 0, f"the schedules never reached: {what}"


@pytest.mark.soak
def test_the_guarantees_hold_on_many_schedules() -> None:
    total, _ = simulate(range(1_000, 1_100), 2_000)
    assert total > 1_000_000


def test_a_seed_is_a_schedule() -> None:
    def trace(seed: int) -> list[Any]:
        simulation = Simulation(seed)
        simulation.run(500)
        return [simulation.now, simulation.seen, [log.committed for log in simulation.logs]]

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


# --- each guarantee, broken on purpose ---


WITH_RATES = [one for one in VARIETY if one.rates != Rates()]


def a_rate_counts_half(patch: pytest.MonkeyPatch) -> None:
    true = Bucket.take
    patch.setattr(Bucket, "take", lambda self, count, now: true(self, count / 2, now))


def a_rate_of_a_key_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buckets, "take_key", lambda *_: None)


def stale_completions_count(patch: pytest.MonkeyPatch) -> None:
    """6: a closed assignment's work completes the record of the assignment that followed it."""
    true = core.Core.completed

    def completed(self: core.Core, works: Any, now: float) -> None:
        for work in works:
            current = self.partitions.open.get(work.assignment.name)
            if not work.assignment.wanted and current is not None and work.offset in current.in_flight:
                self.partitions.buffered -= current.tracker.complete([work.offset])
        true(self, works, now)

    patch.setattr(core.Core, "completed", completed)


def commits_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """1"""
    true = commits.Commits._entry

    def entry(self: commits.Commits, assignment: Assignment) -> commits.CommitEntry | None:
        made = true(self, assignment)
        return made and made._replace(offset=made.offset + 1, metadata="")

    patch.setattr(commits.Commits, "_entry", entry)


def the_map_is_read_after_the_base(patch: pytest.MonkeyPatch) -> None:
    """1 and 2: the range's top taken later than the incompletes (the JVM consumer's defect #893)."""
    true = PartitionTracker.snapshot

    def snapshot(self: PartitionTracker) -> OffsetMap:
        made = true(self)
        return OffsetMap(made.base, made.runs, max(made.highest_completed, self.highest_dispatched))

    patch.setattr(PartitionTracker, "snapshot", snapshot)


def a_key_lets_everything_out(patch: pytest.MonkeyPatch) -> None:
    """4"""

    patch.setattr(ByKey, "admit", lambda _, __, messages: messages)
    patch.setattr(ByKey, "release", lambda *_: [])


def a_retry_gives_its_key_away(patch: pytest.MonkeyPatch) -> None:
    """4"""
    true = Waiting.add

    def add(self: Waiting, work: Any, due: float) -> None:
        true(self, work, due)
        work.assignment.ready.extend(work.assignment.shards.release([work.offset], [work.message]))
        work.message = replace(work.message, key_=None)

    patch.setattr(Waiting, "add", add)


def the_committed_map_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """3"""
    true = Assignment.__init__

    def init(self: Assignment, start: Any, *rest: Any) -> None:
        base_only = type(start)(
            start.topic, start.partition, start.epoch, OffsetMap(start.offsets.base), start.log_start, start.log_end
        )
        true(self, base_only, *rest)

    patch.setattr(Assignment, "__init__", init)


def nothing_is_held_back(patch: pytest.MonkeyPatch) -> None:
    """5: without the dispatch bound, maps outgrow the cap and are left out."""

    def dispatch_limit(self: PartitionTracker, _: Any) -> int:
        return self.position

    patch.setattr(PartitionTracker, "dispatch_limit", dispatch_limit)


def retries_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Liveness."""

    def take_due(*_: Any) -> list[Any]:
        return []

    patch.setattr(Waiting, "take_due", take_due)


def records_start_before_their_commit(patch: pytest.MonkeyPatch) -> None:
    """At most once."""
    true = CommitFirst.hold

    def hold(self: CommitFirst, units: Any) -> None:
        true(self, units)
        self._marks.clear()

    patch.setattr(CommitFirst, "hold", hold)


def a_failed_commit_counts(patch: pytest.MonkeyPatch) -> None:
    """At most once, and almost once."""
    true = CommitFirst.acknowledged

    def acknowledged(self: CommitFirst, _: Any) -> None:
        for work in self._marks:
            work.assignment.committed_changes = work.assignment.tracker.changes
        true(self, ())
        self._marks.clear()

    patch.setattr(CommitFirst, "acknowledged", acknowledged)


def places_are_free_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Almost once."""
    patch.setattr(Acknowledgements, "completed", nothing)


def nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize(
    "break_it",
    [
        stale_completions_count,
        commits_one_too_far,
        the_map_is_read_after_the_base,
        a_key_lets_everything_out,
        a_retry_gives_its_key_away,
        the_committed_map_is_ignored,
        nothing_is_held_back,
        retries_are_forgotten,
        records_start_before_their_commit,
        a_failed_commit_counts,
        places_are_free_before_the_commit,
        a_rate_counts_half,
        a_rate_of_a_key_is_forgotten,
    ],
)
def test_the_oracle_notices(break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)

    def broken() -> None:
        for seed in range(24):
            for settings in (Settings(), Settings(rebalances=5), VARIETY[5], *VARIETY[-3:], *WITH_RATES):
                simulation = Simulation(seed, settings)
                simulation.run(1_000)
                simulation.finish(limit=500)

    with pytest.raises(Violation, match=r"\(seed \d+, step \d+, Settings"):
        broken()


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
