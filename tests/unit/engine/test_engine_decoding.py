"""Deserializers: in the worker, with failures that are the record's."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from keylane import DeadLetter, DecodedRecord, Pipeline, Record, Retries, UndecodableError, UsageError
from keylane.consumer import decoding
from keylane.consumer.decoding import QUICK_S, Beside, kind_of_bytes
from keylane.flow import core
from keylane.options import Batch, Breaker
from keylane.records import PlainMessage
from kit.fakes import FakeBroker, FakeEngine

T0 = ("t", 0)
BAD = (2, 5)


def run(handler: Any, **options: Any) -> FakeEngine:
    """Eight records with JSON values, two of which are none; bad ones go to the dead-letter topic."""
    log = FakeBroker([T0])
    log.append(T0, [(b"%d" % (i % 2), b"{" if i in BAD else b'{"n": %d}' % i) for i in range(8)])
    chosen: dict[str, Any] = {"retries": Retries(max_attempts=2, delay_ms=1), "on_exhausted": DeadLetter("dead")}
    made = Pipeline(
        kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"},
        topics=["t"],
        handler=handler,
        offset_reset="earliest",
        **(chosen | options),
    )
    with FakeEngine(made, log, ending_offsets={T0: 8}) as engine:
        assert engine.loop.ended.wait(20)
    assert engine.loop.failure is None
    return engine


def decode(data: bytes, context: Any) -> Any:
    assert (context.topic, context.field, context.headers) == ("t", "value", [])
    return json.loads(data)


def decode_key(data: bytes, context: Any) -> int:
    assert context.field == "key"
    return int(data)


def check(engine: FakeEngine, seen: list[tuple[Any, Any, Any]]) -> None:
    assert sorted(seen, key=lambda one: one[1]["n"]) == [
        (i % 2, {"n": i}, b'{"n": %d}' % i) for i in range(8) if i not in BAD
    ]
    letters = {dict(one.headers)["keylane.offset"]: one for one in engine.producer.sent}
    assert letters.keys() == {b"2", b"5"}
    assert all(one.value == b"{" and one.key in (b"0", b"1") for one in letters.values()), "the bytes as they were"
    assert dict(letters[b"2"].headers)["keylane.error.class"] == b"json.decoder.JSONDecodeError"
    assert engine.loop.snapshot().retried == 0, "another attempt reads the same bytes"


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_a_handler_gets_what_they_make_and_the_undecodable_take_the_dead_letter_path(ordering: str) -> None:
    seen: list[tuple[Any, Any, Any]] = []

    def handler(record: Record) -> None:
        seen.append((record.key, record.value, record.raw_value))

    check(run(handler, ordering=ordering, key_deserializer=decode_key, value_deserializer=decode), seen)


def test_so_does_a_coroutine() -> None:
    seen: list[tuple[Any, Any, Any]] = []

    async def handler(record: Record, context: Any) -> None:
        seen.append((record.key, record.value, record.raw_value))

    check(run(handler, key_deserializer=decode_key, value_deserializer=decode), seen)


@pytest.mark.parametrize("returns", [None, "list"])
def test_in_a_batch_only_the_undecodable_fail(returns: Any) -> None:
    seen: list[tuple[Any, Any, Any]] = []

    def handler(records: list[Record]) -> Any:
        seen.extend((record.key, record.value, record.raw_value) for record in records)
        return returns and [None] * len(records)

    options: dict[str, Any] = {"batch": Batch(3), "ordering": "unordered"}
    check(run(handler, key_deserializer=decode_key, value_deserializer=decode, **options), seen)


def test_what_is_never_retried_is_said_by_class() -> None:
    """Also in a call for many, whose others are not at fault: there each has one more attempt, alone."""
    attempts: Counter[int] = Counter()

    def handler(record: Record) -> None:
        attempts[record.offset] += 1
        raise KeyError if record.offset % 2 else ExceptionGroup("several", [OSError(), ValueError()])

    retries = Retries(max_attempts=3, delay_ms=1, never=(UndecodableError, OSError))
    run(handler, retries=retries)
    assert attempts == {offset: 3 if offset % 2 else 1 for offset in range(8)}
    attempts.clear()
    run(handler, value_deserializer=decode, retries=replace(retries, never=()))
    assert attempts == {offset: 3 for offset in range(8) if offset not in BAD}

    def whole(records: list[Record]) -> None:
        attempts.update(record.offset for record in records)
        if any(record.offset == 3 for record in records):
            raise OSError

    attempts.clear()
    engine = run(whole, batch=Batch(8, 8, 10_000), ordering="unordered", retries=retries)
    assert engine.loop.snapshot().dead_lettered == 1
    assert attempts == dict.fromkeys(range(8), 2)


@pytest.mark.parametrize("breaker", [None, Breaker(failures=2, errors=KeyError, probe_interval_ms=10)])
def test_an_outage_of_what_a_deserializer_asks_uses_up_no_attempt(
    breaker: Breaker | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "OUTAGE_S", 0.01)
    asked: Counter[bytes] = Counter()

    def ask(data: bytes, _: Any) -> Any:
        asked[data] += 1
        if asked.total() < 40:
            raise SerializationError("no schema") from ConnectError("refused")
        return data

    engine = run(lambda _: None, value_deserializer=ask, breaker=breaker)
    snapshot = engine.loop.snapshot()
    assert (snapshot.processed, snapshot.dead_lettered, snapshot.held) == (8, 0, 39)


class SerializationError(Exception):
    """As confluent-kafka's."""


class TransportError(Exception):
    """As httpx's."""


class ConnectError(TransportError):
    """As httpx's."""


def test_the_loop_runs_what_is_quick_and_leaves_what_is_not_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    now = [0.0]
    monkeypatch.setattr(decoding, "perf_counter", lambda: now[0])
    values: dict[bytes, float] = {b"\0\0\0\0\1a": 0.0, b"\0\0\0\0\2a": 2 * QUICK_S, b"plain": 0.0}

    def decoded(data: bytes) -> bytes:
        threads.append(threading.current_thread().name.rpartition("_")[0])
        now[0] += values[data]
        return data

    async def decode_all() -> None:
        beside = Beside(decoded, kind_of_bytes)
        for data in values:
            for _ in range(2):
                assert await beside(data) == data

    asyncio.run(decode_all())
    assert [bool(one) for one in threads] == [True, False, True, True, True, False]


def test_a_deserializer_may_be_a_coroutine_function_where_the_handler_is_one() -> None:
    async def ask(data: bytes, _: Any) -> Any:
        await asyncio.sleep(0)
        return json.loads(data)

    seen: list[tuple[Any, Any, Any]] = []

    async def handler(record: Record) -> None:
        seen.append((record.key, record.value, record.raw_value))

    check(run(handler, key_deserializer=decode_key, value_deserializer=ask), seen)
    with pytest.raises(UsageError, match="goes with a handler that is declared with `async def`"):
        run(lambda _: None, value_deserializer=ask)
    engine = run(lambda _: None, value_deserializer=lambda data, context: ask(data, context))
    assert engine.loop.snapshot().dead_lettered == 8
    assert b"declared with `async def`" in (dict(engine.producer.sent[0].headers)["keylane.error.text"] or b"")


def test_one_alone_leaves_the_other_as_bytes() -> None:
    seen: list[Any] = []
    run(lambda record: seen.append((record.key, type(record.value))), value_deserializer=decode)
    assert {key for key, _ in seen} == {b"0", b"1"}
    assert {kind for _, kind in seen} == {dict}
    seen.clear()
    run(lambda record: seen.append((record.key, type(record.value))), key_deserializer=decode_key)
    assert set(seen) == {(0, bytes), (1, bytes)}


def test_a_decoded_record_crosses_a_process() -> None:
    record = DecodedRecord.of(Record(PlainMessage("t", 1, 7, b"k", b"v")), "key", {"value": 1})
    again = pickle.loads(pickle.dumps(record))
    assert (again.key, again.value, again.raw_key, again.raw_value) == ("key", {"value": 1}, b"k", b"v")
    assert (again.topic, again.partition, again.offset) == ("t", 1, 7)
