"""Any order of what a group, a user and brokers do to a member: what must hold whatever happens.

- What is ours is what is read, and nothing begins that is read already.
- All that the group has given and not had back is ours, or waits for a topic that was deleted.
- What comes to its end was ours, and is waited for once; nothing else goes back before its last commit.
- A group that takes partitions back is answered once, and one that others have been given is, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.kafka.membership import (
    AGAIN_S,
    DELETED_S,
    Begin,
    Deleted,
    End,
    Finish,
    GiveBack,
    Keep,
    Lost,
    Membership,
    Stop,
    Target,
)
from kit.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.kafka.membership import Action, Name

NAMES = [(topic, partition) for topic in ("a", "b") for partition in range(3)]
SOME = st.sets(st.sampled_from(NAMES))


class Member(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.is_closing = False
        self.membership = Membership(is_by_hand=False, is_closing=lambda: self.is_closing)
        self.has: set[Name] = set()
        """What the group believes that the member has."""
        self.wanted: set[Name] | None = None
        """What the group wants back and has not got; None when it waits for nothing."""
        self.read: dict[Name, int] = {}
        self.ending: set[Name] = set()
        self.gone: set[str] = set()
        """Topics without logs."""
        self.known_gone: set[str] = set()
        """As the member was told."""
        self.is_going_on = False
        """Whether the group takes no commit, so that nothing begins."""
        self.epoch = 0
        self.now = 0.0

    def do(self, actions: Iterator[Action]) -> list[Action]:
        done = []
        for action in actions:
            done.append(action)
            self.act(action)
        return done

    def act(self, action: Action) -> None:
        match action:
            case Begin(names, targets):
                assert not self.ending, "what ends does so before anything begins"
                assert targets.keys() <= set(names)
                self.let_begin(list(names))
            case End(names):
                assert not self.ending
                assert names
                assert set(names) <= self.read.keys()
                self.ending = set(names)
            case Finish(names):
                assert self.ending == set(names), "it was told to end, and is waited for once"
                self.ending = set()
            case Lost(names):
                assert set(names) <= self.read.keys()
                self.ending -= set(names)
            case Stop(names):
                for name in names:
                    self.read.pop(name, None)
            case Deleted(topic, names):
                assert not self.ending & set(names)
                assert topic not in self.known_gone, "told once"
                self.known_gone.add(topic)
            case Keep() | GiveBack():
                pass

    def let_begin(self, names: list[Name]) -> None:
        while left := self.membership.that_are_there(names):
            missing = next((topic for topic, _ in left if topic in self.gone), None)
            if missing is None:
                assert not self.read.keys() & set(left), "nothing begins twice"
                if self.is_going_on:
                    self.membership.did_not_begin(Begin(left, {}), self.now)
                    return
                self.epoch += 1
                self.read |= dict.fromkeys(left, self.epoch)
                self.membership.began(dict.fromkeys(left, self.epoch))
                return
            self.do(self.membership.has_no_log(missing, self.now))

    @rule(names=SOME)
    def the_group_gives(self, names: set[Name]) -> None:
        if self.wanted is not None:  # its session timed out: the group goes on without what it wanted
            self.has -= self.wanted
            self.wanted = None
        new = names - self.has
        done = self.do(self.membership.assigned(sorted(new)))
        assert [one for one in done if isinstance(one, Keep | GiveBack)] == [Keep()]
        self.has |= new

    @precondition(lambda self: self.wanted is None)
    @rule(names=SOME)
    def the_group_takes_back(self, names: set[Name]) -> None:
        names &= self.has
        done = self.do(self.membership.revoked(sorted(names)))
        answers = [one for one in done if isinstance(one, Keep | GiveBack)]
        if answers == [Keep()]:
            self.wanted = names
        else:
            assert answers == [GiveBack()]
            self.has -= names
            self.wanted = None

    @rule()
    def the_group_is_going_on_or_has_gone(self) -> None:
        self.is_going_on = not self.is_going_on

    @precondition(lambda self: not self.membership.is_ending)
    @rule()
    def what_could_not_begin_is_tried_again(self) -> None:
        self.now += AGAIN_S
        self.do(self.membership.again(self.now))

    @rule()
    def the_group_goes_on_without_it(self) -> None:
        done = self.do(self.membership.lost(sorted(self.has)))
        assert [one for one in done if isinstance(one, Keep | GiveBack)] == [GiveBack()]
        assert not any(isinstance(one, Finish) for one in done), "nobody would take its last commit"
        self.has, self.wanted = set(), None

    @precondition(lambda self: not self.membership.is_ending)
    @rule(sought=st.dictionaries(st.sampled_from(NAMES), st.builds(Target, st.integers(0, 9))), others=st.booleans())
    def a_user_seeks(self, sought: dict[Name, Target], others: bool) -> None:
        done = self.do(self.membership.sought(sought, Target(0) if others else None))
        wanted = self.read.keys() if others else self.read.keys() & sought.keys()
        assert self.ending == wanted
        assert len(done) == bool(wanted)

    @precondition(lambda self: not self.is_going_on)
    @rule(names=SOME, is_old=st.booleans())
    def aborted_partitions_are_read_again(self, names: set[Name], is_old: bool) -> None:
        if self.ending:
            names -= self.ending
        epochs = [(name, self.read.get(name, 0) - is_old) for name in sorted(names)]
        before = dict(self.read)
        ending, self.ending = self.ending, set()  # what ends goes on beside them
        self.do(self.membership.reloaded(epochs))
        self.ending = ending
        anew = {name for name, epoch in self.read.items() if before.get(name) != epoch}
        assert anew <= (set() if is_old else names & before.keys())

    @rule()
    def records_are_through(self) -> None:
        done = self.do(self.membership.finish())
        if GiveBack() in done:
            assert self.wanted is not None, "answered once"
            self.has -= self.wanted
            self.wanted = None

    @precondition(lambda self: not self.membership.is_ending)
    @rule(topic=st.sampled_from(["a", "b"]))
    def a_topic_is_deleted_and_looked_for(self, topic: str) -> None:
        self.gone.add(topic)
        self.membership.suspect(topic, self.now)
        self.now += DELETED_S
        self.do(self.membership.topic_is_unknown(topic, self.now))
        assert not any(name[0] == topic for name in self.read)

    @rule(topic=st.sampled_from(["a", "b"]))
    def a_topic_is_deleted_unnoticed(self, topic: str) -> None:
        self.gone.add(topic)

    @precondition(lambda self: not self.membership.is_ending)
    @rule(topic=st.sampled_from(["a", "b"]))
    def a_topic_is_made_anew(self, topic: str) -> None:
        self.gone.discard(topic)
        self.known_gone.discard(topic)
        self.do(self.membership.topic_is_there(topic, range(3)))

    @invariant()
    def what_is_ours_is_read(self) -> None:
        assert self.membership.ours == self.read
        assert self.membership.is_ending == bool(self.ending)
        assert self.ending <= self.read.keys()

    @invariant()
    def all_that_is_given_is_ours_or_waits(self) -> None:
        absent = {name for name in self.has if name[0] in self.known_gone}
        to_begin = {name for one in self.membership._not_begun for name in one.names}
        assert self.has - to_begin == (self.read.keys() | absent) - to_begin
        assert not to_begin & self.read.keys()
        assert all(self.membership.is_deleted(topic) == (topic in self.known_gone) for topic in ("a", "b"))


TestMember = Member.TestCase
TestMember.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
