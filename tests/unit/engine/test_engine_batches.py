"""Batches and chains: what is handed over together, what comes of each record, and in which order it completes."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane import DeadLetter, HandlerError, Output, Pipeline, Record, Retries, Skip
from keylane.consumer.outputs import Answer
from keylane.consumer.start import Start
from keylane.flow.core import RECALL_S
from keylane.flow.items import Batch, Call
from keylane.flow.outcomes import NOT_RUN, Failure
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.engines import SomeWorkers, make_core
from kit.fakes import FakeBroker, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.consumer.modes.at_least_once import Plan
    from keylane.flow.items import Unit
    from keylane.flow.outcomes import Outcome

WAIT_S = 20.0
FAILED = Failure(ValueError("bad"))
OUT = [Output("out")]


def handler(record: Any) -> None:
    """Never called where a core is tested alone."""


class Batches:
    """A core with batches, its time, and the batches that are with the workers."""

    def __init__(self, concurrency: int = 10, partitions: int = 1, chain_s: float = 0.0, **options: Any) -> None:
        kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
        options.setdefault("retries", Retries(max_attempts=3, delay_ms=100, jitter=0))
        options.setdefault("on_exhausted", Skip())
        self.pipeline = Pipeline(kafka=kafka, topics=["t"], handler=handler, **options)
        self.core = make_core(self.pipeline, SomeWorkers(concurrency), call_s=chain_s)
        self.now = 100.0
        self.core.assigned([Start("t", p, 1, OffsetMap(0), 0, 1_000) for p in range(partitions)], self.now)
        self.out: list[Unit] = []
        self.begun: dict[Call, Iterator[Any]] = {}
        """What is left to run of calls that have begun."""
        self.produced: list[Any] = []

    def poll(self, keys: str, first: int = 0, partition: int = 0) -> list[list[int]]:
        messages = [PlainMessage("t", partition, first + i, key.encode()) for i, key in enumerate(keys)]
        self.core.polled(("t", partition), 1, messages)
        return self.plan()

    def plan(self, wait: float = 0.0) -> list[list[int]]:
        """The offsets of the batches that are handed over."""
        self.now += wait
        plan: Plan = self.core.plan(self.now)
        self.out += plan.dispatch
        self.produced += plan.produce
        return [offsets(unit) for unit in plan.dispatch]

    def end(self, *outcomes: Outcome) -> list[list[int]]:
        """The oldest batch comes back."""
        batch = self.out.pop(0)
        assert isinstance(batch, Batch)
        for item, outcome in zip(batch.items, outcomes, strict=True):
            item.came_to(outcome)
        self.core.calls_ended([batch], self.now)
        return self.plan()

    def begin(self) -> int:
        """The oldest call's next record begins; returns its offset. -1: there is none left, and the call comes back."""
        call = self.out[0]
        assert isinstance(call, Call)
        payload = next(self.begun.setdefault(call, call.begin(self.now)), None)
        if payload is not None:
            return int(payload.offset())
        self.come_back(call)
        return -1

    def come_back(self, call: Call) -> None:
        self.out.remove(call)
        call.took_s = self.now - call.since
        self.core.calls_ended([call], self.now)

    def report(self, *outcomes: Outcome) -> list[list[int]]:
        """The first records of the oldest call end; it comes back with the last of them, or the first that is not
        simply through."""
        call = self.out[0]
        assert isinstance(call, Call)
        for outcome in outcomes:
            index = call.numbers.index(self.begin())
            if outcome is not None:
                call.note(index, outcome)
        if outcomes[-1] is not None or index == len(call) - 1:
            self.come_back(call)
        return self.plan()

    def answer(self, index: int = 0, error: BaseException | None = None) -> list[list[int]]:
        self.core.delivered([Answer(self.produced.pop(index), 0, error)], self.now)
        return self.plan()

    @property
    def base(self) -> int:
        return self.core.partitions.open["t", 0].tracker.base

    def counter(self, name: str) -> int:
        return int(getattr(self.core.snapshot(self.now), name))


def offsets(unit: Unit) -> list[int]:
    return list(unit.numbers) if isinstance(unit, Call) else [item.number for item in unit.items]


# --- what a batch holds ---


def test_a_batch_holds_many_keys_and_several_records_of_a_key_in_order() -> None:
    assert Batches(batch=kl.Batch(5)).poll("aabcad") == [[0, 1, 4, 2, 3], [5]]


def test_a_key_is_in_one_batch_at_a_time() -> None:
    batches = Batches(batch=kl.Batch(2))
    assert batches.poll("aaaab") == [[0, 1], [4]]
    assert batches.end(None, None) == [[2, 3]]
    assert batches.base == 2


def test_partition_batches_hold_its_records_in_order_and_unordered_ones_anything() -> None:
    assert Batches(batch=kl.Batch(3), ordering="partition").poll("abcd") == [[0, 1, 2]]
    assert Batches(batch=kl.Batch(3), ordering="unordered").poll("abcd") == [[0, 1, 2], [3]]


def test_a_batch_may_span_partitions() -> None:
    batches = Batches(batch=kl.Batch(4, min_size=4, linger_ms=1_000), concurrency=1, partitions=2)
    assert batches.poll("ab") == []
    assert batches.poll("ab", partition=1) == [[0, 1, 0, 1]]


def test_max_concurrency_counts_batches() -> None:
    batches = Batches(batch=kl.Batch(2), concurrency=2)
    assert batches.poll("abcdef") == [[0, 1], [2, 3]]
    assert batches.counter("handed_over") == 4
    assert batches.end(None, None) == [[4, 5]]


def test_a_batch_waits_for_its_least_size_and_no_longer_than_it_lingers() -> None:
    batches = Batches(batch=kl.Batch(4, min_size=3, linger_ms=200))
    assert batches.poll("ab") == []
    assert batches.core.next_check(batches.now) == batches.now + 0.2
    assert batches.plan(0.1) == []
    assert batches.poll("c", first=2) == [[0, 1, 2]]
    assert batches.poll("d", first=3) == []
    assert batches.plan(0.19) == []
    assert batches.plan(0.01) == [[3]]


def test_what_waits_behind_a_key_counts_for_the_least_size() -> None:
    batches = Batches(batch=kl.Batch(4, min_size=3, linger_ms=200), ordering="partition")
    assert batches.poll("ab") == []
    assert batches.poll("c", first=2) == [[0, 1, 2]]


# --- what comes of each record ---


def test_a_failed_record_fails_alone_and_what_follows_of_its_key_runs_again_after_it() -> None:
    batches = Batches(batch=kl.Batch(10))
    assert batches.poll("aaabb") == [[0, 1, 2, 3, 4]]
    assert batches.end(None, FAILED, None, None, None) == []
    assert batches.base == 1
    assert batches.counter("processed") == 3, "0, 3 and 4; 2 waits for 1"
    assert batches.plan(0.1) == [[1]], "tried again alone"
    assert batches.end(None) == [[2]]
    batches.end(None)
    assert batches.base == 5
    assert batches.counter("failed") == 1


def test_a_record_that_is_skipped_lets_its_key_go_on() -> None:
    batches = Batches(batch=kl.Batch(10))
    batches.poll("aaa")
    assert batches.end(Failure(ValueError(), final=True), None, None) == [[1, 2]]
    assert batches.counter("skipped") == 1


def test_a_batch_that_fails_costs_each_key_one_attempt_of_its_first_record() -> None:
    batches = Batches(batch=kl.Batch(10))
    batches.poll("aab")
    batches.end(FAILED, FAILED, FAILED)
    assert batches.counter("failed") == 2
    assert sorted(batches.plan(0.1)) == [[0], [2]], "alone: a bad record cannot take the others along again"


def test_records_of_a_key_complete_in_order_of_their_outputs() -> None:
    batches = Batches(batch=kl.Batch(10))
    batches.poll("aaa")
    batches.end(OUT, None, OUT)
    assert batches.base == 0, "1 is done, and waits for 0"
    batches.answer(1)
    assert batches.base == 0
    batches.answer(0)
    assert batches.base == 3
    assert batches.counter("handed_over") == 0


def test_an_output_that_fails_takes_what_follows_of_its_key_along() -> None:
    batches = Batches(batch=kl.Batch(10))
    batches.poll("aaa")
    batches.end(OUT, OUT, None)
    batches.answer(0, OSError("refused"))
    assert batches.plan(0.1) == [[0]]
    assert batches.end(None) == [[1, 2]], "both run again"
    batches.answer(0)  # of the first time: it changes nothing
    assert batches.base == 1
    batches.end(None, None)
    assert batches.base == 3


def test_outputs_after_a_failed_record_of_the_key_are_not_sent() -> None:
    batches = Batches(batch=kl.Batch(10))
    batches.poll("aab")
    batches.end(FAILED, OUT, OUT)
    assert [one.item.number for one in batches.produced] == [2]


def test_a_dead_letter_holds_its_key() -> None:
    batches = Batches(batch=kl.Batch(10), on_exhausted=DeadLetter("dead"), retries=Retries(max_attempts=1))
    batches.poll("aa")
    assert batches.end(FAILED, None) == []
    assert batches.answer() == [[1]]


def test_what_was_withdrawn_waits_in_order() -> None:
    batches = Batches(batch=kl.Batch(4), partitions=2, concurrency=1, ordering="partition")
    batches.poll("ab")
    batches.poll("cd", partition=1)
    batches.end(None, None)
    [batch] = batches.out
    batches.core.revoking([("t", 1)], "token", batches.now)
    batches.core.withdrawn([batch])
    assert [one.token for one in batches.core.plan(batches.now).revoked] == ["token"]


# --- chains ---


def fast(**options: Any) -> Batches:
    """A core that believes its handlers to be quick."""
    chains = Batches(chain_s=1.0, **options)
    chains.poll("xyz")
    chains.report(None)
    chains.now += 0.02
    chains.report(None)
    chains.report(None)
    return chains


def test_quick_records_of_a_key_are_handed_over_together() -> None:
    chains = fast()
    assert chains.poll("aabab", first=3) == [[3, 4, 6], [5, 7]]
    assert chains.report(None) == []
    assert chains.base == 3, "they come back together"
    chains.report(None, None)
    assert chains.base == 5
    assert chains.counter("handed_over") == 2


def test_records_of_a_key_stay_together_longer_where_no_other_key_waits_for_a_worker() -> None:
    def slow(concurrency: int) -> Batches:
        chains = Batches(concurrency, chain_s=0.0022)
        for offset, key in enumerate("wxyz"):
            chains.poll(key, first=offset)
            chains.now += 0.01
            chains.report(None)  # 100 records/s: a fifth of one in the time of a chain, five in 25 times that
        return chains

    assert slow(3).poll("aaaaaabb", first=4) == [[4, 5, 6, 7, 8], [10, 11]]
    assert slow(2).poll("aaaabbc", first=4) == [[4], [8]]


def test_a_chain_ends_at_a_failure_and_the_rest_waits_behind_it() -> None:
    chains = fast()
    chains.poll("aaaa", first=3)
    assert chains.report(None, FAILED) == []
    assert chains.counter("handed_over") == 0
    assert chains.poll("a", first=7) == []
    assert chains.plan(0.1) == [[4]], "tried again alone"
    assert chains.report(None) == [[5, 6, 7]]


def test_a_handler_with_outputs_gets_one_record_of_a_key_at_a_time() -> None:
    chains = fast()
    assert chains.poll("aaa", first=3) == [[3, 4, 5]]
    assert chains.report(OUT) == [], "4 waits for the output of 3"
    assert chains.answer() == [[4]]


def test_what_a_chain_did_not_run_goes_back() -> None:
    chains = fast()
    chains.poll("aaa", first=3)
    assert chains.report(NOT_RUN) == [[3]], "alone, as all that was handed over before"
    assert chains.report(None) == [[4, 5]]


# --- several in a call ---


def recalled(keys: str, began: int, **options: Any) -> tuple[Batches, list[list[int]]]:
    """A call of records 3 and on, in which so many have begun when it is taken apart: the last of these takes long.
    Returned is what is handed over then."""
    chains = fast(**options)
    chains.poll(keys, first=3)
    for _ in range(began):
        chains.begin()
    return chains, chains.plan(RECALL_S)


def test_of_a_call_in_which_one_takes_long_those_before_it_are_through_and_those_behind_it_wait() -> None:
    chains, handed_over = recalled("aaaa", began=3)
    assert handed_over == [], "6 has 5 before it"
    assert chains.base == 5
    assert chains.counter("handed_over") == 1
    assert chains.counter("processed") == 5
    assert chains.begin() == -1, "nothing is left to run of it"
    assert chains.plan() == [[6]]
    assert chains.base == 6, "each is reported once"
    assert chains.counter("processed") == 6
    chains.report(None)
    assert (chains.base, chains.counter("handed_over")) == (7, 0)


def test_where_the_last_of_a_call_takes_long_those_before_it_are_through() -> None:
    chains, handed_over = recalled("aaa", began=3)
    assert handed_over == []
    assert (chains.base, chains.counter("handed_over")) == (5, 1)
    assert chains.begin() == -1
    chains.plan()
    assert (chains.base, chains.counter("handed_over")) == (6, 0)


def test_of_a_call_that_a_worker_took_at_once_what_it_has_answered_is_through() -> None:
    chains = fast()
    chains.poll("aaaa", first=3)
    [call] = chains.out
    assert isinstance(call, Call)
    call.begin_all(chains.now)
    assert chains.plan(RECALL_S) == []
    assert (chains.base, chains.counter("handed_over")) == (3, 4)
    call.answered(2)
    assert chains.plan(RECALL_S) == []
    assert (chains.base, chains.counter("handed_over")) == (5, 2)
    assert offsets(call) == [3, 4, 5, 6], "none is taken back"
    call.answered(4)
    chains.plan(RECALL_S)
    assert (chains.base, chains.counter("handed_over")) == (6, 1), "of the last it is known when the call comes back"
    chains.come_back(call)
    assert (chains.base, chains.counter("handed_over")) == (7, 0)


def test_records_that_end_in_a_call_that_still_runs_are_no_stall() -> None:
    chains = fast(stall_timeout_ms=1_000)
    chains.poll("aaaaa", first=3)
    [call] = chains.out
    assert isinstance(call, Call)
    call.begin_all(chains.now)
    for ended in range(1, 5):
        chains.plan(0.6)
        call.answered(ended)
        chains.plan(RECALL_S)
    assert chains.core.failure is None
    chains.plan(1.1)
    assert isinstance(chains.core.failure, HandlerError), "now none has ended"


def test_what_a_call_that_was_taken_apart_comes_to_counts_for_the_one_that_took_long() -> None:
    chains, _ = recalled("aaa", began=2)
    [call] = chains.out
    assert isinstance(call, Call)
    call.note(1, FAILED)
    chains.come_back(call)
    assert chains.plan(0.1) == [[4]]
    assert chains.report(None) == [[5]]


def test_records_without_order_are_taken_back_too_and_run_before_newer_ones() -> None:
    chains = fast(ordering="unordered", concurrency=2)
    assert chains.poll("k" * 40, first=3) == [list(range(3, 23)), list(range(23, 43))]
    assert chains.poll("kk", first=43) == [], "both workers have enough"
    call, other = chains.out
    assert isinstance(call, Call)
    assert isinstance(other, Call)
    assert chains.begin() == 3
    chains.now += RECALL_S
    chains.begun[other] = other.begin(chains.now)
    assert chains.plan() == []
    assert offsets(call) == [3], "4 and on were taken back"
    assert offsets(other) == list(range(23, 43)), "it began just now"
    chains.come_back(call)
    assert chains.plan()[0][:3] == [4, 5, 6]


def test_a_call_that_fails_in_the_middle_goes_on_without_an_order() -> None:
    chains = fast(ordering="unordered", concurrency=1)
    assert chains.poll("kkkk", first=3) == [[3, 4, 5, 6]]
    call = chains.out[0]
    assert isinstance(call, Call)
    for _ in range(4):
        chains.begin()
    call.note(1, FAILED)
    chains.come_back(call)
    assert chains.counter("processed") == 3 + 3
    assert chains.plan(0.1) == [[4]]


def test_a_call_whose_first_record_has_not_begun_is_not_taken_apart() -> None:
    chains = fast()
    chains.poll("aaa", first=3)
    [call] = chains.out
    assert isinstance(call, Call)
    chains.begun[call] = call.begin(chains.now)
    assert chains.plan(RECALL_S) == []
    assert offsets(call) == [3, 4, 5]
    chains.report(None, None, None)
    assert (chains.base, chains.counter("handed_over")) == (6, 0)


def test_a_call_of_a_lost_partition_that_is_taken_apart_leaves_no_record_with_the_workers() -> None:
    chains = fast()
    chains.poll("aaa", first=3)
    chains.begin()
    chains.core.lost([("t", 0)])
    chains.plan(RECALL_S)
    assert chains.counter("handed_over") == 1
    assert chains.begin() == -1
    chains.plan()
    assert chains.counter("handed_over") == 0


def test_records_that_may_be_scheduled_go_alone_each_is_asked_for_its_time() -> None:
    chains = fast(not_before=lambda _: None)
    assert chains.poll("aaa", first=3) == [[3]]
    assert chains.report(None) == [[4]]


def test_a_call_is_taken_apart_while_the_consumer_stops() -> None:
    chains = fast()
    chains.poll("aaaa", first=3)
    for _ in range(3):
        chains.begin()
    chains.core.stop(chains.now)
    chains.plan()
    assert chains.base == 3
    check = chains.core.next_check(chains.now)
    assert check is not None
    chains.plan(check - chains.now)
    assert chains.base == 5, "3 and 4 are through, whatever becomes of 5"
    assert chains.counter("handed_over") == 1


# --- threads and asyncio ---


def run(handler: Callable[..., Any], values: list[bytes], **options: Any) -> FakeEngine:
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    log = FakeBroker([("t", 0)])
    log.append(("t", 0), [(b"k%d" % (index % 3), value) for index, value in enumerate(values)])
    options |= {"retries": Retries(max_attempts=2, delay_ms=1), "batch": kl.Batch(8), "offset_reset": "earliest"}
    pipeline = Pipeline(kafka=kafka, topics=["t"], handler=handler, **options)
    with FakeEngine(pipeline, log, ending_offsets={("t", 0): len(values)}) as engine:
        assert engine.loop.ended.wait(WAIT_S)
    return engine


def as_async(function: Callable[[list[Record]], Any]) -> Callable[..., Any]:
    async def handler(records: list[Record]) -> Any:
        await asyncio.sleep(0)
        return function(records)

    return handler


KINDS = pytest.mark.parametrize("kind", [lambda function: function, as_async], ids=["threads", "asyncio"])


@KINDS
@pytest.mark.parametrize("ordering", ["key", "partition", "unordered"])
def test_every_record_of_every_batch_runs_once_in_order(kind: Any, ordering: str) -> None:
    seen: list[int] = []
    sizes: set[int] = set()
    lock = threading.Lock()

    def handler(records: list[Record]) -> None:
        with lock:
            seen.extend(record.offset for record in records)
            sizes.add(len(records))

    engine = run(kind(handler), [b"v"] * 500, ordering=ordering)
    assert engine.loop.failure is None
    assert sorted(seen) == list(range(500))
    assert max(sizes) <= 8
    if ordering != "unordered":
        shards = [seen] if ordering == "partition" else [[o for o in seen if o % 3 == k] for k in range(3)]
        assert all(shard == sorted(shard) for shard in shards)


@KINDS
def test_each_record_of_a_batch_has_its_own_outcome(kind: Any) -> None:
    def handler(records: list[Record]) -> list[Any]:
        def one(record: Record) -> Any:
            return ValueError("bad") if record.value == b"bad" else Output("out", value=record.value)

        return [one(record) for record in records]

    values = [b"bad" if index % 10 == 3 else b"%d" % index for index in range(100)]
    engine = run(kind(handler), values, on_exhausted=DeadLetter("dead"))
    out = {one.value for one in engine.producer.sent if one.topic == "out"}
    dead = [one.value for one in engine.producer.sent if one.topic == "dead"]
    assert out == {b"%d" % index for index in range(100) if index % 10 != 3}
    assert dead == [b"bad"] * 10


@KINDS
def test_a_bad_record_that_fails_its_batch_does_not_exhaust_the_others(kind: Any) -> None:
    def handler(records: list[Record]) -> None:
        if any(record.value == b"bad" for record in records):
            raise ValueError("bad")

    engine = run(kind(handler), [b"good", b"bad", b"good"] * 20, ordering="unordered", on_exhausted=Skip())
    snapshot = engine.loop.snapshot()
    assert (snapshot.skipped, snapshot.processed) == (20, 40)


@KINDS
@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError(), SystemExit(), GeneratorExit()])
def test_an_exception_in_a_batchs_results_is_tried_again(kind: Any, error: BaseException) -> None:
    """asyncio.gather(..., return_exceptions=True) gives a CancelledError as well."""
    calls: list[int] = []

    def handler(records: list[Record]) -> list[BaseException]:
        calls.append(len(records))
        return [error] * len(records)

    engine = run(kind(handler), [b"v"] * 2, on_exhausted=Skip())
    assert (engine.loop.snapshot().skipped, sum(calls)) == (2, 4)


@KINDS
@pytest.mark.parametrize(
    ("result", "text"),
    [
        ([None], "1 results for 2 records"),
        ("done", "returned a value of type str"),
        ({}, "returned a value of type dict"),
    ],
)
def test_a_wrong_result_of_a_batch_says_what_it_was(kind: Any, result: Any, text: str) -> None:
    engine = run(
        kind(lambda _: result), [b"v"] * 2, ordering="partition", batch=kl.Batch(8, min_size=2, linger_ms=10_000)
    )
    assert isinstance(engine.loop.failure, HandlerError)
    assert text in str(engine.loop.failure)
