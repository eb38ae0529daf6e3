"""Whatever a record holds and its handler raises: it is complete, buried, skipped, or under `Halt` named by the error;
and no commit passes one that is none of these."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keylane import DeadLetter, Halt, HandlerError, Output, Pipeline, Record, Retries, Skip
from keylane.delivery import SqliteStore
from keylane.options import Batch, ExactlyOnce, Processes, Threads
from keylane.records import MISSING_HEADERS, PlainMessage
from kit.awkward import ALL, SPECS, TEXTS, RefusingMessage, Spec, made
from kit.fakes import FakeBroker, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT_S = 30.0
NAME = ("t", 0)
BYTES = st.none() | st.binary(max_size=10)
HEADERS = st.none() | st.lists(st.tuples(TEXTS.filter(lambda one: one.isascii()), BYTES), max_size=3).map(tuple)
"""None: they cannot be read."""

RULES: dict[str, Halt | Skip | DeadLetter] = {"halt": Halt(), "skip": Skip(), "dead letter": DeadLetter("dead")}
Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...] | None, Spec | None]
"""Key, value, headers, and what the handler raises."""
CONTENTS: st.SearchStrategy[Content] = st.tuples(BYTES, BYTES, HEADERS, st.none() | SPECS)


def handler_of(errors: list[Spec | None]) -> Callable[[Record], Any]:
    def handler(record: Record) -> Any:
        error = errors[record.offset]
        if error is not None:
            raise made(error)
        return Output("out", record.key, record.value, [one for one in record.headers if "\0" not in one[0]])

    return handler


def async_of(errors: list[Spec | None]) -> Callable[[Record], Any]:
    plain = handler_of(errors)

    async def handler(record: Record) -> Any:
        await asyncio.sleep(0)
        if record.offset % 2 or "closed" in str(errors[record.offset]):  # a future of asyncio's cannot bring that one
            return plain(record)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(asyncio.to_thread(lambda: None))
        await task
        return await asyncio.create_task(_call(plain, record))

    return handler


async def _call(plain: Callable[[Record], Any], record: Record) -> Any:
    return plain(record)


def batch_of(errors: list[Spec | None]) -> Callable[[list[Record]], Any]:
    plain = handler_of(errors)
    return lambda records: [plain(one) for one in records]


WORKERS: dict[str, tuple[Callable[[list[Spec | None]], Callable[..., Any]], dict[str, Any]]] = {
    "threads": (handler_of, {"workers": Threads(3)}),
    "asyncio": (async_of, {}),
    "batches": (batch_of, {"batch": Batch(3)}),
    "processes": (handler_of, {"workers": Processes(1)}),
}


def check(contents: list[Content], workers: str, rule: str, delivery: Any) -> None:
    log = FakeBroker([NAME])
    for offset, (key, value, headers, _) in enumerate(contents):
        kind = PlainMessage if headers is not None else RefusingMessage
        log.logs[NAME].append(kind(*NAME, offset, key, value, headers or (), (1, 1_700_000_000_000)))
    make, options = WORKERS[workers]
    pipeline = Pipeline(
        kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"},
        topics=["t"],
        handler=make([one[3] for one in contents]),
        offset_reset="earliest",
        delivery=delivery,
        retries=None if delivery == "at_most_once" else Retries(max_attempts=2, delay_ms=0),
        on_exhausted=RULES[rule],
        **options,
    )
    fails = [offset for offset, one in enumerate(contents) if one[3] is not None or one[2] is None]
    with FakeEngine(pipeline, log, ending_offsets={NAME: len(contents)}) as engine:
        assert engine.loop.ended.wait(WAIT_S)
    snapshot, failure = engine.loop.snapshot(), engine.loop.failure
    committed = log.committed.get(NAME, (0, ""))[0]
    if rule == "halt" and fails:
        assert isinstance(failure, HandlerError), failure
        assert any(f"t-0@{offset}: " in str(failure) for offset in fails)
        assert committed <= fails[0] or delivery == "at_most_once"
        return
    assert failure is None
    assert committed == len(contents)
    assert snapshot.processed == len(contents) - len(fails)
    assert (snapshot.skipped if rule == "skip" else snapshot.dead_lettered) == len(fails)
    dead = [one for one in engine.producer.sent if one.topic == "dead"]
    letters = {int(dict(one.headers)["keylane.offset"] or b""): one for one in dead}
    assert sorted(letters) == (fails if rule == "dead letter" else [])
    for offset, letter in letters.items():
        key, value, headers, _ = contents[offset]
        assert (letter.key, letter.value) == (key, value)
        own = [(name.replace("\0", "\\0"), value) for name, value in headers or ()]
        assert list(letter.headers)[: len(own)] == own
        assert (MISSING_HEADERS in dict(letter.headers)) == (headers is None)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("workers", ["threads", "asyncio", "batches"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(CONTENTS, min_size=1, max_size=6), st.sampled_from(["at_least_once", "at_most_once", "transactional"]))
def test_no_content_and_no_error_ends_a_run(workers: str, rule: str, contents: list[Content], delivery: str) -> None:
    if workers == "batches" and delivery == "at_most_once":  # whose others have no attempt of their own
        delivery = "at_least_once"
    check(contents, workers, rule, delivery)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CONTENTS, min_size=1, max_size=6))
def test_nor_under_exactly_once(rule: str, tmp_path: Path, contents: list[Content]) -> None:
    (tmp_path / "store").unlink(missing_ok=True)
    check(contents, "threads", rule, ExactlyOnce(SqliteStore(str(tmp_path / "store"))))


@pytest.mark.parametrize("rule", RULES)
def test_nor_from_a_process(rule: str) -> None:
    """The classes travel as code, as those of a user's own files do."""
    contents: list[Content] = [(b"k", b"\xff", (("h", None),), one) for one in ALL]
    contents += [(None, None, None, None), (b"", b"", (), None)]
    check(contents, "processes", rule, "at_least_once")
