"""Group instance ids: taken over when nothing runs under them, waited for when something may."""

from __future__ import annotations

import threading

import pytest

from keylane.errors import BrokerUnavailableError, UsageError
from keylane.spark import static_members
from keylane.spark.static_members import StaticMembers


class Clock:
    """A clock that moves by what is slept."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(static_members, "time", made)
    monkeypatch.setattr(static_members, "_ended_here", {})
    return made


def never() -> bool:
    return False


def listed(*names: str, life: int = 1) -> dict[str, str]:
    """Of a group, as the coordinator has it: a member that joins anew gets another id."""
    return {name: f"{name}-id-{life}" for name in names}


def test_ids_that_nobody_holds_are_free_at_once(clock: Clock) -> None:
    members = StaticMembers("g", "lane", 2, 10.0, lambda: listed("other-0", "lane-2"))
    members.await_earlier(never)
    assert clock.now == 1000.0
    assert [members.id_of(lane) for lane in range(3)] == ["lane-0", "lane-1", "lane-2"], "a lane may be added later"


def test_members_of_an_earlier_run_are_waited_for(clock: Clock) -> None:
    members = StaticMembers("g", "lane", 2, 10.0, lambda: listed("lane-1") if clock.now < 1008 else {})
    members.await_earlier(never)
    assert 1008 <= clock.now < 1009


def test_members_that_do_not_expire_belong_to_another_query(clock: Clock) -> None:
    members = StaticMembers("g", "lane", 2, 10.0, lambda: listed("lane-0", "lane-1"))
    with pytest.raises(UsageError, match=r"'g' has had the members lane-0, lane-1 for 40 s.*name=.*members='dynamic'"):
        members.await_earlier(never)


def test_ids_that_a_query_of_this_process_ended_are_taken_over(clock: Clock) -> None:
    members = StaticMembers("g", "lane", 2, 10.0, lambda: listed("lane-0", "lane-1"))
    assert [members.id_of(lane) for lane in range(2)] == ["lane-0", "lane-1"]
    members.ended()
    members.await_earlier(never)
    assert clock.now == 1000.0
    other_group = StaticMembers("h", "lane", 1, 10.0, lambda: listed("lane-0"))
    with pytest.raises(UsageError):
        other_group.await_earlier(never)


def test_a_start_that_was_stopped_while_it_waited_frees_nothing(clock: Clock) -> None:
    """The ids are those of lanes that run, here or in another process."""
    second = StaticMembers("g", "lane", 2, 10.0, lambda: listed("lane-0", "lane-1"))
    second.await_earlier(lambda: clock.now > 1003)
    second.ended()
    with pytest.raises(UsageError, match="another query runs under this name"):
        StaticMembers("g", "lane", 2, 10.0, lambda: listed("lane-0", "lane-1")).await_earlier(never)


def test_an_entry_of_another_member_id_is_somebody_elses(clock: Clock) -> None:
    """Another process took the name over, within the session timeout or after it."""
    members = StaticMembers("g", "lane", 1, 10.0, lambda: listed("lane-0"))
    members.id_of(0)
    members.ended()
    members = StaticMembers("g", "lane", 1, 10.0, lambda: listed("lane-0", life=2))
    with pytest.raises(UsageError):
        members.await_earlier(never)


def test_ids_stay_taken_where_the_group_cannot_be_asked(clock: Clock) -> None:
    def unknown() -> dict[str, str]:
        raise BrokerUnavailableError("no broker")

    members = StaticMembers("g", "lane", 1, 10.0, unknown)
    members.id_of(0)
    members.ended()
    next_one = StaticMembers("g", "lane", 1, 10.0, lambda: listed("lane-0") if clock.now < 1008 else {})
    next_one.await_earlier(never)
    assert clock.now >= 1008


def test_a_stop_ends_the_wait(clock: Clock) -> None:
    members = StaticMembers("g", "lane", 1, 10.0, lambda: listed("lane-0"))
    members.await_earlier(lambda: clock.now > 1003)
    assert clock.now < 1005


def test_a_stop_does_not_wait_for_a_broker_that_does_not_answer() -> None:
    asked, answers = threading.Event(), threading.Event()

    def member_ids() -> dict[str, str]:
        asked.set()
        answers.wait()
        return listed("lane-0")

    members = StaticMembers("g", "lane", 1, 10.0, member_ids)
    waiting = threading.Thread(target=members.await_earlier, args=(asked.is_set,))
    waiting.start()
    waiting.join(10)
    try:
        assert not waiting.is_alive()
    finally:
        answers.set()
