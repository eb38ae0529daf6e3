"""`expires_ms`: what is too late is not started and goes where `on_exhausted` says; what runs gets its deadline."""

from __future__ import annotations

import time
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from keylane import (
    Batch,
    Breaker,
    Context,
    DeadLetter,
    FailedAttempt,
    Fatal,
    Halt,
    Pipeline,
    Processes,
    Rates,
    Record,
    Skip,
    UsageError,
)
from keylane.errors import ExpiredError
from keylane.flow.breakers import Breakers
from keylane.flow.expiry import expiring
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.driven import Driven
from kit.fakes import FakeBroker, FakeEngine
from kit.seam import Raised

if TYPE_CHECKING:
    from collections.abc import Callable

T0 = ("t", 0)
COUNT = 6
LATE = {1, 4}
"""Offsets of records that are too late."""
HOUR_MS = 3_600_000
KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
DUE = [("due", b"%d" % (4_000_000_000 * 1000))]
PAST = [("due", b"0"), ("due", b" 1000 ")]
"""The last one counts."""


def until(record: Record) -> float:
    return 0.0 if record.offset in LATE else (time.time() + 3_600) * 1000


def one(record: Record) -> None:
    assert record.offset not in LATE


async def one_async(record: Record, context: Context) -> None:
    one(record)
    assert context.remaining_ms is not None
    assert context.remaining_ms <= HOUR_MS


def some(records: list[Record]) -> list[None]:
    return [one(record) for record in records]  # type: ignore[func-returns-value] # None for each


async def some_async(records: list[Record]) -> None:
    some(records)


def run(handler: Callable[..., Any], told: Callable[[FailedAttempt], Any] | None = None, **options: Any) -> FakeEngine:
    log = FakeBroker([T0])
    log.append(T0, [(b"%d" % (number % 3), b"v") for number in range(COUNT)])
    given: dict[str, Any] = {"on_exhausted": DeadLetter("dead"), "expires_ms": until} | options
    pipeline = Pipeline(kafka=KAFKA, topics=["t"], offset_reset="earliest", handler=handler, on_failure=told, **given)
    engine = FakeEngine(pipeline, log, ending_offsets={T0: COUNT})
    with engine:
        assert engine.loop.ended.wait(60), "the engine did not end"
    engine.loop.raise_failure()
    return engine


KINDS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (one, {}),
    (one_async, {}),
    (one, {"workers": Processes(1)}),
    (some, {"batch": Batch(4)}),
    (some_async, {"batch": Batch(4)}),
    (one, {"ordering": "partition"}),
    (one, {"delivery": "at_most_once"}),
    (one, {"handler_timeout_ms": 60_000}),
]
IDS = ["threads", "asyncio", "processes", "batches", "asyncio batches", "partition", "at most once", "timeout"]


@pytest.mark.parametrize(("handler", "options"), KINDS, ids=IDS)
def test_whatever_runs_the_handler_what_is_too_late_is_not_started(
    handler: Callable[..., Any], options: dict[str, Any]
) -> None:
    told: list[FailedAttempt] = []
    engine = run(handler, told.append, **options)
    done = engine.loop.snapshot()
    assert (done.processed, done.expired, done.dead_lettered, done.failed) == (COUNT - 2, 2, 2, 0)
    assert sorted((one.record.offset, one.outcome) for one in told) == [(at, "dead_lettered") for at in sorted(LATE)]
    for letter in engine.producer.sent:
        said = dict(letter.headers)
        assert said["keylane.error.class"] == b"keylane.errors.ExpiredError"
        assert b"before its turn came, so it was not started" in (said["keylane.error.text"] or b"")
        assert said["keylane.attempts"] == b"0"


def called(expires_ms: Any, message: PlainMessage, context: Context, **options: Any) -> Any:
    """What a handler that tells its deadline returns for this record."""
    flow = Pipeline(
        kafka=KAFKA, topics=["t"], handler=lambda _: None, expires_ms=expires_ms, on_exhausted=Skip(), **options
    )
    return expiring(lambda _, context: context.deadline, flow)(Record(message), context)


def message(timestamp_ms: int, headers: Any = ()) -> PlainMessage:
    return PlainMessage("t", 0, 0, b"k", b"v", tuple(headers), (1, timestamp_ms))


@pytest.mark.parametrize(
    ("expires_ms", "given"),
    [
        (HOUR_MS, message(0)),
        ("due", message(0, PAST)),
        (lambda _: 1.5, message(0)),
    ],
    ids=["by age", "by a header", "by a function"],
)
def test_each_way_to_say_when(expires_ms: Any, given: PlainMessage) -> None:
    with pytest.raises(ExpiredError, match="so it was not started"):
        called(expires_ms, given, Context())


@pytest.mark.parametrize(
    ("expires_ms", "given"),
    [(HOUR_MS, message(-1)), ("due", message(0)), ("due", message(0, [("due", None)])), (lambda _: None, message(0))],
)
def test_what_has_no_time_never_expires(expires_ms: Any, given: PlainMessage) -> None:
    assert called(expires_ms, given, Context()) is None


def test_a_call_gets_the_earlier_of_both_deadlines_and_the_next_one_its_own() -> None:
    context, now = Context(), monotonic()
    assert now + 3_000 < called(HOUR_MS, message(int(time.time() * 1000)), context) < monotonic() + 3_601
    assert context.deadline is None
    context.limit(now + 5)
    assert called(HOUR_MS, message(int(time.time() * 1000)), context) == now + 5
    assert called("due", message(0, DUE), context) == now + 5
    assert context.deadline == now + 5


def test_a_batch_is_wanted_as_long_as_one_of_it_is() -> None:
    options: dict[str, Any] = {"batch": Batch(5), "on_exhausted": Skip()}
    flow = Pipeline(kafka=KAFKA, topics=["t"], handler=lambda _: None, expires_ms="due", **options)
    seen: list[tuple[int, float | None]] = []

    def tell(records: list[Record], context: Context) -> list[int]:
        seen.append((len(records), context.deadline))
        return list(range(len(records)))

    call = expiring(tell, flow)
    soon = [("due", b"%d" % ((time.time() + 60) * 1000))]
    batch = [Record(message(0, one)) for one in (PAST, soon, PAST, DUE)]
    results = call(batch, Context())
    assert [one if isinstance(one, int) else type(one) for one in results] == [ExpiredError, 0, ExpiredError, 1]
    count, deadline = seen.pop()
    assert count == 2
    assert deadline is not None
    assert deadline > monotonic() + 1_000
    call([*batch, Record(message(0))], Context())
    assert seen == [(3, None)]
    seen.clear()
    assert [type(one) for one in call([Record(message(0, PAST))], Context())] == [ExpiredError]
    assert seen == []


@pytest.mark.parametrize("value", [b"soon", b"-5", b"9" * 30, "٣".encode(), b"\xff"])
def test_a_header_that_is_no_time_is_named_and_not_tried_again(value: bytes) -> None:
    with pytest.raises(Fatal, match="its header 'due' is no time in milliseconds since the epoch"):
        called("due", message(0, [("due", value)]), Context())


@pytest.mark.parametrize("given", [float("nan"), "soon", True])
def test_a_function_that_returns_no_time_is_named(given: Any) -> None:
    with pytest.raises(UsageError, match="the function expires_ms returned"):
        called(lambda _: given, message(0), Context())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"expires_ms": 0}, "expires_ms=0: give a whole number of at least 1"),
        ({"expires_ms": ""}, "expires_ms=''"),
        ({"expires_ms": 1.5}, "expires_ms=1.5"),
        ({"expires_ms": 5, "on_exhausted": Halt()}, "set on_exhausted to DeadLetter or Skip"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Pipeline(kafka=KAFKA, topics=["t"], handler=one, **({"on_exhausted": Skip()} | options))


# --- what it leaves to others ---


def late(count: int, **options: Any) -> Driven:
    driven = Driven({T0: OffsetMap(0)}, 1, lambda: 0.0, log_end=1 << 40, on_exhausted=Skip(), **options)
    driven.load(T0, [b"%d" % number for number in range(count)])
    return driven


def test_what_is_too_late_uses_up_no_rate() -> None:
    driven = late(50, rates=Rates(records_per_s=1, per_partition=1, per_key=1, burst_ms=0))
    for _ in range(49):
        [item] = driven.turn()
        driven.end(item, Raised(ExpiredError("late"), final=True))
    [item] = driven.turn()
    driven.end(item)
    assert driven.turn() == []
    done = driven.engine.snapshot(driven.now)
    assert (done.processed, done.expired, done.skipped) == (1, 49, 49)


def test_what_is_too_late_is_no_probe_of_a_service_that_is_down() -> None:
    driven = late(5, breaker=Breaker(failures=1, probe_interval_ms=1_000))
    [item] = driven.turn()
    driven.end(item, Raised(OSError("down")))
    assert driven.turn() == []
    driven.now += 1
    for _ in range(3):
        [item] = driven.turn()
        driven.end(item, Raised(ExpiredError("late"), final=True))
    [item] = driven.turn()
    assert item.offset == 4, "the first that is not too late is the probe"
    driven.end(item)
    driven.turn()
    assert driven.engine.snapshot(driven.now).breakers == ()


def test_what_was_handed_over_before_its_service_went_down_was_no_probe() -> None:
    breakers = Breakers(Breaker(failures=1, probe_interval_ms=1_000), lambda _: None, lambda one: one)
    breakers.failed("", 0.0, 10.0)
    breakers.not_called("", 9.0, 10.5)
    assert breakers.due() == 11.0
    breakers.not_called("", 10.2, 10.5)
    assert breakers.due() == 10.5
