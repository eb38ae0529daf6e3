"""Timeouts and limits of a consumer group (KIP-848), one by one; what members do at random is in tests/property."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

import pytest

from keylane.coordinator.consumer_groups.protocol import GroupSettings, HeartbeatAnswer, HeartbeatRequest
from keylane.coordinator.consumer_groups.registry import ConsumerGroups
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    def __init__(self, *, assignment_interval_ms: int = 0, max_size: int = 9) -> None:
        settings = GroupSettings(SESSION_MS, 100, assignment_interval_ms, max_size)
        self.groups = ConsumerGroups(FakeTopics(), lambda _: settings, lambda: "made")

    def join(self, name: str, now_ms: int, **said: object) -> HeartbeatAnswer:
        request = HeartbeatRequest("g", name, 0, "c", "/h", None, None, REBALANCE_MS, ("t",), None, None, {})
        return self.groups.heartbeat(request._replace(**said), now_ms)[0]  # type: ignore[arg-type]

    def heartbeat(self, name: str, epoch: int, now_ms: int, owned: set[int] | None = None) -> HeartbeatAnswer:
        has = None if owned is None else {TOPIC: frozenset(owned)} if owned else {}
        return self.groups.heartbeat(HeartbeatRequest("g", name, epoch, "c", "/h", owned=has), now_ms)[0]

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
