"""A budget's fold on any log: all readers agree, no window has too much, and every size is granted within a bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.budgets.entries import Ask, Return, State, UnreadableEntryError, decode, encode, limit_of
from keylane.budgets.line import LONGEST_NS, MS, SLOW_NS, ComeLater, Granted, Line, Placed, TooLarge
from keylane.limits import ONE, Cap, Per
from kit.simulated_budget import BEGIN_MS, SimulatedBudget, most_in_any, without_states

if TYPE_CHECKING:
    from random import Random

REQUESTS = limit_of(Per(500, "requests", per_ms=60_000, burst=10))
TOKENS = limit_of(Per(200_000, "tokens", per_ms=60_000, burst=8_000))
MONEY = limit_of(Cap(2, "usd"))
LIMITS = (REQUESTS, TOKENS, MONEY)
HOUR_MS = 3_600_000
MEMBERS = "abcd"
CAREFUL = settings(max_examples=60, deadline=None)

ASK_STEPS = st.tuples(
    st.just("ask"), st.sampled_from(MEMBERS), st.integers(0, 10), st.sampled_from([0, 100, 4_000, 8_000])
)
STEPS = st.lists(
    st.one_of(
        ASK_STEPS,
        ASK_STEPS,
        ASK_STEPS,
        ASK_STEPS,
        st.tuples(st.just("wait"), st.integers(0, 1_000)),
        st.tuples(st.just("long wait"), st.integers(0, 200_000)),
        st.tuples(st.just("leader")),
        st.tuples(st.just("settle"), st.sampled_from(MEMBERS), st.integers(0, 20_000)),
        st.tuples(st.just("cool"), st.sampled_from(MEMBERS), st.integers(0, 30_000)),
        st.tuples(st.just("garbage")),
        st.tuples(st.just("again"), st.integers(1, 5)),
        st.tuples(st.just("back"), st.integers(1, 5), st.floats(0, 1)),
    ),
    min_size=10,
    max_size=60,
)
SKEWS = st.lists(st.integers(-HOUR_MS, HOUR_MS), min_size=1, max_size=3)


def run(world: SimulatedBudget, steps: list[Any], only: frozenset[str] | None = None) -> SimulatedBudget:
    for kind, *values in steps:
        if only is not None and kind not in only:
            continue
        match kind:
            case "ask":
                member, requests, tokens = values
                amounts = {"requests": requests * ONE, "tokens": tokens * ONE, "usd": requests * ONE // 10}
                world.ask(member, amounts)
            case "wait" | "long wait":
                world.pass_time(values[0])
            case "leader":
                world.change_leader()
            case "settle":
                world.settle(values[0], {"tokens": values[1] * ONE})
            case "cool":
                world.cool(values[0], values[1], world.line.offset)
            case "garbage":
                world.append(None)
            case "again" if len(world.log) >= values[0]:
                world.repeat(len(world.log) - values[0])
            case "back" if len(world.log) >= values[0]:
                entry = world.log[-values[0]].entry
                if isinstance(entry, Ask):
                    amounts = {unit: int(amount * values[1]) for unit, amount in entry.amounts.items()}
                    world.give_back(entry.member, entry.seq, amounts)
    return world


@CAREFUL
@given(steps=STEPS, skews=SKEWS, begin=st.integers(0, 80))
def test_a_reader_that_starts_late_agrees(steps: list[Any], skews: list[int], begin: int) -> None:
    """What it has not read is told by the states that it reads: of give-backs and repeats it has read the asks."""
    reach = frozenset({"ask", "wait", "long wait", "leader", "settle", "cool", "garbage"})
    world = run(SimulatedBudget(LIMITS, skews_ms=skews), steps, reach)
    begin = min(begin, len(world.log))
    for _ in range(2):  # the second one carries a state that lies in the tail
        world.ask("b", {"requests": ONE, "tokens": ONE, "usd": 1})
    tail = world.log[begin:]
    late = Line.begin(tail)
    whole = world.line
    for _ in range(3):
        world.pass_time(700)
        world.ask("a", {"requests": 3 * ONE, "tokens": 900 * ONE, "usd": ONE // 10})
        expected, answer = whole.levels(), late.fold(world.log[-1])
        assert isinstance(answer, Granted | ComeLater)
        assert late.levels() == expected


@CAREFUL
@given(steps=STEPS, skews=SKEWS)
def test_all_who_read_the_whole_log_agree(steps: list[Any], skews: list[int]) -> None:
    world = run(SimulatedBudget(LIMITS, skews_ms=skews), steps)
    assert Line.begin(world.log).levels() == world.line.levels()
    again = Line()
    for one in world.log:
        again.fold(one)
    assert again.state() == world.line.state()


@CAREFUL
@given(steps=STEPS, skews=SKEWS)
@pytest.mark.parametrize("window_ms", [0, 1_000, 60_000])
def test_no_window_has_more_than_the_rate_and_the_burst(window_ms: int, steps: list[Any], skews: list[int]) -> None:
    """Whatever leaders' clocks show, and however often a record is written."""
    kinds = frozenset({"ask", "wait", "long wait", "leader", "settle", "cool", "garbage", "again"})
    world = run(SimulatedBudget(LIMITS, skews_ms=skews), steps, kinds)
    for limit in (REQUESTS, TOKENS):
        spent = [(at, amounts[limit.unit]) for at, _, _, amounts in world.granted]
        allowed = limit.count * window_ms // limit.per_ms + limit.burst
        assert most_in_any(window_ms * MS, spent) <= allowed


@CAREFUL
@given(steps=STEPS, skews=SKEWS, random=st.randoms())
def test_give_backs_add_two_leases_at_most(steps: list[Any], skews: list[int], random: Random) -> None:
    """What was granted is spent late in its lease; what was not spent is given back, and granted once more."""
    world = run(SimulatedBudget(LIMITS, lease_ms=2_000, skews_ms=skews), steps)
    given: dict[tuple[str, int], dict[str, int]] = {}
    first_of: dict[tuple[str, int], int] = {}
    for offset, one in enumerate(world.log):
        entry = one.entry
        if entry is not None:
            first_of.setdefault((entry.member, entry.seq), offset)
        if isinstance(entry, Return):
            left = given.setdefault((entry.member, entry.of), {})
            for unit, amount in entry.amounts.items() if offset == first_of[entry.member, entry.seq] else ():
                left[unit] = left.get(unit, 0) + amount
    for limit in (REQUESTS, TOKENS):
        spent = []
        for at, offset, member, amounts in world.granted:
            seq = world.log[offset].entry.seq  # type: ignore[union-attr]
            unspent = min(amounts[limit.unit], given.get((member, seq), {}).get(limit.unit, 0))
            spent.append((at + random.randint(0, 2_000) * MS, amounts[limit.unit] - unspent))
        for window_ms in (1_000, 60_000):
            allowed = limit.count * (window_ms + 4_000) // limit.per_ms + limit.burst
            assert most_in_any(window_ms * MS, spent) <= allowed


@CAREFUL
@given(steps=STEPS, skews=SKEWS)
def test_no_day_has_more_than_its_cap(steps: list[Any], skews: list[int]) -> None:
    world = run(SimulatedBudget(LIMITS, skews_ms=skews), steps, frozenset({"ask", "wait", "leader", "again", "back"}))
    by_day: dict[int, int] = {}
    for _, offset, _, amounts in world.granted:
        day = world.log[offset].time_ms // (24 * HOUR_MS)
        by_day[day] = by_day.get(day, 0) + amounts["usd"]
    back = sum(one.entry.amounts["usd"] for one in world.log if isinstance(one.entry, Return))
    assert all(spent - back <= MONEY.count for spent in by_day.values())


@pytest.mark.parametrize("members", [1, 7, 40])
@settings(max_examples=10, deadline=None)
@given(random=st.randoms())
def test_every_size_is_granted_within_a_bound(members: int, random: Random) -> None:
    """Each member asks for its next call once the last one has begun: none waits longer than one call of each other one
    takes, and its own."""
    world = SimulatedBudget((REQUESTS, TOKENS))
    due = {f"m{number}": random.randint(0, 3_000) for number in range(members)}
    bound_ns = (members + 1) * (REQUESTS.burst_ns + TOKENS.burst_ns)
    assert bound_ns < LONGEST_NS or members == 40
    for _ in range(members * 4):
        member = min(due, key=lambda one: due[one])
        world.pass_time(max(0, due[member] - world.now_ms))
        tokens = 8_000 if random.random() < 0.1 else random.randint(1, 800)
        answer = world.ask(member, {"requests": ONE, "tokens": tokens * ONE})
        assert isinstance(answer, Granted)
        assert answer.wait_ns <= bound_ns
        due[member] = world.now_ms + answer.wait_ns // MS + 1


def test_a_budget_is_spent_while_there_is_demand_over_changes_of_the_leader() -> None:
    """Each change costs the time between two records, whatever the new leader's clock shows."""
    world = SimulatedBudget((TOKENS,), skews_ms=(0, -HOUR_MS, HOUR_MS))
    for turn in range(3_000):
        world.pass_time(100)
        if turn % 100 == 0:
            world.change_leader()
        world.ask("a", {"tokens": 400 * ONE})
    end_ns = world.now_ms * MS
    spent = sum(amounts["tokens"] for at, _, _, amounts in world.granted if at <= end_ns)
    assert 0.98 <= spent / (TOKENS.count * world.now_ms / TOKENS.per_ms) <= 1


def test_a_change_of_the_leader_fills_no_bucket() -> None:
    """Its clock may be an hour ahead of the one before."""
    world = SimulatedBudget((TOKENS,), skews_ms=(0, HOUR_MS, 2 * HOUR_MS))
    for _ in range(9):
        world.ask("a", {"tokens": 4_000 * ONE})
        world.change_leader()
    spent = [(at, amounts["tokens"]) for at, _, _, amounts in world.granted]
    assert most_in_any(0, spent) <= TOKENS.burst


# --- single rules ---


def test_a_line_begins_empty() -> None:
    world = SimulatedBudget((TOKENS,))
    assert world.ask("a", {"tokens": 1_000 * ONE}) == Granted(300 * MS)
    assert world.ask("b", {"tokens": 100 * ONE}) == Granted(330 * MS)


def test_what_is_larger_than_the_bucket_is_refused() -> None:
    world = SimulatedBudget((TOKENS,))
    assert world.ask("a", {"tokens": 8_001 * ONE}) == TooLarge("tokens")
    assert world.ask("a", {"tokens": 8_000 * ONE}) == Granted(2_400 * MS)


def test_a_second_copy_of_a_record_counts_for_nothing() -> None:
    world = SimulatedBudget((TOKENS,))
    world.ask("a", {"tokens": 1_000 * ONE})
    before = world.line.levels()
    assert world.repeat(0) is None
    assert world.line.levels() == before


def test_a_give_back_counts_once_and_no_further_than_the_grant() -> None:
    world = SimulatedBudget((TOKENS,))
    world.pass_time(1_000)
    assert world.ask("a", {"tokens": 6_000 * ONE}) == Granted(1_800 * MS)
    for _ in range(3):
        world.give_back("a", 0, {"tokens": 7_000 * ONE})
        assert world.line.levels()[0].available == 0
    world.give_back("b", 0, {"tokens": 1_000 * ONE})
    assert world.line.levels()[0].available == 0, "another one's"


def test_a_give_back_behind_its_lease_counts_for_nothing() -> None:
    world = SimulatedBudget((TOKENS,), lease_ms=60_000)
    world.ask("long", {"tokens": 1_000 * ONE})  # it stands before the other one
    world.lease_ms = 1_000
    world.ask("a", {"tokens": 1_000 * ONE})  # granted from 600 ms on
    world.pass_time(1_601)
    world.append(None)
    before = world.line.levels()
    world.give_back("a", 0, {"tokens": 1_000 * ONE})
    assert world.line.levels() == before
    world.give_back("long", 0, {"tokens": 1_000 * ONE})
    assert world.line.levels() != before


def test_a_settlement_makes_a_debt_and_no_endless_one() -> None:
    world = SimulatedBudget((TOKENS,))
    world.settle("a", {"tokens": 20_000 * ONE})
    assert world.line.levels()[0].available == -20_000 * ONE
    for _ in range(3):
        world.settle("a", {"tokens": 900_000_000 * ONE})
    answer = world.ask("a", {"tokens": ONE})
    assert isinstance(answer, ComeLater)
    assert answer.wait_ns <= 2 * TOKENS.burst_ns


def test_a_cap_says_when_the_next_day_begins() -> None:
    limit = limit_of(Cap(1, "usd", day="UTC+02:00"))
    world = SimulatedBudget((limit,))
    assert world.ask("a", {"usd": ONE}) == Granted(0)
    answer = world.ask("a", {"usd": 1})
    left_ms = 24 * HOUR_MS - (BEGIN_MS + 2 * HOUR_MS) % (24 * HOUR_MS)
    assert answer == ComeLater(left_ms * MS, "usd")
    world.pass_time(left_ms)
    assert world.ask("a", {"usd": ONE}) == Granted(0)


def test_after_a_day_at_rest_a_cap_is_no_larger() -> None:
    world = SimulatedBudget((limit_of(Cap(1, "usd")),))
    world.ask("a", {"usd": 1})
    world.pass_time(24 * HOUR_MS)
    assert [type(world.ask("a", {"usd": ONE // 2})) for _ in range(3)] == [Granted, Granted, ComeLater]


def test_a_cool_down_holds_all_and_begins_slowly_and_empty() -> None:
    world = SimulatedBudget((TOKENS,))
    world.ask("a", {"tokens": ONE})
    world.pass_time(60_000)  # full
    world.cool("a", 5_000, began=0)
    assert world.ask("b", {"tokens": 1_000 * ONE}) == Granted(5_000 * MS + 2 * 300 * MS)
    world.cool("b", 9_000, began=0)  # its call began before the first one was known
    assert world.ask("b", {"tokens": 1_000 * ONE}) == Granted(5_000 * MS + 4 * 300 * MS)
    world.pass_time(5_000)
    world.cool("b", 9_000, began=world.line.offset)
    assert world.ask("b", {"tokens": 1_000 * ONE}) == Granted(9_000 * MS + 2 * 300 * MS)
    world.pass_time(9_000 + SLOW_NS // MS)
    assert world.ask("c", {"tokens": 1_000 * ONE}) == Granted(0)


def test_a_cool_down_holds_what_costs_money_alone() -> None:
    world = SimulatedBudget((MONEY,))
    world.cool("a", 5_000, began=-1)
    assert world.ask("b", {"usd": 1}) == Granted(5_000 * MS)


def test_a_writer_that_believes_in_a_full_bucket_misleads_nobody() -> None:
    world = SimulatedBudget((TOKENS,))
    for turn in range(200):
        world.pass_time(100)
        state = world.line.state()
        if turn % 8 == 7 and state is not None:
            full = State(state.as_of, {TOKENS.name: -TOKENS.burst_ns}, {})
            entry = Ask(
                member="wrong",
                seq=world.next_seq("wrong"),
                state=full,
                limits=(TOKENS,),
                amounts={"tokens": 400 * ONE},
                lease_ms=2_000,
            )
            world.append(entry)
        else:
            world.ask("a", {"tokens": 400 * ONE})
    assert Line.begin(world.log[100:]).levels() == world.line.levels()


def test_a_writer_that_believes_in_an_endless_debt_holds_nobody_for_long() -> None:
    world = SimulatedBudget((TOKENS,))
    world.ask("a", {"tokens": ONE})
    debt = State(0, {TOKENS.name: 10**9 * 86_400 * 30}, {}, 10**9 * 86_400 * 30)
    world.append(Ask(member="w", seq=0, state=debt, limits=(TOKENS,), amounts={"tokens": ONE}, lease_ms=2_000))
    late = Line.begin(world.log)
    assert late.levels()[0].free_in_ns <= LONGEST_NS + 3 * TOKENS.burst_ns


def test_without_any_state_a_late_reader_begins_empty() -> None:
    world = SimulatedBudget((TOKENS,))
    for _ in range(5):
        world.pass_time(1_000)
        world.ask("a", {"tokens": 100 * ONE})
    tail = [without_states(one) for one in world.log[3:]]
    assert Line.begin(tail).levels()[0].available < world.line.levels()[0].available


# --- bytes ---

AMOUNTS = st.dictionaries(st.sampled_from(["requests", "tokens", "usd"]), st.integers(0, 10**12), min_size=1)
ASKS = st.builds(
    Ask,
    member=st.sampled_from(MEMBERS),
    seq=st.integers(0, 2**40),
    group=st.sampled_from(["", "weather"]),
    limits=st.sampled_from([(REQUESTS,), LIMITS]),
    amounts=AMOUNTS,
    lease_ms=st.integers(0, 60_000),
    state=st.none()
    | st.builds(
        State,
        st.integers(0, 2**40),
        st.dictionaries(st.sampled_from(["requests/60000", "x"]), st.integers(-(10**12), 10**12)),
        st.dictionaries(
            st.just("usd/day"),
            st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 10**9)), max_size=3).map(tuple),
        ),
        st.none() | st.integers(-(10**12), 10**12),
    ),
)


@given(entry=ASKS)
def test_an_entry_is_read_as_it_was_written(entry: Ask) -> None:
    assert decode(encode(entry)) == entry


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("ask")
JSON = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(st.text(max_size=8), SCALARS, max_size=4)
FIELDS = ["v", "kind", "member", "seq", "group", "limits", "amounts", "lease_ms", "state", "of", "wait_ms", "began"]


@settings(max_examples=150, deadline=None)
@given(
    entry=ASKS,
    changes=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3),
    cut=st.integers(0, 400),
    kind=st.sampled_from(["ask", "return", "settle", "cool"]),
)
def test_hostile_bytes_are_refused_and_nothing_else_is_raised(
    entry: Ask, changes: dict[str, Any], cut: int, kind: str
) -> None:
    said = json.loads(encode(entry)) | {"kind": kind, "of": 1, "wait_ms": 1, "began": 1} | changes
    line = Line()
    values = [json.dumps(said).encode(), json.dumps(said).encode()[:cut]]
    for offset, one in enumerate(values):
        try:
            found = decode(one)
        except UnreadableEntryError:
            found = None
        line.fold(Placed(offset, 0, BEGIN_MS, found))
        line.levels()
    for value in (None, b"", b"\xff" * 5, b"[" * 16_000, b"x" * 20_000):
        with pytest.raises(UnreadableEntryError):
            decode(value)


@pytest.mark.parametrize(
    "change",
    [
        {"limits": [["per", "tokens", 0, 60_000, 1]]},
        {"limits": [["per", "tokens", 1, 10**15, 1]]},
        {"limits": [["per", "tokens", 1, 60_000, 10**15]]},
        {"limits": [["cap", "usd", 1, 10**12]]},
        {"limits": []},
        {"limits": [["cap", "usd", 1, 0], ["cap", "usd", 2, 0]]},
        {"amounts": {"tokens": -1}},
        {"amounts": {"tokens": 10**18}},
        {"amounts": {}},
        {"amounts": {"to\nkens": 1}},
        {"seq": -1},
        {"lease_ms": 10**9},
        {"member": "m" * 101},
        {"v": 2},
        {"state": {"as_of": -1, "leads": {}, "spent": {}, "cool": None}},
        {"state": {"as_of": 1, "leads": {"x": 10**18}, "spent": {}, "cool": None}},
        {"state": {"as_of": 1, "leads": {}, "spent": {"x": [[1, 1]] * 5}, "cool": None}},
    ],
)
def test_what_is_out_of_bounds_is_refused(change: dict[str, Any]) -> None:
    ask = Ask(member="m", seq=0, limits=(TOKENS,), amounts={"tokens": 1}, lease_ms=1)
    said = json.loads(encode(ask))
    assert decode(json.dumps(said).encode()) == ask
    with pytest.raises(UnreadableEntryError):
        decode(json.dumps(said | change).encode())


@given(value=st.binary(max_size=200))
def test_any_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(UnreadableEntryError):
        decode(value)
