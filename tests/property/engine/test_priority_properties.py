"""Priority under any load: what is urgent starts first, its key with it; order stays, and nothing waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keylane as kl
from keylane.flow import urgency
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.driven import Driven

if TYPE_CHECKING:
    from random import Random

    from keylane.options import Ordering
    from kit.seam import Item

OVERTAKES = 5
NAMES = [("t", 0), ("t", 1), ("u", 0)]
FED = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from("aabc-"), st.integers(-2, 3)), max_size=60)
"""Partition, key (- for none) and priority of what is polled, in this order."""


class Oracle:
    """Whose turn it is, by the rule itself: the slow and plain way."""

    def __init__(self, ordering: Ordering) -> None:
        self.ordering = ordering
        self.waiting: dict[Any, list[tuple[int, int]]] = {}
        """By shard: offset and place of what waits, in order."""
        self.running: set[Any] = set()
        self.fed = 0

    def shard(self, name: Any, message: Any) -> Any:
        if self.ordering == "partition":
            return name
        if self.ordering == "unordered" or message.key() is None:
            return name, message.offset()
        return name, message.key()

    def feed(self, name: Any, message: PlainMessage) -> None:
        self.fed += 1
        place = self.fed - OVERTAKES * int(message.value() or b"0")
        self.waiting.setdefault(self.shard(name, message), []).append((message.offset(), place))

    def starts(self, item: Item) -> None:
        shard = self.shard(item.name, item.message)
        assert shard not in self.running, "two of a shard at once"
        places = {one: min(place for _, place in some) for one, some in self.waiting.items() if one not in self.running}
        assert places[shard] == min(places.values()), "something more urgent waited"
        offset, _ = self.waiting[shard].pop(0)
        assert item.offset == offset, "not in the order of its shard"
        if not self.waiting[shard]:
            del self.waiting[shard]
        self.running.add(shard)

    def ends(self, item: Item) -> None:
        self.running.discard(self.shard(item.name, item.message))


def priority(record: kl.Record) -> int:
    return int(record.value or b"0")


def made(concurrency: int, **options: Any) -> Driven:
    given = {"priority": priority} | options
    return Driven(dict.fromkeys(NAMES, OffsetMap(0)), concurrency, lambda: 0.0, **given)


def message(name: tuple[str, int], offset: int, key: str, level: int) -> PlainMessage:
    return PlainMessage(*name, offset, None if key == "-" else key.encode(), b"%d" % level)


@pytest.mark.parametrize("ordering", ["key", "partition", "unordered"])
@settings(deadline=None, max_examples=60)
@given(fed=FED, concurrency=st.integers(1, 5), random=st.randoms(use_true_random=False))
def test_what_is_urgent_starts_first_and_order_stays(
    ordering: Ordering, fed: list[Any], concurrency: int, random: Random
) -> None:
    spare = random.choice((0, urgency.SPARE))
    with mock.patch.object(urgency, "OVERTAKES", OVERTAKES), mock.patch.object(urgency, "SPARE", spare):
        one, oracle = made(concurrency, ordering=ordering), Oracle(ordering)
        offsets = dict.fromkeys(NAMES, 0)
        left = list(fed)
        while left or one.running:
            if left and (not one.running or random.random() < 0.5):
                name, key, level = left.pop(0)
                new = message(name, offsets[name], key, level)
                offsets[name] += 1
                oracle.feed(name, new)
                one.poll(name, [new])
            else:
                ended = random.choice(one.running)
                oracle.ends(ended)
                one.end(ended)
            for item in one.turn():
                oracle.starts(item)
        assert not oracle.waiting, "something never started"


@settings(deadline=None, max_examples=30)
@given(steps=st.integers(1, 3), concurrency=st.integers(1, 4))
def test_what_is_not_urgent_is_overtaken_by_so_many_and_no_more(steps: int, concurrency: int) -> None:
    """However many urgent ones come, always before it could start."""
    with mock.patch.object(urgency, "OVERTAKES", OVERTAKES):
        one = made(concurrency, ordering="unordered")
        busy = [message(("t", 1), offset, "-", 9) for offset in range(concurrency)]
        one.poll(("t", 1), busy)
        one.turn()
        one.poll(("t", 0), [message(("t", 0), 0, "-", 0)])
        for offset in range(1_000):
            one.poll(("u", 0), [message(("u", 0), offset, "-", steps)])
            one.end(one.running[0])
            if any(item.name == ("t", 0) for item in one.turn()):
                break
        assert steps * OVERTAKES - 1 <= offset <= steps * OVERTAKES


@pytest.mark.parametrize("by", [{"urgent": 10}, priority], ids=["by topic", "by a function"])
def test_an_urgent_record_in_a_topic_of_its_own_is_next_behind_any_backlog(by: Any) -> None:
    backlog = [("orders", partition) for partition in range(50)]
    names = [*backlog, ("urgent", 0)]

    def starts_before(**options: Any) -> int:
        one = Driven(dict.fromkeys(names, OffsetMap(0)), 4, lambda: 0.0, max_buffered_records=5_000, **options)
        for name in backlog:
            one.poll(name, [message(name, offset, f"k{offset}", 0) for offset in range(100)])
        one.turn()
        one.poll(("urgent", 0), [message(("urgent", 0), 0, "k", 10)])
        before = len(one.started)
        while not any(item.name == ("urgent", 0) for item in one.started):
            one.end(one.running[0])
            one.turn()
        return len(one.started) - before

    assert starts_before(priority=by) == 1
    assert starts_before() > 10, "without, it waits for its turn among all partitions"


def test_a_key_is_as_urgent_as_what_waits_in_it_and_keeps_its_order() -> None:
    one = made(1)
    one.poll(("t", 0), [message(("t", 0), 0, "x", 0)])
    one.turn()
    levels = [("a", 0), ("a", 0), ("b", 0), ("a", 5), ("c", 1)]
    for offset, (key, level) in enumerate(levels, 1):
        one.poll(("t", 0), [message(("t", 0), offset, key, level)])
    while one.running:
        one.end(one.running[0])
        one.turn()
    assert [item.offset for item in one.started] == [0, 1, 2, 4, 5, 3]


def test_a_batch_is_filled_with_what_is_urgent() -> None:
    one = made(1, batch=kl.Batch(3), ordering="unordered")
    one.poll(("t", 0), [message(("t", 0), offset, "-", offset % 3) for offset in range(9)])
    one.poll(("u", 0), [message(("u", 0), offset, "-", 2) for offset in range(2)])
    assert sorted((item.name, item.offset) for item in one.turn()) == [(("t", 0), 2), (("t", 0), 5), (("t", 0), 8)]


@pytest.mark.parametrize(
    ("given", "says"), [(lambda _: "high", "priority returned"), (lambda _: 1 / 0, "priority raised ZeroDivisionError")]
)
def test_a_function_that_gives_no_number_ends_the_run_by_name(given: Any, says: str) -> None:
    one = made(1, priority=given)
    one.poll(("t", 0), [message(("t", 0), 0, "a", 0)])
    assert one.turn() == []
    assert says in str(one.engine.failure)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priority": {"other": 1}}, "priority\\['other'\\]: the pipeline does not read that topic"),
        ({"priority": {"t": 1.5}}, "priority\\['t'\\]=1.5: give a whole number"),
        ({"priority": 5}, "priority=5: give a function of"),
        ({"traversal": "depth_first"}, "both say what goes first"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(kl.UsageError, match=says):
        made(1, **options)
