"""The commit rule of Hermes' `OffsetCommitter`, sentence by sentence."""

from __future__ import annotations

from collections import deque

import pytest

from kit.commit_rule import (
    CommitState,
    Drained,
    PartitionKey,
    PartitionOffset,
    commit_offset,
    drain,
    plan_commits,
)

FLIGHTS = PartitionKey("weather", "flights", 3)
OTHER = PartitionKey("audit", "flights", 3)


def records(*offsets: int, key: PartitionKey = FLIGHTS) -> list[PartitionOffset]:
    return [PartitionOffset(key, offset) for offset in offsets]


def test_completed_plus_one_is_committed() -> None:
    commits, state = plan_commits(CommitState(), Drained(records(5, 6, 7), records(5, 6, 7)))
    assert commits == {FLIGHTS: 8}
    assert state == CommitState()


def test_the_lowest_in_flight_holds_the_commit_back_and_the_highest_completed_is_carried_over() -> None:
    commits, state = plan_commits(CommitState(), Drained(records(6, 9), records(5, 6, 8, 9)))
    assert commits == {FLIGHTS: 5}
    assert state == CommitState({FLIGHTS: {5, 8}}, {FLIGHTS: 9})
    commits, state = plan_commits(state, Drained(records(5), []))
    assert commits == {FLIGHTS: 8}
    commits, state = plan_commits(state, Drained(records(8), []))
    assert commits == {FLIGHTS: 10}
    assert state == CommitState()


def test_with_nothing_completed_the_lowest_in_flight_is_committed() -> None:
    commits, state = plan_commits(CommitState(), Drained([], records(41, 40)))
    assert commits == {FLIGHTS: 40}
    assert state == CommitState({FLIGHTS: {40, 41}}, {})


def test_subscriptions_commit_apart() -> None:
    drained = Drained(records(0, 1) + records(1, key=OTHER), records(0, 1) + records(0, 1, key=OTHER))
    commits, state = plan_commits(CommitState(), drained)
    assert commits == {FLIGHTS: 2, OTHER: 0}
    assert state == CommitState({OTHER: {0}}, {OTHER: 1})


def test_a_partition_without_news_is_not_committed_again() -> None:
    _, state = plan_commits(CommitState(), Drained(records(0), records(0)))
    assert plan_commits(state, Drained([], [])) == ({}, CommitState())


def test_the_rule_changes_no_argument() -> None:
    before = CommitState({FLIGHTS: frozenset({1, 2})}, {FLIGHTS: 3})
    plan_commits(before, Drained(records(1), records(4)))
    assert before == CommitState({FLIGHTS: frozenset({1, 2})}, {FLIGHTS: 3})


class RacingQueue(deque[PartitionOffset]):
    """While it is drained, a worker polls and completes one more record."""

    def __init__(self, start: list[PartitionOffset], other: deque[PartitionOffset]) -> None:
        super().__init__(start)
        self.other = other
        self.raced = False

    def popleft(self) -> PartitionOffset:
        if not self.raced:
            self.raced = True
            self.other.append(PartitionOffset(FLIGHTS, 2))
            self.append(PartitionOffset(FLIGHTS, 2))
        return super().popleft()


def test_completed_is_drained_first_so_that_no_record_is_in_flight_for_ever() -> None:
    in_flight = deque(records(0, 1))
    completed = RacingQueue(records(0, 1), in_flight)
    first = drain(completed, in_flight)
    assert first == Drained(records(0, 1), records(0, 1, 2))
    _, state = plan_commits(CommitState(), first)
    commits, state = plan_commits(state, drain(completed, in_flight))
    assert commits == {FLIGHTS: 3}
    assert state == CommitState()


def test_commit_offset() -> None:
    assert commit_offset(9, [7, 5]) == 5
    assert commit_offset(9, []) == 10
    assert commit_offset(None, [7, 5]) == 5
    with pytest.raises(ValueError, match="no offset to commit"):
        commit_offset(None, [])
