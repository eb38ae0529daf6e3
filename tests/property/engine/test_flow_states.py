"""An item of a flow is in exactly one of the states of `Source`'s table, whatever happens to it."""

from __future__ import annotations

from collections import Counter
from operator import length_hint
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

import keylane as kl
from keylane.flow.admission import HandOver
from keylane.flow.core import RECALL_S, FlowCore
from keylane.flow.items import Batch, Call, Source
from keylane.flow.keys import KeyRule, PassedOver, Where
from keylane.flow.outcomes import NOT_RUN, Failure, Later
from keylane.options import Flow
from keylane.records import PlainMessage
from kit.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from keylane.flow.items import Item, Unit
    from keylane.flow.outcomes import Outcome

OUTPUTS = object()
"""What an owner has to see through."""


class Owner:
    """Holds what it is given, until the test says what becomes of it."""

    def __init__(self, flow: FlowCore, *, at_once: bool) -> None:
        """`at_once`: it has nothing to see through."""
        self._flow = flow
        self._at_once = at_once
        self.limit = 3
        self.held: list[Item] = []
        self.waiting: list[Item] = []
        """Put off by the owner itself, as a dead letter between two attempts is."""
        self.gone: list[int] = []

    def may_start(self) -> int:
        return self.limit

    def started(self, highest: int) -> None:
        assert highest <= self.limit

    def ended(self, item: Item, outcome: Outcome, now: float) -> None:
        if self._at_once or isinstance(outcome, PassedOver):
            self._flow.release(item, now)
        else:
            self.held.append(item)

    def released(self, numbers: Sequence[int], payloads: Sequence[Any]) -> None:
        assert [one.offset() for one in payloads] == list(numbers)
        self.gone += numbers


class Quick(HandOver):
    """Two calls at once, of as many items as the test says."""

    def __init__(self, several: int, *, in_a_row: bool) -> None:
        super().__init__(2, may_queue=False)
        self._several = several
        self._in_a_row = in_a_row

    def sizes(self, calls: int, waiting: Iterable[int], *, may_follow: bool) -> tuple[int, bool]:
        return self._several, self._in_a_row and may_follow


class Untold:
    def note(self, failure: Failure, name: str, attempt: int, now: float) -> None:
        """Nobody hears of it."""

    def tell(self, text: str) -> None:
        """Nor of this."""


class World:
    """A flow and its source; one that was closed is followed by another."""

    def __init__(self, options: Flow, hand_over: HandOver, random: Random, *, at_once: bool) -> None:
        self.flow = FlowCore(
            options, hand_over, random=random.random, notes=Untold(), counters=Counter(), view=lambda one: one
        )
        self.ordering = options.ordering
        self.at_once = at_once
        self.random = random
        self.now = 1.0
        self.open()

    def open(self) -> None:
        self.owner = Owner(self.flow, at_once=self.at_once)
        self.source = Source("s", self.owner, self.ordering, str)
        self.fed = 0
        self.in_batches: list[Item] = []

    # --- what happens ---

    def feed(self) -> None:
        count = self.random.randint(1, 6)
        payloads = [PlainMessage("t", 0, self.fed + at, self.random.choice([b"a", b"b", None])) for at in range(count)]
        self.fed += count
        self.source.feed([one.offset() for one in payloads], payloads)
        self.flow.offer(self.source)

    def move_bound(self) -> None:
        """It never goes back."""
        self.owner.limit = max(self.owner.limit, self.fed + self.random.randint(-4, 4))
        self.flow.offer(self.source)

    def take(self) -> None:
        self.now += self.random.choice([0.0, 0.2])
        for unit in self.flow.take(self.now):
            if isinstance(unit, Batch):
                self.in_batches += unit.items

    def turn_over(self) -> None:
        """Some that did not run yet go to their owner at their turn."""
        fresh = [number for number, states in self.places().items() if states == ["ready"]]
        self.source.turn_over(self.random.sample(fresh, min(2, len(fresh))))

    def take_turned_over(self) -> None:
        self.owner.held += [item for item in self.flow.pop_turned_over() if item.source.wanted]

    def run_on(self) -> None:
        """A worker is at one item of a call."""
        fresh = [one for one in self.flow.out if isinstance(one, Call) and not one.has_begun]
        if fresh:
            call = self.random.choice(fresh)
            rest = call.begin(self.now)
            for _ in range(self.random.randint(1, len(call))):
                next(rest)

    def complete(self) -> None:
        if self.flow.calls:
            bad = ValueError("bad")
            found = [OUTPUTS, Failure(bad), Failure(bad, final=True), NOT_RUN, Later(0.3)]
            self.end(self.random.choice(list(self.flow.out)), [None] * 5 + found)

    def end(self, unit: Unit, outcomes: list[Outcome]) -> None:
        """Each of its items comes to one of these."""
        if isinstance(unit, Batch):
            for item in unit.items:
                item.came_to(self.random.choice(outcomes))
        else:
            self.run(unit, outcomes)
        self.flow.calls_ended([unit], self.now)

    def run(self, call: Call, outcomes: list[Outcome]) -> None:
        at = call.ended if call.has_begun else 0
        rest = call.begin(self.now)
        while at < len(call.numbers):
            if len(call.payloads) - length_hint(rest) == at:
                next(rest)
            if (outcome := self.random.choice(outcomes)) is not None:
                call.note(at, outcome)
                if call.ordered:
                    return
            at += 1

    def withdraw(self) -> None:
        fresh = [one for one in self.flow.out if isinstance(one, Batch) or not one.has_begun]
        if fresh:
            self.flow.withdrawn([self.random.choice(fresh)])

    def pass_time(self) -> None:
        """What waited is ready; calls in which one takes long are taken apart."""
        self.now += 2 * RECALL_S + self.random.choice([0.0, 0.3])
        self.flow.release_due(self.now)

    def see_through(self) -> None:
        if not self.owner.held:
            return
        item = self.owner.held.pop(self.random.randrange(len(self.owner.held)))
        if item.void:  # it runs again already
            return
        way = self.random.choice(["release", "fail", "run again", "put off"])
        if way == "release":
            self.flow.release(item, self.now)
        elif way == "fail":
            self.flow.fail(item, Failure(ValueError("refused")), self.now)
        elif way == "run again":
            self.flow.run_again(item, self.now)
        elif item.chain is not None:
            self.owner.held.append(item)
        else:
            self.source.put_off()
            self.owner.waiting.append(item)

    def back_out(self) -> None:
        if self.owner.waiting:
            self.source.back_out()
            self.owner.held.append(self.owner.waiting.pop())

    def take_out(self) -> None:
        """One that runs, or is behind another one, stays where it is."""
        if not self.fed:
            return
        number = self.random.randrange(self.fed)
        before = self.places()[number]
        found = self.flow.take_out(self.source, number, self.now)
        if isinstance(found, str):
            assert self.places()[number] == before
            assert before != ["waiting"] or any(one.number == number for one in self.owner.waiting)
        else:
            assert before in (["ready"], ["waiting"])
            self.owner.held.append(found)

    def change_rules(self) -> None:
        """Some keys are held, slow, or passed over from now on."""
        rules = [
            KeyRule(Where.parse("key=a"), "hold"),
            KeyRule(Where.parse("key=a*"), "limit", 2.0),
            KeyRule(Where.parse("key=*b"), "limit", 5.0),
            KeyRule(Where.parse("key=b"), "skip"),
        ]
        self.flow.change_rules(self.random.sample(rules, self.random.randint(0, 2)))

    def close(self) -> None:
        """Lost: another source takes its place."""
        self.source.close()
        self.flow.forget_closed()
        assert not self.source.has_turn()
        self.open()

    # --- where an item is ---

    def places(self) -> dict[int, list[str]]:
        """By number, each state in which it is found."""
        source, found = self.source, {number: list[str]() for number in range(self.fed)}
        ready = [*source._ready.numbers, *(one.number for one in source._again), *(one for one, _ in source._beyond)]
        held = [one.number for one in self.owner.held if not one.void]
        held += [one.number for one in self.flow._turned_over if one.source is source]
        running: list[int] = []
        in_units: set[Item] = set()
        for unit in self.flow.out:
            if isinstance(unit, Batch):
                in_units.update(unit.items)
                running += [one.number for one in unit.items if one.source is source]
            elif unit.source is source:
                running += unit.numbers[unit.first :]
        chained = {one.number for one in self.in_batches if one.chain is not None and one not in in_units}
        waiting = [one.number for _, _, one in self.flow._schedule._heap if one.source is source]
        waiting += [one.number for one in self.owner.waiting]
        if self.flow._gate is not None:
            waiting += [one.number for _, one, _ in self.flow._gate.waiting if one.source is source]
        for state, numbers in (
            ("ready", ready),
            ("running", running),
            ("waiting", waiting),
            ("held", [*held, *chained.difference(held)]),
            ("gone", self.owner.gone),
        ):
            for number in numbers:
                found[number].append(state)
        for number in self.behind():
            if not found[number]:  # what was handed over behind another one is in its place still
                found[number].append("ready")
        return found

    def behind(self) -> list[int]:
        shards: Any = self.source._shards
        if self.ordering == "unordered":
            return []
        waiting = shards._next.values() if self.ordering == "key" else shards._waiting
        return [one.offset() for one in waiting]

    def check(self) -> None:
        found = self.places()
        assert {number: states for number, states in found.items() if len(states) != 1} == {}
        assert self.source.out == sum(states in (["running"], ["held"]) for states in found.values())

    def drain(self) -> None:
        """All are gone in the end: none was lost on its way."""
        self.owner.limit = self.fed
        self.flow.change_rules(())
        self.flow.offer(self.source)
        for _ in range(10 * self.fed + 10):
            self.now += 1.0
            self.flow.release_due(self.now)
            self.flow.take(self.now)
            self.take_turned_over()
            for unit in list(self.flow.out):
                self.end(unit, [None])
            while self.owner.waiting:
                self.back_out()
            for item in self.owner.held:
                if not item.void:
                    self.flow.release(item, self.now)
            self.owner.held.clear()
        assert sorted(self.owner.gone) == list(range(self.fed))


STEPS = {
    World.feed: 4, World.take: 8, World.complete: 8, World.run_on: 4, World.pass_time: 3, World.withdraw: 1,
    World.see_through: 4, World.back_out: 1, World.turn_over: 1, World.take_turned_over: 3, World.move_bound: 2,
    World.change_rules: 2, World.take_out: 2,
}  # fmt: skip
"""What happens, and how often."""


@settings(max_examples=examples(100), deadline=None)
@given(
    ordering=st.sampled_from(["key", "partition", "unordered"]),
    batch=st.sampled_from([None, None, kl.Batch(3), kl.Batch(8)]),
    per_key=st.sampled_from([None, None, 5.0]),
    several=st.integers(1, 4),
    in_a_row=st.booleans(),
    at_once=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_an_item_is_in_exactly_one_state(
    ordering: Any, batch: Any, per_key: float | None, several: int, in_a_row: bool, at_once: bool, random: Random
) -> None:
    retries = kl.Retries(max_attempts=2, delay_ms=100)
    options = Flow(handler=print, ordering=ordering, batch=batch, rates=kl.Rates(per_key=per_key), retries=retries)
    world = World(options, Quick(several, in_a_row=in_a_row), random, at_once=at_once)
    for _ in range(2):
        for step in random.choices(list(STEPS), list(STEPS.values()), k=60):
            step(world)
            world.check()
        world.close()  # what runs on of it changes nothing
    for step in random.choices(list(STEPS), list(STEPS.values()), k=60):
        step(world)
    world.drain()
