"""Timeouts and limits of a consumer group (KIP-848), one by one; what members do at random is in tests/property."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

import pytest

from keylane.coordinator.consumer_groups.protocol import GroupSettings, HeartbeatAnswer, HeartbeatRequest
from keylane.coordinator.consumer_groups.records import CLASSIC_GROUP
from keylane.coordinator.consumer_groups.registry import ConsumerGroups
from keylane.coordinator.formats import GroupValue
from keylane.coordinator.groups.protocol import JoinRequest, SyncAnswer, SyncRequest
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SESSION_MS, REBALANCE_MS = 10_000, 3_000
TOPIC = uuid.UUID(int=1)


class FakeTopic(NamedTuple):
    topic_id: uuid.UUID
    partition_count: int


class FakeTopics:
    version = 1

    def get(self, name: str) -> FakeTopic | None:
        return {"t": FakeTopic(TOPIC, 4), "t2": FakeTopic(uuid.UUID(int=2), 1)}.get(name)

    def names(self) -> Iterable[str]:
        return ["t", "t2"]

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        return "t" if topic_id == TOPIC else None


class Coordinator:
    def __init__(
        self,
        *,
        assignment_interval_ms: int = 0,
        max_size: int = 9,
        can_downgrade: bool = True,
        classic_max_size: int = 9,
    ) -> None:
        settings = GroupSettings(
            SESSION_MS, 100, assignment_interval_ms, max_size, True, can_downgrade, classic_max_size
        )
        self.groups = ConsumerGroups(FakeTopics(), lambda _: settings, lambda: "made")

    def join(self, name: str, now_ms: int, **said: object) -> HeartbeatAnswer:
        request = HeartbeatRequest("g", name, 0, "c", "/h", None, None, REBALANCE_MS, ("t",), None, None, {})
        return self.groups.heartbeat(request._replace(**said), now_ms)[0]  # type: ignore[arg-type]

    def heartbeat(self, name: str, epoch: int, now_ms: int, owned: set[int] | None = None) -> HeartbeatAnswer:
        has = None if owned is None else {TOPIC: frozenset(owned)} if owned else {}
        return self.groups.heartbeat(HeartbeatRequest("g", name, epoch, "c", "/h", owned=has), now_ms)[0]

    def join_classic(self, name: str, now_ms: int, topics: Sequence[str] = ("t",), instance: str | None = None) -> int:
        """JoinGroup of a member that has nothing: the generation."""
        listed = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
        said = b"\0\0" + len(topics).to_bytes(4, "big") + listed + b"\xff" * 4
        request = JoinRequest(name, instance, "c", "/h", SESSION_MS, REBALANCE_MS, "consumer", (("range", said),))
        answer, self.records = self.groups.join("g", request, now_ms)
        assert answer.error == codes.NONE
        return answer.generation

    def sync(self, name: str, generation: int, now_ms: int) -> SyncAnswer:
        return self.groups.sync("g", SyncRequest(name, None, generation, None, None, {}), now_ms)

    @property
    def members(self) -> set[str]:
        return set(self.groups.by_id["g"].members)


def test_who_does_not_give_back_in_time_is_removed() -> None:
    coordinator = Coordinator()
    first = coordinator.join("m1", 0)
    second = coordinator.join("m2", 10)
    assert coordinator.heartbeat("m1", first.epoch, 20, {0, 1, 2, 3}).error == codes.NONE
    assert coordinator.heartbeat("m1", first.epoch, 2_900, {0, 1, 2, 3}).error == codes.NONE
    said_nothing = coordinator.heartbeat("m1", first.epoch, 2_950)
    assert said_nothing.epoch == first.epoch, "who does not say what it has still has it"
    assert coordinator.groups.tick(20 + REBALANCE_MS - 1) == []
    assert coordinator.groups.next_deadline_ms is not None
    assert coordinator.groups.next_deadline_ms <= 20 + REBALANCE_MS
    assert coordinator.groups.tick(20 + REBALANCE_MS)
    assert coordinator.members == {"m2"}
    got = coordinator.heartbeat("m2", second.epoch, 3_100)
    assert got.assignment is not None
    assert set(got.assignment[TOPIC]) == {0, 1, 2, 3}
    assert coordinator.heartbeat("m1", first.epoch, 3_200).error == codes.UNKNOWN_MEMBER_ID


def test_who_is_silent_is_removed() -> None:
    coordinator = Coordinator()
    epoch = coordinator.join("m1", 0).epoch
    coordinator.heartbeat("m1", epoch, 5_000)
    assert coordinator.groups.tick(5_000 + SESSION_MS - 1) == []
    ((group, records),) = coordinator.groups.tick(5_000 + SESSION_MS)
    assert (group, coordinator.members) == ("g", set())
    assert records


def test_an_assignment_waits_for_its_interval() -> None:
    coordinator = Coordinator(assignment_interval_ms=1_000)
    first = coordinator.join("m1", 1)
    second = coordinator.join("m2", 10)
    assert second.epoch == first.epoch, "it is in the epoch of the last assignment"
    assert coordinator.heartbeat("m2", second.epoch, 900).epoch == first.epoch
    assert coordinator.heartbeat("m2", second.epoch, 1_001).epoch == first.epoch + 1


def test_a_group_has_a_largest_size() -> None:
    coordinator = Coordinator(max_size=1)
    coordinator.join("m1", 0)
    refused = coordinator.join("m2", 1)
    assert (refused.error, refused.message) == (
        codes.GROUP_MAX_SIZE_REACHED,
        "The consumer group has reached its maximum capacity of 1 members.",
    )
    assert coordinator.join("m1", 2).error == codes.NONE


def test_a_repeated_request_is_taken_and_an_older_one_is_not() -> None:
    coordinator = Coordinator()
    first = coordinator.join("m1", 0)
    coordinator.join("m2", 1)
    coordinator.heartbeat("m1", first.epoch, 2, {0, 1, 2, 3})
    newer = coordinator.heartbeat("m1", first.epoch, 3, {0, 1})
    assert newer.epoch == first.epoch + 1
    assert coordinator.heartbeat("m1", first.epoch, 4, {0, 1}).epoch == newer.epoch, "its answer was lost"
    assert coordinator.heartbeat("m1", first.epoch, 5, {0, 1, 2}).error == codes.FENCED_MEMBER_EPOCH
    assert coordinator.heartbeat("m1", first.epoch, 6).error == codes.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(("group", "epoch"), [("g" * 40_000, 0), ("  ", 0)])
def test_names_that_no_record_can_hold_are_refused(group: str, epoch: int) -> None:
    coordinator = Coordinator()
    request = HeartbeatRequest(group, "m", epoch, "c", "/h", None, None, 1, ("t",), None, None, {})
    answer, records = coordinator.groups.heartbeat(request, 0)
    assert (answer.error, records) == (codes.INVALID_REQUEST, [])


@pytest.mark.parametrize(("pattern", "expected"), [(".", {1}), ("t.*", {1, 2}), ("2", set()), ("(t+)+(t+)+x", set())])
def test_an_expression_matches_whole_names(pattern: str, expected: set[int]) -> None:
    answer = Coordinator().join("m1", 0, topics=(), pattern=pattern)
    assert answer.assignment is not None
    assert {topic.int for topic in answer.assignment} == expected


# Members of the classic protocol


def test_a_classic_member_that_does_not_ask_for_its_assignment_is_removed() -> None:
    coordinator = Coordinator()
    coordinator.join("m1", 0)
    generation = coordinator.join_classic("c1", 10)
    assert coordinator.groups.tick(10 + REBALANCE_MS - 1) == []
    assert coordinator.groups.next_deadline_ms is not None
    assert coordinator.groups.next_deadline_ms <= 10 + REBALANCE_MS
    assert coordinator.groups.tick(10 + REBALANCE_MS)
    assert coordinator.members == {"m1"}
    assert coordinator.sync("c1", generation, 4_000).error == codes.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_does_not_join_again_is_removed() -> None:
    coordinator = Coordinator()
    first = coordinator.join("m1", 0)
    generation = coordinator.join_classic("c1", 10)
    assert coordinator.sync("c1", generation, 20).error == codes.NONE
    coordinator.join("m2", 1_000)
    for now_ms in (2_000, 3_000):
        assert (
            coordinator.groups.heartbeat_of_classic("g", "c1", None, generation, now_ms) == codes.REBALANCE_IN_PROGRESS
        )
    assert coordinator.groups.tick(2_000 + REBALANCE_MS - 1) == []
    assert coordinator.groups.tick(2_000 + REBALANCE_MS), "it was told at 2,000 first"
    assert coordinator.members == {"m1", "m2"}
    assert coordinator.heartbeat("m1", first.epoch, 5_100, {0, 1, 2, 3}).error == codes.NONE


def test_a_classic_member_has_a_session_of_its_own() -> None:
    coordinator = Coordinator()
    coordinator.join("m1", 0)
    generation = coordinator.join_classic("c1", 10)
    coordinator.sync("c1", generation, 20)
    coordinator.heartbeat("m1", 2, 5_000)
    coordinator.groups.heartbeat_of_classic("g", "c1", None, generation, 9_000)
    assert coordinator.groups.tick(15_000)
    assert coordinator.groups.by_id == {}, "m1 is gone, and with it the group of its protocol"


def test_the_last_of_its_protocol_leaves_a_group_of_the_classic_one() -> None:
    coordinator = Coordinator()
    coordinator.join("m1", 0)
    coordinator.join_classic("c1", 10)
    coordinator.join_classic("c2", 20)
    epoch = coordinator.groups.by_id["g"].epoch
    leave = HeartbeatRequest("g", "m1", -1, "c", "/h")
    _, records = coordinator.groups.heartbeat(leave, 30)
    assert coordinator.groups.by_id == {}
    assert all(record.value is None for record in records[:-1])
    kind, _, value = records[-1]
    assert kind == CLASSIC_GROUP
    assert isinstance(value, GroupValue)
    assert (value.protocol_type, value.generation, value.protocol) == ("consumer", epoch, "range")
    assert [member.member_id for member in value.members] == ["c1", "c2"]


@pytest.mark.parametrize("said", [{"can_downgrade": False}, {"classic_max_size": 1}])
def test_a_group_that_is_not_to_be_downgraded_goes_on(said: dict[str, int]) -> None:
    coordinator = Coordinator(**said)  # type: ignore[arg-type]
    coordinator.join("m1", 0)
    coordinator.join_classic("c1", 10)
    coordinator.join_classic("c2", 20)
    coordinator.groups.heartbeat(HeartbeatRequest("g", "m1", -1, "c", "/h"), 30)
    assert coordinator.members == {"c1", "c2"}


def test_a_group_without_members_is_not_downgraded() -> None:
    coordinator = Coordinator()
    coordinator.join("m1", 0)
    coordinator.groups.heartbeat(HeartbeatRequest("g", "m1", -1, "c", "/h"), 30)
    assert coordinator.members == set()


def test_metadata_that_is_no_subscription_is_refused() -> None:
    coordinator = Coordinator()
    coordinator.join("m1", 0)
    request = JoinRequest("c1", None, "c", "/h", SESSION_MS, REBALANCE_MS, "consumer", (("range", b"\0"),))
    answer, records = coordinator.groups.join("g", request, 1)
    assert (answer.error, records) == (codes.INCONSISTENT_GROUP_PROTOCOL, [])
