"""`context.step`: what a call came to is kept before it is given, and whoever runs the record again is given that."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import re
import runpy
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.cli.main import main
from keylane.delivery import kept_steps
from keylane.errors import InternalError
from keylane.kafka import step_topics
from keylane.kafka.admin import Admin, RefusedError
from keylane.kafka.fenced_log import FencedLog
from keylane.kafka.step_topics import name_of
from keylane.wire import codes
from kit.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORDS = 12
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


NUMBERS = itertools.count()


@pytest.fixture
def stage(broker: BrokerProcess) -> Stage:
    made = Stage(broker.bootstrap, f"steps-{next(NUMBERS)}")
    made.create(2)
    made.fill((b"%d" % (number % 5), number % 2) for number in range(RECORDS))
    return made


class Service:
    """Counts its calls, by what they are for."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self._lock = threading.Lock()

    def ask(self, *what: Any) -> str:
        with self._lock:
            self.calls[what] += 1
            return f"answer {sum(self.calls.values())}"

    async def ask_async(self, *what: Any) -> str:
        await asyncio.sleep(0)
        return self.ask(*what)


def run(stage: Stage, handler: Callable[..., Any], **options: Any) -> None:
    """To the end of the topic."""
    stage.run(handler, **({"retries": kl.Retries(delay_ms=0), "steps": kl.Steps()} | options))


def place(record: kl.Record) -> tuple[int, int]:
    return record.partition, record.offset


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_failed_second_step_does_not_repeat_the_first(stage: Stage, kind: str) -> None:
    service = Service()
    given: dict[tuple[int, int], set[str]] = {}

    def note(record: kl.Record, answer: str, context: kl.Context) -> None:
        given.setdefault(place(record), set()).add(answer)
        if context.attempt < 3:
            raise ValueError("the second step fails")

    def handle(record: kl.Record, context: kl.Context) -> None:
        answer = context.step(service.ask, *place(record))
        note(record, answer, context)

    async def handle_async(record: kl.Record, context: kl.Context) -> None:
        answer = await context.step(service.ask_async, *place(record))
        note(record, answer, context)

    run(stage, handle if kind == "thread" else handle_async)
    assert set(service.calls.values()) == {1}
    assert len(service.calls) == RECORDS
    assert all(len(answers) == 1 for answers in given.values()), "a record was given two answers"


def test_what_the_next_member_runs_again_is_not_called_again(stage: Stage) -> None:
    service = Service()

    def halt(record: kl.Record, context: kl.Context) -> None:
        context.step(service.ask, *place(record))
        raise kl.Fatal("it ends here")

    def handle(record: kl.Record, context: kl.Context) -> None:
        context.step(service.ask, *place(record))

    with pytest.raises(kl.HandlerError):
        run(stage, halt)
    called = set(service.calls)
    assert called, "nothing was called before the first one ended"
    run(stage, handle)
    assert set(service.calls.values()) == {1}
    assert len(service.calls) == RECORDS


@pytest.mark.parametrize("value", [b"\x00\xff", "text \udc80", {"a": [1, None, True]}, None, "", 1.5, b"x" * 2_000_000])
def test_what_is_kept_is_what_was_returned(stage: Stage, value: Any) -> None:
    found: list[Any] = []

    def handle(record: kl.Record, context: kl.Context) -> None:
        if place(record) == (0, 0):
            found.append(context.step(lambda: value, name="ask"))
            if context.attempt == 1:
                raise ValueError

    run(stage, handle)
    assert found == [value, value]


def test_several_of_one_name_have_keys_and_one_that_is_not_valid_is_not_kept(stage: Stage) -> None:
    service = Service()
    keys: set[str] = set()

    def handle(record: kl.Record, context: kl.Context) -> None:
        for part in ("a", "b"):
            context.step(service.ask, part, place(record), name="part", key=part)
            keys.add(context.step_key("part", part))
        context.step(service.ask, "invalid", place(record), keep_if=lambda _: context.attempt > 1)
        if context.attempt < 3:
            raise ValueError

    run(stage, handle)
    by_kind = Counter[Any]()
    for (kind, _), count in service.calls.items():
        by_kind[kind, count] += 1
    assert by_kind == {("a", 1): RECORDS, ("b", 1): RECORDS, ("invalid", 2): RECORDS}
    assert len(keys) == 2 * RECORDS


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_step_that_is_forgotten_is_called_again(stage: Stage, kind: str) -> None:
    service = Service()

    def handle(record: kl.Record, context: kl.Context) -> None:
        if context.attempt == 2:
            context.forget("ask")
        context.step(service.ask, *place(record))
        if context.attempt < 3:
            raise ValueError

    async def handle_async(record: kl.Record, context: kl.Context) -> None:
        if context.attempt == 2:
            await context.forget("ask")
        await context.step(service.ask, *place(record))
        if context.attempt < 3:
            raise ValueError

    run(stage, handle if kind == "thread" else handle_async)
    assert set(service.calls.values()) == {2}


def test_an_attempt_that_is_over_its_time_leaves_the_call_and_the_next_one_waits_for_it(stage: Stage) -> None:
    service = Service()
    goes_on = asyncio.Event()

    async def slow(*what: Any) -> str:
        answer = service.ask(*what)
        await goes_on.wait()
        return answer

    async def handle(record: kl.Record, context: kl.Context) -> None:
        if context.attempt > 1:
            goes_on.set()
        await context.step(slow, *place(record))

    run(stage, handle, handler_timeout_ms=100, retries=kl.Retries(max_attempts=None, delay_ms=0))
    assert set(service.calls.values()) == {1}
    assert len(service.calls) == RECORDS


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_who_may_not_delete_marks_what_is_of_no_use_and_the_next_owner_begins_there(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, *, is_made_anew: bool
) -> None:
    """A topic of steps that is made anew has nothing of the mark."""
    stage = Stage(broker.bootstrap, f"steps-{next(NUMBERS)}")
    stage.create(1)
    stage.fill([(b"k", 0)] * RECORDS)
    monkeypatch.setattr(kept_steps, "TRIM_EVERY_S", 0.05)
    read: list[int] = []
    fenced_read = FencedLog.read

    def refuse(*_: Any) -> None:
        raise RefusedError("not allowed to delete", codes.TOPIC_AUTHORIZATION_FAILED)

    def note_read(self: FencedLog, offset: int, told: Any) -> None:
        read.append(offset)
        fenced_read(self, offset, told)

    monkeypatch.setattr(Admin, "delete_records", refuse)
    monkeypatch.setattr(FencedLog, "read", note_read)
    service = Service()
    name = name_of(stage.group, stage.topic)

    def handle(record: kl.Record, context: kl.Context) -> None:
        if place(record) == (0, 4):
            until(lambda: any(one.offset for one in stage.admin.committed_offsets(name).values()), "it is marked")
        context.step(service.ask, *place(record))
        if place(record) == (0, 4):
            raise kl.Fatal("it ends here")

    def handle_rest(record: kl.Record, context: kl.Context) -> None:
        context.step(service.ask, *place(record))

    with pytest.raises(kl.HandlerError):
        run(stage, handle, ordering="partition", commit=kl.Commit(interval_ms=10))
    assert set(read) == {0}
    read.clear()
    marks = stage.admin.committed_offsets(name).values()
    if is_made_anew:
        stage.admin.delete_topics([name])
        until(lambda: name not in stage.admin.topics(), "it is gone")
        step_topics.prepare(stage.admin, name, stage.topic)
        for late in marks:
            stage.admin.commit_offsets(name, {(name, 0): late.offset}, {(name, 0): late.metadata})
    run(stage, handle_rest, ordering="partition")
    assert (min(read) == 0) is is_made_anew
    if not is_made_anew:
        assert set(service.calls.values()) == {1}
    assert len(service.calls) == RECORDS


def test_what_cannot_be_kept_is_said(stage: Stage) -> None:
    found: set[str] = set()

    async def of_a_coroutine() -> None: ...

    def handle(record: kl.Record, context: kl.Context) -> None:
        if place(record) != (0, 0):
            return
        context.step(str, name="twice")
        wrong: list[Callable[[], Any]] = [
            lambda: context.step(object, name="object"),
            lambda: context.step(lambda: "x"),
            lambda: context.step(str, name="twice"),
            lambda: context.step(str, name="x" * 1_001),
            lambda: context.step(str, name="key", key=7),  # type: ignore[arg-type]
            lambda: context.step(of_a_coroutine),
        ]
        for one in wrong:
            with pytest.raises(kl.UsageError) as raised:
                one()
            found.add(str(raised.value))

    run(stage, handle)
    for text in (
        "step 'object' returned a value of type object, which is not kept: return bytes",
        "has no name by which its answer can be kept: give name=",
        "a second step 'twice' for one record would get the first one's answer: give key=",
        "name has more than 1000 bytes",
        "key is a value of type int: give a text",
        "is a coroutine function, and the handler is a plain one",
    ):
        assert any(text in one for one in found), (text, found)


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_dead_letter_names_the_steps_that_were_done(stage: Stage, kind: str) -> None:
    dead = f"{stage.topic}-dead"
    stage.create(1, dead)

    def fail() -> None:
        raise OSError("the service is away")

    def handle(record: kl.Record, context: kl.Context) -> None:
        for part in ("a", "b"):
            context.step(lambda: 1, name="part", key=part)
        context.step(fail)

    async def handle_async(record: kl.Record, context: kl.Context) -> None:
        for part in ("a", "b"):
            await context.step(lambda: 1, name="part", key=part)
        await context.step(fail)

    chosen = handle if kind == "thread" else handle_async
    run(stage, chosen, retries=kl.Retries(max_attempts=2, delay_ms=0), on_exhausted=kl.DeadLetter(dead))
    letters = stage.read(dead)
    assert len(letters) == RECORDS
    assert {dict(one.headers)["keylane.steps"] for one in letters} == {b'["part/a", "part/b"]'}


def test_steps_of_a_record_are_shown_while_its_member_goes_on(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def show(*options: str) -> str:
        where = ["--bootstrap-server", stage.servers]
        assert main(["records", "show", stage.group, f"{stage.topic}:0@0", *where, *options]) == 0
        return capsys.readouterr().out

    def handle(record: kl.Record, context: kl.Context) -> None:
        for part in ("a", "b"):
            context.step(lambda: "answer", name="part", key=part)
        if place(record) == (0, 0):
            shown.extend([show(), show("--payload")])
            context.step(lambda: "goes on", name="last")

    run(stage, handle, workers=kl.Threads(1))
    assert re.findall(r"^step (.*), kept .*Z?$", shown[0], re.MULTILINE) == ["part/a: 6 bytes", "part/b: 6 bytes"]
    assert len(re.findall(r"^step part/.: 6 bytes, kept 20.*: answer$", shown[1], re.MULTILINE)) == 2


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_step_has_retries_of_its_own(stage: Stage, kind: str) -> None:
    """So that its record needs no second attempt; not for what is fatal."""
    calls: Counter[Any] = Counter()
    attempts: Counter[Any] = Counter()
    retries = kl.Retries(max_attempts=3, delay_ms=0, never=KeyError)

    def ask(where: tuple[int, int], error: Exception, fails: int) -> str:
        calls[where, repr(error)] += 1
        if calls[where, repr(error)] <= fails:
            raise error
        return "answer"

    cases: list[tuple[Exception, int]] = [(OSError(), 2), (OSError("often"), 3), (KeyError(), 1), (kl.Fatal(), 0)]

    def handle(record: kl.Record, context: kl.Context) -> None:
        attempts[place(record)] += 1
        for number, case in enumerate(cases):
            with suppress(OSError, KeyError):
                context.step(ask, place(record), *case, key=f"{number}", retries=retries)

    async def handle_async(record: kl.Record, context: kl.Context) -> None:
        attempts[place(record)] += 1
        for number, case in enumerate(cases):
            with suppress(OSError, KeyError):
                await context.step(ask, place(record), *case, key=f"{number}", retries=retries)

    run(stage, handle if kind == "thread" else handle_async)
    assert set(attempts.values()) == {1}
    by_case: dict[str, set[int]] = {}
    for (_, case), count in calls.items():
        by_case.setdefault(case, set()).add(count)
    assert by_case == {"OSError()": {3}, "OSError('often')": {3}, "KeyError()": {1}, "Fatal()": {1}}


def test_a_codec_keeps_what_json_does_not(stage: Stage) -> None:
    found: list[Any] = []
    said: set[str] = set()

    def handle(record: kl.Record, context: kl.Context) -> None:
        try:
            codec = None if context.attempt == 2 else pickle
            found.append(context.step(lambda: {1, 2}, name="ask", key=f"{record.offset}", codec=codec))
        except kl.UsageError as error:
            said.add(str(error))
        if context.attempt < 3:
            raise ValueError

    run(stage, handle)
    assert found == [{1, 2}] * 2 * RECORDS
    assert said == {"step 'ask': what is kept of it was made by a codec: give codec="}


def test_without_the_option_a_step_is_refused(stage: Stage) -> None:
    def handle(record: kl.Record, context: kl.Context) -> None:
        context.step(str)

    with pytest.raises(kl.HandlerError) as raised:
        run(stage, handle, steps=None)
    assert "give its Pipeline steps=keylane.Steps()" in str(raised.value)


def test_the_page_shows_the_example_which_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    example = (ROOT / "examples" / "kept_steps.py").read_text()
    assert f"```python\n{example}```" in (ROOT / "docs" / "steps.md").read_text()
    copy = tmp_path / "kept_steps.py"
    copy.write_text(example.replace("127.0.0.1:9092", broker.bootstrap))
    admin = Admin({"bootstrap.servers": broker.bootstrap})
    admin.create_topics({"orders": 1, "orders.billed": 1})
    orders = Stage(broker.bootstrap, "orders", group="billing")
    orders.fill([(b"k", 0)] * RECORDS, "orders")
    with kl.ParallelConsumer(runpy.run_path(str(copy))["orders"], ending_offsets="latest") as consumer:
        consumer.run()
    billed = [json.loads(one.value or b"") for one in orders.read("orders.billed")]
    assert len({invoice for _, invoice in billed}) == RECORDS


def test_a_defect_in_the_log_of_steps_ends_the_pipeline_by_name(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keylane.delivery.steps.log.StepLog.keep", lambda *_: 1 // 0)
    said = f"steps of group '{stage.group}' are not kept any more: ZeroDivisionError"
    with pytest.raises((InternalError, kl.HandlerError), match=said):  # whichever is heard first
        run(stage, lambda _, context: context.step(str, name="ask"))
    assert all(found.base == 0 for found in stage.committed().values()), "nothing of it is complete"
