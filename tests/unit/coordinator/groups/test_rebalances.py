"""Joining, assigning, leaving: dynamic members of the classic group protocol, in virtual time."""

from __future__ import annotations

import pytest

from keylane.broker.config import BrokerConfig
from keylane.coordinator.groups.protocol import JoinAnswer, JoinedMember, SyncAnswer
from keylane.coordinator.groups.registry import check_commit_without_group
from keylane.coordinator.groups.states import ALLOWED, TRANSITIONS, State
from keylane.wire import codes
from kit.group_world import World


@pytest.fixture
def world() -> World:
    """Without an initial delay, a rebalance of an empty group waits for one turn of the clock only."""
    return World(BrokerConfig(group_initial_rebalance_delay_ms=0))


@pytest.fixture
def small() -> World:
    return World(BrokerConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))


def test_first_member(world: World) -> None:
    member_id = world.new_id("a")
    token = world.send_join("a", member_id)
    assert world.is_waiting(token)
    assert world.state == "PreparingRebalance"
    world.advance(0)
    assert world.joined(token) == JoinAnswer(
        codes.NONE, "a-1", 1, "consumer", "range", "a-1", False, (JoinedMember("a-1", None, b"sub"),)
    )
    assert world.state == "CompletingRebalance"
    sync = world.send_sync("a-1", 1, {"a-1": b"all"})
    assert world.synced(sync) == SyncAnswer(codes.NONE, "consumer", "range", b"all")
    assert world.state == "Stable"
    (value,) = world.stored
    assert (value.generation, value.protocol, value.leader) == (1, "range", "a-1")
    assert [(m.member_id, m.subscription, m.assignment) for m in value.members] == [("a-1", b"sub", b"all")]


def test_old_versions_join_at_once(world: World) -> None:
    token = world.send_join("a", version=3)
    world.advance(0)
    assert world.joined(token).error == codes.NONE


def test_joining_with_an_id_that_nobody_gave(world: World) -> None:
    assert world.joined(world.send_join("a", "a-99")).error == codes.UNKNOWN_MEMBER_ID
    assert world.state == "Dead"
    world.stable("a")
    assert world.joined(world.send_join("a", "a-99")).error == codes.UNKNOWN_MEMBER_ID


def test_a_second_member_makes_the_first_rejoin(world: World) -> None:
    (first,) = world.stable("a")
    second = world.new_id("b")
    assert world.heartbeat(first, 1) == codes.NONE
    new = world.send_join("b", second)
    assert world.state == "PreparingRebalance"
    assert world.heartbeat(first, 1) == codes.REBALANCE_IN_PROGRESS
    old = world.send_join("a", first)
    answers = [world.joined(old), world.joined(new)]
    assert [answer.generation for answer in answers] == [2, 2]
    assert [len(answer.members) for answer in answers] == [2, 0]
    assert [answer.assignment for answer in world.sync_all(answers)] == [b"b-1", b"a-1"]


def test_followers_wait_for_the_leader(world: World) -> None:
    tokens = [world.send_join(name, world.new_id(name)) for name in ("a", "b")]
    world.advance(0)
    leader, follower = (world.joined(token) for token in tokens)
    waiting = world.send_sync(follower.member_id, 1)
    assert world.is_waiting(waiting)
    world.send_sync(leader.member_id, 1, {follower.member_id: b"mine"})
    assert world.synced(waiting).assignment == b"mine"


def test_late_follower_gets_its_assignment_in_the_stable_group(world: World) -> None:
    tokens = [world.send_join(name, world.new_id(name)) for name in ("a", "b")]
    world.advance(0)
    leader, follower = (world.joined(token) for token in tokens)
    world.send_sync(leader.member_id, 1, {follower.member_id: b"mine"})
    assert world.state == "Stable"
    assert world.synced(world.send_sync(follower.member_id, 1)).assignment == b"mine"


def test_members_hear_of_assignments_only_when_they_are_durable(world: World) -> None:
    token = world.send_join("a", world.new_id("a"))
    world.advance(0)
    world.is_storing = False
    sync = world.send_sync("a-1", world.joined(token).generation, {"a-1": b"all"})
    assert world.is_waiting(sync)
    assert world.state == "CompletingRebalance"
    world.store(world.unstored.pop())
    assert world.synced(sync).assignment == b"all"
    assert world.state == "Stable"


def test_an_assignment_that_cannot_be_stored(world: World) -> None:
    token = world.send_join("a", world.new_id("a"))
    world.advance(0)
    world.is_storing = False
    sync = world.send_sync("a-1", world.joined(token).generation, {"a-1": b"all"})
    world.store(world.unstored.pop(), codes.COORDINATOR_NOT_AVAILABLE)
    assert world.synced(sync) == SyncAnswer(codes.COORDINATOR_NOT_AVAILABLE)
    assert world.state == "PreparingRebalance"


def test_an_assignment_that_a_rebalance_overtook(world: World) -> None:
    token = world.send_join("a", world.new_id("a"))
    world.advance(0)
    world.is_storing = False
    sync = world.send_sync("a-1", world.joined(token).generation, {"a-1": b"all"})
    world.send_join("b", world.new_id("b"))
    assert world.synced(sync).error == codes.REBALANCE_IN_PROGRESS
    world.store(world.unstored.pop())
    assert world.state == "PreparingRebalance"


def test_leader_that_rejoins_a_stable_group_assigns_anew(world: World) -> None:
    first, second = world.stable("a", "b")
    token = world.send_join("a", first)
    assert world.is_waiting(token)
    assert world.heartbeat(second, 1) == codes.REBALANCE_IN_PROGRESS


def test_follower_that_rejoins_unchanged_hears_of_the_current_generation(world: World) -> None:
    _, second = world.stable("a", "b")
    answer = world.joined(world.send_join("b", second))
    assert (answer.generation, answer.leader, answer.members) == (1, "a-1", ())
    assert world.state == "Stable"


def test_follower_with_a_new_subscription_rebalances(world: World) -> None:
    _, second = world.stable("a", "b")
    assert world.is_waiting(world.send_join("b", second, protocols=(("range", b"other"),)))
    assert world.state == "PreparingRebalance"


def test_a_member_that_missed_the_answer_to_its_join_gets_it_again(world: World) -> None:
    member_id = world.new_id("a")
    first = world.send_join("a", member_id)
    world.advance(0)
    again = world.send_join("a", member_id)
    assert world.joined(again) == world.joined(first)
    assert world.state == "CompletingRebalance"


def test_asking_twice_answers_the_older_request(world: World) -> None:
    first, _ = world.stable("a", "b")
    older = world.send_join("a", first)
    newer = world.send_join("a", first)
    assert world.joined(older).error == codes.REBALANCE_IN_PROGRESS
    assert world.is_waiting(newer)


def test_the_protocol_most_members_prefer_among_those_all_support(world: World) -> None:
    lists = (("x", "range", "sticky"), ("sticky", "range"), ("sticky", "range", "y"))
    tokens = []
    for client, names in zip("abc", lists, strict=True):
        protocols = tuple((name, f"{client}-{name}".encode()) for name in names)
        member_id = world.joined(world.send_join(client, protocols=protocols)).member_id
        tokens.append(world.send_join(client, member_id, protocols=protocols))
    world.advance(0)
    leader = world.joined(tokens[0])
    assert leader.protocol == "sticky"
    assert [member.metadata for member in leader.members] == [b"a-sticky", b"b-sticky", b"c-sticky"]


def test_inconsistent_protocols_are_refused(world: World) -> None:
    world.stable("a")
    assert world.joined(world.send_join("b", protocols=(("sticky", b""),))).error == codes.INCONSISTENT_GROUP_PROTOCOL
    assert world.joined(world.send_join("b", protocol_type="connect")).error == codes.INCONSISTENT_GROUP_PROTOCOL
    assert world.state == "Stable"


def test_a_join_without_protocols_is_refused(world: World) -> None:
    assert world.joined(world.send_join("a", protocols=())).error == codes.INCONSISTENT_GROUP_PROTOCOL
    assert world.joined(world.send_join("a", protocol_type="")).error == codes.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_takes_another_protocol_type(world: World) -> None:
    (member_id,) = world.stable("a")
    world.leave((member_id, None))
    assert world.state == "Empty"
    protocols = (("connect-protocol", b"config"),)
    new_id = world.joined(world.send_join("w", protocol_type="connect", protocols=protocols)).member_id
    token = world.send_join("w", new_id, protocol_type="connect", protocols=protocols)
    world.advance(0)
    assert world.joined(token).protocol_type == "connect"


def test_sync_is_checked(world: World) -> None:
    (member_id,) = world.stable("a")
    assert world.synced(world.send_sync("nobody", 1)).error == codes.UNKNOWN_MEMBER_ID
    assert world.synced(world.send_sync(member_id, 7)).error == codes.ILLEGAL_GENERATION
    inconsistent = codes.INCONSISTENT_GROUP_PROTOCOL
    assert world.synced(world.send_sync(member_id, 1, protocol="sticky")).error == inconsistent
    assert world.synced(world.send_sync(member_id, 1, protocol_type="connect")).error == inconsistent
    assert world.synced(world.send_sync(member_id, 1, protocol="range", protocol_type="consumer")).error == codes.NONE
    world.send_join("b", world.new_id("b"))
    assert world.synced(world.send_sync(member_id, 1)).error == codes.REBALANCE_IN_PROGRESS


def test_heartbeat_is_checked(world: World) -> None:
    assert world.heartbeat("a-1", 1) == codes.UNKNOWN_MEMBER_ID
    (member_id,) = world.stable("a")
    assert world.heartbeat("nobody", 1) == codes.UNKNOWN_MEMBER_ID
    assert world.heartbeat(member_id, 0) == codes.ILLEGAL_GENERATION
    assert world.heartbeat(member_id, 1, "instance") == codes.UNKNOWN_MEMBER_ID


def test_leaving(world: World) -> None:
    first, second = world.stable("a", "b")
    (left,) = world.leave((first, None))
    assert left.error == codes.NONE
    assert world.members == [second]
    assert world.heartbeat(second, 1) == codes.REBALANCE_IN_PROGRESS
    answer = world.joined(world.send_join("b", second))
    assert (answer.generation, answer.leader) == (2, second)


def test_the_last_member_leaves_an_empty_group_behind(world: World) -> None:
    (member_id,) = world.stable("a")
    world.leave((member_id, None))
    assert world.state == "Empty"
    assert (world.stored[-1].generation, world.stored[-1].members, world.stored[-1].protocol) == (2, (), None)
    assert world.heartbeat(member_id, 1) == codes.UNKNOWN_MEMBER_ID


def test_many_leave_at_once(world: World) -> None:
    first, second, third = world.stable("a", "b", "c")
    results = world.leave((first, None), ("nobody", None), (third, None))
    assert [left.error for left in results] == [codes.NONE, codes.UNKNOWN_MEMBER_ID, codes.NONE]
    assert world.members == [second]


def test_leaving_answers_what_the_member_waits_for(world: World) -> None:
    first, _ = world.stable("a", "b")
    token = world.send_join("a", first)
    world.leave((first, None))
    assert world.joined(token) == JoinAnswer(codes.UNKNOWN_MEMBER_ID, "")


def test_leaving_before_joining_with_the_id(world: World) -> None:
    first, second = world.new_id("a"), world.new_id("b")
    token = world.send_join("a", first)
    world.leave((second, None))
    world.advance(0)
    assert world.joined(token).error == codes.NONE


def test_leaving_an_unknown_group(world: World) -> None:
    assert [left.error for left in world.leave(("a-1", None))] == [codes.UNKNOWN_MEMBER_ID]


def test_commits_are_checked_against_the_generation(world: World) -> None:
    (member_id,) = world.stable("a")
    assert world.commit(member_id, 1) == codes.NONE
    assert world.commit(member_id, 0) == codes.ILLEGAL_GENERATION
    assert world.commit("nobody", 1) == codes.UNKNOWN_MEMBER_ID
    assert world.commit() == codes.UNKNOWN_MEMBER_ID, "without an id only an empty group takes commits"
    world.send_join("b", world.new_id("b"))
    assert world.commit(member_id, 1) == codes.NONE, "who is about to be revoked may still commit"
    world.send_join("a", member_id)
    assert world.state == "CompletingRebalance"
    assert world.commit(member_id, 1) == codes.ILLEGAL_GENERATION
    assert world.commit(member_id, 2) == codes.REBALANCE_IN_PROGRESS


def test_simple_consumers_commit_without_membership(world: World) -> None:
    assert world.commit() == codes.NONE
    (member_id,) = world.stable("a")
    world.leave((member_id, None))
    assert world.commit() == codes.NONE


def test_commits_with_a_generation_to_a_group_that_is_not_there(world: World) -> None:
    assert world.commit("a-1", 3) == codes.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("group", ["", "g" * 40_000])
def test_group_ids_that_no_member_can_join(world: World, group: str) -> None:
    assert world.joined(world.send_join("a", group=group)).error == codes.INVALID_GROUP_ID
    of_commit = codes.INVALID_GROUP_ID if group else codes.NONE  # as by Apache Kafka, offsets need no name
    assert check_commit_without_group(group, -1) == of_commit


def test_names_that_no_record_can_hold(world: World) -> None:
    assert world.joined(world.send_join("a", protocols=(("p" * 40_000, b""),))).error == codes.INVALID_REQUEST
    assert world.joined(world.send_join("a", instance="i" * 40_000)).error == codes.INVALID_REQUEST


@pytest.mark.parametrize(("session_ms", "error"), [(5_999, 26), (6_000, 79), (1_800_000, 79), (1_800_001, 26)])
def test_session_timeouts_have_bounds(world: World, session_ms: int, error: int) -> None:
    assert world.joined(world.send_join("a", session_ms=session_ms)).error == error


def test_a_full_group(small: World) -> None:
    first, _ = small.stable("a", "b")
    assert small.joined(small.send_join("c")).error == codes.GROUP_MAX_SIZE_REACHED
    assert small.is_waiting(small.send_join("a", first)), "a member may come back"


def test_closing_answers_everyone(world: World) -> None:
    first, second = world.stable("a", "b")
    join = world.send_join("a", first)
    world.perform(world.groups.unload(world.now))
    assert world.joined(join) == JoinAnswer(codes.NOT_COORDINATOR, "")
    assert world.groups.next_deadline_ms is None
    assert world.heartbeat(second, 1) == codes.UNKNOWN_MEMBER_ID


def test_describing(world: World) -> None:
    first, second = world.stable("a", "b")
    group = world.groups.describe("weather", has_offsets=False)
    assert (group.state, group.protocol_type, group.protocol) == ("Stable", "consumer", "range")
    assert [(m.member_id, m.client_id, m.client_host, m.metadata, m.assignment) for m in group.members] == [
        (first, "a", "/host", b"sub", first.encode()),
        (second, "b", "/host", b"sub", second.encode()),
    ]
    world.leave((first, None))
    group = world.groups.describe("weather", has_offsets=False)
    assert (group.state, group.protocol, group.members[0].metadata) == ("PreparingRebalance", "", b"")
    assert world.groups.describe("simple", has_offsets=True).state == "Empty"
    assert world.groups.describe("none", has_offsets=False).state == "Dead"


def test_the_table_of_states() -> None:
    assert len(ALLOWED) == len(TRANSITIONS), "each transition stands once"
    assert not any(row.source is State.DEAD for row in TRANSITIONS)
    assert {row.target for row in TRANSITIONS} | {State.EMPTY} == set(State)
