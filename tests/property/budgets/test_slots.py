"""Calls at once: never more than there are, whoever dies, and each member has its part while it wants one."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.budgets.entries import Hold, SlotsState, State, UnreadableEntryError, decode, encode, limit_of
from keylane.budgets.line import Line
from keylane.limits import Per
from kit.simulated_budget import SimulatedBudget
from kit.simulated_members import Members

REQUESTS = limit_of(Per(500, "requests", per_ms=60_000, burst=10))
HOUR_MS = 3_600_000
CAREFUL = settings(max_examples=40, deadline=None)
SLOW = settings(max_examples=15, deadline=None)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.sampled_from("abcd"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("hold"), st.sampled_from("abcd"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(0, 4_000)),
        st.tuples(st.just("leader")),
        st.tuples(st.just("garbage")),
    ),
    min_size=5,
    max_size=60,
)
SKEWS = st.lists(st.integers(-HOUR_MS, HOUR_MS), min_size=1, max_size=3)


def run(world: SimulatedBudget, steps: list[Any], count: int) -> None:
    for kind, *values in steps:
        match kind:
            case "hold":
                member, wants, keeps = values
                world.hold(member, wants, keeps, count)
            case "wait":
                world.pass_time(values[0])
            case "leader":
                world.change_leader()
            case "garbage":
                world.append(None)
        assert world.line.slots.taken <= count


@CAREFUL
@given(steps=STEPS, skews=SKEWS, count=st.integers(1, 12), begin=st.integers(0, 60))
def test_a_reader_that_starts_late_agrees(steps: list[Any], skews: list[int], count: int, begin: int) -> None:
    world = SimulatedBudget((REQUESTS,), skews_ms=skews)
    run(world, steps, count)
    begin = min(begin, len(world.log))
    for _ in range(2):  # the second one carries a state that lies in the tail
        world.hold("b", 3, 3, count)
    late = Line.begin(world.log[begin:])
    assert late.slots.members == world.line.slots.members
    for member in "abcd":
        world.pass_time(900)
        world.hold(member, 5, 2, count)
        late.fold(world.log[-1])
        assert late.state() == world.line.state()


@SLOW
@given(seed=st.integers(0, 2**32), count=st.integers(1, 12), skews=SKEWS)
def test_no_more_run_at_once_whoever_dies_or_stands_still(seed: int, count: int, skews: list[int]) -> None:
    """Of a member that is dead or frozen those calls count that began in a lease which runs still."""
    random = Random(seed)
    members = Members(count, 4, random, skews_ms=skews)
    for _ in range(1_500):
        members.turn()
        assert members.at_once() <= count
        if random.random() < 0.01:
            members.disturb()
    assert members.begun.total() > 0


@pytest.mark.parametrize(("count", "number"), [(20, 3), (7, 5), (3, 3), (2, 5), (1, 3)])
@pytest.mark.parametrize("call_ms", [60, 1_500])
def test_all_of_them_are_used_and_each_member_has_its_part(count: int, number: int, call_ms: int) -> None:
    members = Members(count, number, Random(5), call_ms=call_ms)
    for _ in range(300):
        members.turn()
    members.begun.clear()
    used, turns = 0, 3_000
    for _ in range(turns):
        members.turn()
        used += members.at_once()
    assert used >= 0.95 * count * turns
    fewest, most = min(members.begun[one] for one in members.names), max(members.begun.values())
    assert fewest >= 0.7 * most, dict(members.begun)


def test_who_wants_less_leaves_the_rest_to_others() -> None:
    members = Members(20, 3, Random(5), call_ms=1_000, demands={"m0": 2, "m1": 0})
    shares: Counter[str] = Counter()
    for turn in range(1_500):
        members.turn()
        if turn >= 500:
            shares.update(members.running())
    assert [round(shares[one] / 1_000) for one in members.names] == [2, 0, 18]


def test_what_a_dead_member_has_is_given_to_others_once_its_lease_has_ended() -> None:
    members = Members(6, 2, Random(5), call_ms=500)
    for _ in range(300):
        members.turn()
    assert members.running()["m1"] == 3
    members.kill("m0")
    began = members.now
    while members.running()["m1"] < 6:
        members.turn()
    assert 6 <= members.now - began <= 10 + 10 / 3 + 0.5


# --- single rules ---


def test_who_asks_for_what_others_keep_waits_for_its_turn() -> None:
    world = SimulatedBudget((REQUESTS,))
    world.hold("a", 5, 0, 5)
    world.hold("b", 5, 0, 5)
    assert world.line.slots.members == {"a": 5}
    assert world.line.slots.share_of("b") == (0, 2, True)
    world.hold("a", 5, 4, 5)
    assert world.line.slots.members == {"a": 4, "b": 1}
    world.hold("a", 5, 0, 5)
    assert world.line.slots.members == {"a": 2, "b": 3}


def test_what_cannot_be_divided_goes_round() -> None:
    world = SimulatedBudget((REQUESTS,))
    world.hold("a", 1, 0, 1)
    world.hold("b", 1, 0, 1)
    world.hold("a", 1, 1, 1)  # renewed while it runs: the next turn is another's
    assert [world.line.slots.share_of(one).part for one in "ab"] == [0, 1]
    world.hold("a", 1, 0, 1)
    assert world.line.slots.members == {"b": 1}


def test_a_lease_that_has_ended_holds_nothing() -> None:
    world = SimulatedBudget((REQUESTS,))
    world.hold("a", 2, 0, 2, lease_ms=1_000)
    world.pass_time(1_000)
    world.hold("b", 1, 0, 2)
    assert world.line.slots.members == {"a": 2}
    world.pass_time(1)
    world.append(None)
    assert world.line.slots.members == {"b": 1}


def test_a_writer_that_knows_of_nobody_misleads_nobody() -> None:
    world = SimulatedBudget((REQUESTS,))
    world.hold("a", 4, 0, 4)
    for _ in range(2):
        world.hold("b", 1, 0, 4)
    empty = State(world.line.offset, {}, {}, slots=SlotsState(4))
    world.append(Hold(member="w", seq=0, state=empty, count=4, wants=4, keeps=0, lease_ms=2_000))
    late = Line.begin(world.log)
    assert late.slots.members["a"] == world.line.slots.members["a"] == 4


def test_of_more_members_than_a_record_has_room_for_some_wait() -> None:
    world = SimulatedBudget((REQUESTS,))
    for number in range(210):
        world.hold(f"{number:016x}", 1, 0, 1_000)
    assert world.line.slots.taken == 200
    assert len(encode(decode(encode(world.log[-1].entry)))) < 16_384  # type: ignore[arg-type]


# --- bytes ---

HOLD = Hold(
    member="a",
    seq=3,
    group="g",
    count=5,
    wants=4,
    keeps=1,
    lease_ms=9,
    state=State(1, {}, {}, None, SlotsState(5, (("a", 1, 1, 7),))),
)


def test_a_hold_is_read_as_it_was_written() -> None:
    assert decode(encode(HOLD)) == HOLD


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"count": 10**7},
        {"wants": -1},
        {"wants": True},
        {"keeps": -1},
        {"lease_ms": 60_001},
        {"lease_ms": None},
        {"slots": {"count": 0, "members": []}},
        {"slots": {"count": 5, "members": [["a", 1, 1]]}},
        {"slots": {"count": 5, "members": [["a", 1, 1, 60_000_000_001]]}},
        {"slots": {"count": 5, "members": [["a", 1, -1, 1]]}},
        {"slots": {"count": 5, "members": [["", 1, 1, 1]]}},
        {"slots": {"count": 5, "members": [["a", 1, 1, 1]] * 201}},
        {"slots": {"count": 5, "members": "a"}},
        {"slots": []},
    ],
)
def test_what_is_out_of_bounds_is_refused(change: dict[str, Any]) -> None:
    said = json.loads(encode(HOLD))
    into = said["state"] if "slots" in change else said
    into |= change
    with pytest.raises(UnreadableEntryError):
        decode(json.dumps(said).encode())
