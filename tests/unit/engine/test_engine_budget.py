"""Records that cost something of a budget start when their turn has come. Time is simulated."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.budgets.entries import limit_of
from keylane.budgets.purse import LOOK_S, Purse
from keylane.budgets.running import Running
from keylane.budgets.slots import Share
from keylane.consumer.budgeted import CallBudget, budgeted
from keylane.errors import ExpiredError
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage
from kit.driven import Driven
from kit.seam import NotRun, Raised
from kit.simulated_budget import SimulatedBudget, most_in_any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from kit.seam import Item

NAME = ("orders", 0)
MODEL = kl.Budget("model", kl.Per(600, "tokens", per_ms=1_000, burst=300), lease_ms=2_000)
S = 1_000_000_000


class Slotted:
    """A budget of calls at once alone."""

    def __init__(self, count: int) -> None:
        self.running = Running(kl.AtOnce(count))

    def grant(self, count: int, now: float) -> None:
        self.running.lack(now)
        assert self.running.ask(0, now) is not None
        self.running.read(Share(count, count), now, 0)

    def room(self, now: float) -> int:
        return self.running.room(now)

    def due(self, now: float) -> float:
        return self.running.lack(now)

    def spend(self, who: Hashable, amounts: Mapping[str, int], now: float, *, is_attempt: bool = False) -> float | None:
        assert is_attempt
        assert not amounts
        if not self.running.room(now):
            return self.running.lack(now)
        self.running.begin(who, now)
        return None

    def end(self, who: Hashable, *, has_run: bool) -> None:
        self.running.end(who)

    def settle(self, amounts: Mapping[str, int]) -> None: ...

    def cool_down(self, retry_after_ms: int, since: float) -> None: ...


class Shared:
    """A budget whose log is simulated: what is asked for is answered at once."""

    def __init__(self, budget: kl.Budget) -> None:
        self.world = SimulatedBudget([limit_of(one) for one in budget.limits], lease_ms=budget.lease_ms)
        self.purse = Purse(budget, 0)
        self.settled: list[Mapping[str, int]] = []
        self.cooled: list[tuple[int, float]] = []

    def room(self, now: float) -> int:
        return self.purse.room(now)

    def due(self, now: float) -> float:
        return self.purse.due()

    def spend(self, who: Hashable, amounts: Mapping[str, int], now: float, *, is_attempt: bool = False) -> float | None:
        later = self.purse.spend(who, amounts, now)
        self.world.now_ms = int(now * 1_000)
        for given in self.purse.give_back(now):
            self.world.give_back("m", given.of, given.amounts)
        seq = self.world.next_seq("m")
        if (asked := self.purse.ask(seq, now)) is not None:
            self.purse.answered(seq, self.world.ask("m", asked, seq), now)
        return later

    def end(self, who: Hashable, *, has_run: bool) -> None:
        self.purse.end(who, has_run=has_run)

    def settle(self, amounts: Mapping[str, int]) -> None:
        self.settled.append(amounts)

    def cool_down(self, retry_after_ms: int, since: float) -> None:
        self.cooled.append((retry_after_ms, since))


def cost(record: kl.Record) -> dict[str, int]:
    return {"tokens": int(record.value or b"0")}


def driven(of: Callable[[kl.Record], Any] | dict[str, int] = cost, **options: Any) -> Driven:
    shared = Shared(MODEL)
    return Driven({NAME: OffsetMap(0)}, 50, random.Random(7).random, budget=MODEL.cost(of), spends=shared, **options)


def load(one: Driven, tokens: list[int], keys: int = 7) -> None:
    one.poll(NAME, [PlainMessage(*NAME, at, b"%d" % (at % keys), b"%d" % cost) for at, cost in enumerate(tokens)])


def run(one: Driven, seconds: float) -> list[tuple[int, int]]:
    """Each call ends at once; returns when each began, in nanoseconds, and its cost."""
    began = []
    for turn in range(int(seconds * 100)):
        one.now = turn / 100
        while new := one.turn():
            for item in new:
                began.append((int(one.now * S), int(item.message.value() or b"0")))
                one.end(item)
    return began


def began_within(one: Driven, seconds: float) -> Sequence[Item]:
    """What is handed over next."""
    until = one.now + seconds
    while not (new := one.turn()):
        assert one.now < until
        one.now += 0.01
    return new


def test_records_start_within_the_budget_and_all_of_them() -> None:
    one = driven()
    tokens = [random.Random(3).randint(1, 30) for _ in range(600)]
    load(one, tokens)
    began = run(one, 22)
    assert len(began) == 600
    for window_s in (0, 1, 5):
        assert most_in_any(window_s * S, began) <= 600 * (window_s + 4) + 300
    assert began[-1][0] / S <= sum(tokens) / 600 + 3


def test_a_service_that_throttles_cools_the_budget_down_for_all_who_share_it() -> None:
    shared = Shared(MODEL)
    one = Driven(
        {NAME: OffsetMap(0)},
        50,
        random.Random(7).random,
        budget=MODEL.cost(cost),
        spends=shared,
        on_exhausted=kl.Skip(),
    )
    load(one, [1])
    (item,) = began_within(one, 2)
    began, one.now = one.now, one.now + 0.5
    one.end(item, Raised(kl.Throttled(700)))
    assert shared.cooled == [(700, began)]
    one.now += 0.69
    assert not one.turn()
    (item,) = began_within(one, 2)
    one.end(item, Raised(ValueError("no throttling")))
    assert len(shared.cooled) == 1


def test_a_large_one_has_its_turn_among_small_ones() -> None:
    one = driven()
    load(one, [10] * 100 + [300] + [10] * 100, keys=1_000)
    began = run(one, 8)
    large = next(at for at, (_, amount) in enumerate(began) if amount == 300)
    assert len(began) == 201
    assert large < 180, "those behind it do not all go first"


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        (cost, r"a cost of 301 tokens, and .* never has more than 300 at once: give it a burst"),
        (
            lambda record: {"tokens": 1 // (301 - int(record.value))},
            r"the function of 'model'.cost\(...\) raised ZeroDiv",
        ),
        (
            lambda record: None if record.value == b"301" else {"tokens": 1},
            r"returned a value of type NoneType: return amounts",
        ),
        (lambda record: {"words": 1} if record.value == b"301" else {"tokens": 1}, "a cost in 'words'"),
    ],
)
def test_a_record_whose_cost_cannot_be_is_given_up_and_others_go_on(of: Any, problem: str, caplog: Any) -> None:
    caplog.set_level("INFO", "keylane.consumer")
    one = driven(of, on_exhausted=kl.Skip())
    load(one, [10, 301, 10])
    assert len(run(one, 3)) == 2
    assert one.engine.snapshot(one.now).skipped == 1
    assert any(re.search(problem, line) for line in caplog.messages)


def test_what_a_record_costs_is_asked_for_once_however_long_it_waits_and_whatever_fails() -> None:
    asked: Counter[bytes] = Counter()

    def counted(record: kl.Record) -> dict[str, int]:
        asked[record.value or b""] += 1
        return {"tokens": 290}

    one = driven(counted, on_exhausted=kl.Skip())
    load(one, [1, 2, 3])
    failed, now, ended = set(), 0.0, 0
    while ended < 3:
        one.now = now = now + 0.01
        for item in one.turn():
            is_first = item.offset not in failed
            failed.add(item.offset)
            one.end(item, Raised(ValueError("try again")) if is_first else None)
            ended += not is_first
    assert asked == {b"1": 1, b"2": 1, b"3": 1}
    assert now > 6 * 290 / 600 - 1, "each attempt has spent, and each waited"


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("outcome", [Raised(ExpiredError("too late")), NotRun()])
def test_what_was_not_run_has_spent_nothing(outcome: Any, batch: int) -> None:
    """Two more start in the time that the rate takes for one."""
    one = driven(on_exhausted=kl.Skip(), batch=kl.Batch(batch) if batch > 1 else None)
    load(one, [300] * 3)
    (first,) = began_within(one, 2)
    if batch > 1:
        one.engine.batches_ended([[(first, outcome)]], one.now)
        one.running.remove(first)
    else:
        one.end(first, outcome)
    until, began = one.now + 0.6, 0
    while one.now < until:
        began += len(one.turn())
        one.now += 0.01
    assert began == 2


def test_what_workers_give_back_has_spent_nothing() -> None:
    one = driven()
    load(one, [300])
    (first,) = began_within(one, 2)
    one.running.remove(first)
    one.engine.withdrawn([[first]])
    assert began_within(one, 0.1)


def test_nothing_is_looked_at_again_and_again_while_it_waits() -> None:
    """A full buffer costs no more than one item a look."""
    one = driven()
    shared = one.engine._core.flow._spending._budget  # type: ignore[attr-defined]
    looks = 0
    spend = shared.spend

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal looks
        looks += 1
        return spend(*given, **named)

    shared.spend = counted
    load(one, [100] * 2_000, keys=2_000)
    began = run(one, 10)
    assert len(began) >= 50
    assert looks <= len(began) + 10 * 100 * 2


def test_what_waits_comes_again_in_the_order_in_which_it_asked() -> None:
    """The first that lacks something is served first: it must not stand behind the others."""
    one = driven()
    shared = one.engine._core.flow._spending._budget  # type: ignore[attr-defined]
    asked: list[int] = []

    def refuse(who: tuple[Any, int], *_: Any, **__: Any) -> float:
        asked.append(who[1])
        return one.now + 0.02

    shared.spend, shared.room = refuse, lambda _: 50
    load(one, [1] * 9, keys=9)
    for _ in range(3):
        one.turn()
        one.now += 0.02
    assert asked == [*range(9)] * 3


@pytest.mark.parametrize("options", [{}, {"batch": kl.Batch(2)}, {"ordering": "unordered"}])
def test_so_many_calls_run_at_once_and_the_next_starts_as_one_ends(options: Any) -> None:
    """A batch of two counts as two."""
    spends = Slotted(4)
    budget = kl.Budget("model", kl.AtOnce(4)).cost()
    one = Driven({NAME: OffsetMap(0)}, 50, random.Random(7).random, budget=budget, spends=spends, **options)
    load(one, [1] * 20, keys=20)
    assert one.turn() == []
    assert one.engine.next_check(0.0) == pytest.approx(LOOK_S), "it is looked at again, and that asks for slots"
    spends.grant(4, 0.0)
    began = list(one.turn())
    assert len(began) == 4
    assert one.turn() == []
    if "batch" in options:
        one.engine.batches_ended([[(item, None) for item in began[:2]]], 0.1)
    else:
        one.end(began[0])
        one.end(began[1], Raised(ValueError("a failed attempt has ended, too")))
    assert len(one.turn()) == 2


class Settling:
    settled: list[Mapping[str, int]]

    def __init__(self) -> None:
        self.shared = Shared(MODEL)

    def context(self, of: Any = cost) -> CallBudget:
        return CallBudget(self.shared, MODEL.cost(of), [kl.Record(PlainMessage(*NAME, 0, None, b"10"))])


def test_what_is_settled_is_what_was_more_than_asked_for() -> None:
    one = Settling()
    budget = one.context()
    budget.settle(tokens=4)
    budget.settle(tokens=25)
    budget.settle(tokens=27)
    settled = [amounts["tokens"] // 1_000_000 for amounts in one.shared.settled]
    assert settled == [0, 15, 2]
    with pytest.raises(kl.UsageError, match="a cost in 'words'"):
        budget.settle(words=1)


def test_a_further_call_that_is_never_let_is_refused() -> None:
    with pytest.raises(kl.UsageError, match="never has more than 300 at once"):
        Settling().context().take(tokens=301)


def test_the_context_has_a_budget_where_the_pipeline_has() -> None:
    with pytest.raises(kl.UsageError, match=r"context.budget: give Pipeline\(budget=...\)"):
        kl.Context().budget  # noqa: B018
    seen = []

    def handler(record: kl.Record, context: kl.Context) -> None:
        seen.append(context.budget)

    wrapped = budgeted(handler, Shared(MODEL), MODEL.cost(cost), of_batches=False)
    wrapped(kl.Record(PlainMessage(*NAME, 0, None, b"1")), kl.Context())
    assert isinstance(seen[0], CallBudget)


KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"budget": MODEL}, r"budget=Budget\('model', .*\): give keylane.Budget\(...\).cost\(...\)"),
        ({"budget": MODEL.cost(cost), "not_before": lambda _: None}, "not_before: .* leave one out"),
        (
            {"budget": MODEL.cost(cost), "topics": ["keylane-budget-model"]},
            "budget: its topic is 'keylane-budget-model'",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(kl.UsageError, match=problem):
        kl.Pipeline(**{"kafka": KAFKA, "topics": ["t"], "handler": print, **options})


def test_a_constant_cost_that_is_never_let_is_refused_at_once() -> None:
    with pytest.raises(kl.UsageError, match="never has more than 300 at once"):
        MODEL.cost({"tokens": 301})
    with pytest.raises(kl.UsageError, match=r"Budget.cost\(7\): give amounts by unit"):
        MODEL.cost(7)  # type: ignore[arg-type]
