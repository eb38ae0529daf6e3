"""Worker processes: what crosses, what a death costs, and that none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keylane import (
    Context,
    DeadLetter,
    Fatal,
    HandlerError,
    Output,
    Pipeline,
    Record,
    Retries,
    Skip,
    UsageError,
)
from keylane.flow.workers.processors import usable_processors
from keylane.options import Batch, Breaker, Processes
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 60.0
KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}


def engine_of(handler: Callable[..., Any], values: list[bytes], **options: Any) -> FakeEngine:
    log = FakeBroker([("t", 0)])
    log.append(("t", 0), [(b"%d" % (index % 7), value) for index, value in enumerate(values)])
    chosen: dict[str, Any] = {"workers": Processes(2), "retries": Retries(max_attempts=2, delay_ms=1)} | options
    pipeline = Pipeline(kafka=KAFKA, topics=["t"], handler=handler, offset_reset="earliest", **chosen)
    return FakeEngine(pipeline, log, ending_offsets={("t", 0): len(values)})


def run(handler: Callable[..., Any], values: list[bytes], **options: Any) -> FakeEngine:
    with engine_of(handler, values, **options) as engine:
        assert engine.loop.ended.wait(WAIT_S)
    return engine


def sent(engine: FakeEngine, topic: str = "out") -> list[bytes | None]:
    return [one.value for one in engine.producer.sent if one.topic == topic]


class UnpicklableError(Exception):
    """An error that pickles, and cannot be made again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize("batch_size", [1, 10])
def test_records_run_in_other_processes_and_their_outputs_come_back(batch_size: int) -> None:
    def one(record: Record) -> Output:
        return Output("out", key=b"%d" % os.getpid(), value=record.value)

    handler = one if batch_size == 1 else lambda records: [one(record) for record in records]
    values = [b"%d" % number for number in range(100)]
    engine = run(handler, values, batch=Batch(batch_size) if batch_size > 1 else None)
    assert engine.loop.failure is None
    assert sorted(sent(engine), key=lambda value: int(value or 0)) == values
    assert b"%d" % os.getpid() not in {one.key for one in engine.producer.sent}
    for key in {record.key_ for record in engine.consumer._broker.logs["t", 0]}:
        of_key = [int(v or 0) for v in sent(engine) if v is not None and int(v) % 7 == int(key or 0)]
        assert of_key == sorted(of_key)


@pytest.mark.parametrize(("processes", "there_are"), [(3, 3), (None, usable_processors())])
def test_there_are_as_many_processes_as_are_asked_for_and_else_one_a_processor(
    processes: int | None, there_are: int
) -> None:
    engine = run(lambda _: Output("out", key=b"%d" % os.getpid()), [b"v"], workers=Processes(processes))
    assert engine.loop.snapshot().concurrency == there_are
    assert [one.key for one in engine.producer.sent] != [b"%d" % os.getpid()]


def test_whatever_a_handler_raises_is_its_record_s_failure() -> None:
    def handler(record: Record) -> Any:
        if record.value == b"value error":
            raise ValueError("bad value")
        if record.value == b"fatal":
            raise Fatal("never")
        if record.value == b"unpicklable":
            raise UnpicklableError(1, 2)
        if record.value == b"exit":
            sys.exit(3)
        return lambda: None  # what cannot leave the process

    values = [b"value error", b"fatal", b"unpicklable", b"exit", b"lambda"]
    engine = run(handler, values, on_exhausted=DeadLetter("dead"))
    said = {one.value: dict(one.headers) for one in engine.producer.sent}
    assert {value: said[value]["keylane.attempts"] for value in values} == {
        b"value error": b"2",
        b"fatal": b"1",
        b"unpicklable": b"2",
        b"exit": b"2",
        b"lambda": b"1",
    }
    assert said[b"value error"]["keylane.error.class"] == b"ValueError"
    assert said[b"unpicklable"]["keylane.error.text"] == b"1 and 2"
    assert (said[b"unpicklable"]["keylane.error.class"] or b"").endswith(b"UnpicklableError")
    assert engine.loop.snapshot().workers_died == 0


def test_an_error_s_class_is_the_one_that_was_sent() -> None:
    """Classes of files that are no packages travel as code: the breaker, the delay and the letter know the one here."""

    class ServiceDownError(ConnectionError):
        pass

    class SlowDownError(Exception):
        def __init__(self, delay_ms: int) -> None:
            super().__init__(f"wait {delay_ms}")
            self.retry_after_ms = delay_ms

    def handler(record: Record) -> None:
        if record.value == b"slow":
            raise SlowDownError(1)
        if record.value == b"down":
            raise ServiceDownError("no answer")
        raise UnpicklableError(1, 2)

    seen: set[type] = set()

    def delay(attempt: int, error: BaseException, record: Record) -> int:
        seen.add(type(error))
        return 1

    retries = Retries(max_attempts=2, delay_ms=delay)
    engine = run(handler, [b"down", b"slow", b"other"], retries=retries, on_exhausted=DeadLetter("dead"))
    assert seen == {ServiceDownError, UnpicklableError}
    texts = {one.value: dict(one.headers)["keylane.error.text"] for one in engine.producer.sent}
    assert texts == {b"down": b"no answer", b"slow": b"wait 1", b"other": b"1 and 2"}
    breaker = Breaker(failures=2, errors=ServiceDownError, probe_interval_ms=10)
    with engine_of(handler, [b"down"] * 6, breaker=breaker, on_exhausted=DeadLetter("dead")) as held:
        until(lambda: held.loop.snapshot().held >= 4, "its records are held", WAIT_S)
        assert held.loop.snapshot().dead_lettered == 0


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_dead_process_is_a_failed_attempt_of_what_it_was_at_and_is_replaced(batch_size: int) -> None:
    def one(record: Record) -> Output:
        return Output("out", value=record.value)

    def single(record: Record, context: Context) -> Output:
        if record.value == b"13" and context.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return one(record)

    def batch(records: list[Record], context: Context) -> list[Output]:
        return [single(record, context) for record in records]

    values = [b"%d" % number for number in range(60)]
    engine = run(
        single if batch_size == 1 else batch,
        values,
        batch=Batch(batch_size) if batch_size > 1 else None,
        ordering="unordered",
    )
    snapshot = engine.loop.snapshot()
    assert engine.loop.failure is None
    assert sorted(sent(engine), key=lambda value: int(value or 0)) == values
    assert snapshot.workers_died == 1
    assert snapshot.failed == batch_size, "exactly what the process was at"


def test_a_record_that_always_kills_its_process_takes_the_path_of_failures() -> None:
    def handler(record: Record) -> None:
        if record.value == b"poison":
            os.kill(os.getpid(), signal.SIGSEGV)

    engine = run(handler, [b"a", b"poison", b"b"], ordering="partition", on_exhausted=DeadLetter("dead"))
    [letter] = engine.producer.sent
    assert letter.value == b"poison"
    assert b"ended by SIGSEGV while it ran this record" in (dict(letter.headers)["keylane.error.text"] or b"")
    snapshot = engine.loop.snapshot()
    assert (snapshot.workers_died, snapshot.processed) == (2, 2)


def test_a_resource_is_made_once_a_process_and_left_at_the_end(tmp_path: Path) -> None:
    @contextmanager
    def resource() -> Iterator[int]:
        (tmp_path / f"made-{os.getpid()}").touch()
        yield os.getpid()
        (tmp_path / f"left-{os.getpid()}").touch()

    def handler(record: Record, context: Context) -> Output:
        assert context.resource == os.getpid()
        return Output("out", key=b"%d" % os.getpid())

    engine = run(handler, [b"v"] * 50, resource=resource)
    assert engine.loop.failure is None
    made = {path.name.partition("-")[2] for path in tmp_path.glob("made-*")}
    assert made == {path.name.partition("-")[2] for path in tmp_path.glob("left-*")}
    assert {one.key for one in engine.producer.sent} <= {pid.encode() for pid in made}
    assert len(made) == 2


def test_a_resource_that_cannot_be_made_ends_the_run() -> None:
    def resource() -> Any:
        raise OSError("no model")

    engine = run(lambda _: None, [b"v"], resource=resource)
    assert isinstance(engine.loop.failure, HandlerError)
    assert "the pipeline's resource could not be made: OSError: no model" in str(engine.loop.failure)


def test_a_result_that_nobody_wants_is_ended_with_its_process(tmp_path: Path) -> None:
    def handler(record: Record) -> None:
        (tmp_path / str(os.getpid())).touch()
        if record.value == b"long" and len(list(tmp_path.iterdir())) == 1:
            time.sleep(1_000)

    with engine_of(handler, [b"long"], workers=Processes(1), revoke_timeout_ms=1) as engine:
        until(lambda: any(tmp_path.iterdir()), "the handler runs", WAIT_S)
        [first] = [path.name for path in tmp_path.iterdir()]
        engine.consumer.lose([("t", 0)])
        engine.consumer.assign([("t", 0)])
        assert engine.loop.ended.wait(WAIT_S), "the next process runs it"
    assert not Path(f"/proc/{first}").exists()
    assert engine.loop.snapshot().workers_died == 0, "it was ended, it did not die"


def test_a_handler_that_takes_too_long_is_ended_with_its_process_and_fails() -> None:
    def handler(record: Record, context: Context) -> Output:
        if record.value == b"long" and context.attempt == 1:
            while True:
                pass
        return Output("out", value=record.value)

    engine = run(handler, [b"short", b"long", b"short"], handler_timeout_ms=500, ordering="partition")
    assert sent(engine) == [b"short", b"long", b"short"]
    snapshot = engine.loop.snapshot()
    assert (snapshot.failed, snapshot.workers_died) == (1, 0)


def test_closing_ends_processes_whose_handlers_do_not(tmp_path: Path) -> None:
    def handler(record: Record) -> None:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(1_000)

    with engine_of(handler, [b"v"] * 2, drain_timeout_ms=0):
        until(lambda: len(list(tmp_path.iterdir())) == 2, "the handlers run", WAIT_S)
    assert not any(is_alive(int(path.name)) for path in tmp_path.iterdir())


PARENT = """
import os, sys, time
from keylane import Pipeline, Processes
from keylane.flow.workers.processors import usable_processors
from kit.fakes import FakeBroker, FakeEngine

def handler(record):
    print(os.getpid(), flush=True)
    while True:
        pass

log = FakeBroker([("t", 0)])
log.append(("t", 0), [(b"k", b"v")])
pipeline = Pipeline(kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"}, topics=["t"], handler=handler,
                    workers=Processes(1), offset_reset="earliest")
with FakeEngine(pipeline, log) as engine:
    time.sleep(1_000)
"""


def test_processes_end_when_their_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
    finally:
        parent.kill()
        parent.wait()
    parent.stdout.close()
    until(lambda: not is_alive(child), "the worker process ends", WAIT_S)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_coroutine_is_refused() -> None:
    async def handler(record: Record) -> None:
        """A coroutine."""

    with pytest.raises(UsageError, match="runs plain functions"):
        Pipeline(kafka=KAFKA, topics=["t"], handler=handler, workers=Processes())


def test_what_cannot_travel_is_refused_with_the_way_out() -> None:
    lock = __import__("threading").Lock()

    def handler(record: Record) -> None:
        assert lock

    with pytest.raises(UsageError, match=r"cannot travel to worker .*: use the pipeline's `resource` for locks"):
        engine_of(handler, [b"v"])


def test_skipping_counts_a_death_like_any_failure() -> None:
    def handler(record: Record) -> None:
        os._exit(7)

    engine = run(handler, [b"v"], on_exhausted=Skip(), retries=Retries(max_attempts=1))
    assert engine.loop.snapshot().skipped == 1


def test_a_stall_names_the_process_that_its_record_is_in(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def handler(record: Record) -> None:
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(60)

    with engine_of(handler, [b"secret"], workers=Processes(1), stall_timeout_ms=3_000) as engine:
        until(lambda: pids.exists() and bool(pids.read_text()), "it runs")
        assert engine.loop.ended.wait(WAIT_S)
    text = str(engine.loop.failure)
    assert text.startswith("t-0@0: no handler has ended for 3")
    assert f"at worker process {pids.read_text().strip()};" in text
    assert "secret" not in text
