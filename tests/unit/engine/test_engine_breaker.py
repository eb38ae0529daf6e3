"""A service that is down: its records are held, and none is used up. Time is simulated, so ten minutes cost nothing."""

from __future__ import annotations

import random
from collections import deque
from itertools import pairwise
from typing import Any

import pytest

import keylane as kl
from keylane.flow.breakers import Breakers
from keylane.flow.failures import Failures
from keylane.metrics.families import families
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.driven import Driven
from kit.seam import Raised

NAME = ("orders", 0)
CALL_S = 0.05
"""How long a call takes, whether it fails or not."""
CONCURRENCY = 10
RETRIES = kl.Retries(max_attempts=5, delay_ms=100)


class Outage:
    """A consumer whose handlers call services that are down for some time; it is fed for as long as it takes."""

    def __init__(self, keys: int = 50, **options: Any) -> None:
        defaults = {"retries": RETRIES, "on_exhausted": kl.DeadLetter("dead"), "commit": kl.Commit()}
        options = {**defaults, "max_buffered_records": 2_500, **options}
        chance = random.Random(7)
        self.driven = Driven({NAME: OffsetMap(0)}, CONCURRENCY, chance.random, log_end=1 << 40, **options)
        self.keys = keys
        self.down: set[str] = set()
        self.poisoned: set[int] = set()
        self.fed = 0
        self.ended: deque[tuple[float, Any]] = deque()
        self.starts: list[tuple[float, str]] = []
        """When a call began, and of which service."""
        self.through: list[tuple[float, int]] = []

    @staticmethod
    def service_of(record: kl.Record) -> str:
        return "rare" if int(record.key or b"0") % 10 == 0 else "usual"

    def run(self, seconds: float, *, feed: bool = True, most: int = 400) -> None:
        engine, until = self.driven.engine, self.driven.now + seconds
        while self.driven.now < until:
            if feed and engine.snapshot(self.driven.now).buffered < most:
                some = [
                    PlainMessage(*NAME, self.fed + one, b"%d" % ((self.fed + one) % self.keys)) for one in range(50)
                ]
                self.fed += len(some)
                self.driven.poll(NAME, some)
            for item in self.driven.turn():
                self.starts.append((self.driven.now, self.service_of(kl.Record(item.message))))
                self.ended.append((self.driven.now + CALL_S, item))
            self._pass_time(until)
            while self.ended and self.ended[0][0] <= self.driven.now:
                item = self.ended.popleft()[1]
                fails = self.service_of(kl.Record(item.message)) in self.down or item.offset in self.poisoned
                if not fails:
                    self.through.append((self.driven.now, item.offset))
                self.driven.end(item, Raised(OSError("down")) if fails else None)

    def _pass_time(self, until: float) -> None:
        times = [until, self.driven.now + 0.25]
        if self.ended:
            times.append(self.ended[0][0])
        if (due := self.driven.engine.next_check(self.driven.now)) is not None:
            times.append(max(due, self.driven.now))
        self.driven.now = max(min(times), self.driven.now + 1e-6)

    @property
    def snapshot(self) -> kl.Snapshot:
        return self.driven.engine.snapshot(self.driven.now)

    def rate(self, since: float, seconds: float) -> float:
        return sum(since <= at < since + seconds for at, _ in self.through) / seconds


def test_a_ten_minute_outage_burns_no_record_and_is_probed_once_a_second() -> None:
    outage = Outage(breaker=kl.Breaker(errors=OSError))
    outage.run(10)
    before = outage.rate(0, 10)
    outage.down = {"rare", "usual"}
    began = outage.driven.now
    outage.run(600)
    done = outage.snapshot
    assert (done.dead_lettered, done.skipped) == (0, 0)
    (breaker,) = done.breakers
    assert 599_000 <= breaker.open_ms <= 600_000
    assert done.held > 500
    assert max(one.attempt for one in outage.driven.started) <= 2, "none uses up attempts but before it is down"
    probes = [at for at, _ in outage.starts if at >= began + 1]
    assert len(probes) >= 590, "it is probed all the time"
    assert all(later - earlier >= 1 - 1e-6 for earlier, later in pairwise(probes))
    outage.down = set()
    back = outage.driven.now
    outage.run(15)
    assert outage.snapshot.breakers == ()
    assert outage.rate(back + 2, 3) >= 0.95 * before, "within five seconds it is as fast as before"
    outage.run(10, feed=False)
    assert outage.snapshot.processed == outage.fed
    assert outage.snapshot.dead_lettered == 0


def test_without_a_breaker_the_same_outage_burns_them() -> None:
    outage = Outage()
    outage.run(1)
    outage.down = {"rare", "usual"}
    outage.run(8)
    assert outage.snapshot.dead_lettered > 10


@pytest.mark.parametrize(("ordering", "max_attempts"), [("key", 1), ("key", 2), ("partition", 5), ("unordered", 1)])
def test_nothing_is_burnt_whatever_the_attempts_and_the_order(ordering: Any, max_attempts: int) -> None:
    retries = kl.Retries(max_attempts=max_attempts, delay_ms=10)
    outage = Outage(breaker=kl.Breaker(failures=20), retries=retries, ordering=ordering)
    outage.run(2)
    outage.down = {"rare", "usual"}
    outage.run(10)
    assert outage.snapshot.dead_lettered == 0
    outage.down = set()
    outage.run(5)
    outage.run(40, feed=False)
    assert outage.snapshot.processed == outage.fed


def test_a_service_that_is_down_holds_no_other_one_up() -> None:
    outage = Outage(breaker=kl.Breaker(target=Outage.service_of))
    outage.run(5)
    outage.down = {"rare"}
    began = outage.driven.now
    outage.run(60, most=2_200)
    assert [one.target for one in outage.snapshot.breakers] == ["rare"]
    assert outage.snapshot.dead_lettered == 0
    probes = [at for at, service in outage.starts if service == "rare" and at >= began + 1]
    assert 55 <= len(probes) <= 60
    usual = [at for at, service in outage.starts if service == "usual" and at >= began + 1]
    assert len(usual) > 50 * 100
    outage.down = set()
    outage.run(5)
    outage.run(20, feed=False)
    assert outage.snapshot.processed == outage.fed


def test_one_poisoned_record_among_others_is_given_up_as_ever() -> None:
    outage = Outage(breaker=kl.Breaker(), on_exhausted=kl.Skip())
    outage.poisoned = {7}
    outage.run(6)
    assert outage.snapshot.skipped == 1
    assert outage.snapshot.held <= 1
    assert outage.snapshot.breakers == ()


def test_errors_that_do_not_count_are_judged_as_without_a_breaker() -> None:
    outage = Outage(breaker=kl.Breaker(errors=TimeoutError), on_exhausted=kl.Skip())
    outage.down = {"rare", "usual"}
    outage.run(8)
    assert outage.snapshot.breakers == ()
    assert outage.snapshot.held == 0
    assert outage.snapshot.skipped > 10


def test_a_poisoned_record_that_opens_it_lets_another_one_probe() -> None:
    outage = Outage(breaker=kl.Breaker(), on_exhausted=kl.Skip(), keys=1_000)
    outage.poisoned = {0}
    outage.driven.poll(NAME, [PlainMessage(*NAME, 0, b"0")])
    outage.fed = 1
    outage.run(10, feed=False)
    assert [one.target for one in outage.snapshot.breakers] == [""], "there is nothing that says it is up"
    outage.run(10)
    assert outage.snapshot.breakers == ()
    assert outage.snapshot.skipped == 1


def test_what_is_down_is_told_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    failures.tell("breaker: 'rare' is down")
    assert "breaker: 'rare' is down" in caplog.text
    outage = Outage(breaker=kl.Breaker(target=Outage.service_of))
    outage.down = {"rare"}
    outage.run(10)
    (family,) = [one for one in families(outage.snapshot) if one.name == "keylane_breaker_open_seconds"]
    (sample,) = family.samples
    assert sample.labels == {"target": "rare"}
    assert 9 < float(sample.value) < 10  # type: ignore[arg-type] # no histogram
    merged = outage.snapshot.merge(outage.snapshot)
    assert [one.target for one in merged.breakers] == ["rare"]
    assert merged.to_dict()["breakers"][0]["target"] == "rare"


@pytest.mark.parametrize("target", [lambda _: 1, lambda record: record.nothing])
def test_a_target_that_is_none_ends_the_run(target: Any) -> None:
    outage = Outage(breaker=kl.Breaker(target=target))
    outage.run(1)
    assert "Breaker.target" in str(outage.driven.engine.failure)


def test_a_success_that_began_before_says_nothing() -> None:
    told: list[str] = []
    breakers = Breakers(kl.Breaker(failures=2), told.append, lambda one: one)
    assert breakers.failed("", 0.5, 1.0) is None
    assert breakers.failed("", 0.5, 2.0) == 3.5
    assert (breakers.room(2.9), breakers.due(), breakers.room(3.0)) == (0, 3.0, 1)
    breakers.succeeded("", 1.9, 2.5)
    assert [(one.open_ms, one.probe_in_ms) for one in breakers.open(2.5)] == [(500, 500)]
    breakers.succeeded("", 2.1, 4.0)
    assert breakers.open(4.0) == ()
    assert told == [
        "breaker: the service is down, 2 calls in a row failed: its items wait, and it is probed each 1 s",
        "breaker: the service is back after 2.0 s: calls go on",
    ]


def test_a_failure_that_began_before_it_was_back_is_nobodys_attempt() -> None:
    told: list[str] = []
    breakers = Breakers(kl.Breaker(failures=1), told.append, lambda one: one)
    assert breakers.failed("", 1.0, 2.0) == 3.5
    breakers.succeeded("", 3.0, 4.0)
    assert breakers.failed("", 2.0, 4.5) == 4.5, "it is tried again at once"
    assert breakers.open(4.5) == (), "and says nothing of the service"
    assert breakers.failed("", 4.0, 5.0) is not None
    assert [one.open_ms for one in breakers.open(5.0)] == [0]


def test_failures_count_in_a_row() -> None:
    told: list[str] = []
    breakers = Breakers(kl.Breaker(failures=3), told.append, lambda one: one)
    for now in (1.0, 2.0):
        assert breakers.failed("", now, now) is None
    breakers.succeeded("", since=2.0, now=3.0)
    for now in (4.0, 5.0):
        assert breakers.failed("", now, now) is None
    assert told == []
    assert breakers.failed("", 6.0, 6.0) is not None
    assert len(told) == 1
