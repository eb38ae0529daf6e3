"""The core, one rule at a time. The simulation covers what happens when they meet."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import pytest

from keylane import DeadLetter, ExactlyOnce, Fatal, HandlerError, Output, PeerError, Pipeline, Retries, RetryAfter, Skip
from keylane.consumer.closing import FINAL_COMMIT_S, Phase
from keylane.consumer.commits import CommitProblem
from keylane.consumer.ending import SETTLE_S
from keylane.consumer.outputs import NO_RESULTS, Answer, ResultsMoved, ResultsRule
from keylane.consumer.start import Start
from keylane.flow.items import Call
from keylane.flow.outcomes import NOT_RUN, Failure
from keylane.flow.workers import Running
from keylane.offsets import OffsetMap, decode
from keylane.pipeline import Commit
from keylane.records import PlainMessage, Returned
from kit.engines import SomeWorkers, make_core

if TYPE_CHECKING:
    from pathlib import Path

    from keylane.consumer.modes.at_least_once import Plan
    from keylane.flow.items import Source
    from keylane.flow.outcomes import Outcome

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}


def handler(record: Any) -> None:
    """Never called: these tests decide what handlers come to."""


def message(offset: int, key: bytes | None = None, partition: int = 0, value: bytes = b"v") -> PlainMessage:
    return PlainMessage("t", partition, offset, key, value, (("h", b"1"),), (1, 1_000 + offset))


class World:
    """A core, its time, and what was dispatched and not completed."""

    def __init__(
        self,
        concurrency: int = 100,
        ending: dict[tuple[str, int], int] | None = None,
        results: ResultsRule = NO_RESULTS,
        running: list[Running] | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("commit", Commit(interval_ms=1_000))
        self.pipeline = Pipeline(kafka=KAFKA, topics=["t"], handler=handler, **options)
        self.core = make_core(
            self.pipeline,
            SomeWorkers(concurrency),
            ending_offsets=ending,
            results=results,
            running=lambda: running or [],
        )
        self.now = 100.0
        self.calls: dict[tuple[int, int], Call] = {}
        """With the workers, by partition and offset."""

    def assign(self, partition: int = 0, base: int = 0, offsets: OffsetMap | None = None, **more: Any) -> None:
        start = Start("t", partition, more.pop("epoch", 1), offsets or OffsetMap(base), more.pop("log_start", 0), 1_000)
        self.core.assigned([start], self.now)

    def poll(self, *messages: PlainMessage, epoch: int = 1) -> Plan:
        self.core.polled(("t", messages[0].partition_), epoch, messages)
        return self.plan()

    def plan(self, wait: float = 0.0) -> Plan:
        self.now += wait
        plan = self.core.plan(self.now)
        for call in plan.dispatch:
            assert isinstance(call, Call), "a batch without batch_size"
            [offset] = call.numbers
            assert (call.source.name[1], offset) not in self.calls, "dispatched twice"
            self.calls[call.source.name[1], offset] = call
        return plan

    def finish(self, *offsets: int, outcome: Outcome = None, partition: int = 0) -> Plan:
        calls = [self.calls.pop((partition, offset)) for offset in offsets]
        for call in calls:
            came_to(call, outcome)
        self.core.calls_ended(calls, self.now)
        return self.plan()

    @property
    def running(self) -> list[int]:
        return [offset for _, offset in self.calls]

    def source(self, partition: int) -> Source:
        return self.core.partitions.open["t", partition].source

    def commit(self, plan: Plan, problems: dict[tuple[str, int], Any] | None = None) -> None:
        assert plan.commit is not None, "no commit was planned"
        self.core.commit_answered(plan.commit, problems or {}, self.now)

    def phase(self) -> Phase:
        return self.core.phase

    def failure(self) -> BaseException | None:
        return self.core.failure

    def counters(self, *names: str) -> list[int]:
        snapshot = self.core.snapshot(self.now)
        return [getattr(snapshot, name) for name in names]


def came_to(call: Call, outcome: Outcome) -> None:
    """The worker's, of a call of one record."""
    list(call.begin(1.0))
    if outcome is not None:
        call.note(0, outcome)


def committed(plan: Plan) -> dict[int, int]:
    """Partition and offset of what the plan commits."""
    assert plan.commit is not None, "no commit was planned"
    return {entry.name[1]: entry.offset for entry in plan.commit}


OUT = Output("out", key=b"k", value=b"v")
FAILED = Failure(ValueError("bad value"))


def started(**options: Any) -> World:
    world = World(**options)
    world.assign()
    return world


# --- ordering and dispatch ---


def test_key_runs_keys_side_by_side_and_each_key_in_order() -> None:
    world = started()
    world.poll(message(0, b"a"), message(1, b"a"), message(2, b"b"), message(3))
    assert world.running == [0, 2, 3]
    world.finish(0)
    assert world.running == [2, 3, 1]


def test_of_keys_that_are_ready_again_the_one_that_is_furthest_behind_goes_first() -> None:
    world = started(concurrency=3)
    world.poll(*(message(offset, b"%d" % (offset % 3)) for offset in range(9)))
    assert world.running == [0, 1, 2]
    world.finish(1)
    assert world.running == [0, 2, 4]
    world.finish(4, 2, 0)
    assert world.running == [3, 5, 7]


def test_no_more_than_max_concurrency_records_are_handed_over() -> None:
    world = started(concurrency=3)
    world.poll(*(message(i) for i in range(10)))
    assert len(world.running) == 3
    world.finish(0, 1)
    assert world.running == [2, 3, 4]


def test_partitions_share_the_room_in_turns() -> None:
    world = World(concurrency=6, ordering="unordered")
    for partition in range(3):
        world.assign(partition)
        world.core.polled(("t", partition), 1, [message(i, partition=partition) for i in range(50)])
    world.plan()
    assert [sum(p == partition for p, _ in world.calls) for partition in range(3)] == [2, 2, 2]


def test_one_partition_may_use_the_room_that_others_leave() -> None:
    world = World(concurrency=6, ordering="unordered")
    world.assign(0)
    world.assign(1)
    world.core.polled(("t", 1), 1, [message(0, partition=1)])
    world.poll(*(message(i) for i in range(50)))
    assert len(world.running) == 6


def test_the_bound_holds_back_until_completions_make_room_for_the_map() -> None:
    world = World(
        concurrency=10_000, ordering="unordered", commit=Commit(metadata_max_bytes=40)
    )  # 160 offsets, 3 incomplete
    world.assign(0)
    world.assign(1)
    world.poll(*(message(i) for i in range(400)))
    assert max(world.running) == 159
    world.finish(*range(3, 160))
    assert world.running == [0, 1, 2], "three stuck records leave no room for another behind 160 offsets"
    world.poll(message(0, partition=1))
    assert (1, 0) in world.calls, "the other partition goes on"
    world.finish(1)
    assert [offset for partition, offset in world.calls if partition == 0] == [0, 2, 160]
    world.finish(0, 2)
    assert max(world.running) > 300, "the base has moved, and the span with it"


def test_one_stuck_record_never_stops_its_partition() -> None:
    world = World(concurrency=10_000, ordering="unordered", commit=Commit(metadata_max_bytes=36))
    world.assign(0)
    for first in range(0, 5_000, 100):
        world.poll(*(message(i) for i in range(first, first + 100)))
        while ready := [offset for offset in world.running if offset != 0]:
            world.finish(*ready)
    assert world.running == [0]
    assert world.counters("processed") == [4_999]


def test_what_the_dispatch_bound_held_back_starts_with_the_completion_that_makes_room() -> None:
    """Every other record is stuck, until no more may start; their release takes no time at all to be seen."""
    world = World(concurrency=10_000, ordering="unordered", commit=Commit(metadata_max_bytes=36))
    world.assign(0)
    world.poll(*(message(i) for i in range(1_000)))
    while odd := [offset for offset in world.running if offset % 2]:
        world.finish(*odd)
    highest, released_at = max(world.running), world.now
    assert 10 < highest < 500, "the bound holds the others back"
    world.finish(*world.running)
    assert max(world.running) > highest
    assert world.now == released_at, "in the same turn"


# --- retries ---


def test_a_retry_waits_and_holds_its_key_and_nothing_else() -> None:
    world = started(retries=Retries(delay_ms=500, jitter=0))
    world.poll(message(0, b"a"), message(1, b"a"), message(2, b"b"), message(3, b"b"))
    world.finish(0, outcome=FAILED)
    world.finish(2)
    assert world.running == [3]
    world.plan(wait=0.49)
    assert world.running == [3]
    world.plan(wait=0.02)
    assert world.running == [3, 0]
    assert world.calls[0, 0].attempt == 2
    world.finish(0)
    assert world.running == [3, 1]
    assert world.counters("failed", "retried", "processed") == [1, 1, 2]


def test_an_error_can_say_when_its_record_is_tried_again() -> None:
    world = started(retries=Retries(max_attempts=3, delay_ms=10, max_delay_ms=10), on_exhausted=Skip())
    world.poll(message(0))
    world.finish(0, outcome=Failure(RetryAfter(2_000)))
    world.plan(wait=1.9)
    assert world.running == []
    world.plan(wait=0.2)
    assert world.running == [0]
    world.finish(0, outcome=Failure(RetryAfter(0)))
    assert world.running == [0], "at once"
    world.finish(0, outcome=Failure(RetryAfter(0)))
    assert world.counters("failed", "retried", "skipped") == [3, 2, 1]


def test_a_retry_holds_its_partition_under_partition() -> None:
    world = World(ordering="partition", retries=Retries(delay_ms=500, jitter=0))
    world.assign(0)
    world.assign(1)
    world.poll(message(0), message(1))
    world.poll(message(0, partition=1), message(1, partition=1))
    world.finish(0, outcome=FAILED)
    world.finish(0, partition=1)
    assert list(world.calls) == [(1, 1)]


def test_the_next_check_is_when_the_retry_is_due() -> None:
    world = started(retries=Retries(delay_ms=200, jitter=0))
    world.poll(message(0))
    world.finish(0, outcome=FAILED)
    assert world.core.next_check(world.now) == pytest.approx(world.now + 0.2)


# --- after the last attempt ---


def exhaust(world: World, offset: int = 0, failure: Failure = FAILED) -> Any:
    plan = world.finish(offset, outcome=failure)
    for _ in range((world.pipeline.tries.max_attempts or 1) - 1):
        if failure.final:
            break
        world.plan(wait=world.pipeline.tries.max_delay_ms / 1000)
        plan = world.finish(offset, outcome=failure)
    return plan


TWICE = Retries(max_attempts=2, delay_ms=10, max_delay_ms=10)


def test_halt_names_the_record_and_commits_everything_complete_first() -> None:
    world = started(retries=TWICE)
    world.poll(message(0, b"a"), message(1, b"b"), message(2, b"c"))
    world.finish(0)
    exhaust(world, 1)
    assert world.phase() is Phase.DRAINING, "2 is still in its handler"
    plan = world.finish(2)
    assert plan.commit is not None
    assert decode(plan.commit[0].metadata, plan.commit[0].offset) == OffsetMap(1, [1], 2)
    world.commit(plan)
    world.plan()
    assert world.phase() is Phase.FINISHED
    error = world.failure()
    assert isinstance(error, HandlerError)
    assert str(error).startswith("t-0@1: ValueError: bad value; failed 2 attempts; ")
    assert isinstance(error.__cause__, ValueError)


def test_skip_counts_the_record_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    world = started(retries=TWICE, on_exhausted=Skip())
    world.poll(message(0, b"a"), message(1, b"a"))
    with caplog.at_level(logging.INFO, "keylane"):
        exhaust(world)
    assert "skipped t-0@0: ValueError; failed 2 attempts" in caplog.text, "what it says may quote the record"
    assert world.running == [1]
    assert world.counters("skipped", "processed", "failed", "retried") == [1, 0, 2, 1]


def test_fatal_is_not_retried() -> None:
    world = started(on_exhausted=Skip())
    world.poll(message(0))
    world.finish(0, outcome=Failure(Fatal("no use"), final=True))
    assert world.counters("skipped", "retried") == [1, 0]


def test_a_dead_letter_is_the_record_with_headers_and_is_acknowledged_before_the_record_is_complete() -> None:
    world = started(retries=TWICE, on_exhausted=DeadLetter("dead"))
    world.poll(message(0, b"a", value=b"original"), message(1, b"a"))
    plan = exhaust(world)
    [delivery] = plan.produce
    [letter] = delivery.outputs
    assert (letter.topic, letter.key, letter.value) == ("dead", b"a", b"original")
    assert list(letter.headers) == [
        ("h", b"1"),
        ("keylane.topic", b"t"),
        ("keylane.partition", b"0"),
        ("keylane.offset", b"0"),
        ("keylane.timestamp", b"1000"),
        ("keylane.error.class", b"ValueError"),
        ("keylane.error.text", b"bad value"),
        ("keylane.attempts", b"2"),
    ]
    assert world.running == [], "its key waits for the acknowledgement"
    assert world.core.snapshot(world.now).partitions[0].base == 0
    world.core.delivered([Answer(delivery, 0)], world.now)
    world.plan()
    assert world.running == [1]
    assert world.counters("dead_lettered", "produced", "processed") == [1, 1, 0]


def test_a_dead_letter_that_fails_is_tried_again_and_halts_in_the_end() -> None:
    world = started(retries=TWICE, on_exhausted=DeadLetter("dead"))
    world.poll(message(0))
    [delivery] = exhaust(world).produce
    world.core.delivered([Answer(delivery, 0, PeerError("no such topic"))], world.now)
    [again] = world.plan(wait=0.01).produce
    assert again is not delivery
    assert world.phase() is Phase.RUNNING
    world.core.delivered([Answer(again, 0, PeerError("no such topic"))], world.now)
    assert isinstance(world.failure(), HandlerError)
    text = str(world.failure())
    assert text.startswith("t-0@0: ValueError: bad value; failed 2 attempts, and its dead letter could not be produced")
    assert "'dead': PeerError: no such topic" in text


# --- outputs ---


def test_a_record_completes_when_all_its_outputs_are_acknowledged() -> None:
    world = started()
    world.poll(message(0, b"a"), message(1, b"a"))
    [delivery] = world.finish(0, outcome=[OUT, OUT]).produce
    assert list(delivery.outputs) == [OUT, OUT]
    assert world.counters("handed_over", "buffered", "processed") == [1, 2, 0]
    world.core.delivered([Answer(delivery, 0)], world.now)
    world.plan()
    assert world.running == []
    world.core.delivered([Answer(delivery, 0)], world.now)
    world.plan()
    assert world.running == [1]
    assert world.counters("processed", "produced") == [1, 2]


def test_a_failed_delivery_is_a_failed_attempt() -> None:
    world = started(retries=Retries(max_attempts=2, delay_ms=10, max_delay_ms=10), on_exhausted=Skip())
    world.poll(message(0))
    [delivery] = world.finish(0, outcome=[OUT, OUT]).produce
    world.core.delivered([Answer(delivery, 0, PeerError("lost")), Answer(delivery, 1)], world.now)
    world.plan(wait=0.01)
    assert world.calls[0, 0].attempt == 2
    [delivery] = world.finish(0, outcome=[OUT]).produce
    world.core.delivered([Answer(delivery, 0, PeerError("lost"))], world.now)
    assert world.counters("failed", "retried", "skipped", "processed") == [2, 1, 1, 0]


# --- results ---

EVERY = ResultsRule(every=True, max_unseen=2)


def test_a_result_is_seen_before_its_record_is_complete() -> None:
    world = started(results=EVERY)
    world.poll(message(0, b"a"), message(1, b"a"))
    [delivery] = world.finish(0, outcome=Returned(5)).results
    assert delivery.result().value == 5
    assert world.running == [], "its key waits"
    assert world.counters("handed_over", "unseen", "processed") == [1, 1, 0]
    world.core.results_moved(ResultsMoved([(delivery, None)], passed=(delivery,)), world.now)
    world.plan()
    assert world.running == [1]
    assert world.counters("handed_over", "unseen", "processed") == [1, 0, 1]


def test_outputs_are_acknowledged_before_their_result_is_seen_and_it_knows_where_they_are() -> None:
    world = started(results=EVERY)
    world.poll(message(0))
    plan = world.finish(0, outcome=Returned([OUT, OUT], [OUT, OUT]))
    [delivery] = plan.produce
    assert plan.results == []
    world.core.delivered([Answer(delivery, 1, None, 3, 11)], world.now)
    assert world.plan().results == []
    world.core.delivered([Answer(delivery, 0, None, 2, 7)], world.now)
    assert world.plan().results == [delivery]
    result = delivery.result()
    assert [(one.topic, one.partition, one.offset) for one in result.produced] == [("out", 2, 7), ("out", 3, 11)]
    assert (result.record.offset, result.value) == (0, [OUT, OUT])


def test_nothing_new_starts_while_too_many_results_wait() -> None:
    world = started(results=EVERY, concurrency=3)
    world.poll(*(message(i) for i in range(10)))
    first, second, third = world.finish(0, 1, 2, outcome=Returned(None)).results
    assert world.running == []
    world.core.results_moved(ResultsMoved([(first, None)], passed=(first,)), world.now)
    world.plan()
    assert world.running == [], "as many as the bound still wait"
    world.core.results_moved(ResultsMoved([(second, None), (third, None)], passed=(second, third)), world.now)
    world.plan()
    assert world.running == [3, 4, 5]


def test_results_of_a_process_before_this_one_count_as_its_own() -> None:
    world = started(results=ResultsRule(every=True, max_unseen=3, waiting=2))
    world.poll(message(0), message(1))
    [delivery] = world.finish(0, outcome=Returned(None)).results
    assert world.counters("unseen") == [3]
    world.poll(message(2))
    assert 2 not in world.running
    world.core.results_moved(ResultsMoved(passed=range(1)), world.now)
    world.plan()
    assert 2 in world.running
    world.core.results_moved(ResultsMoved([(delivery, None)], passed=(delivery,)), world.now)
    assert world.counters("unseen") == [1]


def test_a_result_that_was_complete_at_once_still_waits_for_its_reader() -> None:
    world = started(results=ResultsRule(every=True, max_unseen=1))
    world.poll(message(0, b"a"), message(1, b"a"))
    [delivery] = world.finish(0, outcome=Returned(None)).results
    world.core.results_moved(ResultsMoved([(delivery, None)]), world.now)
    world.plan()
    assert world.counters("processed", "unseen") == [1, 1]
    assert world.running == []
    world.core.results_moved(ResultsMoved(passed=(delivery,)), world.now)
    world.plan()
    assert world.running == [1]


def test_a_callback_that_fails_is_a_failed_attempt() -> None:
    world = started(results=ResultsRule(produced=True), retries=Retries(max_attempts=2, delay_ms=10, max_delay_ms=10))
    world.poll(message(0), message(1))
    world.finish(1)
    assert world.counters("processed") == [1], "without outputs there is nothing to call for"
    [delivery] = world.finish(0, outcome=[OUT]).produce
    world.core.delivered([Answer(delivery, 0)], world.now)
    [delivery] = world.plan().results
    world.core.results_moved(ResultsMoved([(delivery, FAILED)], passed=(delivery,)), world.now)
    world.plan(wait=0.01)
    assert world.calls[0, 0].attempt == 2
    assert world.counters("failed", "retried", "unseen") == [1, 1, 0]


def test_dead_letters_are_no_results() -> None:
    world = started(results=EVERY, on_exhausted=DeadLetter("dead"))
    world.poll(message(0))
    [delivery] = world.finish(0, outcome=Failure(Fatal("no"), final=True)).produce
    world.core.delivered([Answer(delivery, 0)], world.now)
    assert world.plan().results == []
    assert world.counters("dead_lettered", "unseen") == [1, 0]


def test_results_that_nobody_will_see_stay_to_do_and_do_not_hold_up_the_end() -> None:
    world = started(results=EVERY)
    world.poll(message(0), message(1))
    seen, unseen = world.finish(0, 1, outcome=Returned(None)).results
    world.core.results_moved(ResultsMoved([(seen, None)], passed=(seen,)), world.now)
    world.core.stop(world.now)
    assert world.plan().commit is None, "it waits for the reader"
    world.core.results_moved(ResultsMoved([(unseen, NOT_RUN)], passed=(unseen,)), world.now)
    assert committed(world.plan(wait=0.2)) == {0: 1}


def test_results_of_an_earlier_epoch_change_nothing() -> None:
    world = started(results=EVERY)
    world.poll(message(0))
    [delivery] = world.finish(0, outcome=Returned(None)).results
    world.core.lost([("t", 0)])
    world.core.results_moved(ResultsMoved([(delivery, None)], passed=(delivery,)), world.now)
    assert world.counters("processed", "handed_over", "unseen") == [0, 0, 0]


# --- commits ---


def test_a_quiet_engine_commits_at_once_but_not_more_often_than_every_100_ms() -> None:
    world = started()
    world.poll(message(0))
    world.now += 0.2
    plan = world.finish(0)
    assert committed(plan) == {0: 1}
    world.commit(plan)
    world.poll(message(1))
    assert world.finish(1).commit is None
    check = world.core.next_check(world.now)
    assert check == pytest.approx(world.now + 0.1)
    assert committed(world.plan(wait=0.1)) == {0: 2}


def test_a_busy_engine_commits_on_the_interval() -> None:
    world = started(commit=Commit(interval_ms=1_000))
    world.poll(message(0, b"a"), message(1, b"b"))
    world.now += 0.5
    assert world.finish(0).commit is None
    plan = world.plan(wait=0.5)
    assert committed(plan) == {0: 1}
    assert plan.commit is not None
    assert plan.commit[0].metadata == ""


def test_the_map_goes_along_only_when_something_above_the_base_is_complete() -> None:
    world = started()
    world.poll(message(0, b"a"), message(1, b"b"), message(2, b"c"))
    world.finish(1)
    plan = world.plan(wait=1.0)
    assert plan.commit is not None
    assert decode(plan.commit[0].metadata, 0) == OffsetMap(0, [0], 1)


def test_one_commit_is_on_its_way_at_a_time_and_counts_when_it_is_acknowledged() -> None:
    world = started()
    world.poll(message(0, b"a"), message(1, b"b"), message(2, b"c"))
    world.finish(0)
    first = world.plan(wait=1.0)
    world.finish(1)
    assert world.plan(wait=5.0).commit is None
    assert world.core.snapshot(world.now).partitions[0].committed == 0
    world.commit(first)
    assert world.core.snapshot(world.now).partitions[0].committed == 1
    assert committed(world.plan()) == {0: 2}


def test_a_failed_commit_is_part_of_the_next_one_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = started()
    world.poll(message(0))
    world.now += 0.2
    plan = world.finish(0)
    with caplog.at_level(logging.WARNING, "keylane"):
        for _ in range(3):
            world.commit(plan, {("t", 0): CommitProblem("_TRANSPORT: gone")})
            assert world.plan(wait=0.4).commit is None, "a broker that restarts is not hurried"
            plan = world.plan(wait=0.1)
            assert committed(plan) == {0: 1}
    assert caplog.text.count("a commit failed and will be repeated: _TRANSPORT: gone") == 1
    world.commit(plan)
    assert world.counters("commits", "commit_failures") == [1, 3]
    assert world.plan(wait=9.0).commit is None


def test_a_refused_commit_stops_the_consumer() -> None:
    world = started()
    world.poll(message(0))
    world.now += 0.2
    world.commit(world.finish(0), {("t", 0): CommitProblem("GROUP_AUTHORIZATION_FAILED", fatal=True)})
    assert isinstance(world.failure(), PeerError)
    assert "commits of group 'g' are refused" in str(world.failure())


def test_a_broker_that_takes_less_metadata_is_learned() -> None:
    world = started(ordering="unordered", concurrency=5_000)
    world.poll(*(message(i) for i in range(2_000)))
    chosen = random.Random(7).sample(range(1, 2_000), 1_000)
    world.finish(*chosen)
    plan = world.plan(wait=1.0)
    assert plan.commit is not None
    size = len(plan.commit[0].metadata)
    assert size > 300, "random holes do not compress"
    world.commit(plan, {("t", 0): CommitProblem("OFFSET_METADATA_TOO_LARGE", metadata_too_large=True)})
    plan = world.plan()
    assert plan.commit is not None, "the same commit goes again at once"
    assert plan.commit[0].metadata == ""
    assert world.counters("commits_without_map") == [1]
    world.commit(plan)
    world.finish(next(offset for offset in range(1, 2_000) if offset not in chosen))
    assert world.plan(wait=9.0).commit is None, "put off until its map fits: what was committed stays"
    left = [offset for offset in range(1_900) if offset not in chosen]
    world.finish(left[0], *left[2:])
    plan = world.plan(wait=9.0)
    assert plan.commit is not None
    assert 0 < len(plan.commit[0].metadata) <= size // 2, "what fits has its map"


def test_every_changed_partition_is_in_one_commit() -> None:
    world = World()
    for partition in range(3):
        world.assign(partition)
        world.poll(message(0, partition=partition))
    world.finish(0, partition=0)
    world.finish(0, partition=2)
    assert committed(world.plan(wait=1.0)) == {0: 1, 2: 1}


# --- what the log says ---


def test_gaps_and_the_partition_end_move_the_base() -> None:
    world = started()
    world.poll(message(2), message(5))
    world.finish(2, 5)
    world.core.partition_ended(("t", 0), 1, 9)
    assert committed(world.plan(wait=1.0)) == {0: 9}


def test_what_an_earlier_run_completed_is_not_run() -> None:
    world = World()
    world.assign(offsets=OffsetMap(10, [10, 12], 13))
    world.poll(*(message(i) for i in range(10, 16)))
    assert world.running == [10, 12, 14, 15]
    assert world.counters("already_complete") == [2]


def test_records_polled_twice_are_taken_once() -> None:
    world = started()
    world.poll(message(0), message(1))
    world.poll(message(0), message(1), message(2))
    assert world.running == [0, 1, 2]


def test_what_retention_took_is_counted_and_passed(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "keylane"):
        world.assign(offsets=OffsetMap(10, [10, 12], 13), log_start=20)
    assert "t-0: up to 8 records below the log's start at 20 were lost to retention" in caplog.text
    assert world.counters("lost_to_retention") == [8], "10, 12, and 14 to 19"
    assert committed(world.plan(wait=1.0)) == {0: 20}


# --- partitions that come and go ---


def test_a_revoke_waits_for_handlers_and_answers_with_the_last_commit() -> None:
    world = World(revoke_timeout_ms=1_000)
    world.assign(0)
    world.assign(1)
    world.poll(message(0, b"a"), message(1, b"a"), message(2, b"b"))
    world.poll(message(0, b"a", partition=1), message(1, b"a", partition=1))
    world.core.revoking([("t", 0)], "token", world.now)
    plan = world.plan()
    assert plan.revoked == []
    assert plan.withdraw
    world.finish(0)
    assert (0, 1) not in world.calls, "nothing of it starts any more"
    assert world.finish(0, partition=1).dispatch != [], "the kept partition goes on"
    plan = world.finish(2)
    [answer] = plan.revoked
    assert answer.token == "token"
    assert [(entry.offset, decode(entry.metadata, 1)) for entry in answer.entries] == [(1, OffsetMap(1, [1], 2))]
    assert [one.partition for one in world.core.snapshot(world.now).partitions] == [1]


def test_a_revoke_gives_up_handlers_after_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    world = started(revoke_timeout_ms=1_000)
    world.poll(message(0), message(1))
    world.core.revoking([("t", 0)], "token", world.now)
    world.finish(1)
    assert world.core.next_check(world.now) == pytest.approx(world.now + 1.0)
    with caplog.at_level(logging.WARNING, "keylane"):
        plan = world.plan(wait=1.0)
    assert [answer.entries[0].offset for answer in plan.revoked] == [0]
    assert plan.cancel
    assert "t-0 is given up with 1 records in handlers" in caplog.text


def test_a_completion_of_an_earlier_epoch_changes_nothing() -> None:
    world = started()
    world.poll(message(0), message(1))
    old = world.calls.pop((0, 0)), world.calls.pop((0, 1))
    world.core.lost([("t", 0)])
    assert world.plan().cancel
    world.assign(epoch=2)
    world.poll(message(0), message(1), epoch=2)
    assert world.running == [0, 1], "they run again: nothing was committed"
    for call in old:
        came_to(call, None)
    world.core.calls_ended(list(old), world.now)
    snapshot = world.core.snapshot(world.now)
    assert (snapshot.processed, snapshot.partitions[0].base) == (0, 0)


@pytest.mark.parametrize("guarantee", ["at_least_once", "almost_once", "exactly_once"])
def test_a_key_whose_handler_still_runs_waits_for_it_in_the_next_assignment(guarantee: str, tmp_path: Path) -> None:
    """A member can lose a partition and have it again within milliseconds, as when its broker restarts."""
    exactly_once = ExactlyOnce(str(tmp_path / "store.db"))
    world = started(delivery=exactly_once if guarantee == "exactly_once" else guarantee, ordering="key")
    world.poll(message(0, b"a"), message(1, b"b"))
    [runs_on, given_back] = world.calls.pop((0, 0)), world.calls.pop((0, 1))
    world.core.lost([("t", 0)])
    world.plan()
    world.assign(epoch=2)
    world.poll(message(0, b"a"), message(1, b"b"), message(2, b"c"), epoch=2)
    assert world.running == [2]
    world.core.withdrawn([given_back])
    world.plan()
    assert world.running == [2, 1]
    came_to(runs_on, None)
    world.core.calls_ended([runs_on], world.now)
    world.plan()
    assert world.running == [2, 1, 0]


def test_outputs_of_an_earlier_epoch_change_nothing_either() -> None:
    world = started()
    world.poll(message(0))
    [delivery] = world.finish(0, outcome=[OUT]).produce
    world.core.lost([("t", 0)])
    world.assign(epoch=2)
    world.core.delivered([Answer(delivery, 0)], world.now)
    assert world.core.snapshot(world.now).partitions[0].base == 0


def test_batches_of_an_earlier_epoch_are_dropped() -> None:
    world = started()
    world.core.lost([("t", 0)])
    world.assign(epoch=2)
    assert world.poll(message(0), epoch=1).dispatch == []
    assert world.poll(message(0), epoch=2).dispatch != []


def test_lost_partitions_are_forgotten_without_a_commit() -> None:
    world = started()
    world.poll(message(0))
    world.finish(0)
    world.core.lost([("t", 0)])
    assert world.plan(wait=5.0).commit is None
    assert world.counters("buffered") == [0]


def test_what_was_withdrawn_is_run_after_all_when_its_partition_is_kept() -> None:
    world = started()
    world.poll(message(0))
    call = world.calls.pop((0, 0))
    world.core.withdrawn([call])
    world.plan()
    assert world.running == [0]
    world.finish(0, outcome=NOT_RUN)
    assert world.running == [0]


# --- the end ---


def test_stop_finishes_what_is_in_handlers_commits_and_is_finished() -> None:
    world = started()
    world.poll(message(0, b"a"), message(1, b"a"), message(2, b"b"))
    world.core.stop(world.now)
    plan = world.plan()
    assert plan.withdraw
    assert plan.credit == 0, "nothing is polled any more"
    world.finish(2)
    plan = world.finish(0)
    assert world.running == [], "1 does not start"
    assert committed(plan) == {0: 1}, "the last commit waits for nothing"
    world.commit(plan)
    world.plan()
    assert world.phase() is Phase.FINISHED
    assert world.failure() is None


def test_stop_gives_up_handlers_after_the_drain_timeout() -> None:
    world = started(drain_timeout_ms=500)
    world.poll(message(0), message(1))
    world.core.stop(world.now)
    world.finish(1)
    assert world.phase() is Phase.DRAINING
    plan = world.plan(wait=0.5)
    assert plan.cancel
    plan = plan if plan.commit is not None else world.plan(wait=1.0)
    assert committed(plan) == {0: 0}, "the map says that 1 is complete"
    world.commit(plan)
    world.plan()
    assert world.phase() is Phase.FINISHED


def test_the_last_commit_is_waited_for_with_a_limit() -> None:
    world = started()
    world.poll(message(0))
    world.finish(0)
    world.core.stop(world.now)
    world.plan(wait=0.1)
    world.plan(wait=FINAL_COMMIT_S - 1)
    assert world.phase() is Phase.DRAINING
    world.plan(wait=1.0)
    assert world.phase() is Phase.FINISHED


def test_an_engine_with_nothing_to_do_stops_at_once() -> None:
    world = World()
    world.core.stop(world.now)
    world.plan()
    assert world.phase() is Phase.FINISHED


def test_a_revoke_after_the_drain_waits_for_nothing() -> None:
    world = started(drain_timeout_ms=500)
    world.poll(message(0))
    world.core.stop(world.now)
    world.plan(wait=0.5)
    world.core.revoking([("t", 0)], "close", world.now)
    assert [answer.token for answer in world.plan().revoked] == ["close"]


def test_a_last_commit_that_did_not_get_through_is_not_tried_again_while_leaving() -> None:
    world = started()
    world.poll(message(0), message(1))
    world.finish(0, 1)
    world.core.stop(world.now)
    world.plan(wait=0.1)
    world.plan(wait=FINAL_COMMIT_S)
    assert world.phase() is Phase.FINISHED
    world.core.revoking([("t", 0)], "close", world.now)
    assert [answer.entries for answer in world.plan().revoked] == [[]], "it would block as long as the broker is away"


# --- ending offsets ---


def test_records_from_the_ending_offset_on_are_not_run_and_the_run_ends_when_that_is_committed() -> None:
    world = World(ending={("t", 0): 2})
    world.assign()
    plan = world.poll(message(0, b"a"), message(1, b"b"), message(2, b"c"))
    assert world.running == [0, 1]
    assert [one.name[1] for one in plan.pause] == [0], "there is nothing more to poll"
    world.now += 0.2
    plan = world.finish(0, 1)
    assert committed(plan) == {0: 2}
    assert world.phase() is Phase.RUNNING
    world.commit(plan)
    world.plan()
    assert world.phase() is Phase.FINISHED


def test_a_gap_before_the_ending_offset_is_passed() -> None:
    world = World(ending={("t", 0): 5})
    world.assign()
    world.poll(message(0), message(9))
    world.now += 0.2
    assert committed(world.finish(0)) == {0: 5}


def test_others_partitions_are_asked_for_once_our_own_are_through_and_not_too_often() -> None:
    world = World(ending={("t", 0): 1, ("t", 1): 7})
    world.assign()
    assert world.poll(message(0)).ask_committed == []
    world.now += 0.2
    world.commit(world.finish(0))
    assert world.plan().ask_committed == [("t", 1)]
    assert world.plan(wait=9.0).ask_committed == [], "one question at a time"
    world.core.partitions.group_committed({("t", 1): 6}, world.now)
    assert world.plan().ask_committed == []
    assert world.core.next_check(world.now) == pytest.approx(world.now + 0.5)
    assert world.plan(wait=0.5).ask_committed == [("t", 1)]
    world.core.partitions.group_committed({("t", 1): 7}, world.now)
    world.plan()
    assert world.phase() is Phase.FINISHED


def test_a_commit_past_the_ending_offset_counts_once_a_beyond_the_log_would_have_been_found_out() -> None:
    world = World(ending={("t", 1): 7})
    assert world.plan().ask_committed == [("t", 1)]
    world.core.partitions.group_committed({("t", 1): 9}, world.now)
    world.plan()
    assert world.phase() is Phase.RUNNING
    assert world.plan(wait=SETTLE_S).ask_committed == [("t", 1)]
    world.core.partitions.group_committed({("t", 1): 9}, world.now)
    world.plan()
    assert world.phase() is Phase.FINISHED


def test_a_commit_at_the_ending_offset_counts_at_once() -> None:
    world = World(ending={("t", 1): 7})
    world.plan()
    world.core.partitions.group_committed({("t", 1): 7}, world.now)
    world.plan()
    assert world.phase() is Phase.FINISHED


def test_an_unanswered_question_is_asked_again() -> None:
    world = World(ending={("t", 1): 7})
    assert world.plan().ask_committed == [("t", 1)]
    world.core.partitions.group_committed({}, world.now)
    assert world.plan(wait=0.5).ask_committed == [("t", 1)]


# --- snapshots ---


def test_the_snapshot_names_the_head_of_the_line() -> None:
    running: list[Running] = []
    world = World(running=running)
    world.assign(0)
    world.assign(1)
    world.poll(message(4, partition=1))
    world.now += 2.0
    world.poll(message(0))
    world.core.partitions.log_ends({("t", 0): 77, ("gone", 1): 1})
    snapshot = world.core.snapshot(world.now)
    assert (snapshot.in_flight, snapshot.oldest) == (0, None), "both wait for a worker"
    running.append(Running(world.source(0), message(0), world.now + 1.0, str))
    running.append(Running(world.source(1), message(4, partition=1), world.now + 0.5, str))
    world.now += 3.0
    snapshot = world.core.snapshot(world.now)
    assert snapshot.oldest is not None
    assert (snapshot.oldest.partition, snapshot.oldest.offset, snapshot.oldest.age_ms) == (1, 4, 2_500)
    first = snapshot.partitions[0]
    assert (first.base, first.committed, first.incomplete, first.position, first.log_end_offset) == (0, 0, 1, 1, 77)
    assert (snapshot.in_flight, snapshot.handed_over, snapshot.buffered) == (2, 2, 2)


def test_a_record_that_waits_for_its_retry_is_as_old_as_its_first_attempt() -> None:
    running: list[Running] = []
    world = World(running=running, retries=Retries(max_attempts=3, delay_ms=10_000, jitter=0))
    world.assign(0)
    world.poll(message(0), message(1))
    world.now += 1.0
    world.finish(0, outcome=Failure(ValueError("bad")))
    oldest = world.core.snapshot(world.now + 5.0).oldest
    assert oldest is not None
    assert (oldest.offset, oldest.age_ms) == (0, 6_000)
    world.plan(10.0)
    running.append(Running(world.source(0), message(0), world.now, str))
    oldest = world.core.snapshot(world.now).oldest
    assert oldest is not None
    assert (oldest.offset, oldest.age_ms) == (0, 11_000), "the second attempt is not a younger record"
    running.clear()
    world.finish(0)
    assert world.core.snapshot(world.now).oldest is None


def test_what_remains_is_what_the_offset_map_does_not_have() -> None:
    """4,568 of 6,000 are done behind one that is stuck: the lag stays what it was."""
    world = World(concurrency=10_000)
    world.assign(0, offsets=OffsetMap(0))
    world.core.partitions.log_ends({("t", 0): 6_000})
    world.poll(*(message(offset, b"%d" % offset) for offset in range(5_000)))
    world.finish(*range(1, 4_569))
    (part,) = world.core.snapshot(world.now).partitions
    assert (part.base, part.lag, part.remaining) == (0, 6_000, 1_432)
    assert (world.core.snapshot(world.now).lag, world.core.snapshot(world.now).remaining) == (6_000, 1_432)


def test_what_an_earlier_run_has_complete_does_not_remain_before_it_is_polled() -> None:
    world = World()
    world.assign(0, offsets=OffsetMap(10, [10, range(20, 30)], 49), log_start=15)
    world.core.partitions.log_ends({("t", 0): 60})
    (part,) = world.core.snapshot(world.now).partitions
    assert (part.base, part.remaining) == (20, 20), "20 to 29, and 50 to 59"
    world.core.partitions.log_ends({("t", 0): 25})
    assert world.core.snapshot(world.now).remaining == 5


def test_while_it_stops_retention_moves_nothing() -> None:
    """Records that were polled and set aside since are no loss: the next run tells what the log still has."""
    world = started()
    world.poll(message(0))
    world.core.stop(world.now)
    world.poll(message(1), message(2))
    world.core.log_start_moved(("t", 0), 1, 10)
    assert committed(world.finish(0)) == {0: 1}
