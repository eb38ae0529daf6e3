"""Rules by key: which records an expression is about, and what becomes of them while others go on."""

from __future__ import annotations

import logging
import random
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keylane as kl
from keylane.consumer.start import Start
from keylane.errors import UsageError
from keylane.flow.items import Batch, Call
from keylane.flow.keys import MAX_CHARACTERS, KeyRule, Where
from keylane.flow.outcomes import Failure
from keylane.offsets import OffsetMap, decode
from keylane.records import PlainMessage
from kit.engines import SomeWorkers, make_core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.consumer.modes.at_least_once import Plan
    from keylane.flow.items import Unit

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "weather"}


def record(key: bytes | None = None, topic: str = "flights", **headers: bytes | None) -> PlainMessage:
    return PlainMessage(topic, 0, 0, key, b"v", headers_=tuple(headers.items()))


# --- which ---


@pytest.mark.parametrize(
    ("text", "about", "not_about"),
    [
        ("key=AA1", [record(b"AA1")], [record(b"AA12"), record(b"aa1"), record(None), record(b"")]),
        ("key=AA*", [record(b"AA"), record(b"AA12")], [record(b"A"), record(b"BAA"), record(None)]),
        ("key=*", [record(b""), record(b"x")], [record(None)]),
        ("key=", [record(b"")], [record(None), record(b"x")]),
        (r"key=a\*b\ c\\\=", [record(b"a*b c\\=")], [record(b"axb c\\=")]),
        (r"key=\xff\x00*", [record(b"\xff\x00z")], [record("ÿ".encode())]),
        ("key=ü*", [record("üb".encode())], [record(b"ub")]),
        ("header.tenant=acme", [record(tenant=b"acme")], [record(), record(tenant=None), record(other=b"acme")]),
        (
            "key=AA* header.tenant=ac*e topic=flights",
            [record(b"AA", tenant=b"acme")],
            [record(b"AA", tenant=b"bcme"), record(b"B", tenant=b"acme"), record(b"AA", "other", tenant=b"acme")],
        ),
    ],
)
def test_an_expression_is_about_records(
    text: str, about: Sequence[PlainMessage], not_about: Sequence[PlainMessage]
) -> None:
    where = Where.parse(text)
    assert all(map(where.holds, about))
    assert not any(map(where.holds, not_about))


def test_of_a_header_that_stands_several_times_one_is_enough() -> None:
    twice = PlainMessage("t", 0, 0, None, b"v", headers_=(("tenant", b"acme"), ("tenant", b"other")))
    assert Where.parse("header.tenant=acme").holds(twice)
    assert Where.parse("header.tenant=acme header.tenant=o*").holds(twice)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "name a key or a header"),
        ("topic=flights", "name a key or a header"),
        ("flights", "without an equals sign"),
        ("key=a key=b", "'key' twice"),
        ("value=a", "'value' which is no term"),
        ("header.=a", "'header.' which is no term"),
        ("k*y=a", "without an equals sign"),
        (r"key=\x1", "hexadecimal"),
        (f"key={'a' * MAX_CHARACTERS}", "characters"),
        ("__import__('os').system('true')", "without an equals sign"),
    ],
)
def test_what_is_no_expression_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Where.parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


patterns = st.lists(st.binary(max_size=6), min_size=1, max_size=3).map(tuple)
wheres = st.builds(
    Where,
    patterns,
    st.none() | st.just((b"flights",)),
    st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4), patterns), max_size=2)
    .map(sorted)
    .map(tuple),
)


@given(wheres)
def test_what_an_expression_says_of_itself_is_read_as_the_same(where: Where) -> None:
    assert Where.parse(str(where)) == where
    assert str(where).isprintable()


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_a_star_stands_for_any_bytes(pattern: str, key: str) -> None:
    assert Where.parse(f"key={pattern}").holds(record(key.encode())) == fnmatchcase(key, pattern)


def test_a_key_that_no_expression_has_room_for_is_refused_where_it_is_given() -> None:
    assert Where.of_key(b"\xff" * 200).exact_key == b"\xff" * 200
    with pytest.raises(UsageError, match=r"a key of 300 bytes .* as key=…\*"):
        Where.of_key(b"\xff" * 300)


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    assert not Where.parse("key=" + "*a" * 400 + "*b").holds(record(b"a" * 1_000_000))


@pytest.mark.parametrize("per_s", [0.0, -1.0, float("nan"), float("inf"), None])
def test_a_limit_has_a_rate(per_s: float | None) -> None:
    with pytest.raises(UsageError, match="records a second"):
        KeyRule(Where.parse("key=a"), "limit", per_s)


# --- what becomes of them ---


class World:
    """A core with one partition, what its workers have, and what commits said."""

    def __init__(self, concurrency: int = 4, **options: Any) -> None:
        by_record = options.get("delivery") in ("at_most_once", "almost_once")
        commit = kl.Commit() if by_record else kl.Commit(every_records=1)
        self.pipeline = kl.Pipeline(kafka=KAFKA, topics=["t"], handler=lambda _: None, commit=commit, **options)
        self.core = make_core(self.pipeline, SomeWorkers(concurrency))
        self.now = 100.0
        self.units: list[Unit] = []
        self.ran: list[int] = []
        self.position = 0
        self.committed = OffsetMap(0)
        self.core.assigned([Start("t", 0, 1, OffsetMap(0), 0, 1_000_000)], self.now)

    def rule(self, *rules: tuple[str, str] | tuple[str, str, float]) -> None:
        made: Any = [KeyRule(Where.parse(text), do, *rate) for text, do, *rate in rules]  # type: ignore[arg-type]
        self.core.rule_keys(made)

    def poll(self, keys: str | Sequence[bytes | None]) -> None:
        listed = [one.encode() for one in keys] if isinstance(keys, str) else keys
        messages = [PlainMessage("t", 0, self.position + at, key, b"v") for at, key in enumerate(listed)]
        self.position += len(listed)
        self.core.polled(("t", 0), 1, messages)

    def plan(self, wait: float = 0.0) -> Plan:
        self.now += wait
        plan = self.core.plan(self.now)
        self.units += plan.dispatch
        if plan.commit is not None:
            for entry in plan.commit:
                self.committed = decode(entry.metadata, entry.offset)
            self.core.commit_answered(plan.commit, {}, self.now)
        return plan

    def end(self) -> list[int]:
        """All that is with the workers ends well; returns which."""
        units, self.units = self.units, []
        numbers = [one for unit in units for one in numbers_of(unit)]
        for unit in units:
            if isinstance(unit, Call):
                list(unit.begin(self.now))
        self.core.calls_ended(units, self.now)
        self.ran += numbers
        return numbers

    def run(self, turns: int = 30, wait: float = 0.0) -> None:
        for _ in range(turns):
            self.plan(wait)
            self.end()
        self.plan(wait)

    def held(self) -> dict[int, tuple[str, int]]:
        return {one.offset: (one.why, one.behind) for one in self.core.work(self.now).queues}


def numbers_of(unit: Unit) -> list[int]:
    return [item.number for item in unit.items] if isinstance(unit, Batch) else list(unit.numbers)


@pytest.mark.parametrize("batch", [None, kl.Batch(3)])
def test_a_held_key_waits_and_all_others_go_on(batch: kl.Batch | None) -> None:
    world = World(batch=batch)
    world.rule(("key=b", "hold"))
    world.poll("bbabcb")
    world.run()
    assert sorted(world.ran) == [2, 4]
    assert world.held() == {0: ("paused", 3)}
    assert (world.committed.base, world.committed.is_complete(4)) == (0, True)
    world.rule()
    world.run()
    assert world.ran[2:] == [0, 1, 3, 5], "in their order"
    assert world.committed.base == 6


def test_what_runs_of_a_key_that_is_held_ends_and_its_retry_waits() -> None:
    world = World(retries=kl.Retries(delay_ms=100, jitter=0))
    world.poll("aa")
    world.plan()
    (unit,) = world.units
    assert isinstance(unit, Call)
    world.rule(("key=a", "hold"))
    unit.note(0, Failure(ValueError("bad")))
    world.core.calls_ended(world.units, world.now)
    world.units.clear()
    world.run(wait=1.0)
    assert world.ran == []
    (held,) = world.core.work(world.now).queues
    assert (held.offset, held.why, held.attempt, held.behind) == (0, "paused", 2, 1)
    world.rule()
    world.plan()
    assert [one.attempt for one in world.units if isinstance(one, Call)] == [2]
    world.run()
    assert world.ran == [0, 1]


@pytest.mark.parametrize("ordering", ["key", "partition", "unordered"])
@pytest.mark.parametrize("call_s", [0.0, 1.0])
def test_of_what_goes_together_only_what_is_held_is_stopped(ordering: Any, call_s: float) -> None:
    world = World(ordering=ordering)
    world.core = make_core(world.pipeline, SomeWorkers(2), call_s=call_s)
    world.core.assigned([Start("t", 0, 1, OffsetMap(0), 0, 1_000_000)], world.now)
    world.poll("a" * 300)
    for _ in range(40):  # quick: calls of several from now on
        world.plan(0.002)
        world.end()
    keys = random.Random(3).choices("abcd", k=400)
    world.rule(("key=b", "hold"))
    world.poll("".join(keys))
    world.run(600, wait=0.002)
    after = {number for number in world.ran if number >= 300}
    held = {300 + at for at, key in enumerate(keys) if key == "b"}
    if ordering == "partition":
        assert after == set(range(300, min(held)))
    else:
        assert after == set(range(300, 700)) - held
    world.rule()
    world.run(600, wait=0.002)
    assert sorted(world.ran) == list(range(700))
    if ordering == "partition":
        assert world.ran == list(range(700))


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once", "almost_once"])
def test_a_skipped_key_is_complete_without_having_run(mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    world = World(delivery=mode, retries=kl.Retries(max_attempts=1))
    world.rule(("key=b", "skip"))
    world.poll("abcbab")
    with caplog.at_level(logging.INFO, "keylane.consumer"):
        world.run()
    assert sorted(world.ran) == [0, 2, 4]
    assert world.committed.base == 6
    snapshot = world.core.snapshot(world.now)
    assert (snapshot.processed, snapshot.skipped, snapshot.buffered) == (3, 3, 0)
    said = [one.getMessage() for one in caplog.records if one.getMessage().startswith("skipped")]
    assert [one.split(":")[0] for one in said] == ["skipped t-0@1", "skipped t-0@3", "skipped t-0@5"]


def test_a_held_key_that_is_skipped_goes_on_behind_it() -> None:
    world = World()
    world.rule(("key=b", "hold"))
    world.poll("bbb")
    world.run()
    world.rule(("key=b", "skip"))
    world.run()
    world.rule()
    world.poll("b")
    world.run()
    assert world.ran == [3]
    assert world.committed.base == 4


def test_a_slow_key_starts_at_its_rate_and_others_as_ever() -> None:
    world = World(concurrency=50)
    world.rule(("key=b", "limit", 2.0))
    world.poll("b" * 10 + "a" * 10)
    starts: dict[int, float] = {}
    while world.now < 110.0:
        world.plan()
        starts |= dict.fromkeys(world.end(), world.now)
        check = world.core.next_check(world.now)
        world.now = min(check or 111.0, world.now + 0.01) if len(starts) < 20 else 111.0
    times = [starts[number] - 100.0 for number in range(10)]
    assert times == pytest.approx([at / 2 for at in range(10)], abs=0.02)
    assert max(starts[number] for number in range(10, 20)) < 101.0


def test_a_limit_of_several_keys_is_of_all_of_them_together_and_the_first_that_wait_go_first() -> None:
    world = World(concurrency=50, ordering="unordered")
    world.rule(("key=b*", "limit", 10.0))
    world.poll([b"b%d" % at for at in range(30)])
    world.plan()
    assert world.end() == [0]
    for _ in range(20):
        world.plan(0.1)
        world.end()
    assert world.ran == list(range(21))


def test_of_several_rules_a_hold_counts_before_a_skip_and_that_before_the_lowest_limit() -> None:
    world = World(concurrency=50, ordering="unordered")
    world.rule(("key=*", "limit", 1_000.0), ("key=a*", "limit", 1.0), ("key=ab*", "skip"), ("key=abc", "hold"))
    world.poll([b"abc", b"abd", b"a1", b"a2", b"x"])
    world.plan()
    assert sorted(world.end()) == [2, 4]
    world.run(5, wait=1.0)
    assert sorted(world.ran) == [2, 3, 4]
    assert world.core.snapshot(world.now).skipped == 1
    assert world.held() == {0: ("paused", 0)}


def test_a_paused_partition_does_not_use_up_what_others_may_start() -> None:
    world = World(concurrency=50)
    world.core.assigned([Start("t", 1, 2, OffsetMap(0), 0, 1_000_000)], world.now)
    world.rule(("key=*", "limit", 1.0))
    world.poll([b"%d" % at for at in range(5)])
    world.plan()
    world.end()
    world.core.pause([("t", 0)])
    world.core.polled(("t", 1), 2, [PlainMessage("t", 1, at, b"%d" % at, b"v") for at in range(5)])
    for _ in range(5):
        world.plan(1.0)
        world.plan()
        world.end()
        assert (world.core.next_check(world.now) or world.now + 1) > world.now, "it does not turn in vain"
    assert world.ran == [0, 0, 1, 2, 3, 4]
    world.core.resume(None)
    world.run(5, wait=1.0)
    assert Counter(world.ran) == dict.fromkeys(range(5), 2)


def test_held_records_keep_the_map_within_its_bounds_and_a_line_says_why_nothing_moves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(concurrency=200, ordering="unordered", max_buffered_records=100_000)
    world.rule(("key=held*", "hold"))
    with caplog.at_level(logging.WARNING, "keylane.consumer"):
        for _ in range(30):
            world.poll([b"held%d" % at if at % 2 else b"x" for at in range(1_000)])
            world.run(8)
            world.now += 1.0
    assert max(world.ran) < 30_000 - 1, "the bound has come"
    assert len(world.ran) > 10_000
    assert not world.core.snapshot(world.now).commits_without_map
    said = [one.getMessage() for one in caplog.records if "rules of an operator hold" in one.getMessage()]
    assert len(said) >= 1
    assert said[0].startswith("t-0: ")
    assert "keylane operate show weather" in said[0]
    world.rule()
    world.run(150)
    assert world.committed.base == 30_000


def test_held_records_of_a_partition_that_is_lost_are_forgotten() -> None:
    world = World()
    world.rule(("key=b", "hold"), ("key=c", "limit", 1.0))
    world.poll("bccc")
    world.plan()
    world.core.lost([("t", 0)])
    world.rule()
    world.plan(5.0)
    assert not list(world.core.flow.held)
    world.core.assigned([Start("t", 0, 3, OffsetMap(0), 0, 10)], world.now)
    world.core.polled(("t", 0), 3, [PlainMessage("t", 0, 0, b"b", b"v")])
    world.units.clear()
    world.plan()
    assert [numbers_of(one) for one in world.units] == [[0]]
