"""Sessions, rebalance timeouts, the initial delay, and what a restart restores: in virtual time."""

from __future__ import annotations

import pytest

from keylane.broker.config import BrokerConfig
from keylane.coordinator.formats import GroupValue, MemberValue, RecordFormatError
from keylane.coordinator.groups.group import NEW_MEMBER_JOIN_TIMEOUT_MS
from keylane.coordinator.groups.protocol import JoinAnswer
from keylane.wire import codes
from kit.group_world import World

SESSION_MS = 10_000
REBALANCE_MS = 60_000


@pytest.fixture
def world() -> World:
    """Without an initial delay, a rebalance of an empty group waits for one turn of the clock only."""
    return World(BrokerConfig(group_initial_rebalance_delay_ms=0))


@pytest.fixture
def delayed() -> World:
    return World(BrokerConfig(group_initial_rebalance_delay_ms=3_000))


def test_a_silent_member_is_out_after_its_session(world: World) -> None:
    first, second = world.stable("a", "b")
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(second, 1) == codes.NONE
    world.advance(1)
    assert world.members == [second]
    assert world.heartbeat(first, 1) == codes.UNKNOWN_MEMBER_ID
    assert world.heartbeat(second, 1) == codes.REBALANCE_IN_PROGRESS


def test_heartbeats_and_commits_keep_a_session(world: World) -> None:
    (member_id,) = world.stable("a")
    for _ in range(5):
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(member_id, 1) == codes.NONE
        world.advance(SESSION_MS - 1)
        assert world.commit(member_id, 1) == codes.NONE
    world.advance(SESSION_MS)
    assert world.state == "Empty"


def test_an_id_that_is_not_used_is_forgotten(world: World) -> None:
    member_id = world.new_id("a")
    world.advance(SESSION_MS)
    assert world.joined(world.send_join("a", member_id)).error == codes.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_who_was_told_an_id(world: World) -> None:
    first, second = world.stable("a", "b")
    third = world.new_id("c")
    token = world.send_join("a", first)
    world.send_join("b", second)
    assert world.is_waiting(token), "c is on its way"
    world.send_join("c", third)
    assert world.joined(token).generation == 2


def test_who_does_not_use_its_id_does_not_hold_up_a_rebalance(world: World) -> None:
    (first,) = world.stable("a")
    world.new_id("b")
    token = world.send_join("a", first)
    assert world.is_waiting(token)
    world.advance(SESSION_MS)
    assert world.joined(token).generation == 2


def test_who_does_not_rejoin_in_time_is_out(world: World) -> None:
    first, second = world.stable("a", "b")
    token = world.send_join("a", first)
    for _ in range(REBALANCE_MS // 5_000 - 1):
        world.advance(5_000)
        assert world.heartbeat(second, 1) == codes.REBALANCE_IN_PROGRESS, "alive, but it does not rejoin"
    assert world.is_waiting(token)
    world.advance(5_000)
    assert world.joined(token).generation == 2
    assert world.members == [first]


def test_a_leader_that_does_not_rejoin_is_followed_by_one_that_did(world: World) -> None:
    first, second, third = world.stable("a", "b", "c")
    tokens = [world.send_join("c", third, protocols=(("range", b"new"),)), world.send_join("b", second)]
    world.leave((first, None))
    assert {world.joined(token).leader for token in tokens} == {second}


def test_who_waits_in_a_rebalance_does_not_expire(world: World) -> None:
    first, second = world.stable("a", "b")
    token = world.send_join("a", first)
    for _ in range(5):
        world.advance(SESSION_MS - 1)
        world.heartbeat(second, 1)
    assert world.is_waiting(token)
    assert first in world.members


def test_a_new_member_may_wait_five_minutes(world: World) -> None:
    """It cannot send heartbeats, so its session does not count; but it may be gone, so it does not wait for ever."""
    token = world.send_join("a", version=3, rebalance_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    world.advance(0)
    world.sync_all([world.joined(token)])
    waiting = world.send_join("b", version=3)
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        assert world.is_waiting(waiting)
        world.heartbeat("a-1", 1)
        world.advance(5_000)
    assert world.joined(waiting) == JoinAnswer(codes.UNKNOWN_MEMBER_ID, "")


def test_who_does_not_ask_for_its_assignment_in_time_is_out(world: World) -> None:
    tokens = [world.send_join(name, world.new_id(name)) for name in ("a", "b")]
    world.advance(0)
    leader, follower = (world.joined(token).member_id for token in tokens)
    world.send_sync(leader, 1, {})
    assert world.state == "Stable"
    for _ in range(REBALANCE_MS // 5_000):
        world.advance(5_000)
        world.heartbeat(leader, 1)
        world.heartbeat(follower, 1)
    assert world.members == [leader]
    assert world.state == "PreparingRebalance"


def test_a_leader_that_never_assigns_is_out(world: World) -> None:
    tokens = [world.send_join(name, world.new_id(name)) for name in ("a", "b")]
    world.advance(0)
    leader, follower = (world.joined(token).member_id for token in tokens)
    sync = world.send_sync(follower, 1)
    for _ in range(REBALANCE_MS // 5_000):
        world.advance(5_000)
        world.heartbeat(leader, 1)
    assert world.synced(sync).error == codes.REBALANCE_IN_PROGRESS
    assert world.members == [follower]


def test_the_initial_delay_gathers_members(delayed: World) -> None:
    first = delayed.send_join("a", delayed.new_id("a"))
    delayed.advance(2_000)
    second = delayed.send_join("b", delayed.new_id("b"))
    delayed.advance(1_000)
    assert delayed.is_waiting(first), "a member came meanwhile: wait once more"
    delayed.advance(3_000)
    assert delayed.joined(first).generation == delayed.joined(second).generation == 1
    assert len(delayed.joined(first).members) == 2


def test_the_initial_delay_is_not_extended_for_nobody(delayed: World) -> None:
    token = delayed.send_join("a", delayed.new_id("a"))
    delayed.advance(2_999)
    assert delayed.is_waiting(token)
    delayed.advance(1)
    assert delayed.joined(token).generation == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout(delayed: World) -> None:
    token = delayed.send_join("a", delayed.new_id("a"))
    for count in range(REBALANCE_MS // 1_000):
        assert delayed.is_waiting(token), count
        delayed.send_join("b", version=3)
        delayed.advance(1_000)
    assert delayed.joined(token).generation == 1


def test_a_group_that_empties_during_the_initial_delay(delayed: World) -> None:
    member_id = delayed.new_id("a")
    token = delayed.send_join("a", member_id)
    delayed.leave((member_id, None))
    assert delayed.joined(token).error == codes.UNKNOWN_MEMBER_ID
    delayed.advance(3_000)
    assert delayed.state == "Empty"


VALUE = GroupValue(
    "consumer",
    7,
    "range",
    "a-1",
    5,
    (
        MemberValue("a-1", None, "a", "/host", REBALANCE_MS, SESSION_MS, b"sub", b"one"),
        MemberValue("s-1", "s", "b", "/host", REBALANCE_MS, SESSION_MS, b"sub", b"two"),
    ),
)


def test_a_restored_group_goes_on(world: World) -> None:
    world.groups.restore("weather", VALUE, world.now)
    assert world.state == "Stable"
    assert world.heartbeat("a-1", 7) == codes.NONE
    assert world.heartbeat("s-1", 7, "s") == codes.NONE
    assert world.commit("a-1", 7) == codes.NONE
    assert world.synced(world.send_sync("a-1", 7)).assignment == b"one"
    assert world.heartbeat("a-1", 8) == codes.ILLEGAL_GENERATION


def test_restored_members_have_a_session_to_be_heard_of(world: World) -> None:
    world.groups.restore("weather", VALUE, world.now)
    world.advance(SESSION_MS - 1)
    assert world.heartbeat("a-1", 7) == codes.NONE
    world.advance(1)
    assert world.members == ["a-1"]


def test_a_restored_member_rejoins_with_more_protocols(world: World) -> None:
    world.groups.restore("weather", VALUE, world.now)
    token = world.send_join("a", "a-1", protocols=(("range", b"sub"), ("sticky", b"s")))
    assert world.is_waiting(token)
    world.advance(SESSION_MS)
    assert world.joined(token).generation == 8


def test_a_restored_empty_group(world: World) -> None:
    world.groups.restore("weather", GroupValue("consumer", 3, None, None, 5, ()), world.now)
    assert world.state == "Empty"
    token = world.send_join("a", world.new_id("a"))
    world.advance(0)
    assert world.joined(token).generation == 4


def test_metadata_that_makes_no_sense_is_refused(world: World) -> None:
    with pytest.raises(RecordFormatError, match="no protocol"):
        world.groups.restore("weather", VALUE._replace(protocol=None), world.now)
