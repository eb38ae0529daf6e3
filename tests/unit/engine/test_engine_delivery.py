"""At most once and almost once: what may start before which commit, and what a lost acknowledgement means."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from keylane import HandlerError, Pipeline, Retries, UsageError
from keylane.consumer.commits import CommitProblem
from keylane.consumer.start import Start
from keylane.flow.items import Call
from keylane.flow.outcomes import NOT_RUN, Failure
from keylane.offsets import OffsetMap, decode
from keylane.options import Batch
from keylane.pipeline import Commit
from keylane.records import PlainMessage
from kit.engines import SomeWorkers, make_core
from kit.fakes import FakeBroker, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.consumer.modes.at_least_once import Plan

T0 = ("t", 0)
KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
REFUSED = {T0: CommitProblem("no answer; the commit may have been made")}


def pipeline(handler: Callable[..., Any] = print, **options: Any) -> Pipeline:
    return Pipeline(**{"kafka": KAFKA, "topics": ["t"], "offset_reset": "earliest", "handler": handler, **options})


class Running:
    """A core with one partition of 20 unordered records."""

    def __init__(self, delivery: str, concurrency: int = 4, **options: Any) -> None:
        made = pipeline(**{"ordering": "unordered", "delivery": delivery, **options})
        self.core = make_core(made, SomeWorkers(concurrency, may_queue=True))
        self.now = 100.0
        self.core.assigned([Start("t", 0, 1, OffsetMap(0), 0, 100)], self.now)
        self.core.polled(T0, 1, [PlainMessage("t", 0, offset) for offset in range(20)])
        self.calls: list[Call] = []

    def plan(self, wait: float = 0.0) -> Plan:
        self.now += wait
        plan = self.core.plan(self.now)
        for call in plan.dispatch:
            assert isinstance(call, Call), "a batch without batch_size"
            assert len(call) == 1, "each goes alone"
            self.calls.append(call)
        return plan

    def answer(self, plan: Plan, problems: dict[Any, CommitProblem] | None = None) -> Plan:
        assert plan.commit is not None, "no commit was planned"
        self.core.commit_answered(plan.commit, problems or {}, self.now)
        return self.plan()

    def finish(self, count: int, outcome: Any = None) -> Plan:
        done, self.calls = self.calls[:count], self.calls[count:]
        for call in done:
            list(call.begin(1.0))
            if outcome is not None:
                call.note(0, outcome)
        self.core.calls_ended(done, self.now)
        return self.plan()

    @property
    def running(self) -> list[int]:
        return [call.numbers[0] for call in self.calls]


# --- at most once ---


def test_nothing_starts_before_the_commit_that_has_it_is_acknowledged() -> None:
    running = Running("at_most_once")
    plan = running.plan()
    assert plan.commit is not None, "at once, in one commit"
    assert plan.commit[0].offset == 4
    assert running.running == []
    assert running.plan(wait=10).commit is None
    assert running.running == []
    running.answer(plan)
    assert running.running == [0, 1, 2, 3]


def test_a_commit_whose_answer_is_lost_is_made_again_and_nothing_of_it_starts_before() -> None:
    running = Running("at_most_once")
    running.answer(running.plan(), REFUSED)
    assert running.running == []
    again = running.plan(wait=1)
    assert again.commit is not None
    assert again.commit[0].offset == 4
    running.answer(again)
    assert running.running == [0, 1, 2, 3]
    running.finish(4)
    assert running.core.snapshot(running.now).processed == 4


def test_the_records_above_the_base_are_in_the_map() -> None:
    running = Running("at_most_once", concurrency=30, ordering="key")
    running.core.polled(T0, 1, [PlainMessage("t", 0, 20 + n, key) for n, key in enumerate([b"k", b"k", b"k", b"l"])])
    plan = running.plan()
    assert plan.commit is not None
    said = decode(plan.commit[0].metadata, plan.commit[0].offset)
    assert [offset for offset in range(24) if not said.is_complete(offset)] == [21, 22], "they wait for their key"
    running.answer(plan)
    assert running.running == [*range(21), 23]


def test_a_failure_is_the_end_of_a_record() -> None:
    running = Running("at_most_once")
    running.answer(running.plan())
    running.finish(1, Failure(ValueError("no")))
    failure = running.core.failure
    assert isinstance(failure, HandlerError)
    assert "t-0@0" in str(failure)


def test_what_is_committed_still_runs_when_the_consumer_stops() -> None:
    running = Running("at_most_once")
    plan = running.plan()
    running.core.stop(running.now)
    running.answer(plan)
    assert running.running == [0, 1, 2, 3]
    assert all(call.source.may_begin for call in running.calls), "their workers let them begin"
    assert running.finish(4).commit is None, "there is nothing left to say"
    assert [one.incomplete for one in running.core.snapshot(running.now).partitions] == [16]


def test_a_revoke_waits_for_what_is_committed() -> None:
    running = Running("at_most_once")
    plan = running.plan()
    running.core.revoking([T0], "token", running.now)
    assert not running.plan().revoked
    running.answer(plan)
    assert running.running == [0, 1, 2, 3]
    assert [answer.entries for answer in running.finish(4).revoked] == [[]]


def test_what_was_held_of_a_lost_partition_never_starts_and_takes_no_room() -> None:
    running = Running("at_most_once")
    commit = running.plan().commit
    running.core.lost([T0])
    running.plan()
    running.core.assigned([Start("t", 1, 2, OffsetMap(0), 0, 100)], running.now)
    running.core.polled(("t", 1), 2, [PlainMessage("t", 1, offset) for offset in range(20)])
    running.core.commit_answered(commit or [], {}, running.now)
    running.answer(running.plan())
    assert [(call.source.name[1], call.numbers[0]) for call in running.calls] == [(1, n) for n in range(4)]


def test_what_did_not_begin_runs_without_another_commit() -> None:
    running = Running("at_most_once")
    running.answer(running.plan())
    running.finish(4, NOT_RUN)
    plan = running.plan()
    assert sorted(running.running) == [0, 1, 2, 3]
    assert plan.commit is None


def test_a_commit_without_its_map_lets_only_what_lies_below_it_start() -> None:
    running = Running("at_most_once", concurrency=3, ordering="key")
    running.answer(running.plan())
    plan = running.finish(2)  # 0 and 1; 2 still runs, and is committed
    assert plan.commit is not None
    entry = plan.commit[0]
    bare = [entry._replace(offset=4, metadata="")]
    running.core._commits.on_its_way = bare
    running.core.commit_answered(bare, {}, running.now)
    again = running.plan()
    assert running.running == [2, 3], "4 is above what the broker has"
    running.answer(again)
    assert running.running == [2, 3, 4]


# --- almost once ---


def test_a_place_is_free_again_when_its_record_is_committed() -> None:
    running = Running("almost_once", concurrency=2)
    running.plan()
    assert running.running == [0, 1]
    plan = running.finish(1)
    assert running.running == [1]
    assert plan.commit is not None, "at once"
    assert plan.commit[0].offset == 1
    running.finish(1)
    assert running.running == []
    following = running.answer(plan)
    assert running.running == [2], "one place of two: the other record's commit goes now"
    assert following.commit is not None
    running.answer(following)
    assert running.running == [2, 3]


def test_a_commit_that_fails_keeps_the_place() -> None:
    running = Running("almost_once", concurrency=1)
    running.plan()
    running.answer(running.finish(1), REFUSED)
    assert running.running == []
    running.answer(running.plan(wait=1))
    assert running.running == [1]


def test_a_closed_assignment_keeps_no_place() -> None:
    running = Running("almost_once", concurrency=1)
    running.plan()
    running.finish(1)
    running.core.lost([T0])
    running.core.assigned([Start("t", 1, 2, OffsetMap(0), 0, 100)], running.now)
    running.core.polled(("t", 1), 2, [PlainMessage("t", 1, 0)])
    running.plan()
    assert [call.source.name[1] for call in running.calls] == [1]


# --- whole engines ---


@pytest.mark.parametrize("delivery", ["at_most_once", "almost_once"])
@pytest.mark.parametrize("options", [{}, {"batch": Batch(7)}, {"ordering": "partition"}])
def test_everything_runs_once_and_is_committed(delivery: str, options: dict[str, Any]) -> None:
    broker = FakeBroker([("t", 0), ("t", 1)])
    for name in broker.logs:
        broker.append(name, [(b"%d" % (n % 5), b"v") for n in range(100)])
    ran: list[tuple[int, int]] = []
    lock = threading.Lock()

    def handler(what: Any) -> None:
        with lock:
            ran.extend((one.partition, one.offset) for one in (what if isinstance(what, list) else [what]))

    made = pipeline(handler, delivery=delivery, **options)
    with FakeEngine(made, broker, ending_offsets={("t", 0): 100, ("t", 1): 100}) as engine:
        assert engine.loop.ended.wait(30)
    assert engine.loop.failure is None
    assert sorted(ran) == [(partition, offset) for partition in (0, 1) for offset in range(100)]
    assert {name: offset for name, (offset, _) in broker.committed.items()} == {("t", 0): 100, ("t", 1): 100}


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_at_most_once_the_broker_has_a_record_before_its_handler_begins(kind: str) -> None:
    broker = FakeBroker([T0])
    broker.append(T0, [(b"%d" % n, b"v") for n in range(50)])
    early = []

    def handler(record: Any) -> None:
        offset, metadata = broker.committed[T0]
        if not decode(metadata, offset).is_complete(record.offset):
            early.append(record.offset)

    async def coroutine(record: Any) -> None:
        handler(record)

    made = pipeline(handler if kind == "thread" else coroutine, delivery="at_most_once")
    with FakeEngine(made, broker, ending_offsets={T0: 50}) as engine:
        assert engine.loop.ended.wait(30)
    assert early == []
    assert engine.loop.snapshot().processed == 50


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retries": Retries(max_attempts=3)}, "delivery='at_most_once' runs a record once"),
        ({"not_before": lambda _: None}, "it would be lost with the process while it waits"),
        ({"on_committed": print}, "its commit says nothing of what came of it"),
        ({"commit": Commit(mode="sync")}, "says itself when commits go"),
        ({"commit": Commit(every_records=5)}, "says itself when commits go"),
    ],
)
def test_options_that_contradict_at_most_once_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        pipeline(delivery="at_most_once", **options)


def test_the_default_of_retries_is_none_under_at_most_once() -> None:
    assert pipeline(delivery="at_most_once").tries.max_attempts == 1
    assert pipeline(delivery="at_most_once", retries=Retries(max_attempts=1, delay_ms=5)).tries.delay_ms == 5
