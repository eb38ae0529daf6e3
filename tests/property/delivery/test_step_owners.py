"""Owners of a log of steps, one after the other and at once, on a broker that fences as Kafka does, whatever happens in
which order.

- An owner begins no call whose answer was acknowledged to anybody, unless another one has taken over from it.
- A step has one answer, whoever is given it.
- What an owner has is what a reader of the log has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.examples import examples
from kit.step_world import Broker, Owner, step_of

if TYPE_CHECKING:
    from keylane.delivery.steps.formats import Step

STEPS = [step_of(4), step_of(5)]
OWNERS = st.integers(0, 1)
SOME = st.sampled_from(STEPS)


class StepOwners(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.broker = Broker()
        self.owners = [Owner(self.broker, str(number)) for number in range(2)]
        self.calls: dict[tuple[int, Step], bytes] = {}
        """That run, and what each will answer."""
        self.count = 0
        self.answers: dict[Step, bytes] = {}
        """What somebody was given, or was acknowledged."""
        self.complete: set[int] = set()

    @rule(which=OWNERS, most=st.sampled_from([1, 2, 3, 100]))
    def go_on(self, which: int, most: int) -> None:
        self.owners[which].run(most)
        self.note_acknowledged()

    @rule(which=OWNERS)
    def deliver(self, which: int) -> None:
        self.owners[which].connection.deliver()

    @rule(which=OWNERS)
    def break_off(self, which: int) -> None:
        self.owners[which].connection.break_off()

    @precondition(lambda self: self.broker.late)
    @rule()
    def deliver_late(self) -> None:
        self.broker.append(self.broker.late.popleft())

    @rule(which=OWNERS)
    def replace(self, which: int) -> None:
        """It dies, or has lost its partition, and another one comes."""
        self.owners[which].connection.close()
        self.calls = {place: answer for place, answer in self.calls.items() if place[0] != which}
        self.owners[which] = Owner(self.broker, str(which))

    @rule(which=OWNERS, step=SOME)
    def run_step(self, which: int, step: Step) -> None:
        owner = self.owners[which]
        runs = (which, step) in self.calls or step in owner.keeping
        if runs or not self.serves(owner) or step.record.offset in self.complete:
            return
        answer = owner.steps.answer(step)
        if answer is not None:
            self.give(step, answer)
            return
        assert not self.is_newest(owner) or step not in self.answers, "it is called again"
        self.count += 1
        self.calls[which, step] = b"answer %d" % self.count

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end_call(self, data: st.DataObject) -> None:
        which, step = data.draw(st.sampled_from(sorted(self.calls)))
        self.owners[which].keep(step, self.calls.pop((which, step)))
        if data.draw(st.booleans()):
            self.go_on(which, 100)

    @rule(which=OWNERS)
    def complete_and_trim(self, which: int) -> None:
        owner = self.owners[which]
        if self.serves(owner):
            self.complete.add(STEPS[0].record.offset)
            owner.steps.complete(self.complete)
            self.broker.delete_below(owner.steps.trim())

    @invariant()
    def an_owner_has_what_is_there(self) -> None:
        for owner in getattr(self, "owners", ()):
            if self.serves(owner) and self.is_newest(owner):
                found = self.broker.table()
                for step in STEPS:
                    if step.record.offset not in self.complete and (answer := owner.steps.answer(step)) is not None:
                        assert found.answer(step) == answer

    def teardown(self) -> None:
        """In the end there is a quiet owner, who has what was acknowledged."""
        owner = Owner(self.broker)
        owner.run()
        for step, answer in self.answers.items():
            if step.record.offset not in self.complete:
                assert owner.steps.answer(step) == answer

    # --- what is so ---

    @staticmethod
    def serves(owner: Owner) -> bool:
        return owner.is_open and owner.steps.lost is None

    def is_newest(self, owner: Owner) -> bool:
        return owner.steps._producer == self.broker.producer

    def note_acknowledged(self) -> None:
        for owner in self.owners:
            for step, answer in owner.kept.items():
                self.give(step, answer)

    def give(self, step: Step, answer: bytes) -> None:
        if step.record.offset not in self.complete:
            assert self.answers.setdefault(step, answer) == answer, "a step has two answers"


StepOwners.TestCase.settings = settings(stateful_step_count=60, max_examples=examples(100))
TestStepOwners = StepOwners.TestCase
