"""What a member waits for while it joins: asked of the coordinator when it takes long, forgotten when it has joined."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from keylane.consumer.snapshot import Snapshot, Wait
from keylane.errors import BrokerUnavailableError
from keylane.kafka import group_wait
from keylane.kafka.group_descriptions import GroupDescription, Member
from keylane.kafka.group_wait import AFTER_S, GroupWait, wait_of
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g", "session.timeout.ms": 30_000}
WAIT_S = 20.0


def group(state: str, *members: str) -> GroupDescription:
    described = tuple(Member(one, "client", "host", None, ()) for one in members)
    return GroupDescription("g", state, "classic", "", "here:1", described)


T0, T1 = ("t", 0), ("t", 1)


def new_group(target: tuple[tuple[tuple[str, int], ...], ...], state: str = "reconciling") -> GroupDescription:
    """Of KIP-848's protocol: this member has partition 0, and a dead one partition 1."""
    mine, other = target
    members = (
        Member("me", "client", "host", None, (T0,), mine),
        Member("dead", "client", "host", None, (T1,), other),
    )
    return GroupDescription("g", state, "consumer", "uniform", "here:1", members)


@pytest.mark.parametrize(
    ("found", "members"),
    [
        (group("preparing_rebalance", "me", "dead"), ("dead",)),
        (group("completing_rebalance", "dead", "me"), ("dead",)),
        (group("preparing_rebalance", "dead", "other"), ("dead", "other")),
        (group("preparing_rebalance", "me"), None),
        (group("stable", "me", "other"), None),
        (group("dead"), None),
        (new_group(target=((T0, T1), (T1,))), ("dead",)),
        (new_group(target=((T0,), (T1,))), None),
        (new_group(target=((), (T0, T1))), None),
    ],
)
def test_it_waits_for_the_others_in_a_rebalance(found: GroupDescription, members: tuple[str, ...] | None) -> None:
    wait = wait_of(found, "me", 30.0)
    assert wait == (None if members is None else Wait("g", members, 30_000))


def test_a_wait_says_who_how_long_and_what_avoids_it() -> None:
    assert str(Wait("g", ("a-1",), 45_000)) == (
        "waits for the rebalance of group g: member a-1 may be dead: up to 45 s; group.instance.id avoids this "
        "(docs/kubernetes.md#static-members)"
    )
    assert "one of the members a, b, c and 2 more may be dead" in str(Wait("g", ("a", "b", "c", "d", "e"), 45_000))


def test_of_members_that_wait_none_waits_for_another_that_does() -> None:
    a, b, c = (
        Snapshot(waits=Wait("g", names, 45_000)) for names in (("b", "c", "d"), ("a", "c", "d"), ("a", "b", "d"))
    )
    assert a.merge(b).merge(Snapshot()).merge(c).waits == Wait("g", ("d",), 45_000)
    assert Snapshot().merge(Snapshot()).waits is None


def now(member: GroupWait) -> Wait | None:
    """As it is at this moment."""
    return member.wait


class Coordinator:
    """In place of `Admin`: answers what the test puts in."""

    answers: SimpleQueue[Any]
    groups: list[str]

    def __init__(self, kafka: Any, timeout_ms: int) -> None:
        assert (kafka, timeout_ms) == (KAFKA, group_wait.ANSWER_MS)

    def describe_group(self, name: str) -> GroupDescription:
        self.groups.append(name)
        answer = self.answers.get(timeout=WAIT_S)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, GroupDescription)
        return answer


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Coordinator]]:
    Coordinator.answers, Coordinator.groups = SimpleQueue(), []
    monkeypatch.setattr(group_wait, "Admin", Coordinator)
    monkeypatch.setattr(group_wait, "AGAIN_S", 0.01)
    yield Coordinator
    assert not [thread for thread in threading.enumerate() if thread.name == "test-group-wait"]


def test_a_long_join_is_asked_about_told_once_and_forgotten_at_its_end(
    coordinator: type[Coordinator], caplog: pytest.LogCaptureFixture
) -> None:
    member = GroupWait(KAFKA, lambda: "me", "test")
    for seconds in (0.0, 1.0, AFTER_S - 0.1):
        member.joins("wait-join", 100.0 + seconds)
    assert (coordinator.groups, now(member)) == ([], None), "a join takes as long"
    member.joins("wait-join", 100.0 + AFTER_S)
    coordinator.answers.put(BrokerUnavailableError("it does not answer"))
    for _ in range(3):
        coordinator.answers.put(group("preparing_rebalance", "me", "dead"))
    until(lambda: len(coordinator.groups) == 5, "it goes on asking")
    assert now(member) == Wait("g", ("dead",), 30_000)
    assert caplog.messages == [str(Wait("g", ("dead",), 30_000))], "once"
    member.joins("steady", 120.0)
    assert now(member) is None
    coordinator.answers.put(group("preparing_rebalance", "me", "dead"))
    until(lambda: not [one for one in threading.enumerate() if one.name == "test-group-wait"], "nobody asks any more")
    assert now(member) is None, "an answer that comes late is of the wait before"
    member.joins("wait-join", 121.0)
    member.joins("wait-join", 121.0 + AFTER_S - 0.1)
    assert len(coordinator.groups) == 5, "a new wait"
    member.close()


def test_closing_ends_the_questions(coordinator: type[Coordinator]) -> None:
    member = GroupWait(KAFKA, lambda: "me", "test")
    member.joins("wait-join", 100.0)
    member.joins("wait-join", 110.0)
    coordinator.answers.put(group("preparing_rebalance", "me", "dead"))
    coordinator.answers.put(group("preparing_rebalance", "me", "dead"))
    until(lambda: now(member) is not None, "it waits")
    for _ in range(1_000):  # whatever it asks until then
        coordinator.answers.put(group("preparing_rebalance", "me", "dead"))
    member.close()
    assert now(member) is None
    member.joins("wait-join", 120.0)
    member.joins("wait-join", 130.0)
    assert now(member) is None


def test_a_member_too_many_asks_seldom(coordinator: type[Coordinator], monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: SimpleQueue[float | None] = SimpleQueue()
    wait = threading.Event.wait

    def noted(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread().name == "test-group-wait":
            pauses.put(timeout)
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", noted)
    member = GroupWait(KAFKA, lambda: "me", "test")
    member.joins("wait-sync", 100.0)
    member.joins("wait-sync", 100.0 + AFTER_S)
    coordinator.answers.put(new_group(target=((T0,), (T1,))))
    coordinator.answers.put(new_group(target=((T0,), (T1,)), state="stable"))
    assert [pauses.get(timeout=WAIT_S) for _ in range(2)] == [group_wait.AGAIN_S, 30.0]
    member.close()
