"""The automatic limit against services that degrade, in virtual time, and one run against a real asyncio service."""

from __future__ import annotations

import asyncio
import heapq
import random
import statistics
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from keylane import Pipeline
from keylane.consumer.start import Start
from keylane.flow.autoscale import AutoLimit
from keylane.flow.items import Call
from keylane.flow.outcomes import NOT_RUN, Failure, Later
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.engines import SomeWorkers, make_core
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

if TYPE_CHECKING:
    from keylane.consumer.core import Core
    from keylane.flow.outcomes import Outcome

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
LATENCY_S = 0.02


@dataclass
class Service:
    """Answers in 20 ms ± half while no more than `most` requests are at once; beyond that it degrades."""

    kind: str
    most: int
    seed: int
    latency_s: float = LATENCY_S
    poison: float = 0.0
    """The share of requests that fail whatever the load."""
    now: float = 0.0
    served: int = 0
    accepted: int = 0
    """Requests that are at it now, and are not refused."""
    calls: list[tuple[float, int, float, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def begin(self) -> None:
        at_once = 1 + (self.accepted if self.kind == "refuses" else len(self.calls))
        takes_s = self.latency_s * self.random.uniform(0.5, 1.5)
        fails = self.random.random() < self.poison
        if self.kind == "refuses" and at_once > self.most:
            takes_s, fails = self.latency_s / 4, True
        elif self.kind != "refuses":
            takes_s *= max(1.0, at_once / self.most) ** (2 if self.kind == "collapses" else 1)
        self.served += 1
        self.accepted += not fails
        heapq.heappush(self.calls, (self.now + takes_s, self.served, self.now, fails))

    def run(self, limit: AutoLimit, seconds: float) -> float:
        """Keep it busy; the mean of the limit over the second half of the time."""
        start, seen = self.now, []
        while self.now < start + seconds:
            while len(self.calls) < limit.limit:
                self.begin()
            limit.full()
            self.now, _, began, fails = heapq.heappop(self.calls)
            self.accepted -= not fails
            limit.observe(began, self.now, failed=fails)
            limit.turn(self.now)
            if self.now > start + seconds / 2:
                seen.append(limit.limit)
        return statistics.mean(seen)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("most", [10, 50])
@pytest.mark.parametrize("kind", ["slows down", "collapses", "refuses"])
def test_the_limit_finds_what_a_service_takes_and_follows_it(kind: str, most: int, seed: int) -> None:
    service, limit = Service(kind, most, seed), AutoLimit(1_000)
    assert service.run(limit, 20) == pytest.approx(most, rel=0.2)
    service.most = 2 * most
    assert service.run(limit, 20) == pytest.approx(2 * most, rel=0.2)
    service.most = most
    assert service.run(limit, 20) == pytest.approx(most, rel=0.2)


def test_a_service_that_becomes_slower_for_all_is_not_taken_for_overloaded() -> None:
    service, limit = Service("slows down", 50, 3), AutoLimit(1_000)
    service.run(limit, 10)
    service.latency_s *= 3
    service.run(limit, 20)
    assert service.run(limit, 20) == pytest.approx(50, rel=0.2)


def test_records_that_fail_whatever_the_load_do_not_lower_the_limit() -> None:
    service, limit = Service("slows down", 50, 4, poison=0.2), AutoLimit(1_000)
    service.run(limit, 10)
    assert service.run(limit, 20) == pytest.approx(50, rel=0.2)


def test_without_demand_the_limit_does_not_grow() -> None:
    limit = AutoLimit(1_000)
    now = 0.0
    for _ in range(5_000):
        limit.observe(now, now + 0.01, failed=False)
        now += 0.01
        limit.turn(now)
    assert limit.limit == AutoLimit(1_000).limit


def test_the_most_is_the_most() -> None:
    service, limit = Service("slows down", 50, 5), AutoLimit(7)
    assert service.run(limit, 5) > 6
    assert limit.limit <= 7


def busy_core() -> tuple[Core, list[Call]]:
    """A core with more records than it may run, and those that it runs."""
    pipeline = Pipeline(kafka=KAFKA, topics=["t"], handler=print, ordering="unordered", max_concurrency="auto")
    workers = SomeWorkers(100, may_queue=True, elastic=True)
    core = make_core(pipeline, workers)
    core.assigned([Start("t", 0, 1, OffsetMap(0), 0, 10_000)], 0.0)
    core.polled(("t", 0), 1, [PlainMessage("t", 0, offset) for offset in range(2_000)])
    return core, started(core, 0.0)


def started(core: Core, now: float) -> list[Call]:
    return [call for call in core.plan(now).dispatch if isinstance(call, Call)]


def test_the_core_moves_its_hand_over_by_what_comes_back() -> None:
    core, running = busy_core()
    assert len(running) == AutoLimit(100).limit
    now = 0.0
    while core.snapshot(now).processed < 1_000:
        now += 0.01
        core.calls_ended(running, now)
        running = started(core, now)
    assert core.snapshot(now).concurrency > 8
    core.adjust(5, None)
    core.plan(now)
    assert core.snapshot(now).concurrency == 5, "a number ends it"


def test_what_was_not_run_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(AutoLimit, "observe", lambda *_, failed: seen.append(failed))
    core, running = busy_core()
    outcomes: list[Outcome] = [None, Failure(ValueError("bad"), final=True), NOT_RUN, Later(1.0)]
    for call, outcome in zip(running, outcomes, strict=True):
        if outcome is not None:
            call.note(0, outcome)
        core.calls_ended([call], 0.0)
    assert seen == [False, True]


@pytest.mark.soak
def test_a_real_service_that_takes_so_many_at_once_and_then_more() -> None:
    """Slots for 20 requests, then for 40: beyond them requests queue, and latency grows. A request takes long enough
    for a busy machine to add little to it."""
    slots: list[asyncio.Semaphore] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def handler(record: Any) -> None:
        if not slots:
            slots.append(asyncio.Semaphore(20))
            loops.append(asyncio.get_running_loop())
        async with slots[0]:
            await asyncio.sleep(0.05)

    def more_slots() -> None:
        for _ in range(20):
            slots[0].release()

    log = FakeBroker([("t", 0)])
    log.append(("t", 0), [(b"%d" % number, b"v") for number in range(60_000)])
    pipeline = Pipeline(kafka=KAFKA, topics=["t"], handler=handler, offset_reset="earliest", max_concurrency="auto")

    def mean_limit(engine: FakeEngine, records: int) -> float:
        """Over the last third of so many records."""
        limits: list[tuple[int, int]] = []
        begun = engine.loop.snapshot().processed

        def through() -> bool:
            snapshot = engine.loop.snapshot()
            limits.append((snapshot.processed - begun, snapshot.concurrency))
            return snapshot.processed - begun > records

        until(through, "the limit has had time", 120)
        return statistics.mean(limit for processed, limit in limits if processed > records * 2 / 3)

    with FakeEngine(pipeline, log) as engine:
        first = mean_limit(engine, 9_000)
        loops[0].call_soon_threadsafe(more_slots)
        second = mean_limit(engine, 24_000)
    sys.stdout.write(f"a service of 20: {first:.1f} at once; of 40 then: {second:.1f}\n")
    assert first == pytest.approx(20, rel=0.2)
    assert second == pytest.approx(40, rel=0.2)
