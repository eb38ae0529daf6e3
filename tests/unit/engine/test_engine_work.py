"""What is in hand, what waits for its time, and where the queues are and why."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keylane as kl
from keylane.consumer.start import Start
from keylane.consumer.work import MOST, Work, to_dict
from keylane.flow.items import Batch, Call
from keylane.flow.keys import Where
from keylane.flow.outcomes import Failure, Later
from keylane.flow.work import Task
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.engines import SomeWorkers, make_core

if TYPE_CHECKING:
    from keylane.consumer.work import WorkRecord
    from keylane.flow.items import Unit
    from keylane.flow.outcomes import Outcome

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
FAILED = Failure(ValueError("bad"))


class World:
    """A core with one partition, its time, and what is with its workers, in the order in which it went there."""

    def __init__(self, concurrency: int = 2, **options: Any) -> None:
        self.core = make_core(
            kl.Pipeline(kafka=KAFKA, topics=["t"], handler=lambda _: None, **options), SomeWorkers(concurrency)
        )
        self.now = 100.0
        self.units: list[Unit] = []
        self.core.assigned([Start("t", 0, 1, OffsetMap(0), 0, 10_000)], self.now)
        self.position = 0

    def poll(self, keys: str) -> None:
        messages = [PlainMessage("t", 0, self.position + i, key.encode(), b"v") for i, key in enumerate(keys)]
        self.position += len(keys)
        self.core.polled(("t", 0), 1, messages)
        self.plan()

    def plan(self, wait: float = 0.0) -> None:
        self.now += wait
        self.units += self.core.plan(self.now).dispatch

    def begin(self, at: int = 0) -> None:
        unit = self.units[at]
        assert isinstance(unit, Call)
        next(unit.begin(self.now))

    def end(self, outcome: Outcome = None, at: int = 0) -> None:
        unit = self.units.pop(at)
        if isinstance(unit, Call):
            if outcome is not None:
                unit.note(0, outcome)
        else:
            for item in unit.items:
                item.came_to(outcome)
        self.core.calls_ended([unit], self.now)
        self.plan()

    @property
    def work(self) -> Work:
        return self.core.work(self.now)

    def queues(self) -> dict[int, tuple[str, int]]:
        """By the offset of the head: why it is not gone, and how many wait for it."""
        return {one.offset: (one.why, one.behind) for one in self.work.queues}


def by_offset(records: tuple[WorkRecord, ...]) -> dict[int, str]:
    return {one.offset: one.why for one in records}


def test_each_reason_to_wait_is_told() -> None:
    world = World(retries=kl.Retries(delay_ms=8_000, jitter=0))
    world.poll("aabbccc")
    world.begin()
    assert world.queues() == {0: ("running", 1), 2: ("queued", 1), 4: ("ready", 2)}
    assert [(one.key, one.topic, one.partition) for one in world.work.queues] == [
        (b"c", "t", 0), (b"a", "t", 0), (b"b", "t", 0)
    ]  # fmt: skip
    world.now += 3
    world.end(FAILED)
    (waits,) = world.work.waiting
    assert (waits.offset, waits.why, waits.attempt, waits.age_ms, waits.due_in_ms, waits.behind) == (
        0, "retry", 2, 3_000, 8_000, 1
    )  # fmt: skip
    world.end([kl.Output("out", value=b"x")])
    assert world.queues() == {0: ("retry", 1), 2: ("delivering", 1), 4: ("queued", 2)}
    world.core.pause(None)
    world.poll("dd")
    assert world.queues()[7] == ("paused", 1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rates": kl.Rates(per_key=1.0, burst_ms=0)}, "rate"),
        ({"rates": kl.Rates(per_partition=1.0, burst_ms=0)}, "rate"),
        ({"max_uncommitted": 3}, "commit"),
    ],
)
def test_what_may_not_start_is_told(options: dict[str, Any], why: str) -> None:
    world = World(concurrency=10, **options)
    world.poll("abcadda")
    if "max_uncommitted" not in options:
        world.end()
    else:
        assert [unit.numbers for unit in world.units if isinstance(unit, Call)] == [(0,), (1,), (2,)]
    told = world.queues()
    assert why in {found for found, _ in told.values()}, told
    if why == "commit":
        assert told[4] == ("commit", 1)


def test_a_record_that_has_a_time_and_one_whose_service_is_down() -> None:
    world = World()
    world.poll("aa")
    world.end(Later(30.0))
    assert by_offset(world.work.waiting) == {0: "scheduled"}
    world = World(breaker=kl.Breaker(failures=1))
    world.poll("aa")
    world.end(FAILED)
    assert by_offset(world.work.waiting) == {0: "service"}


def test_a_record_that_its_service_throttles() -> None:
    world = World()
    world.poll("aa")
    world.end(Failure(kl.Throttled(2_000)))
    assert [(one.why, one.due_in_ms, one.behind) for one in world.work.waiting] == [("throttled", 2_000, 1)]


def test_keys_that_wait_while_the_service_is_down_wait_for_it_and_for_no_worker() -> None:
    world = World(breaker=kl.Breaker(failures=1, probe_interval_ms=1_000))
    world.poll("aabbccdd")
    assert world.queues()[4] == ("ready", 1)
    world.end(FAILED)
    world.end(FAILED)
    world.now += 0.25
    assert world.queues() == {0: ("service", 1), 2: ("service", 1), 4: ("service", 1), 6: ("service", 1)}
    assert {one.offset: one.due_in_ms for one in world.work.queues if one.offset > 2} == {4: 750, 6: 750}
    (down,) = world.core.snapshot(world.now).breakers
    assert str(down) == "the service has been down for 0 s, next probe in 0.8 s"


def test_a_partition_is_one_queue() -> None:
    world = World(ordering="partition")
    world.poll("abcd")
    assert world.queues() == {0: ("queued", 3)}
    world.core.pause(None)
    world.end()
    assert world.queues() == {1: ("paused", 2)}


def test_records_of_a_batch_and_of_no_order_are_in_hand() -> None:
    world = World(batch=kl.Batch(size=10))
    world.poll("aab")
    assert isinstance(world.units[0], Batch)
    assert by_offset(world.work.in_hand) == {0: "running", 2: "running"}, "what is behind in it is not yet"
    world = World(ordering="unordered")
    world.poll("aaa")
    assert (by_offset(world.work.in_hand), world.queues()) == ({0: "queued", 1: "queued"}, {})


def test_what_was_lost_is_no_work_any_more() -> None:
    world = World()
    world.poll("aabb")
    world.core.lost([("t", 0)])
    assert world.work == Work()


@given(st.integers(0, 2**32), st.lists(st.sampled_from("abcde"), max_size=60), st.sampled_from(["key", "partition"]))
def test_every_record_is_the_head_of_a_queue_or_behind_one(seed: int, keys: list[str], ordering: str) -> None:
    """Counted by hand: of each key (or of the partition), the records that were polled and are not through."""
    chance = random.Random(seed)
    world = World(concurrency=3, ordering=ordering, retries=kl.Retries(max_attempts=None, delay_ms=100, jitter=0))
    waiting: Counter[str] = Counter()
    for start in range(0, len(keys), 7):
        some = "".join(keys[start : start + 7])
        world.poll(some)
        waiting.update(some)
        for _ in range(chance.randrange(6)):
            if not world.units:
                break
            at = chance.randrange(len(world.units))
            unit = world.units[at]
            assert isinstance(unit, Call)
            fails = chance.random() < 0.3
            through = unit.payloads if not fails else [] if unit.ordered else unit.payloads[1:]
            world.end(FAILED if fails else None, at)
            waiting.subtract(payload.key().decode() for payload in through)
        world.plan(chance.choice([0.0, 0.05, 0.2]))
        counts = list((+waiting).values()) if ordering == "key" else [waiting.total()]
        assert sorted(one.behind for one in world.work.queues) == sorted(one - 1 for one in counts if one > 1)
        assert by_offset(world.work.in_hand).keys() == {
            number
            for unit in world.units
            if isinstance(unit, Call)
            for number in (unit.numbers[:1] if unit.ordered else unit.numbers)
        }


def test_a_list_is_bounded_and_keys_are_told_only_when_they_are_to_be() -> None:
    tasks = [
        Task(("t", 0), number, "running", since=float(number), behind=number, key=b"\xff") for number in range(200)
    ]
    work = Work.of(tasks, 200.0)
    assert [one.offset for one in work.in_hand] == list(range(MOST)), "the oldest"
    assert [one.behind for one in work.queues] == list(range(199, 199 - MOST, -1)), "the longest"
    hidden = to_dict(work.queues[0], 3, shows_keys=False)
    assert (hidden["key"], hidden["where"]) == (None, None)
    shown = to_dict(work.queues[0], 3, shows_keys=True)
    assert (shown["where"], shown["lane"], shown["offset"]) == ("key=\\xff", 3, 199)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"KL1234", "KL1234"),
        (b"/w==", "/w=="),
        (b"\xff\x00 *", None),
        (b"", ""),
        (b" a\n", " a\n"),
        ("ü".encode(), "ü"),
    ],
)
def test_a_key_is_told_as_text_where_it_is_one_and_as_the_expression_for_just_it(key: bytes, text: str | None) -> None:
    work = Work.of([Task(("t", 0), 1, "ready", behind=2, key=key)], 1.0)
    shown = to_dict(work.queues[0], None, shows_keys=True)
    assert shown["key"] == text
    assert Where.parse(str(shown["where"])).exact_key == key
    long = Work.of([Task(("t", 0), 1, "ready", behind=2, key=b"\xff" * 300)], 1.0)
    assert to_dict(long.queues[0], None, shows_keys=True)["where"] is None, "nobody could send it"
