"""What the driver remembers of what users ask, and what goes to which lane: calls and answers by hand."""

from __future__ import annotations

import pytest

import keylane as kl
from keylane.consumer.events import Adjust, Pause, Resume, RuleKeys
from keylane.consumer.intake import Liveness
from keylane.consumer.passing import Passing
from keylane.consumer.settings import Settings
from keylane.consumer.work import Work
from keylane.flow.keys import KeyRule, Where
from keylane.kafka.membership import Replay, Seek, Target
from keylane.spark.controls import ANSWER_S, Controls, Done, Send, TellLiveness, TellWork

A, B, C = ("t", 0), ("t", 1), ("t", 2)
REVOKE_S = 10.0
ALIVE = Liveness(10_000, 3_000, 300_000, 0, 6_000)


def made() -> Controls[str]:
    return Controls([A, B], REVOKE_S)


def running(*lanes: str) -> Controls[str]:
    controls = made()
    for lane in lanes:
        controls.started(lane)
    return controls


def test_a_call_ends_when_every_lane_has_answered() -> None:
    controls = running("x", "y")
    number, effects = controls.ask(Pause((A,)), 0.0)
    assert {one.lane for one in effects if isinstance(one, Send)} == {"x", "y"}
    assert controls.answered("y", number) == []
    assert controls.answered("y", number) == []
    assert controls.answered("x", number) == [Done(number, {"x": None, "y": None})]
    assert controls.answered("x", number) == [], "late, or twice"


def test_without_lanes_a_call_ends_at_once_and_holds_for_those_to_come() -> None:
    controls = made()
    number, effects = controls.ask(Pause(None), 0.0)
    assert effects == [Done(number, {})]
    assert controls.started("x") == (Pause(None),)


def test_what_held_before_is_what_lanes_begin_with() -> None:
    controls = Controls[str]([A, B], REVOKE_S, Settings(paused=frozenset([A])))
    assert controls.started("x") == (Pause((A,)),)


def test_a_lane_that_went_holds_up_nobody_and_its_successor_begins_with_what_was_asked() -> None:
    controls = running("x", "y")
    number, _ = controls.ask(Adjust(7, None), 0.0)
    assert controls.answered("x", number) == []
    assert controls.went("y") == [Done(number, {"x": None})]
    assert controls.started("y again") == (Adjust(7, None),)


def test_a_lane_that_does_not_answer_is_named() -> None:
    controls = running("lane 0", "lane 1")
    number, _ = controls.ask(Pause(None), 5.0)
    assert controls.answered("lane 1", number) == []
    assert controls.next_due == 5.0 + ANSWER_S
    assert controls.expire(4.0 + ANSWER_S) == []
    (done,) = controls.expire(5.0 + ANSWER_S)
    assert isinstance(done, Done)
    assert isinstance(done.error, kl.PeerError)
    assert str(done.error).startswith("pause: no answer within 30 s from lane 0; ")
    assert controls.answered("lane 0", number) == []
    assert controls.next_due is None


def test_pauses_and_bounds_add_up_as_in_a_consumer() -> None:
    rates = kl.Rates(records_per_s=5)
    settings = Settings()
    for change in (Pause((A,)), Pause((B,)), Adjust(3, None), Resume((B, C)), Adjust(None, rates)):
        settings = settings.after(change)
    assert settings.changes == (Pause((A,)), Adjust(3, rates))
    assert settings.after(Resume(None)).changes == (Adjust(3, rates),)
    all_of_them = settings.after(Pause(None)).after(Resume((A,)))
    assert all_of_them.changes == (Pause(None), Adjust(3, rates)), "a name does not end a pause of all"


def test_rules_by_key_hold_for_lanes_that_start_later_and_end_with_those_that_follow() -> None:
    hold = KeyRule(Where.parse("key=a"), "hold")
    controls = running("x")
    number, effects = controls.ask(RuleKeys((hold,)), 0.0)
    assert effects == [Send("x", number, RuleKeys((hold,)))]
    assert controls.started("y") == (RuleKeys((hold,)),)
    controls.ask(RuleKeys(()), 0.0)
    assert controls.started("z") == ()


@pytest.mark.parametrize("asked", [Passing(((*A, 7),)), Replay(((*A, 7),))])
def test_single_records_are_asked_of_the_lanes_that_have_their_partitions_and_a_lane_that_went_says_nothing(
    asked: Passing | Replay,
) -> None:
    controls = running("x", "y")
    controls.reported("x", [A])
    controls.reported("y", [B])
    number, effects = controls.ask(asked, 0.0)
    assert effects == [Send("x", number, asked)]
    assert controls.answered("x", number, {(*A, 7): ""}) == [Done(number, {"x": {(*A, 7): ""}})]
    number, _ = controls.ask(asked, 0.0)
    assert controls.went("x") == [Done(number, {})]
    assert controls.started("x again") == (), "nobody does it once more"


def test_liveness_is_that_of_the_lanes_that_have_a_partition() -> None:
    controls = running("x", "y")
    controls.reported("y", [A])
    number, effects = controls.ask(TellLiveness((A, B)), 0.0)
    assert effects == [Send("y", number, TellLiveness((A, B)))]
    assert controls.answered("y", number, ALIVE) == [Done(number, {"y": ALIVE})]
    number, effects = controls.ask(TellLiveness(), 0.0)
    assert {one.lane for one in effects if isinstance(one, Send)} == {"x", "y"}


def test_every_lane_tells_of_its_work() -> None:
    controls = running("x", "y")
    number, effects = controls.ask(TellWork(), 0.0)
    assert {one.lane for one in effects if isinstance(one, Send)} == {"x", "y"}
    assert controls.answered("x", number, Work()) == []
    assert controls.went("y") == [Done(number, {"x": Work()})]
    number, _ = controls.ask(TellWork(), 0.0)
    (late,) = controls.expire(ANSWER_S)
    assert isinstance(late, Done)
    assert str(late.error) == "work: no answer within 30 s from x"


def test_a_seek_is_done_by_the_lane_that_says_it_has_the_partition() -> None:
    controls = running("x", "y")
    at_5, at_6 = Target(offset=5), Target(offset=6)
    number, effects = controls.ask(Seek({A: at_5, B: at_6}), 0.0)
    assert effects == [], "nobody has said anything yet"
    assert controls.reported("x", [A]) == [Send("x", number, Seek({A: at_5}))]
    assert controls.reported("x", [A]) == [], "it is at it"
    assert controls.answered("x", number, (A,)) == []
    assert controls.reported("y", [A, B]) == [Send("y", number, Seek({B: at_6}))], "what is done is not done again"
    assert controls.answered("y", number, (B,)) == [Done(number, {})]


@pytest.mark.parametrize("how", ["declined", "went"])
def test_a_seek_goes_to_the_next_one_that_has_the_partition(how: str) -> None:
    controls = running("x", "y")
    number, _ = controls.ask(Seek({A: Target(offset=5)}), 0.0)
    controls.reported("x", [A])
    assert controls.reported("y", [A]) == [], "one at a time"
    assert (controls.answered("x", number, ()) if how == "declined" else controls.went("x")) == []
    assert controls.reported("y", [A]) == [Send("y", number, Seek({A: Target(offset=5)}))]
    assert controls.answered("y", number, (A,)) == [Done(number, {})]


def test_a_seek_that_ends_lanes_does_not_end_them_all() -> None:
    controls = running("x")
    controls.ask(Seek({A: Target(offset=5)}), 0.0)
    controls.reported("x", [A])
    assert controls.went("x") == []
    controls.started("x again")
    controls.reported("x again", [A])
    (done,) = controls.went("x again")
    assert isinstance(done, Done)
    assert str(done.error) == "seek: 2 lanes ended in the middle of it, the last one x again at t-0: the log says why"
    controls.started("x once more")
    assert controls.reported("x once more", [A]) == []


def test_a_seek_in_all_is_in_all_that_are_known() -> None:
    controls = running("x")
    controls.reported("x", [C])
    number, _ = controls.ask(Seek({}, Target(time_ms=9)), 0.0)
    (sent,) = controls.reported("x", [A, B, C])
    assert isinstance(sent, Send)
    assert sent.what == Seek(dict.fromkeys([A, B, C], Target(time_ms=9)))
    assert controls.answered("x", number, (A, B, C)) == [Done(number, {})]


def test_a_partition_that_a_lane_gets_in_the_middle_of_a_seek_is_sought_once() -> None:
    controls = running("x")
    to = Target(time_ms=1)
    number, _ = controls.ask(Seek({A: to, B: to}), 0.0)
    assert controls.reported("x", [A]) == [Send("x", number, Seek({A: to}))]
    assert controls.reported("x", [A, B]) == [], "it is at it; an answer would be for both"
    assert controls.answered("x", number, (A,)) == []
    assert controls.reported("x", [A, B]) == [Send("x", number, Seek({B: to}))]
    assert controls.reported("x", [A, B]) == []
    assert controls.answered("x", number, (B,)) == [Done(number)]


def test_of_two_seeks_in_one_partition_the_later_one_is_the_last() -> None:
    controls = running("x")
    first, _ = controls.ask(Seek({A: Target(offset=1)}), 0.0)
    second, _ = controls.ask(Seek({A: Target(offset=2)}), 0.0)
    assert controls.reported("x", [A]) == [Send("x", first, Seek({A: Target(offset=1)}))]
    assert controls.answered("x", first, (A,)) == [Done(first, {})]
    assert controls.reported("x", [A]) == [Send("x", second, Seek({A: Target(offset=2)}))]


def test_a_seek_that_is_not_done_in_time_names_the_partitions() -> None:
    controls = running("lane 0")
    controls.ask(Seek({A: Target(offset=1), B: Target(offset=1)}), 0.0)
    controls.reported("lane 0", [B])
    assert controls.expire(ANSWER_S) == [], "records in handlers have their time"
    (done,) = controls.expire(ANSWER_S + REVOKE_S)
    assert isinstance(done, Done)
    assert "t-0 (no lane has it), t-1 (lane 0 is at it)" in str(done.error)


def test_a_seek_in_all_passes_over_what_other_members_of_the_group_have() -> None:
    controls = running("x")
    number, _ = controls.ask(Seek({}, Target(time_ms=9)), 0.0)
    assert controls.reported("x", [A]) == [Send("x", number, Seek({A: Target(time_ms=9)}))]
    assert controls.answered("x", number, (A,)) == [], "the other one may be on its way"
    assert controls.expire(ANSWER_S + REVOKE_S) == [Done(number)]


def test_a_seek_in_all_does_not_pass_over_what_a_lane_had_or_what_was_named() -> None:
    controls = running("x")
    controls.ask(Seek({}, Target(time_ms=9)), 0.0)
    controls.reported("x", [A])
    controls.went("x")
    controls.ask(Seek({B: Target(offset=1)}, Target(time_ms=9)), 0.0)
    first, second = controls.expire(ANSWER_S + REVOKE_S)
    assert isinstance(first, Done)
    assert isinstance(second, Done)
    assert "not done in time: t-0 (no lane has it). " in str(first.error)
    assert "not done in time: t-1 (no lane has it). " in str(second.error)


def test_what_a_lane_could_not_do_is_the_callers() -> None:
    controls = running("x", "y")
    number, _ = controls.ask(Seek({A: Target(offset=1)}), 0.0)
    controls.reported("x", [A])
    error = kl.UsageError("no")
    assert controls.answered("x", number, error=error) == [Done(number, error=error)]


def test_who_is_no_lane_that_runs_is_asked_nothing() -> None:
    controls = running("x")
    controls.ask(Seek({A: Target(offset=1)}), 0.0)
    assert controls.reported("a predecessor that drains", [A]) == []
