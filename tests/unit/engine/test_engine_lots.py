"""Lots in the core: what goes out in them, what is known of it, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from keylane import Output, Pipeline, Rates, Retries
from keylane.engine.admission import HandOver
from keylane.engine.assignment import Start
from keylane.engine.core import Core
from keylane.engine.work import NOT_RUN, Failure, Lot, Work
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.engines import SomeWorkers

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
T0 = ("t", 0)
FAILED = Failure(ValueError("bad"))


class World:
    """A core over one partition, and what it has handed over."""

    def __init__(self, keys: str, *, concurrency: int = 100, least_lot: int = 1, **options: Any) -> None:
        options.setdefault("retries", Retries(max_attempts=2, delay_ms=100, jitter=0))
        self.pipeline = Pipeline(kafka=KAFKA, topics=["t"], handler=print, commit_interval_ms=1_000, **options)
        workers = SomeWorkers(concurrency, may_queue=True, in_lots=True)
        self.core = Core(self.pipeline, HandOver.to(self.pipeline, workers, least_lot=least_lot), random=lambda: 0.0)
        self.now = 100.0
        self.core.assigned([Start(*T0, 1, OffsetMap(0), 0, len(keys))], self.now)
        messages = [PlainMessage(*T0, offset, key.encode()) for offset, key in enumerate(keys)]
        self.core.polled(T0, 1, messages)

    def plan(self, wait: float = 0.0) -> Any:
        self.now += wait
        return self.core.plan(self.now)

    def out(self, wait: float = 0.0) -> list[Any]:
        """Offsets handed over now: of each lot a list, of a work its own."""
        self.units = list(self.plan(wait).dispatch)
        return [
            [one.offset() for one in unit.messages] if isinstance(unit, Lot) else unit.offset for unit in self.units
        ]

    def move(self, lot: Lot, *offsets: int, others: dict[int, Any] | None = None) -> list[Any]:
        """Workers are through with these; what is handed over then."""
        for message in lot.messages:
            if message.offset() in offsets:
                lot.done.append(message)
            elif message.offset() in (others or {}):
                lot.came_to(message, (others or {})[message.offset()])
        self.core.lot_moved(lot, self.now)
        return self.out()

    @property
    def base(self) -> int:
        return self.core.partitions.open[T0].tracker.base


def test_ready_records_go_out_in_one_lot_and_come_back_in_any_order() -> None:
    world = World("aaaaa", ordering="unordered")
    assert world.out() == [[0, 1, 2, 3, 4]]
    lot = world.units[0]
    assert world.move(lot, 1, 3) == []
    assert (world.base, world.core.snapshot(world.now).handed_over) == (0, 3)
    assert world.move(lot, 0, 2) == []
    assert world.base == 4
    world.move(lot, 4)
    snapshot = world.core.snapshot(world.now)
    assert (world.base, snapshot.processed, snapshot.handed_over, snapshot.buffered, snapshot.oldest) == (
        5,
        5,
        0,
        0,
        None,
    )


def test_a_lot_has_one_record_of_a_key_and_the_next_one_comes_after_it() -> None:
    world = World("abab", ordering="key")
    assert world.out() == [[0, 1]]
    first = world.units[0]
    assert world.move(first, 1) == [[3]]
    second = world.units[0]
    assert world.move(second, 3) == []
    assert world.move(first, 0) == [[2]]
    world.move(world.units[0], 2)
    assert world.base == 4


def test_a_record_that_fails_waits_alone_and_holds_its_key() -> None:
    world = World("aab", ordering="key")
    assert world.out() == [[0, 2]]
    assert world.move(world.units[0], 2, others={0: FAILED}) == []
    assert world.out(0.2) == [0], "tried again"
    again = world.units[0]
    assert isinstance(again, Work)
    assert again.attempt == 2
    again.outcome = None
    world.core.completed([again], world.now)
    assert world.out() == [[1]]


def test_outputs_of_a_record_in_a_lot_are_sent_before_it_is_complete() -> None:
    world = World("ab", ordering="unordered", outputs=["out"])
    world.out()
    lot = world.units[0]
    lot.done.append(lot.messages[0])
    lot.came_to(lot.messages[1], [Output("out")])
    world.core.lot_moved(lot, world.now)
    (delivery,) = world.plan().produce
    assert (delivery.work.offset, world.base) == (1, 1)


def test_what_was_not_run_of_a_lot_runs_before_what_is_new() -> None:
    world = World("abc", ordering="unordered", max_concurrency=2, concurrency=2)
    assert world.out() == [[0, 1]]
    assert world.move(world.units[0], 0, others={1: NOT_RUN}) == [1, [2]]


def test_the_oldest_record_of_a_lot_is_the_first_that_is_not_through() -> None:
    world = World("abcd", ordering="unordered")
    world.out()
    lot = world.units[0]
    world.move(lot, 0, 3, others={1: FAILED})
    world.now += 2.0
    handed_over = world.core.partitions.open[T0].oldest_handed_over(world.now)
    assert handed_over is not None
    assert (handed_over.offset, handed_over.age_ms) == (2, 2_000)
    oldest = world.core.snapshot(world.now).oldest
    assert oldest is not None
    assert oldest.offset == 1, "it waits for its retry; nobody knows whether the other one has begun"


@pytest.mark.parametrize("through", [True, False])
def test_a_revoke_waits_for_what_runs_of_a_lot_and_gives_up_what_does_not_begin(through: bool) -> None:
    world = World("abcd", ordering="unordered", revoke_timeout_ms=5_000)
    world.out()
    lot = world.units[0]
    next(lot.left)
    world.core.revoking([T0], "token", world.now)
    plan = world.plan()
    assert plan.withdraw
    assert plan.revoked == []
    world.core.withdrawn([lot])
    if through:
        lot.done.append(lot.messages[0])
        world.core.lot_moved(lot, world.now)
        (answer,) = world.plan().revoked
        assert [entry.offset for entry in answer.entries] == [1]
    else:
        assert world.plan(1.0).revoked == []
        assert len(world.plan(5.0).revoked) == 1
    assert world.core.snapshot(world.now).handed_over == (0 if through else 1)


def test_what_comes_back_of_a_lost_partition_changes_nothing() -> None:
    world = World("abc", ordering="unordered")
    world.out()
    lot = world.units[0]
    world.core.lost([T0])
    lot.done.extend(lot.messages)
    world.core.lot_moved(lot, world.now)
    snapshot = world.core.snapshot(world.now)
    assert (snapshot.processed, world.core.counters.stale, snapshot.handed_over) == (0, 3, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"rates": Rates(records_per_s=1_000)},
        {"max_concurrency": "auto"},
        {"delivery": "almost_once"},
        {"delivery": "at_most_once", "retries": Retries(max_attempts=1)},
        {"max_uncommitted": 2},
    ],
)
def test_where_each_record_has_to_be_known_there_are_no_lots(options: dict[str, Any]) -> None:
    world = World("abc", ordering="unordered", **options)
    units = world.plan().dispatch or world.plan(2.0).dispatch
    assert not any(isinstance(unit, Lot) for unit in units)


def test_rates_that_come_later_end_the_lots() -> None:
    world = World("a" * 5, ordering="unordered", max_concurrency=2, concurrency=2)
    assert world.out() == [[0, 1]]
    world.core.adjust(None, Rates(records_per_s=1))
    lot = world.units[0]
    assert world.move(lot, 0, 1) == [2]


def test_few_records_go_one_by_one() -> None:
    world = World("ab", ordering="key", least_lot=3)
    assert world.out() == [0, 1]
    world = World("abc", ordering="key", least_lot=3)
    assert world.out() == [[0, 1, 2]]
