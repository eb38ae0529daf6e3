"""Single records that an operator skips or parks while the consumer runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.consumer.commits import CommitProblem
from keylane.consumer.outputs import Answer
from keylane.consumer.passing import GIVEN_UP, WHY_NOT, Passing
from keylane.consumer.start import Start
from keylane.flow.items import Call
from keylane.flow.keys import KeyRule, Where
from keylane.flow.outcomes import Failure
from keylane.offsets import OffsetMap, decode
from keylane.records import PlainMessage
from kit.engines import SomeWorkers, make_core

if TYPE_CHECKING:
    from keylane.consumer.outputs import Delivery
    from keylane.consumer.passing import Told
    from keylane.flow.items import Unit
    from keylane.flow.outcomes import Outcome

RETRIES = kl.Retries(max_attempts=5, delay_ms=60_000, jitter=0)


class World:
    """A core with one partition; its commits are answered when the test says so."""

    def __init__(self, concurrency: int = 4, **options: Any) -> None:
        pipeline = kl.Pipeline(
            kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"},
            topics=["t"],
            handler=lambda _: None,
            retries=RETRIES,
            commit=kl.Commit(every_records=1),
            **options,
        )
        self.core = make_core(pipeline, SomeWorkers(concurrency))
        self.now = 100.0
        self.units: list[Unit] = []
        self.produced: list[Delivery] = []
        self.commits: list[Any] = []
        self.told: list[Told] = []
        self.core.assigned([Start("t", 0, 1, OffsetMap(0), 0, 10_000)], self.now)

    def poll(self, keys: str) -> None:
        self.core.polled(("t", 0), 1, [PlainMessage("t", 0, at, key.encode(), b"v") for at, key in enumerate(keys)])
        self.plan()

    def plan(self, wait: float = 0.0) -> None:
        self.now += wait
        plan = self.core.plan(self.now)
        self.units += plan.dispatch
        self.produced += plan.produce
        if plan.commit is not None:
            self.commits.append(plan.commit)

    def end(self, offset: int, outcome: Outcome = None) -> None:
        (unit,) = [one for one in self.units if isinstance(one, Call) and offset in one.numbers]
        self.units.remove(unit)
        assert isinstance(unit, Call)
        list(unit.begin(self.now))
        if outcome is not None:
            unit.note(0, outcome)
        self.core.calls_ended([unit], self.now)
        self.plan()

    def fail(self, offset: int) -> None:
        self.end(offset, Failure(ValueError("bad")))

    def answer_commits(self, *, taken: bool = True) -> None:
        commits, self.commits = self.commits, []
        for one in commits:
            problems = {} if taken else {("t", 0): CommitProblem("no")}
            self.core.commit_answered(one, problems, self.now)
        self.plan(1.0)

    def pass_over(self, *offsets: int, dlq: str | None = None) -> None:
        self.core.passings.begin(
            Passing(tuple(("t", 0, one) for one in offsets), dlq, "why"), self.told.append, self.now
        )
        self.plan()

    def running(self) -> list[int]:
        return [number for unit in self.units if isinstance(unit, Call) for number in unit.numbers]

    def reasons(self) -> dict[int, str]:
        (told,) = self.told
        self.told = []
        return {offset: why for (_, _, offset), why in told.items()}


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_a_record_that_waits_is_skipped_and_its_key_goes_on_and_done_is_said_when_a_commit_has_it(
    ordering: Any,
) -> None:
    world = World(ordering=ordering)
    world.poll("aa")
    world.fail(0)
    assert world.running() == []
    world.pass_over(0)
    assert world.running() == [1]
    assert world.told == [], "no commit has it"
    world.answer_commits(taken=False)
    assert world.told == [], "nor has this one, which was refused"
    world.plan(10.0)
    world.answer_commits()
    assert world.reasons() == {0: ""}
    world.plan(120.0)
    assert world.running() == [1], "it does not come back when its time has come"
    assert world.core.snapshot(world.now).skipped == 1


def test_a_record_is_not_taken_out_where_it_runs_or_is_behind_or_is_not_there() -> None:
    world = World(concurrency=2)
    world.poll("aabbcd")
    world.end(2)
    world.answer_commits()
    assert world.running() == [0, 4]
    call = next(one for one in world.units if isinstance(one, Call) and one.numbers[0] == 0)
    next(call.begin(world.now))
    world.pass_over(0, 1, 2, 4, 6, 99)
    assert world.reasons() == {
        0: WHY_NOT["running"],
        1: WHY_NOT["behind"],
        2: "it is complete already",
        4: WHY_NOT["queued"],
        6: "it was not read yet: look again",
        99: "it was not read yet: look again",
    }
    assert world.running() == [0, 4]
    world.end(4, [kl.Output("out", value=b"x")])
    world.pass_over(4)
    assert world.reasons() == {4: WHY_NOT["delivering"]}


def test_what_is_ready_and_has_no_worker_is_skipped_as_well_as_what_is_paused() -> None:
    world = World(concurrency=1, ordering="unordered")
    world.poll("abcd")
    world.pass_over(2)
    world.core.pause(None)
    world.pass_over(1)
    world.end(0)
    world.answer_commits()
    world.answer_commits()
    assert [*world.told] == [{("t", 0, 2): ""}, {("t", 0, 1): ""}]
    world.core.resume(None)
    world.plan()
    assert world.running() == [3]


@pytest.mark.parametrize("paused", [False, True])
def test_what_is_too_far_ahead_of_what_is_committed_is_left_there(*, paused: bool) -> None:
    world = World(max_uncommitted=2, ordering="unordered")
    if paused:
        world.core.pause(None)
    world.poll("abcd")
    world.pass_over(3)
    assert world.reasons() == {3: WHY_NOT["commit"]}


def test_a_held_record_is_parked_and_done_when_its_letter_is_there_and_a_commit_has_it() -> None:
    world = World()
    world.core.rule_keys([KeyRule(Where.parse("key=a"), "hold")])
    world.poll("aab")
    world.pass_over(0, dlq="dead")
    (letter,) = world.produced
    (output,) = letter.outputs
    headers = dict(output.headers)
    assert (output.topic, output.key, output.value) == ("dead", b"a", b"v")
    assert (headers["keylane.offset"], headers["keylane.error.class"], headers["keylane.error.text"]) == (
        b"0", b"keylane.errors.ParkedError", b"why"
    )  # fmt: skip
    assert headers["keylane.attempts"] == b"0"
    world.answer_commits()
    assert world.told == []
    world.core.delivered([Answer(letter, 0, None)], world.now)
    world.plan(1.0)
    world.answer_commits()
    assert world.reasons() == {0: ""}
    assert world.core.snapshot(world.now).dead_lettered == 1
    assert {(one.offset, one.why) for one in world.core.work(world.now).queues} == {(1, "paused")}


def test_a_letter_that_is_refused_leaves_the_record_as_it_was_and_the_run_goes_on() -> None:
    world = World()
    world.core.rule_keys([KeyRule(Where.parse("key=a"), "hold")])
    world.poll("aa")
    world.pass_over(0, dlq="dead")
    for _ in range(RETRIES.max_attempts or 0):
        letter = world.produced.pop()
        world.core.delivered([Answer(letter, 0, kl.PeerError("no such topic"))], world.now)
        world.plan(70_000.0)
    assert world.produced == []
    assert "its letter could not be produced to 'dead': PeerError: no such topic" in world.reasons()[0]
    assert world.core.failure is None
    assert {(one.offset, one.why, one.behind) for one in world.core.work(world.now).queues} == {(0, "paused", 1)}
    world.core.rule_keys([])
    world.plan()
    assert world.running() == [0]


def test_a_letter_to_a_topic_that_the_pipeline_reads_is_refused() -> None:
    world = World()
    world.poll("a")
    world.fail(0)
    world.pass_over(0, dlq="t")
    assert "reads the topic 't'" in world.reasons()[0]


@pytest.mark.parametrize("dlq", [None, "dead"])
def test_of_a_partition_that_is_lost_before_its_commit_nobody_says_that_it_is_done(dlq: str | None) -> None:
    world = World()
    world.poll("ab")
    world.fail(0)
    world.pass_over(0, dlq=dlq)
    world.core.lost([("t", 0)])
    world.plan()
    assert world.reasons() == {0: GIVEN_UP}
    world.pass_over(0)
    assert world.reasons() == {}, "it has none of it"


def test_the_committed_map_has_a_skipped_record_that_is_in_the_middle() -> None:
    world = World(ordering="unordered")
    world.poll("abc")
    world.fail(1)
    world.pass_over(1)
    (entry,) = world.commits[-1]
    assert decode(entry.metadata, entry.offset) == OffsetMap(0, [0], 1)
