"""Static members (KIP-345, KIP-814): a restart keeps the place in the group, and fences the one before."""

from __future__ import annotations

import pytest

from keylane.broker.config import BrokerConfig
from keylane.coordinator.groups.protocol import JoinAnswer, JoinedMember
from keylane.wire import codes
from kit.group_world import World

SESSION_MS = 10_000
REBALANCE_MS = 60_000


def stable(world: World, *instances: str, version: int = 9) -> list[str]:
    tokens = [world.send_join("c", instance=instance, version=version) for instance in instances]
    world.advance(0)
    answers = [world.joined(token) for token in tokens]
    world.sync_all(answers)
    return [answer.member_id for answer in answers]


@pytest.fixture
def world() -> World:
    """Without an initial delay, a rebalance of an empty group waits for one turn of the clock only."""
    return World(BrokerConfig(group_initial_rebalance_delay_ms=0))


def test_static_members_join_without_being_told_an_id_first(world: World) -> None:
    assert stable(world, "one", "two") == ["one-1", "two-1"]
    assert [member.instance_id for member in world.groups.describe("weather", has_offsets=False).members] == [
        "one",
        "two",
    ]
    assert [member.group_instance_id for member in world.stored[-1].members] == ["one", "two"]


def test_a_restart_does_not_rebalance(world: World) -> None:
    first, second = stable(world, "one", "two")
    token = world.send_join("c", instance="two")
    assert world.joined(token) == JoinAnswer(codes.NONE, "two-2", 1, "consumer", "range", first, False, ())
    assert world.state == "Stable"
    assert world.synced(world.send_sync("two-2", 1, instance="two")).assignment == second.encode()
    assert [member.member_id for member in world.stored[-1].members] == ["one-1", "two-2"]
    assert world.stored[-1].members[1].assignment == second.encode()


def test_a_restarted_leader_is_told_not_to_assign(world: World) -> None:
    stable(world, "one", "two")
    answer = world.joined(world.send_join("c", instance="one"))
    assert (answer.leader, answer.skip_assignment, answer.generation) == ("one-2", True, 1)
    assert answer.members == (JoinedMember("two-1", "two", b"sub"), JoinedMember("one-2", "one", b"sub"))


def test_a_restarted_leader_of_an_old_version_must_not_know_that_it_leads(world: World) -> None:
    stable(world, "one", "two", version=5)
    answer = world.joined(world.send_join("c", instance="one", version=5))
    assert (answer.leader, answer.skip_assignment, answer.members) == ("one-1", False, ())


def test_the_new_id_is_told_only_when_it_is_durable(world: World) -> None:
    stable(world, "one")
    world.is_storing = False
    token = world.send_join("c", instance="one")
    assert world.is_waiting(token)
    world.store(world.unstored.pop())
    assert world.joined(token).member_id == "one-2"


def test_a_new_id_that_cannot_be_stored(world: World) -> None:
    stable(world, "one")
    world.is_storing = False
    token = world.send_join("c", instance="one")
    world.store(world.unstored.pop(), codes.COORDINATOR_NOT_AVAILABLE)
    assert world.joined(token) == JoinAnswer(codes.COORDINATOR_NOT_AVAILABLE, "")


def test_a_rebalance_that_overtakes_a_restart_answers_it(world: World) -> None:
    stable(world, "one", "two")
    world.is_storing = False
    back = world.send_join("c", instance="two")
    new = world.send_join("c", instance="three")
    world.store(world.unstored.pop())
    assert world.is_waiting(back)
    old = world.send_join("c", "one-1", instance="one")
    assert {world.joined(token).generation for token in (back, new, old)} == {2}


def test_the_former_holder_of_an_instance_id_is_fenced(world: World) -> None:
    (old,) = stable(world, "one")
    world.send_join("c", instance="one")
    fenced = codes.FENCED_INSTANCE_ID
    assert world.heartbeat(old, 1, "one") == fenced
    assert world.commit(old, 1, "one") == fenced
    assert world.synced(world.send_sync(old, 1, instance="one")).error == fenced
    assert world.joined(world.send_join("c", old, instance="one")).error == fenced
    assert [left.error for left in world.leave((old, "one"))] == [fenced]
    assert world.heartbeat("one-2", 1, "one") == codes.NONE


def test_fencing_answers_what_the_former_holder_waits_for(world: World) -> None:
    stable(world, "one", "two")
    old = world.send_join("c", "one-1", instance="one", protocols=(("range", b"new"),))
    new = world.send_join("c", instance="one")
    assert world.joined(old) == JoinAnswer(codes.FENCED_INSTANCE_ID, "one-1")
    assert world.is_waiting(new)


def test_a_restart_while_assigning_begins_again(world: World) -> None:
    tokens = [world.send_join("c", instance=name) for name in ("one", "two")]
    world.advance(0)
    sync = world.send_sync(world.joined(tokens[1]).member_id, 1, instance="two")
    back = world.send_join("c", instance="two")
    assert world.synced(sync).error == codes.FENCED_INSTANCE_ID
    assert world.state == "PreparingRebalance"
    world.send_join("c", "one-1", instance="one")
    assert world.joined(back).generation == 2


def test_a_restart_that_changes_the_protocol_rebalances(world: World) -> None:
    both = (("range", b"r"), ("sticky", b"s"))
    tokens = [world.send_join("c", instance=name, protocols=both) for name in ("one", "two")]
    world.advance(0)
    world.sync_all([world.joined(token) for token in tokens])
    back = world.send_join("c", instance="two", protocols=(("sticky", b"s"),))
    assert world.is_waiting(back)
    assert world.state == "PreparingRebalance"


def test_static_members_keep_their_place_when_they_do_not_rejoin(world: World) -> None:
    stable(world, "one", "two")
    token = world.send_join("c", "one-1", instance="one")
    for _ in range(REBALANCE_MS // 5_000):
        world.advance(5_000)
        world.heartbeat("two-1", 1, "two")
    assert world.joined(token).generation == 2
    assert len(world.members) == 2


def test_when_no_static_member_rejoins_the_rebalance_goes_on_waiting(world: World) -> None:
    stable(world, "one", "two", "three")
    assert [left.error for left in world.leave(("", "one"))] == [codes.NONE]
    assert world.state == "PreparingRebalance"
    for _ in range(REBALANCE_MS // 5_000 + 1):
        world.advance(5_000)
        world.heartbeat("two-1", 1, "two")
        world.heartbeat("three-1", 1, "three")
    assert world.state == "PreparingRebalance"
    assert world.members == ["two-1", "three-1"]
    world.advance(SESSION_MS)
    assert world.state == "Empty"


def test_a_static_member_that_stays_away_is_out_after_its_session(world: World) -> None:
    stable(world, "one", "two")
    world.advance(SESSION_MS - 1)
    world.heartbeat("one-1", 1, "one")
    world.advance(1)
    assert world.members == ["one-1"]


def test_a_restart_of_who_had_not_asked_for_its_assignment(world: World) -> None:
    """The old id will never ask, and must not be waited for."""
    tokens = [world.send_join("c", instance=name) for name in ("one", "two")]
    world.advance(0)
    assert all(world.joined(token).error == codes.NONE for token in tokens)
    world.send_sync("one-1", 1, {}, instance="one")
    world.send_join("c", instance="two")
    for _ in range(2 * REBALANCE_MS // 5_000):
        world.advance(5_000)
        world.heartbeat("one-1", 1, "one")
        world.heartbeat("two-2", 1, "two")
    assert world.state == "Stable"
    assert world.members == ["one-1", "two-2"]


@pytest.mark.parametrize(
    ("leaver", "error"), [(("", "one"), 0), (("", "none"), 25), (("", None), 25), (("one-1", "one"), 0)]
)
def test_an_administrator_removes_static_members(world: World, leaver: tuple[str, str | None], error: int) -> None:
    stable(world, "one", "two")
    assert [left.error for left in world.leave(leaver)] == [error]
    assert world.members == (["two-1"] if error == 0 else ["one-1", "two-1"])


def test_a_pending_dynamic_member_cannot_turn_static(world: World) -> None:
    member_id = world.new_id("a")
    assert world.joined(world.send_join("a", member_id, instance="one")).error == codes.UNKNOWN_MEMBER_ID


def test_an_instance_id_that_is_not_there(world: World) -> None:
    (member_id,) = world.stable("a")
    assert world.commit(member_id, 1, "one") == codes.UNKNOWN_MEMBER_ID
