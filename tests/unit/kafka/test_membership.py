"""What a member decides: which partitions begin, come to their end, go back, and wait for a topic that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keylane.kafka.membership import (
    DELETED_S,
    LOOK_AGAIN_S,
    LOOK_S,
    NEXT_TOPIC_S,
    Action,
    Begin,
    Deleted,
    End,
    Finish,
    GiveBack,
    Keep,
    Lost,
    Membership,
    Name,
    Stop,
    Target,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

T0, T1 = ("t", 0), ("t", 1)
GONE, THERE = [("gone", 0), ("gone", 1)], [("there", 0)]


class World:
    """A membership, and what it has had done. Partitions begin whose topics are there."""

    def __init__(self, *, is_by_hand: bool = False) -> None:
        self.is_closing = False
        self.member = Membership(is_by_hand=is_by_hand, is_closing=lambda: self.is_closing)
        self.epoch = 0
        self.deleted: set[str] = set()

    def do(self, actions: Iterator[Action]) -> list[Action]:
        done: list[Action] = []
        for action in actions:
            done.append(action)
            if isinstance(action, Begin):
                done += self._begin(action.names)
        return done

    def _begin(self, names: list[Name]) -> list[Action]:
        told: list[Action] = []
        while left := self.member.that_are_there(names):
            topic = next((topic for topic, _ in left if topic in self.deleted), None)
            if topic is None:
                self.epoch += 1
                self.member.began(dict.fromkeys(left, self.epoch))
                break
            told += self.do(self.member.has_no_log(topic, 0.0))
        return told


@pytest.fixture
def world() -> World:
    made = World()
    assert made.do(made.member.assigned([T0])) == [Begin([T0], {}), Keep()]
    return made


def test_what_the_group_takes_back_comes_to_its_end_first(world: World) -> None:
    assert world.do(world.member.revoked([T0, T1])) == [End([T0]), Keep()], "the other one is not ours"
    assert world.member.is_ending
    assert world.member.ours, "its last commit is still to come"
    assert world.do(world.member.finish()) == [Finish([T0]), Stop([T0]), GiveBack()]
    assert not world.member.ours
    assert world.do(world.member.finish()) == []


def test_what_never_began_is_given_back_at_once(world: World) -> None:
    assert world.do(world.member.revoked([T1])) == [Stop([]), GiveBack()]


def test_a_member_that_leaves_waits_inside_the_revoke(world: World) -> None:
    world.is_closing = True
    assert world.do(world.member.revoked([T0])) == [End([T0]), Finish([T0]), Stop([T0]), GiveBack()]


def test_the_group_may_go_on_while_records_come_to_their_end(world: World) -> None:
    world.do(world.member.revoked([T0]))
    assert world.do(world.member.assigned([T1])) == [Lost([T0]), Stop([T0]), Begin([T1], {}), Keep()]
    assert world.member.ours.keys() == {T1}


def test_what_others_have_is_lost_without_an_end(world: World) -> None:
    assert world.do(world.member.lost([T0, T1])) == [Lost([T0]), Stop([T0]), Stop([]), GiveBack()]


def test_a_member_that_is_fenced_loses_all_and_tells_nobody(world: World) -> None:
    world.do(world.member.revoked([T0]))
    assert world.do(world.member.fenced()) == [Lost([T0]), Stop([T0])]
    assert not world.member.is_ending


def test_what_could_not_begin_begins_later_unless_the_group_has_taken_it_back(world: World) -> None:
    member = world.member
    member.did_not_begin(Begin([T1, ("u", 0)], {}), 0.0)
    assert world.do(member.again(0.1)) == [], "not at once"
    assert world.do(member.revoked([("u", 0)])) == [Stop([]), GiveBack()]
    assert world.do(member.again(1.0)) == [Begin([T1], {})]
    assert world.do(member.again(2.0)) == [], "it is ours"


@pytest.mark.parametrize("how", ["lost", "fenced", "assigned", "closing"])
def test_what_could_not_begin_is_nothing_to_begin_any_more(world: World, how: str) -> None:
    member = world.member
    member.did_not_begin(Begin([T1], {}), 0.0)
    if how == "lost":
        world.do(member.lost([T0, T1]))
    elif how == "fenced":
        world.do(member.fenced())
    elif how == "assigned":
        world.do(member.assigned([T1]))
    else:
        world.is_closing = True
    assert world.do(member.again(9.0)) == []


def test_a_seek_is_a_revoke_that_the_group_does_not_see(world: World) -> None:
    before = world.member.ours[T0]
    assert world.do(world.member.sought({T0: Target(7), T1: Target(9)}, None)) == [End([T0])]
    assert world.do(world.member.finish()) == [Finish([T0]), Stop([T0]), Begin([T0], {T0: Target(7)})]
    assert world.member.ours[T0] > before, "in another epoch"


def test_a_seek_of_nothing_that_is_ours_does_nothing(world: World) -> None:
    assert world.do(world.member.sought({T1: Target(9)}, None)) == []
    assert not world.member.is_ending


def test_partitions_that_the_group_adds_to_a_seek_cost_it_nothing(world: World) -> None:
    world.do(world.member.sought({}, Target(7)))
    sought = [Finish([T0]), Stop([T0]), Begin([T0], {T0: Target(7)})]
    assert world.do(world.member.assigned([T1])) == [*sought, Begin([T1], {}), Keep()]
    assert world.member.ours.keys() == {T0, T1}


def test_a_revoke_comes_after_the_seek(world: World) -> None:
    world.do(world.member.sought({T0: Target(7)}, None))
    sought = [Finish([T0]), Stop([T0]), Begin([T0], {T0: Target(7)})]
    assert world.do(world.member.revoked([T0])) == [*sought, End([T0]), Keep()]


def test_lost_partitions_are_not_sought_in(world: World) -> None:
    world.do(world.member.sought({T0: Target(7)}, None))
    world.do(world.member.lost([T0]))
    assert world.do(world.member.assigned([T0])) == [Begin([T0], {}), Keep()]


def test_a_seek_ends_with_a_member_that_leaves(world: World) -> None:
    world.do(world.member.sought({T0: Target(7)}, None))
    world.is_closing = True
    assert world.do(world.member.left()) == [Finish([T0]), Stop([T0]), GiveBack()]


def test_partitions_that_are_assigned_by_hand_end_when_the_member_leaves() -> None:
    world = World(is_by_hand=True)
    assert world.do(world.member.assigned_by_hand([T1, T0])) == [Begin([T1, T0], {})]
    assert world.do(world.member.left()) == [End([T0, T1]), Finish([T0, T1]), Stop([T0, T1])], "no group is told"


def test_only_what_is_ours_in_that_epoch_is_reloaded(world: World) -> None:
    epoch = world.member.ours[T0]
    assert world.do(world.member.reloaded([(T0, epoch), (T1, epoch)])) == [Stop([T0]), Begin([T0], {}, is_reload=True)]
    assert world.do(world.member.reloaded([(T0, epoch)])) == [Stop([]), Begin([], {}, is_reload=True)]
    world.do(world.member.revoked([T0]))
    assert world.do(world.member.reloaded([(T0, world.member.ours[T0])]))[0] == Stop([]), "it is ending"


# --- topics that are no more ---


@pytest.fixture
def deleted() -> World:
    """A member whose group gives it two partitions of a topic that is no more, and one of another."""
    made = World()
    made.deleted.add("gone")
    told = made.do(made.member.assigned([*GONE, *THERE]))
    assert told == [Begin([*GONE, *THERE], {}), Stop([]), Deleted("gone", []), Keep()]
    assert list(made.member.ours) == THERE
    return made


def test_they_begin_when_their_topic_is_made_anew(deleted: World) -> None:
    assert deleted.member.is_deleted("gone")
    assert deleted.do(deleted.member.topic_is_unknown("gone", 60.0)) == [], "it is told once"
    deleted.deleted.clear()
    assert deleted.do(deleted.member.topic_is_there("gone", range(1))) == [Begin(GONE[:1], {})], "it has fewer"
    assert not deleted.member.is_deleted("gone")
    assert deleted.do(deleted.member.topic_is_there("gone", range(2))) == []


def test_what_the_group_takes_back_meanwhile_does_not_begin(deleted: World) -> None:
    deleted.do(deleted.member.revoked(GONE[:1]))
    deleted.deleted.clear()
    assert deleted.do(deleted.member.topic_is_there("gone", range(2))) == [Begin(GONE[1:], {})]


def test_what_the_group_gives_meanwhile_waits_too(deleted: World) -> None:
    more = ("gone", 2)
    assert deleted.do(deleted.member.assigned([more])) == [Begin([more], {}), Keep()], "it is known already"
    deleted.deleted.clear()
    assert deleted.do(deleted.member.topic_is_there("gone", range(3))) == [Begin([*GONE, more], {})]


def test_what_is_read_of_a_topic_without_a_log_is_told_with_it(world: World) -> None:
    """The group gives one more of its partitions, or one is to be read again."""
    world.deleted.add("t")
    told = world.do(world.member.assigned([T1]))
    assert told == [Begin([T1], {}), Stop([T0]), Deleted("t", [T0]), Keep()]
    world.deleted.clear()
    assert world.do(world.member.topic_is_there("t", range(2))) == [Begin([T0, T1], {})]
    world.deleted.add("t")
    told = world.do(world.member.reloaded([(T1, world.member.ours[T1])]))
    assert told[2:] == [Stop([T0, T1]), Deleted("t", [T0, T1])]
    assert not world.member.ours


def test_a_topic_that_is_deleted_while_it_is_read() -> None:
    world = World()
    world.do(world.member.assigned(THERE))
    world.member.suspect("there", 10.0)
    world.member.suspect("there", 11.0)
    assert world.do(world.member.topic_is_unknown("there", 10.0 + DELETED_S - 0.1)) == [], "it may be starting"
    assert world.do(world.member.topic_is_unknown("there", 10.0 + DELETED_S)) == [Stop(THERE), Deleted("there", THERE)]
    assert not world.member.ours
    assert world.do(world.member.topic_is_there("there", range(1))) == [Begin(THERE, {})]


def test_missing_topics_are_looked_for_twice_a_second_and_deleted_ones_rarely() -> None:
    member = World().member
    assert member.topics_to_look_for(10.0) == []
    member.suspect("gone", 10.0)
    assert member.topics_to_look_for(10.0) == ["gone"]
    assert member.topics_to_look_for(10.0 + LOOK_S - 0.1) == []
    assert member.topics_to_look_for(10.0 + LOOK_S) == ["gone"]
    assert list(member.topic_is_unknown("gone", 20.0)) == [Stop([]), Deleted("gone", [])]
    assert member.topics_to_look_for(20.0) == ["gone"]
    assert member.topics_to_look_for(20.0 + LOOK_AGAIN_S - 0.1) == []
    assert member.topics_to_look_for(20.0 + LOOK_AGAIN_S) == ["gone"]


def test_one_topic_after_the_other_is_looked_for_though_nobody_missed_it() -> None:
    world = World()
    world.do(world.member.assigned([("a", 0), ("b", 0)]))
    looked = []
    for turn in range(4):
        now = 10.0 + turn * NEXT_TOPIC_S
        looked += world.member.topics_to_look_for(now)
        for topic in "ab":
            world.do(world.member.topic_is_there(topic, range(1)))
    assert sorted(looked[:2]) == ["a", "b"]
    assert looked[2:] == looked[:2]


def test_what_goes_back_while_it_is_sought_in_a_topic_that_is_gone_does_not_begin_anew() -> None:
    world = World()
    world.do(world.member.assigned([*GONE, *THERE]))
    world.deleted.add("gone")
    world.do(world.member.sought({GONE[1]: Target(0)}, None))
    world.do(world.member.revoked([GONE[1]]))
    world.deleted.clear()
    done = world.do(world.member.topic_is_there("gone", range(2)))
    assert done == [Begin([GONE[0]], {})]
