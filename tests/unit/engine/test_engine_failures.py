"""Failures as they happen: the first of a kind with its traceback, the others counted; no payload."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keylane import DeadLetter, Fatal, HandlerError, Output, Pipeline, Retries, Skip
from keylane.flow.failures import MOST_KINDS, OTHERS, FailureKind, FailureReport, Failures, merged
from keylane.flow.outcomes import Failure
from keylane.flow.workers.blocked import LoopWatch
from keylane.options import Batch, Processes, Threads
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from keylane import Record

T0 = ("t", 0)
WAIT_S = 60.0


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged of failures since the last call."""
    caplog.set_level(logging.WARNING, "keylane.failures")

    def take() -> list[str]:
        found = [one.getMessage() for one in caplog.records if one.name == "keylane.failures"]
        caplog.clear()
        return found

    return take


def parse(value: bytes) -> float:
    return float(value.decode())


def score(value: bytes) -> float:
    try:
        return parse(value)
    except ValueError as error:
        raise LookupError(f"no score of {value!r}") from error


def raised(function: Callable[[bytes], Any], value: bytes = b"secret") -> Failure:
    try:
        function(value)
    except Exception as error:
        return Failure(error)
    raise AssertionError("it did not raise")


Told = Any


def test_the_first_of_a_kind_is_told_at_once_with_its_lines_and_its_cause_and_without_its_text(told: Told) -> None:
    Failures().note(raised(score), "t-0@7", 2, 100.0)
    (text,) = told()
    first, *lines = text.splitlines()
    assert re.fullmatch(
        r"LookupError in raised \(test_engine_failures.py:\d+\) > score \(test_engine_failures.py:\d+\): "
        r"the first one, at t-0@7, attempt 2",
        first,
    )
    assert '    raise LookupError(f"no score of {value!r}") from error' in [line[2:] for line in lines]
    assert lines[-1].startswith("  because of ValueError in score (test_engine_failures.py:")
    assert "parse (test_engine_failures.py:" in lines[-1]
    assert "secret" not in text


def test_what_follows_is_counted_and_told_after_ten_seconds_at_most_that_often(told: Told) -> None:
    found = Failures()
    for now in (100.0, 101.0, 109.9):
        found.note(raised(parse), "t-0@7", 1, now)
    assert len(told()) == 1
    assert found.next_check() == 110.0
    found.check(110.0)
    (text,) = told()
    assert re.fullmatch(r"ValueError in raised \(.*\) > parse \(.*\): 2 more in the last 10 s", text)
    assert found.next_check() is None, "there is nothing to tell"
    found.note(raised(parse), "t-0@8", 1, 112.0)
    assert (told(), found.next_check()) == ([], 120.0)
    found.note(raised(parse), "t-0@9", 1, 125.0)
    (text,) = told()
    assert text.endswith(": 2 more in the last 15 s")
    assert [one.count for one in found.kinds] == [5]


def test_kinds_are_told_apart_by_what_was_raised_and_where(told: Told) -> None:
    found = Failures()
    for function in (parse, score, parse, lambda value: score(value)):
        found.note(raised(function), "t-0@7", 1, 100.0)
    assert [(one.error, one.count) for one in found.kinds] == [
        ("ValueError", 2),
        ("LookupError", 1),
        ("LookupError", 1),
    ]
    assert len(told()) == 3


def test_what_keylane_itself_says_is_told(told: Told) -> None:
    Failures().note(Failure(HandlerError("the handler returned a value of type int")), "t-0@7", 1, 100.0)
    assert told() == ["HandlerError: the first one, at t-0@7, attempt 1: the handler returned a value of type int"]


class AnswerError(Exception):
    """As of a client of HTTP: what it says may quote the record."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__("secret")
        setattr(self, name, value)


@pytest.mark.parametrize("name", ["status", "status_code", "code", "response"])
def test_the_status_of_an_answer_is_told_and_no_more_of_it(told: Told, name: str) -> None:
    value: object = SimpleNamespace(status_code=503) if name == "response" else 503
    Failures().note(Failure(AnswerError(name, value)), "t-0@7", 1, 100.0)
    Failures().note(Failure(AnswerError(name, "503 secret")), "t-0@8", 1, 100.0)
    start = "AnswerError: the first one, at t-0@"
    assert told() == [f"{start}7, attempt 1: HTTP status 503", f"{start}8, attempt 1"]


def test_what_a_fatal_was_made_with_is_told_and_what_a_class_made_of_it_says_is_not(told: Told) -> None:
    own = type("OwnError", (Fatal,), {})
    Failures().note(Failure(Fatal("no such\ncustomer")), "t-0@7", 1, 100.0)
    Failures().note(Failure(own("secret")), "t-0@7", 1, 100.0)
    start = "the first one, at t-0@7, attempt 1"
    assert told() == [f"Fatal: {start}: no such customer", f"OwnError: {start}"]


def test_a_failure_names_the_users_lines_and_none_of_keylanes(told: Told) -> None:
    def handler(_: bytes) -> None:
        Output("t", value={})  # type: ignore[arg-type]

    found = Failures()
    found.note(raised(handler), "t-0@7", 1, 100.0)
    (text,) = told()
    assert re.match(r"OutputTypeError in raised \(.*\) > handler \(test_engine_failures.py:\d+\)", text)
    assert "records.py" not in text
    error = raised(handler).error
    assert error.__traceback__ is not None
    while error.__traceback__.tb_next is not None:
        error.__traceback__ = error.__traceback__.tb_next
    found.note(Failure(error), "t-0@9", 1, 100.0)
    assert found.kinds[-1].where == "", "nothing but keylane's own code"


def test_there_is_a_bound_on_kinds(told: Told) -> None:
    found = Failures()
    for index in range(MOST_KINDS + 50):
        found.note(Failure(type(f"E{index}", (Exception,), {})()), "t-0@7", 1, 100.0)
    assert len(found.kinds) == MOST_KINDS + 1
    assert (found.kinds[-1].name, found.kinds[-1].count) == (OTHERS, 50)
    assert len(told()) == MOST_KINDS + 1


def test_the_end_tells_what_was_kept_back_but_not_of_what_outlives_it(told: Told) -> None:
    for outlives in (False, True):
        found = Failures(outlives=outlives)
        for _ in range(3):
            found.note(raised(parse), "t-0@7", 1, 100.0)
        told()
        found.end(102.5)
        assert [text.rpartition(": ")[2] for text in told()] == ([] if outlives else ["2 more in the last 2 s"])


def test_a_report_tells_of_counts_that_grow_and_of_none_that_fall(told: Told) -> None:
    """What a driver sees: a lane that died takes what it had not reported with it."""
    report = FailureReport()
    for count, now in ((5, 100.0), (6, 120.0), (3, 131.0), (9, 142.0)):
        report.tell([FailureKind("E", "f (a.py:1)", count, "the first E")], now)
    assert told() == [
        "the first E",
        *(f"E in f (a.py:1): {more}" for more in ("5 more in the last 20 s", "3 more in the last 22 s")),
    ]


def test_kinds_add_up() -> None:
    one, two = FailureKind("E", "f", 2, "first"), FailureKind("G", "", 1, "a G")
    assert merged([one, two], [FailureKind("E", "f", 40, "another first")]) == (FailureKind("E", "f", 42, "first"), two)


# --- in a whole engine ---


def run(handler: Callable[..., Any], **options: Any) -> FakeEngine:
    log = FakeBroker([T0])
    log.append(T0, [(b"secret-%d" % index, b"secret-value") for index in range(40)])
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    made = Pipeline(kafka=kafka, topics=["t"], offset_reset="earliest", handler=handler, **options)
    with FakeEngine(made, log, ending_offsets={T0: 40}) as engine:
        assert engine.loop.ended.wait(WAIT_S)
    return engine


def plain(record: Record) -> None:
    parse(record.value or b"")


async def coroutine(record: Record) -> None:
    parse(record.value or b"")


def batch(records: list[Record]) -> None:
    parse(records[0].value or b"")


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (plain, {"workers": Threads(4)}),
        (coroutine, {}),
        (batch, {"batch": Batch(2), "workers": Threads(1)}),
        (plain, {"workers": Processes(2)}),
    ],
    ids=["threads", "asyncio", "batches", "processes"],
)
@pytest.mark.parametrize("rule", [Skip(), DeadLetter("dlq")], ids=["skip", "dead letter"])
def test_a_consumer_tells_of_failures_as_they_happen(told: Told, handler: Any, options: Any, rule: Any) -> None:
    engine = run(handler, retries=Retries(max_attempts=2, delay_ms=1), on_exhausted=rule, **options)
    texts = told()
    assert len(texts) == 2, texts
    name = handler.__name__
    assert texts[0].startswith(f"ValueError in {name} (test_engine_failures.py:")
    assert "    return float(value.decode())" in texts[0]
    assert ": the first one, at t-0@" in texts[0]
    assert re.search(r": \d+ more in the last \d+ s$", texts[1])
    assert not any("secret" in text for text in texts)
    (kind,) = engine.loop.snapshot().failures
    assert kind.count == engine.loop.snapshot().failed


# --- a loop that stands ---


class Standing:
    """Workers whose loop answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []
        self.at: Any = [("orders.py", 12, "fetch")]

    def ask(self, answered: Callable[[], None]) -> None:
        self.asked.append(answered)

    def blocker(self) -> Any:
        return "t-0@7", self.at


def test_a_loop_that_does_not_turn_for_a_second_is_told_with_who_blocks_it(told: Told) -> None:
    workers, found = Standing(), Failures()
    watch = LoopWatch(workers, found, 100.0)
    assert [watch.check(100.0 + beat) for beat in (0.25, 0.5, 0.75, 1.0)] == [0, 0, 0, 0]
    assert told() == []
    assert watch.check(101.25) == 1
    (text,) = told()
    assert text.splitlines()[0] == (
        "BlockedLoop in fetch (orders.py:12): t-0@7 keeps the asyncio loop of all handlers from turning, for 1.0 s by "
        "now; await what blocks, or hand it to asyncio.to_thread"
    )
    assert watch.check(101.5) == 1
    workers.asked[-1]()
    assert watch.check(101.75) == 0
    assert len(workers.asked) == 2
    for step in range(8):
        watch.check(102.0 + step / 4)
    assert told() == [], "of the same kind: counted"
    assert [one.count for one in found.kinds] == [2]


def test_a_loop_that_turns_is_not_told_of(told: Told) -> None:
    workers, found = Standing(), Failures()
    watch = LoopWatch(workers, found, 100.0)
    for step in range(1, 100):
        assert watch.check(100.0 + step * 0.25) == 0
        if step % 3 == 0:
            workers.asked[-1]()
    assert told() == []


def test_a_process_that_was_stopped_is_no_blocked_loop(told: Told) -> None:
    watch = LoopWatch(Standing(), Failures(), 100.0)
    watch.check(100.25)
    assert watch.check(160.0) == 0
    assert watch.check(160.9) == 0, "late again: the machine has no time for either"
    assert told() == []


def test_a_task_of_the_users_own_that_blocks_is_named_by_its_coroutine(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    async def poller() -> None:
        assert gate.wait(WAIT_S)

    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        task = asyncio.create_task(poller(), name="poller-1")
        yield
        await task

    async def handler(record: Record) -> None:
        await asyncio.sleep(0)

    log = FakeBroker([T0])
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    made = Pipeline(kafka=kafka, topics=["t"], offset_reset="earliest", handler=handler, resource=resource)
    with FakeEngine(made, log):
        until(lambda: "BlockedLoop" in caplog.text, "it is told")
        gate.set()
    (text,) = [one.getMessage() for one in caplog.records if one.name == "keylane.failures"]
    assert "poller in task poller-1 keeps the asyncio loop" in text
    assert "poller (test_engine_failures.py:" in text


@pytest.mark.parametrize("suspends_before", [False, True])
def test_a_coroutine_that_blocks_its_loop_is_named_while_it_does(
    told: Told, caplog: pytest.LogCaptureFixture, suspends_before: bool
) -> None:
    gate = threading.Event()

    async def blocks(record: Record) -> None:
        if suspends_before:
            await asyncio.sleep(0.001)
        if record.offset == 5:
            assert gate.wait(WAIT_S)

    log = FakeBroker([T0])
    log.append(T0, [(b"%d" % index, b"secret") for index in range(20)])
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    made = Pipeline(kafka=kafka, topics=["t"], offset_reset="earliest", handler=blocks)
    with FakeEngine(made, log, ending_offsets={T0: 20}) as engine:
        until(lambda: "BlockedLoop" in caplog.text, "it is told")
        assert engine.loop.snapshot().stuck == 1
        gate.set()
        assert engine.loop.ended.wait(WAIT_S)
    (text,) = told()
    assert text.startswith("BlockedLoop in blocks (test_engine_failures.py:")
    assert " > wait (threading.py:" in text.splitlines()[0]
    assert ": t-0@5 keeps the asyncio loop" in text
    assert "secret" not in text
    assert engine.loop.failure is None


class Broken(logging.Handler):
    """Of an application, whose log server is away."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log server is away")


@pytest.mark.parametrize("name", ["keylane", "keylane.failures"])
def test_a_handler_of_logging_that_fails_ends_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def work(record: Record) -> None:
        if record.value == b"bad":
            raise ValueError("bad")

    log = FakeBroker([T0])
    log.append(T0, [(b"a", b"bad"), (b"b", b"good")])
    logger, broken = logging.getLogger(name), Broken()
    logger.addHandler(broken)
    try:
        options: dict[str, Any] = {"retries": Retries(delay_ms=0), "on_exhausted": Skip(), "offset_reset": "earliest"}
        pipeline = Pipeline(kafka={"bootstrap.servers": "b", "group.id": "g"}, topics=["t"], handler=work, **options)
        with FakeEngine(pipeline, log, ending_offsets={T0: 2}) as engine:
            until(engine.loop.ended.is_set, "the end", WAIT_S)
        assert engine.loop.failure is None
        assert log.committed[T0] == (2, "")
    finally:
        logger.removeHandler(broken)
    assert "the log server is away" in capsys.readouterr().err
