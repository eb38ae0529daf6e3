"""A whole engine on fakes with `delivery="transactional"`: what is committed, what is undone, and what follows."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from keylane.consumer.commits import CommitProblem
from keylane.errors import HandlerError, PeerError
from keylane.options import Batch, DeadLetter, Retries, Skip, Threads
from keylane.pipeline import Commit, Pipeline
from keylane.records import Output, Record
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

T0 = ("t", 0)


def pipeline(handler: Any, **options: Any) -> Pipeline:
    chosen: dict[str, Any] = {
        "kafka": {"bootstrap.servers": "fake:0", "group.id": "g"},
        "topics": ["t"],
        "handler": handler,
        "offset_reset": "earliest",
        "delivery": "transactional",
        "commit": Commit(interval_ms=5),
        "retries": Retries(max_attempts=2, delay_ms=1),
    }
    return Pipeline(**(chosen | options))


def broker(records: int) -> FakeBroker:
    made = FakeBroker([T0])
    made.append(T0, [(b"%d" % (number % 5), b"%d" % number) for number in range(records)])
    return made


def run(handler: Any, log: FakeBroker, failing: str = "", **options: Any) -> FakeEngine:
    engine = FakeEngine(pipeline(handler, **options), log, ending_offsets={T0: len(log.logs[T0])})
    if failing:
        engine.producer.failing[failing] = OSError("the topic refuses it")
    with engine:
        assert engine.loop.ended.wait(30)
    return engine


def copied(record: Record) -> Output:
    return Output("out", key=record.key, value=record.value)


def seen(engine: FakeEngine, topic: str = "out") -> list[int]:
    return [int(one.value or b"") for one in engine.producer.sent if one.topic == topic]


def in_key_order(numbers: list[int]) -> bool:
    return all(group == sorted(group) for key in range(5) if (group := [one for one in numbers if one % 5 == key]))


@pytest.mark.parametrize("workers", ["threads", "asyncio", "batches"])
def test_all_is_copied_once_and_in_order(workers: str) -> None:
    async def coroutine(record: Record) -> Output:
        await asyncio.sleep(0)
        return copied(record)

    def batch(records: list[Record]) -> list[Output]:
        return [copied(record) for record in records]

    handler = {"threads": copied, "asyncio": coroutine, "batches": batch}[workers]
    log = broker(2_000)
    engine = run(handler, log, batch=Batch(20) if workers == "batches" else None)
    assert engine.loop.failure is None
    assert sorted(seen(engine)) == list(range(2_000))
    assert in_key_order(seen(engine))
    assert log.committed[T0] == (2_000, "")
    assert engine.loop.snapshot().transactions_aborted == 0


def test_a_refused_commit_undoes_its_transaction_and_what_was_undone_runs_again_in_order() -> None:
    log = broker(300)
    log.fail_commits.extend([CommitProblem("the generation is over")] * 2)
    runs: Counter[int] = Counter()

    def handler(record: Record) -> Output:
        runs[record.offset] += 1
        return copied(record)

    engine = run(handler, log)
    assert engine.loop.failure is None
    assert sorted(seen(engine)) == list(range(300))
    assert in_key_order(seen(engine))
    assert max(runs.values()) > 1, "something was undone"
    assert engine.loop.snapshot().transactions_aborted == 2
    assert log.committed[T0] == (300, "")


@pytest.mark.parametrize("rule", ["dead letter", "skip", "halt"])
def test_a_record_whose_output_is_refused_has_its_attempts_and_no_more(rule: str) -> None:
    """Each aborts a transaction, as the broker had a part of it; then what `on_exhausted` says follows."""
    runs: Counter[int] = Counter()

    def handler(record: Record) -> list[Output]:
        runs[record.offset] += 1
        return [copied(record), *([Output("bad")] if record.offset == 13 else [])]

    log = broker(100)
    options: dict[str, Any] = {"dead letter": {"on_exhausted": DeadLetter("dead")}, "skip": {"on_exhausted": Skip()}}
    engine = run(handler, log, failing="bad", **options.get(rule, {}))
    snapshot = engine.loop.snapshot()
    assert snapshot.transactions_aborted == 2
    assert snapshot.failed == 2
    assert runs[13] == 2
    numbers = seen(engine)
    assert 13 not in numbers
    assert max(Counter(numbers).values()) == 1
    assert in_key_order(numbers)
    if rule == "halt":
        assert isinstance(engine.loop.failure, HandlerError)
        assert "t-0@13" in str(engine.loop.failure)
        assert not [one for one in numbers if one > 13 and one % 5 == 3], "nothing of its key came behind it"
        return
    assert engine.loop.failure is None
    assert sorted(numbers) == [number for number in range(100) if number != 13]
    assert seen(engine, "dead") == ([13] if rule == "dead letter" else [])
    assert log.committed[T0] == (100, "")


def test_what_the_handler_returns_during_a_commit_goes_into_the_next_transaction() -> None:
    """Handlers go on while outputs wait for their acknowledgement."""
    log = broker(40)
    begun = threading.Semaphore(0)

    def handler(record: Record) -> Output:
        begun.release()
        return copied(record)

    engine = FakeEngine(pipeline(handler, ordering="unordered", workers=Threads(4)), log, ending_offsets={T0: 40})
    engine.producer.held = []
    with engine:
        for _ in range(40):
            assert begun.acquire(timeout=30), "handlers stood still"
        assert log.committed.get(T0, (0, ""))[0] == 0, "committed without an acknowledgement"
        until(lambda: bool(engine.producer.held), "an output is sent")
        engine.producer.release()
        assert engine.loop.ended.wait(30)
    assert sorted(seen(engine)) == list(range(40))


def test_lost_partitions_take_their_transaction_back() -> None:
    let = threading.Event()

    def waits_at_the_last(record: Record) -> Output | None:
        return copied(record) if record.offset < 50 or let.wait(30) else None

    log = broker(51)
    # While a handler runs the transaction stays open for its whole interval.
    kafka = {"bootstrap.servers": "fake:0", "group.id": "g", "transaction.timeout.ms": 120_000}
    engine = FakeEngine(pipeline(waits_at_the_last, kafka=kafka, commit=Commit(interval_ms=60_000)), log)
    with engine:
        until(lambda: engine.loop.snapshot().produced == 50, "all but one are produced")
        engine.consumer.lose([T0])
        until(lambda: engine.loop.snapshot().transactions_aborted == 1, "it is aborted")
        assert seen(engine) == []
        let.set()
        engine.consumer.assign([T0])
        until(lambda: engine.loop.snapshot().produced == 50 + 51, "it runs again")
    assert sorted(seen(engine)) == list(range(51))
    assert log.committed[T0] == (51, "")


def test_revoked_partitions_are_given_back_once_their_results_are_committed() -> None:
    log = broker(50)
    with FakeEngine(pipeline(copied, commit=Commit(interval_ms=4_000)), log) as engine:
        until(lambda: engine.loop.snapshot().produced == 50, "all is produced")
        engine.consumer.revoke([T0])
        until(lambda: not engine.consumer.positions, "it is given back")
        assert log.committed[T0] == (50, "")
    assert sorted(seen(engine)) == list(range(50))


def test_on_committed_hears_of_each_record_once_although_some_were_undone() -> None:
    log = broker(200)
    log.fail_commits.append(CommitProblem("refused"))
    heard: list[int] = []
    engine = run(copied, log, on_committed=lambda record: heard.append(record.offset))
    assert engine.loop.snapshot().transactions_aborted == 1
    assert sorted(heard) == list(range(200))


def test_a_producer_that_is_refused_for_good_ends_the_consumer() -> None:
    log = broker(20)
    log.fail_commits.extend([CommitProblem("not authorized", fatal=True)] * 5)
    engine = run(copied, log)
    assert isinstance(engine.loop.failure, PeerError)
    assert "not authorized" in str(engine.loop.failure)
    assert seen(engine) == []


def test_results_that_no_transaction_will_take_do_not_keep_the_consumer_from_ending() -> None:
    asked = threading.Event()

    class Refusing(FakeBroker):
        def apply(self, offsets: Any) -> Any:
            asked.set()
            return dict.fromkeys((one.name for one in offsets), CommitProblem("not authorized", fatal=True))

    def handler(record: Record) -> Output:
        if record.offset >= 5:
            asked.wait(30)
        return copied(record)

    log = Refusing([T0])
    log.append(T0, [(b"%d" % number, b"%d" % number) for number in range(10)])
    engine = run(handler, log, drain_timeout_ms=120_000)
    assert isinstance(engine.loop.failure, PeerError)
    assert seen(engine) == []


def test_what_follows_a_failed_attempt_is_not_forgotten_when_it_is_undone_by_another_record() -> None:
    """Else records like these could keep one another from ever being through."""
    log = broker(100)

    def handler(record: Record) -> list[Output]:
        return [copied(record), *([Output("bad")] if record.offset % 10 == 3 else [])]

    engine = run(handler, log, failing="bad", on_exhausted=DeadLetter("dead"))
    assert engine.loop.failure is None
    assert sorted(seen(engine, "dead")) == list(range(3, 100, 10))
    assert sorted(seen(engine)) == [number for number in range(100) if number % 10 != 3]
    assert engine.loop.snapshot().transactions_aborted <= 2 * 10, "each aborts one with each attempt, at most"
