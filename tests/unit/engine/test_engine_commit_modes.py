"""When commits go, what they hold up, and who hears of them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from keylane import HandlerError, PeerError, Pipeline, Record
from keylane.consumer.callbacks import CommitCallbacks
from keylane.consumer.commits import RENEWAL_S, Acknowledgements, CommitEntry, CommitProblem, Told
from keylane.consumer.partitions import Partition
from keylane.consumer.start import Start
from keylane.offsets import DispatchBound, OffsetMap, decode, encode
from keylane.options import Threads
from keylane.pipeline import Commit, External, Partitions
from keylane.records import PlainMessage
from kit.engines import SomeWorkers, make_core
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.consumer.core import Core
    from keylane.consumer.modes.at_least_once import Plan

T0, T1 = ("t", 0), ("t", 1)
BOUND = DispatchBound.for_cap(4096)
KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}


def pipeline(handler: Callable[..., Any] = print, **options: Any) -> Pipeline:
    return Pipeline(**{"kafka": KAFKA, "topics": ["t"], "offset_reset": "earliest", "handler": handler, **options})


class Running:
    """A core with one partition, whose records are unordered unless the options say more."""

    def __init__(self, start: OffsetMap | None = None, **options: Any) -> None:
        usual: dict[str, Any] = {"ordering": "unordered", "commit": Commit(interval_ms=1_000)}
        made = pipeline(**(usual | options))
        self.core = make_core(made, SomeWorkers(4))
        self.now = 100.0
        self.core.assigned([Start("t", 0, 1, start or OffsetMap(0), 0, 100)], self.now)
        self.core.polled(T0, 1, [PlainMessage("t", 0, offset) for offset in range(20)])
        self.calls: list[Any] = []
        self.plan()

    def plan(self, wait: float = 0.0) -> Plan:
        self.now += wait
        plan = self.core.plan(self.now)
        self.calls += plan.dispatch
        return plan

    def finish(self, count: int) -> Plan:
        done, self.calls = self.calls[:count], self.calls[count:]
        self.core.calls_ended(done, self.now)
        return self.plan()


def test_after_so_many_records_a_commit_goes_whatever_the_period() -> None:
    running = Running(commit=Commit(interval_ms=1_000, every_records=3))
    assert running.finish(2).commit is None
    plan = running.finish(1)
    assert plan.commit is not None
    assert plan.commit[0].offset == 3
    assert running.finish(3).commit is None, "one is on its way"
    running.core.commit_answered(plan.commit, {}, running.now)
    second = running.plan().commit
    assert second is not None
    running.core.commit_answered(second, {}, running.now)
    assert running.finish(2).commit is None, "they count from the last commit on"
    assert running.finish(1).commit is not None


def test_a_synchronous_commit_holds_up_what_would_start() -> None:
    running = Running(commit=Commit(interval_ms=1_000, mode="sync"))
    assert len(running.finish(1).dispatch) == 1
    running.finish(1)
    plan = running.plan(wait=1.0)
    assert plan.commit is not None
    running.finish(2)
    assert len(running.calls) == 2, "nothing new starts"
    running.core.commit_answered(plan.commit, {}, running.now)
    running.plan()
    assert len(running.calls) == 4


def idle_commits(**options: Any) -> list[tuple[float, int, bool]]:
    """Of a core whose records are complete but one, and committed, and to which nothing more comes: when another commit
    goes within half an hour, its offset, and whether it has a map."""
    running = Running(stall_timeout_ms=3_600_000, **options)
    running.calls.remove(next(call for call in running.calls if 3 in call.numbers))
    while running.calls:
        running.finish(1)
    first = running.plan(wait=1.0)
    assert first.commit is not None
    running.core.commit_answered(first.commit, {}, running.now)
    began, found = running.now, []
    while (due := running.core.next_check(running.now)) is not None and due < began + 1_800:
        plan = running.plan(wait=due - running.now)
        if plan.commit is not None:
            found.append((running.now - began, plan.commit[0].offset, bool(plan.commit[0].metadata)))
            running.core.commit_answered(plan.commit, {}, running.now)
    return found


def test_commits_of_partitions_that_are_assigned_by_hand_are_made_again_before_they_expire() -> None:
    by_hand = Partitions([T0])
    renewed = idle_commits(topics=by_hand)
    assert [entry[1:] for entry in renewed] == [(3, True)] * 3
    assert [round(at / RENEWAL_S) for at, *_ in renewed] == [1, 2, 3]
    assert idle_commits() == [], "the members of a group keep its commits"
    assert idle_commits(topics=by_hand, commit=External(lambda _: {}, interval_ms=1_000)) == []


def committed_text(made: Any) -> tuple[Any, Core]:
    options: dict[str, Any] = {"commit": Commit(interval_ms=1_000, metadata=lambda *_: made), "ordering": "partition"}
    running = Running(**options)
    running.finish(1)
    plan = running.plan(wait=1.0)
    assert plan.commit is not None
    return plan.commit[0], running.core


def test_a_commit_without_a_map_has_the_users_metadata() -> None:
    asked: list[Any] = []

    def named(*where: Any) -> str:
        asked.append(where)
        return f"state-{where[2]}.bin"

    running = Running(commit=Commit(interval_ms=1_000, metadata=named), ordering="partition")
    assert len(running.calls) == 1, "one record of a partition at a time"
    running.finish(1)
    plan = running.plan(wait=1.0)
    assert plan.commit is not None
    assert (plan.commit[0].offset, plan.commit[0].metadata) == (1, "state-1.bin")
    assert asked == [("t", 0, 1)]
    assert committed_text("")[0].metadata == ""


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (5, "returned a value of type int: return a str"),
        ("x" * 4_097, "returned 4097 bytes: brokers take 4096 with a commit"),
        ("é" * 2_049, "returned 4098 bytes"),
        (encode(OffsetMap(0, [0, 2], 4)), "returned what reads as an offset map"),
    ],
)
def test_metadata_that_cannot_be_committed_ends_the_run_and_not_the_progress(made: Any, says: str) -> None:
    entry, core = committed_text(made)
    assert (entry.offset, entry.metadata) == (1, "")
    assert isinstance(core.failure, HandlerError)
    assert f"Commit.metadata('t', 0, 1) {says}" in str(core.failure)


def test_a_function_of_metadata_that_raises_ends_the_run_by_its_name() -> None:
    def failing(*_: Any) -> str:
        raise OSError("no disk")

    running = Running(commit=Commit(interval_ms=1_000, metadata=failing), ordering="partition")
    running.finish(1)
    running.plan(wait=1.0)
    assert str(running.core.failure) == "Commit.metadata('t', 0, 1) raised OSError: no disk"


def test_a_map_that_is_needed_comes_before_the_users_metadata() -> None:
    running = Running(
        OffsetMap(0, [0], 3), commit=Commit(interval_ms=1_000, metadata=lambda *_: "mine"), ordering="partition"
    )
    running.finish(0)
    running.core.partitions.open[T0].complete([5])
    plan = running.plan(wait=1.0)
    assert plan.commit is not None
    assert decode(plan.commit[0].metadata, 0).is_complete(5)


def test_an_asynchronous_commit_holds_up_nothing() -> None:
    running = Running()
    plan = running.plan(wait=1.0) if running.finish(1).commit is None else None
    assert plan is not None
    assert plan.commit is not None
    running.finish(2)
    assert len(running.calls) == 4


def test_a_commit_that_was_overtaken_by_a_revoke_counts_for_nothing() -> None:
    running = Running()
    running.finish(1)
    plan = running.plan(wait=1.0)
    assert plan.commit is not None
    running.core.commit_answered(plan.commit, {}, running.now, [])
    assert running.core.snapshot(running.now).commits == 0
    running.finish(1)
    assert running.plan(wait=1.0).commit is not None, "and the next one may go"


# --- who hears of it ---


def partition() -> Partition:
    made = pipeline(ordering="unordered")
    start = Start("t", 0, 1, OffsetMap(0), 0, 100)
    return Partition(start, made, make_core(made, SomeWorkers(4)), BOUND, log=logging.getLogger("test"))


class Completing:
    """A partition whose records complete, with what is told of that."""

    def __init__(self) -> None:
        self.partition = partition()
        self.acknowledgements = Acknowledgements(pipeline(on_committed=print))
        self.records = [PlainMessage("t", 0, offset) for offset in range(10)]
        self.partition.observe(self.records)
        self.partition.source.take(10, 0.0)

    def complete(self, *offsets: int) -> None:
        self.partition.tracker.complete(offsets)
        self.acknowledgements.completed(self.partition, [self.records[offset] for offset in offsets])

    def entry(self, metadata: str = "map") -> CommitEntry:
        tracker = self.partition.tracker
        return CommitEntry(self.partition, tracker.base, metadata, tracker.changes)

    def told(self, entry: CommitEntry, problem: CommitProblem | None = None) -> list[int]:
        told = self.acknowledgements.answered([entry], {} if problem is None else {T0: problem})
        assert told is not None
        return [one.offset() for one in told.records]


def test_a_record_is_told_once_when_a_commit_that_was_made_after_it_is_acknowledged() -> None:
    world = Completing()
    world.complete(0, 3)
    first = world.entry()
    world.complete(1)
    assert world.told(first) == [0, 3]
    assert world.told(world.entry()) == [1]
    assert world.told(world.entry()) == []


def test_a_commit_that_failed_tells_nothing_and_the_next_one_all() -> None:
    world = Completing()
    world.complete(0)
    assert world.told(world.entry(), CommitProblem("no")) == []
    world.complete(1)
    assert world.told(world.entry()) == [0, 1]


def test_a_commit_without_its_map_tells_what_lies_below_its_offset() -> None:
    world = Completing()
    world.complete(0, 3)
    world.complete(4)
    assert world.told(world.entry(metadata="")) == [0]
    world.complete(1)
    assert world.told(world.entry()) == [3, 4, 1]


def engine(count: int, handler: Callable[..., Any] = lambda _: None, **options: Any) -> tuple[FakeBroker, FakeEngine]:
    log = FakeBroker([T0, T1])
    for name in (T0, T1):
        log.append(name, [(b"%d" % (i % 5), b"") for i in range(count)])
    made = pipeline(handler, commit=Commit(interval_ms=20), **options)
    return log, FakeEngine(made, log, ending_offsets={T0: count, T1: count})


def test_on_commit_hears_of_offsets_and_errors_and_one_commit_carries_all_that_changed() -> None:
    heard: list[tuple[dict[Any, int], Any]] = []
    log, running = engine(50, on_commit=lambda offsets, error: heard.append((offsets, error)), workers=Threads(2))
    log.fail_commits.append(CommitProblem("COORDINATOR_LOAD_IN_PROGRESS: loading"))
    with running:
        assert running.loop.ended.wait(20)
    taken = [offsets for offsets, error in heard if error is None]
    [(refused, error)] = [(offsets, error) for offsets, error in heard if error is not None]
    assert isinstance(error, PeerError)
    assert "loading" in str(error)
    assert refused
    assert [set(said) for said in log.commits] == [set(offsets) for offsets in taken]
    assert {T0: 50, T1: 50}.items() <= {name: offset for said in taken for name, offset in said.items()}.items()


def test_on_committed_hears_of_each_record_once_and_only_when_it_is_committed() -> None:
    heard: list[tuple[int, int]] = []
    early: list[tuple[int, int]] = []
    log: FakeBroker

    def committed(record: Record) -> None:
        offset = log.committed[record.topic, record.partition][0]
        if not (record.offset < offset or log.committed[record.topic, record.partition][1]):
            early.append((record.partition, record.offset))
        heard.append((record.partition, record.offset))

    log, running = engine(200, on_committed=committed)
    with running:
        assert running.loop.ended.wait(20)
    assert sorted(heard) == [(partition, offset) for partition in (0, 1) for offset in range(200)]
    assert early == []


def test_what_a_revoke_commits_is_told_and_what_is_lost_is_not() -> None:
    heard: list[tuple[int, int]] = []
    gate = threading.Event()

    def handler(record: Record) -> None:
        if record.offset == 3:
            gate.wait(20)

    log = FakeBroker([T0, T1])
    for name in (T0, T1):
        log.append(name, [(b"%d" % i, b"") for i in range(4)])
    made = pipeline(
        handler,
        commit=Commit(interval_ms=60_000),
        revoke_timeout_ms=100,
        on_committed=lambda record: heard.append((record.partition, record.offset)),
    )
    with FakeEngine(made, log) as running:
        until(lambda: running.loop.snapshot().processed == 6, "the others are through")
        running.consumer.lose([T1])
        running.consumer.revoke([T0])
        until(lambda: not running.loop.snapshot().partitions, "both are gone")
        until(lambda: len(heard) == 3, "told")
        gate.set()
    assert sorted(heard) == [(0, 0), (0, 1), (0, 2)]


def test_nothing_new_starts_while_too_much_waits_to_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keylane.consumer.commits.MAX_UNHEARD", 5)
    running = Running(on_committed=print)
    running.finish(4)
    entries = running.plan(wait=2.0).commit
    assert entries is not None
    running.core.commit_answered(entries, {}, running.now)
    [told] = running.plan().told
    assert told.count == 5, "a commit, and four records"
    waiting = len(running.calls)
    running.finish(2)
    assert len(running.calls) == waiting - 2, "what was with the workers comes back, and nothing follows"
    running.core.heard(1)
    running.plan()
    assert len(running.calls) == waiting


def test_what_a_large_commit_tells_comes_in_parts_and_none_is_left_out() -> None:
    records = [PlainMessage("t", 0, offset) for offset in range(2_500)]
    told = Told({T0: 2_500}, {}, "", records)
    parts = told.parts()
    assert [len(part.records) for part in parts] == [1_000, 1_000, 500]
    assert [one for part in parts for one in part.records] == records
    assert [bool(part.accepted) for part in parts] == [True, False, False], "the commit is told once"
    assert sum(part.count for part in parts) == told.count == 2_501


def test_a_slow_on_committed_slows_the_consumer_and_hears_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keylane.consumer.commits.MAX_UNHEARD", 20)
    heard: list[int] = []
    entered, gate = threading.Event(), threading.Event()

    def committed(record: Record) -> None:
        entered.set()
        assert gate.wait(20)
        heard.append(record.offset)

    log = FakeBroker([T0])
    log.append(T0, [(b"%d" % i, b"") for i in range(40)])
    made = pipeline(lambda _: None, commit=Commit(interval_ms=20), on_committed=committed)
    with FakeEngine(made, log) as running:
        until(lambda: [one.committed for one in running.loop.snapshot().partitions] == [40], "the first are committed")
        assert entered.wait(20)
        log.append(T0, [(b"%d" % i, b"") for i in range(160)])
        until(lambda: running.loop.snapshot().buffered == 160, "the others are there")
        assert (running.loop.snapshot().processed, running.loop.snapshot().handed_over) == (40, 0)
        gate.set()
        until(lambda: len(heard) == 200, "all are heard of")
    assert sorted(heard) == list(range(200))


@pytest.mark.parametrize("option", ["on_commit", "on_committed"])
def test_a_callback_that_raises_ends_the_run(option: str) -> None:
    def callback(*_: Any) -> None:
        raise ValueError("not today")

    _, running = engine(10, **{option: callback})
    with running:
        assert running.loop.ended.wait(20)
    assert isinstance(running.loop.failure, HandlerError)
    assert str(running.loop.failure) == f"{option} raised ValueError: not today"


def test_a_callback_that_raises_while_the_run_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    is_closing, close = threading.Event(), CommitCallbacks.close

    def callback(_: Any) -> None:
        assert is_closing.wait(20)
        raise ValueError("not today")

    def closing(self: CommitCallbacks, timeout_s: float) -> None:
        is_closing.set()
        close(self, timeout_s)

    monkeypatch.setattr(CommitCallbacks, "close", closing)
    _, running = engine(10, on_committed=callback)
    with running:
        assert running.loop.ended.wait(20)
    assert str(running.loop.failure) == "on_committed raised ValueError: not today"
