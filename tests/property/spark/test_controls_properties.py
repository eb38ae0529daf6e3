"""Calls of users against lanes that come, go, lose their orders and hand partitions on, in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.consumer.events import Adjust, Pause, Resume, RuleKeys
from keylane.consumer.passing import Passing
from keylane.consumer.settings import Settings
from keylane.flow.keys import KeyRule, Where
from keylane.kafka.membership import Replay, Seek, Target
from keylane.spark.controls import ANSWER_S, Controls, Done, Send, TellLiveness, TellWork
from kit.examples import examples

if TYPE_CHECKING:
    from keylane.consumer.settings import Change
    from keylane.spark.controls import Effect, Name, Request

NAMES = [("t", number) for number in range(3)]
REVOKE_S = 1.0
HELD = KeyRule(Where.parse("key=a"), "hold")
some_names = st.none() | st.lists(st.sampled_from(NAMES), unique=True).map(tuple)
changes = (
    some_names.map(Pause)
    | some_names.map(Resume)
    | st.integers(1, 5).map(lambda most: Adjust(most, None))
    | st.sampled_from([(), (HELD,)]).map(RuleKeys)
)  # fmt: skip


class Lane:
    """A process of a lane: what holds in it, and what it was asked and has not done."""

    def __init__(self, number: int, changes: tuple[Change, ...]) -> None:
        self.number = number
        self.all_paused, self.most = False, 0
        self.rules: tuple[KeyRule, ...] = ()
        self.paused: set[Name] = set()
        self.has: set[Name] = set()
        self.inbox: list[tuple[int, Request]] = []
        for change in changes:
            self.apply(change)

    def apply(self, change: Change) -> None:
        """As a consumer does (`keylane.consumer.partitions.Partitions`)."""
        match change:
            case Pause(None):
                self.all_paused = True
            case Pause(names):
                self.paused.update(names or ())
            case Resume(None):
                self.all_paused = False
                self.paused.clear()
            case Resume(names):
                self.paused.difference_update(names or ())
            case Adjust(most, _):
                self.most = most or self.most
            case RuleKeys(rules):
                self.rules = rules


class World:
    """A driver and its lanes. What the oracle knows: the changes in their order, and who was to seek where."""

    def __init__(self) -> None:
        self.controls: Controls[int] = Controls(NAMES, REVOKE_S)
        self.lanes: dict[int, Lane] = {}
        self.expected = Lane(-1, ())
        self.open: dict[int, Request] = {}
        self.done: dict[int, Done[int]] = {}
        self.sought: dict[int, list[Name]] = {}
        self.seeking: dict[tuple[int, Name], int] = {}
        self._number = 0

    def carry_out(self, effects: list[Effect[int]]) -> None:
        for one in effects:
            if isinstance(one, Send):
                self.lanes[one.lane].inbox.append((one.number, one.what))
                if isinstance(one.what, Seek):
                    for name in one.what.targets:
                        assert (one.number, name) not in self.seeking, "two lanes at once"
                        assert name not in self.sought[one.number], "it was done"
                        self.seeking[one.number, name] = one.lane
            else:
                assert one.number in self.open, "a call ends once"
                del self.open[one.number]
                self.done[one.number] = one

    def ask(self, what: Request) -> None:
        if isinstance(what, Pause | Resume | Adjust | RuleKeys):
            self.expected.apply(what)
        number, effects = self.controls.ask(what, 0.0)
        self.open[number], self.sought[number] = what, []
        self.carry_out(effects)

    def start(self) -> None:
        self._number += 1
        self.lanes[self._number] = Lane(self._number, self.controls.started(self._number))

    def die(self, lane: Lane) -> None:
        del self.lanes[lane.number]
        self.seeking = {one: at for one, at in self.seeking.items() if at != lane.number}
        self.carry_out(self.controls.went(lane.number))

    def give(self, lane: Lane, name: Name) -> None:
        for one in self.lanes.values():
            one.has.discard(name)
        lane.has.add(name)

    def report(self, lane: Lane) -> None:
        self.carry_out(self.controls.reported(lane.number, lane.has))

    def work(self, lane: Lane) -> None:
        """Do the next thing that was asked, and answer."""
        if not lane.inbox:
            return
        number, what = lane.inbox.pop(0)
        value = None
        if isinstance(what, Seek):
            done = [name for name in what.targets if name in lane.has]
            for name in what.targets:
                self.seeking.pop((number, name))
            self.sought[number] += done
            value = tuple(done)
        elif not isinstance(what, TellLiveness | TellWork | Passing | Replay):
            lane.apply(what)
        self.carry_out(self.controls.answered(lane.number, number, value))

    def step(self, step: str, data: st.DataObject) -> None:
        if step == "start":
            self.start()
        elif step == "ask":
            self.ask(data.draw(changes | some_names.map(TellLiveness)))
        elif step == "seek":
            targets = dict.fromkeys(data.draw(st.lists(st.sampled_from(NAMES), unique=True)), Target(offset=1))
            self.ask(Seek(targets, data.draw(st.none() | st.just(Target(time_ms=1)))))
        elif self.lanes:
            lane = self.lanes[data.draw(st.sampled_from(sorted(self.lanes)))]
            if step == "give":
                self.give(lane, data.draw(st.sampled_from(NAMES)))
            else:
                {"die": self.die, "report": self.report, "work": self.work}[step](lane)

    def end(self, heir: Lane) -> None:
        """One lane has everything, and all do what they were asked."""
        for name in NAMES:
            self.give(heir, name)
        for _ in range(len(self.open) * len(NAMES) + 2):
            for lane in list(self.lanes.values()):
                while lane.inbox:
                    self.work(lane)
                self.report(lane)


def same(lane: Lane, other: Lane) -> bool:
    return _holds(lane) == _holds(other)


def _holds(lane: Lane) -> tuple[object, ...]:
    return lane.all_paused, lane.paused, lane.most, lane.rules


@settings(max_examples=examples(300))
@given(st.data())
def test_whatever_lanes_do_each_has_what_was_asked_and_a_seek_is_done_once(data: st.DataObject) -> None:
    world = World()
    for _ in range(data.draw(st.integers(0, 25))):
        world.step(data.draw(st.sampled_from(["start", "ask", "seek", "die", "give", "report", "work", "work"])), data)
        for lane in world.lanes.values():
            assert lane.inbox or same(lane, world.expected), "a lane with nothing left to do has what was asked"
    if data.draw(st.booleans()) or not world.lanes:
        world.carry_out(world.controls.expire(ANSWER_S + REVOKE_S))
        assert world.open == {}, "nobody waits for ever"
        return
    world.end(next(iter(world.lanes.values())))
    assert world.open == {}, "everything comes to its end"
    assert all("2 lanes ended" in str(one.error) for one in world.done.values() if one.error is not None)
    assert all(len(names) == len(set(names)) for names in world.sought.values()), "each partition once"


@given(st.lists(changes, max_size=12), st.integers(0, 12))
def test_a_lane_that_starts_later_stands_where_the_others_do(asked: list[Change], at: int) -> None:
    there = Lane(0, ())
    state = Settings()
    for change in asked[:at]:
        there.apply(change)
        state = state.after(change)
    late = Lane(1, state.changes)
    for change in asked[at:]:
        there.apply(change)
        late.apply(change)
    assert same(there, late)
