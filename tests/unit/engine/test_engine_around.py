"""`around`: a context manager around each attempt, nearest to the handler."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from keylane import Context, DeadLetter, DecodedRecord, Pipeline, Record, Retries
from keylane.options import Batch, Processes
from kit.fakes import FakeBroker, FakeEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

T0 = ("t", 0)
COUNT = 6


class Unit:
    """What a context manager has seen, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    @contextmanager
    def around(self, record: Record) -> Iterator[Unit]:
        self.seen.append(("begin", record.offset))
        try:
            yield self
        except ValueError:
            self.seen.append(("undo", record.offset))
            raise
        self.seen.append(("commit", record.offset))

    @asynccontextmanager
    async def around_async(self, record: Record, context: Context) -> AsyncIterator[Unit]:
        await asyncio.sleep(0)
        assert context.attempt
        with self.around(record):
            yield self


def run(handler: Callable[..., Any], **options: Any) -> FakeEngine:
    log = FakeBroker([T0])
    log.append(T0, [(b"%d" % number, b"%d" % number) for number in range(COUNT)])
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    given: dict[str, Any] = {"retries": Retries(max_attempts=2, delay_ms=1), "on_exhausted": DeadLetter("dead")}
    given |= options
    pipeline = Pipeline(kafka=kafka, topics=["t"], offset_reset="earliest", handler=handler, **given)
    engine = FakeEngine(pipeline, log, ending_offsets={T0: COUNT})
    with engine:
        assert engine.loop.ended.wait(20), "the engine did not end"
    assert engine.loop.failure is None
    return engine


def twice(record: Record, context: Context) -> None:
    """The first attempt of one fails."""
    context.around.seen.append(("run", record.offset))
    if record.offset == 1 and context.attempt == 1:
        raise ValueError("not yet")


async def twice_coroutine(record: Record, context: Context) -> None:
    twice(record, context)


@pytest.mark.parametrize("way", ["threads", "asyncio", "asyncio, plain"])
def test_it_is_around_each_attempt_and_its_value_is_in_the_context(way: str) -> None:
    unit = Unit()
    engine = run(
        twice if way == "threads" else twice_coroutine,
        around=unit.around_async if way == "asyncio" else unit.around,
        ordering="partition",
    )
    of_one = [what for what, offset in unit.seen if offset == 1]
    assert of_one == ["begin", "run", "undo", "begin", "run", "commit"]
    assert [what for what, offset in unit.seen if offset == 2] == ["begin", "run", "commit"]
    assert (engine.loop.snapshot().processed, engine.loop.snapshot().failed) == (COUNT, 1)


def test_what_it_sets_in_the_context_is_seen_by_no_other_record() -> None:
    """Reporters of errors keep there what a record was, and the next one begins while this one waits."""
    current: ContextVar[int] = ContextVar("current", default=-1)
    before: list[int] = []

    @contextmanager
    def around(record: Record) -> Iterator[None]:
        before.append(current.get())
        token = current.set(record.offset)
        yield
        current.reset(token)

    async def handler(_record: Record) -> None:
        await asyncio.sleep(0)

    run(handler, around=around)
    assert before == [-1] * COUNT


@contextmanager
def in_process(record: Record) -> Iterator[bytes]:
    yield b"%d" % record.offset


def answer(record: Record, context: Context) -> None:
    if context.around != b"%d" % record.offset:
        raise ValueError("not inside")


def test_it_is_in_worker_processes() -> None:
    assert run(answer, around=in_process, workers=Processes(1)).loop.snapshot().processed == COUNT


def test_it_is_around_a_batch_and_gets_its_list() -> None:
    sizes: list[int] = []

    def around(records: list[Record]) -> Any:
        sizes.append(len(records))
        return nullcontext(len(records))

    def handler(records: list[Record], context: Context) -> None:
        assert context.around == len(records)

    run(handler, around=around, batch=Batch(size=COUNT, min_size=COUNT, linger_ms=10_000))
    assert sizes == [COUNT]


def test_it_gets_the_record_as_the_handler_does() -> None:
    seen: list[Any] = []

    def around(record: DecodedRecord) -> Any:
        seen.append(record.value)
        return nullcontext()

    run(lambda _: None, around=around, value_deserializer=lambda data, _: int(data))
    assert sorted(seen) == list(range(COUNT))


@contextmanager
def fails_at_its_end(_: Record) -> Iterator[None]:
    yield
    raise ConnectionError("the commit failed")


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        (fails_at_its_end, b"the commit failed"),
        (lambda _: None, b"around returned a value of type NoneType: return a context manager"),
        (lambda _: Unit().around_async, b"return a context manager"),
        (lambda record: Unit().around_async(record, Context()), b"async context manager, but the handler is a plain"),
    ],
)
def test_what_it_raises_is_a_failed_attempt(around: Callable[..., Any], reason: bytes) -> None:
    engine = run(lambda _: None, around=around)
    assert engine.loop.snapshot().dead_lettered == COUNT
    assert reason in (dict(engine.producer.sent[0].headers)["keylane.error.text"] or b"")


def test_what_it_swallows_is_no_failure() -> None:
    def fail(_: Record) -> None:
        raise ValueError("no")

    assert run(fail, around=lambda _: suppress(ValueError)).loop.snapshot().processed == COUNT


def test_a_coroutine_that_takes_too_long_is_cancelled_inside_of_it() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def around(_: Record) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            seen.append("undone")
            raise

    async def hang(_: Record) -> None:
        await asyncio.Event().wait()

    engine = run(hang, around=around, handler_timeout_ms=10, retries=Retries(max_attempts=1))
    assert seen == ["undone"] * COUNT
    assert engine.loop.snapshot().dead_lettered == COUNT
