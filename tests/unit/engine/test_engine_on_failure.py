"""`on_failure` hears of each failed attempt and what becomes of it, and harms nothing."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from keylane import Breaker, DeadLetter, FailedAttempt, Fatal, Halt, Output, Pipeline, Record, Retries, Skip
from keylane.consumer.own_topics import OwnTopicError
from keylane.flow import failure_callback
from keylane.flow.failure_callback import FailureCallback
from keylane.options import Batch, Processes
from kit.fakes import FakeBroker, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 20.0
T0 = ("t", 0)
COUNT = 20
BAD = {3, 13}


def bad(record: Record) -> None:
    if record.offset in BAD:
        raise ValueError(f"no order {record.offset}")


async def bad_coroutine(record: Record) -> None:
    bad(record)


def bad_in_batch(records: list[Record]) -> list[Exception | None]:
    return [ValueError("no") if one.offset in BAD else None for one in records]


def run(handler: Callable[..., Any], told: Callable[[FailedAttempt], Any] | None, **options: Any) -> FakeEngine:
    log = FakeBroker([T0])
    log.append(T0, [(b"%d" % number, b"%d" % number) for number in range(COUNT)])
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    given: dict[str, Any] = {"retries": Retries(max_attempts=2, delay_ms=10, jitter=0), "on_exhausted": DeadLetter("d")}
    given |= options
    pipeline = Pipeline(kafka=kafka, topics=["t"], offset_reset="earliest", handler=handler, on_failure=told, **given)
    engine = FakeEngine(pipeline, log, ending_offsets={T0: COUNT})
    with engine:
        assert engine.loop.ended.wait(WAIT_S), "the engine did not end"
    return engine


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (bad, {}),
        (bad_coroutine, {}),
        (bad, {"workers": Processes(1)}),
        (bad_in_batch, {"batch": Batch(size=10)}),
    ],
    ids=["threads", "asyncio", "processes", "batches"],
)
def test_it_hears_of_each_failed_attempt_and_what_becomes_of_it(
    handler: Callable[..., Any], options: dict[str, Any]
) -> None:
    told: list[FailedAttempt] = []
    engine = run(handler, told.append, **options)
    assert engine.loop.failure is None
    seen = sorted((one.record.offset, one.attempt, one.outcome, one.delay_ms) for one in told)
    assert seen == [
        line for offset in sorted(BAD) for line in ((offset, 1, "retried", 10), (offset, 2, "dead_lettered", None))
    ]
    assert {type(one.error) for one in told} == {ValueError}
    assert {one.record.value for one in told} == {b"3", b"13"}
    assert len(told) == engine.loop.snapshot().failed


def test_it_runs_on_a_thread_of_its_own_and_in_order() -> None:
    told: list[tuple[str, int]] = []
    run(bad, lambda one: told.append((threading.current_thread().name, one.attempt)), ordering="partition")
    assert told == [("fake-failures", attempt) for attempt in (1, 2, 1, 2)]


@pytest.mark.parametrize(("rule", "outcome"), [(Skip(), "skipped"), (Halt(), "halted")])
def test_it_hears_of_a_skip_and_of_the_end(rule: Skip | Halt, outcome: str) -> None:
    told: list[FailedAttempt] = []

    def fatal(record: Record) -> None:
        if record.offset == 3:
            raise Fatal("never")

    run(fatal, told.append, on_exhausted=rule)
    assert [(one.attempt, one.outcome) for one in told] == [(1, outcome)]


def test_it_hears_of_what_a_breaker_holds() -> None:
    told: list[FailedAttempt] = []
    away = iter([OSError("away")])

    def work(_: Record) -> None:
        for error in away:
            raise error

    breaker = Breaker(failures=1, probe_interval_ms=1)
    engine = run(work, told.append, breaker=breaker, ordering="partition")
    assert [(one.attempt, one.outcome) for one in told] == [(1, "held")]
    assert told[0].delay_ms is not None
    assert engine.loop.snapshot().processed == COUNT


def test_it_hears_of_outputs_that_are_refused() -> None:
    told: list[FailedAttempt] = []
    run(lambda _: Output("t"), told.append, on_exhausted=Skip())  # a topic that the pipeline reads
    assert {(type(one.error), one.attempt, one.outcome) for one in told} == {(OwnTopicError, 1, "halted")}


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ValueError("secret 4711"), SystemExit("secret 4711"), NoTextError()])
def test_what_it_raises_harms_nothing_and_is_logged_once(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def told(_: FailedAttempt) -> None:
        raise error

    caplog.set_level(logging.ERROR, "keylane")
    engine = run(bad, told)
    assert engine.loop.failure is None
    assert engine.loop.snapshot().dead_lettered == len(BAD)
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith(f"on_failure raised {type(error).__name__} in ")
    assert "test_engine_on_failure.py" in line
    assert "4711" not in line, "what an exception says may quote a record"


def test_nobody_waits_for_it_and_the_log_says_what_it_was_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("keylane.consumer.loop.WORKERS_CLOSE_S", 0.05)
    monkeypatch.setattr(failure_callback, "MOST_WAITING", 2)
    gate = threading.Event()

    def told(_: FailedAttempt) -> None:
        gate.wait(WAIT_S)

    def fail(_: Record) -> None:
        raise ValueError("no")

    engine = run(fail, told, retries=Retries(max_attempts=1))
    gate.set()
    assert engine.loop.snapshot().dead_lettered == COUNT
    lines = [one.getMessage() for one in caplog.records if "on_failure " in one.getMessage()]
    assert [line.split(":")[0] for line in lines] == [
        "on_failure does not keep up",
        "closed while on_failure still ran; its thread is left behind",
        "on_failure did not keep up",
    ]
    assert lines[-1].endswith(f"not told of {COUNT} failed attempts"), "the one that it is at counts as not told"


def test_values_that_wait_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_callback, "MOST_BYTES", 1)
    told: list[FailedAttempt] = []
    gate = threading.Event()

    def slow(one: FailedAttempt) -> None:
        gate.wait(WAIT_S)
        told.append(one)

    callback = FailureCallback(slow, "test")
    log = FakeBroker([T0])
    log.append(T0, [(None, b"a value")] * 3)
    records = [FailedAttempt(Record(message), ValueError(), 1, "skipped") for message in log.logs[T0]]
    for one in records:
        callback.tell(one)
    gate.set()
    callback.close(WAIT_S)
    assert told == records[:1]
    assert "a value" not in repr(records)


def test_a_run_without_failures_starts_no_thread() -> None:
    names: list[str] = []
    run(lambda _: names.extend(one.name for one in threading.enumerate()), print)
    assert "fake-failures" not in names
