"""A service that throttles: nobody's fault, so that no attempt is used up, and nothing ends as a dead letter by it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from keylane import (
    Batch,
    Breaker,
    Commit,
    DeadLetter,
    FailedAttempt,
    Fatal,
    PeerError,
    Pipeline,
    Processes,
    Record,
    Retries,
    Skip,
    Throttled,
)
from keylane.flow.core import LEAST_THROTTLE_S
from keylane.foreign_errors import is_throttled, judged_decoding, retry_after_ms
from keylane.http import ThrottledError
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.driven import Driven
from kit.fakes import FakeBroker, FakeEngine
from kit.seam import Raised
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 60.0
T0 = ("t", 0)
COUNT = 6
"""Records of the runs with workers."""
ONE = Retries(max_attempts=1, delay_ms=1_000, jitter=0)


class Service:
    """A consumer whose service throttles; with one attempt a record. Time is simulated."""

    def __init__(self, keys: bytes = b"k", **options: Any) -> None:
        given: dict[str, Any] = {"retries": ONE, "on_exhausted": Skip()} | options
        self.driven = Driven({T0: OffsetMap(0)}, 10, lambda: 0.0, log_end=1 << 40, **given)
        self.driven.poll(T0, [PlainMessage(*T0, offset, b"%c" % key) for offset, key in enumerate(keys)])
        while not self.driven.turn():  # under "at_most_once" it is committed first
            self.driven.now += 1

    def comes_to(self, error: BaseException | None) -> None:
        """What runs ends so."""
        for item in list(self.driven.running):
            self.driven.end(item, None if error is None else Raised(error))
        self.driven.turn()

    def starts_after(self, wait_s: float) -> bool:
        """Whether it runs again after this time, and no sooner."""
        self.driven.now += wait_s - 0.001
        too_soon = self.driven.turn()
        self.driven.now += 0.002
        return not too_soon and bool(self.driven.turn())

    def counts(self, *names: str) -> list[int]:
        snapshot = self.driven.engine.snapshot(self.driven.now)
        return [getattr(snapshot, name) for name in names]


def test_it_waits_as_asked_and_uses_up_no_attempt() -> None:
    service = Service()
    for asked_ms in (2_000, 500, 60_000):
        service.comes_to(Throttled(asked_ms))
        assert service.starts_after(asked_ms / 1_000)
    assert {item.attempt for item in service.driven.started} == {1}
    service.comes_to(None)
    assert service.counts("processed", "throttled", "failed", "retried", "skipped") == [1, 3, 0, 0, 0]


def test_without_a_time_it_waits_as_if_each_in_a_row_had_failed() -> None:
    service = Service(retries=Retries(max_attempts=2, delay_ms=1_000, max_delay_ms=3_000, jitter=0))
    for wait_s in (1, 2, 3, 3):
        service.comes_to(Throttled())
        assert service.starts_after(wait_s)
    service.comes_to(OSError("a real failure"))
    assert service.starts_after(1), "it is the first attempt that counts"
    service.comes_to(Throttled())
    assert service.starts_after(1), "and the row is broken"
    assert service.driven.started[-1].attempt == 2
    service.comes_to(OSError("the last one"))
    assert service.counts("throttled", "failed", "retried", "skipped") == [5, 2, 1, 1]


def test_asked_for_no_wait_it_waits_a_little() -> None:
    service = Service()
    service.comes_to(Throttled(0))
    assert service.starts_after(LEAST_THROTTLE_S)


def test_the_time_it_waits_is_none_of_its_age() -> None:
    service = Service(retries=Retries(max_attempts=None, max_age_ms=5_000, delay_ms=1_000, jitter=0))
    service.comes_to(Throttled(3_600_000))
    assert service.starts_after(3_600)
    service.comes_to(OSError("the first failure"))
    assert service.starts_after(1)


def test_what_follows_of_its_key_waits_and_nothing_else() -> None:
    service = Service(b"aab")
    service.driven.end(service.driven.running[0], Raised(Throttled(1_000)))
    service.comes_to(None)
    assert [item.offset for item in service.driven.started] == [0, 2]
    assert service.starts_after(1)
    service.comes_to(None)
    assert [item.offset for item in service.driven.started] == [0, 2, 0, 1]


def test_a_breaker_takes_it_for_neither_a_failure_nor_a_success() -> None:
    service = Service(b"abcdef", breaker=Breaker(failures=2, probe_interval_ms=10_000))
    service.comes_to(Throttled(1_000))
    assert service.counts("breakers", "held", "throttled") == [(), 0, 6]
    service.driven.now += 1
    first, second, third, *_ = service.driven.turn()
    for item, error in ((first, OSError("one")), (second, Throttled(1_000)), (third, OSError("two"))):
        service.driven.end(item, Raised(error))
    assert len(service.driven.engine.snapshot(service.driven.now).breakers) == 1


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ExceptionGroup("both", [Throttled(5), OSError("mine")]), {}),
        (ExceptionGroup("both", [Throttled(5), Fatal("mine")]), {}),
        (Throttled(5), {"retries": Retries(max_attempts=3, never=Throttled)}),
        (Throttled(5), {"retries": None, "delivery": "at_most_once", "commit": Commit()}),
    ],
    ids=["beside a failure", "beside a fatal one", "never tried again", "at most once"],
)
def test_where_it_is_a_failure_like_any_other(error: BaseException, options: dict[str, Any]) -> None:
    service = Service(**options)
    service.comes_to(error)
    assert service.counts("throttled", "failed", "skipped") == [0, 1, 1]


def test_what_counts_as_throttling() -> None:
    own = type("Own", (Throttled,), {})
    assert all(map(is_throttled, (Throttled(), own(5), ThrottledError("429", 429), ExceptionGroup("", [own(1)]))))
    assert not any(map(is_throttled, (OSError(), PeerError("no"), ExceptionGroup("", [own(1), OSError()]))))
    assert retry_after_ms(Throttled()) is None
    assert retry_after_ms(ThrottledError("429", 429, 70)) == 70
    assert str(Throttled(70)) == "throttled, to be tried again after 70 ms"
    assert str(ThrottledError("status 429", 429, 70)) == "status 429"
    unasked = Throttled()
    assert judged_decoding(unasked) is unasked, "a deserializer may say so"


# --- with every kind of worker ---

_asked: Counter[int] = Counter()
"""Of each record, by its offset: no two threads have the same one."""


def _throttles(offset: int) -> bool:
    """The service throttles each record twice."""
    _asked[offset] += 1
    return _asked[offset] <= 2


def call(record: Record) -> None:
    if _throttles(record.offset):
        raise Throttled(1)


async def call_async(record: Record) -> None:
    call(record)


def call_batch(records: list[Record]) -> list[Exception | None]:
    return [Throttled(1) if _throttles(one.offset) else None for one in records]


def call_batch_whole(records: list[Record]) -> None:
    if sum(_throttles(one.offset) for one in records):
        raise Throttled(1)


KINDS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (call, {}),
    (call_async, {}),
    (call, {"workers": Processes(1)}),
    (call_batch, {"batch": Batch(3)}),
    (call_batch_whole, {"batch": Batch(3)}),
]


@pytest.mark.parametrize(("handler", "options"), KINDS, ids=["threads", "asyncio", "processes", "batches", "a batch"])
def test_whatever_runs_the_handler_no_record_is_given_up(handler: Callable[..., Any], options: dict[str, Any]) -> None:
    told: list[FailedAttempt] = []
    snapshot = run(handler, told.append, **options)
    assert (snapshot.processed, snapshot.failed, snapshot.dead_lettered) == (COUNT, 0, 0)
    assert snapshot.throttled >= 2 * COUNT
    until(lambda: len(told) == snapshot.throttled, "all are told: the end waits for that, but not for ever")
    assert {(one.outcome, one.attempt) for one in told} == {("throttled", 1)}


def run(handler: Callable[..., Any], told: Callable[[FailedAttempt], Any] | None, **options: Any) -> Any:
    _asked.clear()
    log = FakeBroker([T0])
    log.append(T0, [(b"%d" % number, b"v") for number in range(COUNT)])
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    given: dict[str, Any] = {"retries": ONE, "on_exhausted": DeadLetter("dead")} | options
    pipeline = Pipeline(kafka=kafka, topics=["t"], offset_reset="earliest", handler=handler, on_failure=told, **given)
    engine = FakeEngine(pipeline, log, ending_offsets={T0: COUNT})
    with engine:
        assert engine.loop.ended.wait(WAIT_S), "the engine did not end"
    engine.loop.raise_failure()
    return engine.loop.snapshot()
