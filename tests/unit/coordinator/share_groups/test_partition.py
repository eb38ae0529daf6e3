"""One partition of a share group: what the property's model has no word for."""

from __future__ import annotations

import pytest

from keylane.coordinator.share_groups.partition import (
    ACCEPT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquired,
    Limits,
    SharePartition,
    State,
)
from keylane.wire import codes

LIMITS = Limits(lock_ms=100, deliveries=5, in_flight=200)


def acquire(partition: SharePartition, first: int, last: int, most: int = 500, member: str = "a") -> list[Acquired]:
    """Of one batch."""
    read = (partition.next_offset, last + 1)
    return partition.acquire(member, read, [(first, last)], most, LIMITS, 0, is_strict=False)


def test_a_faulty_record_is_found_by_halves() -> None:
    """What was out too often goes by halves, and at last alone: the others are not given up with it."""
    partition, faulty, done = SharePartition(State(0)), 21, set()
    for _ in range(1_000):
        found = acquire(partition, 0, 63)
        if not found:
            break
        given = {offset for one in found for offset in range(one.first, one.last + 1)}
        ends = RELEASE if faulty in given else ACCEPT
        said = [Acknowledgement(one.first, one.last, (ends,)) for one in found]
        assert partition.acknowledge("a", said, LIMITS, 0)[0] == codes.NONE
        if ends == ACCEPT:
            done |= given
    assert partition.state == State(64)
    assert done >= set(range(64)) - set(range(20, 24))


def test_a_batch_is_given_whole_and_records_in_flight_are_bounded() -> None:
    partition = SharePartition(State(0))
    assert acquire(partition, 0, 9, most=1) == [Acquired(0, 9, 1)]
    assert acquire(partition, 10, 149, most=1) == [Acquired(10, 149, 1)]
    assert acquire(partition, 150, 249, most=1) == [Acquired(150, 249, 1)]
    assert not partition.has_room(LIMITS)
    assert acquire(partition, 250, 299) == []
    assert partition.acknowledge("a", [Acknowledgement(0, 54, (ACCEPT,))], LIMITS, 0) == (codes.NONE, True)
    read = (250, 300)
    assert partition.acquire("a", read, [(250, 299)], 500, LIMITS, 0, is_strict=True) == [Acquired(250, 254, 1)]
    assert acquire(partition, 255, 299) == []


def test_a_part_of_a_batch_is_given_of_records_that_came_back_with_those_behind_it() -> None:
    """Released records of two batches are one run, and a strict fetch of one record reads the first batch alone."""
    partition = SharePartition(State(0))
    assert partition.acquire("a", (0, 3), [(0, 1), (2, 2)], 3, LIMITS, 0, is_strict=False) == [Acquired(0, 2, 1)]
    assert partition.release("a", LIMITS)
    assert partition.acquire("b", (0, 2), [(0, 1)], 1, LIMITS, 0, is_strict=True) == [Acquired(0, 0, 2)]
    assert partition.acquire("c", (1, 3), [(0, 1), (2, 2)], 9, LIMITS, 0, is_strict=True) == [Acquired(1, 2, 2)]


def test_a_record_is_given_out_so_often_and_no_more() -> None:
    partition = SharePartition(State(0))
    for count in range(1, LIMITS.deliveries + 1):
        assert acquire(partition, 0, 0) == [Acquired(0, 0, count)]
        assert partition.acknowledge("a", [Acknowledgement(0, 0, (RELEASE,))], LIMITS, 0) == (codes.NONE, True)
    assert acquire(partition, 0, 0) == []
    assert partition.state == State(1)


def test_a_lock_ends_at_its_time_and_is_renewed_until_then() -> None:
    partition = SharePartition(State(0))
    assert acquire(partition, 0, 1) == [Acquired(0, 1, 1)]
    assert partition.acknowledge("a", [Acknowledgement(1, 1, (RENEW,))], LIMITS, 60) == (codes.NONE, False)
    assert not partition.tick(LIMITS, 99)
    assert acquire(partition, 0, 1, member="b") == []
    assert partition.tick(LIMITS, 100)
    assert acquire(partition, 0, 1, member="b") == [Acquired(0, 0, 2)]
    assert partition.next_deadline_ms == 100  # the new one was acquired at 0, as all here are
    assert partition.tick(LIMITS, 160)
    assert partition.next_deadline_ms is None


def test_a_member_speaks_of_its_own_records_alone() -> None:
    partition = SharePartition(State(0))
    acquire(partition, 0, 1)
    acquire(partition, 2, 3, member="b")
    said = [Acknowledgement(1, 2, (ACCEPT,))]
    for member in "abc":
        assert partition.acknowledge(member, said, LIMITS, 0) == (codes.INVALID_RECORD_STATE, False)
    assert partition.acknowledge("b", [Acknowledgement(2, 3, (ACCEPT,))], LIMITS, 0) == (codes.NONE, True)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ([(5, 5, 1), (3, 3, 1)], codes.INVALID_REQUEST),
        ([(3, 5, 1), (5, 6, 1)], codes.INVALID_REQUEST),
        ([(6, 5, 1)], codes.INVALID_REQUEST),
        ([(0, 0, 5)], codes.INVALID_REQUEST),
        ([(0, 0, -1)], codes.INVALID_REQUEST),
        ([(9, 10, 1)], codes.INVALID_REQUEST),
        ([(-1, 0, 1)], codes.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_said(said: list[tuple[int, int, int]], error: int) -> None:
    partition = SharePartition(State(0))
    acquire(partition, 0, 9)
    before = partition.state
    words = [Acknowledgement(first, last, (kind,)) for first, last, kind in said]
    assert partition.acknowledge("a", words, LIMITS, 0) == (error, False)
    assert partition.acknowledge("a", [Acknowledgement(0, 9, (1, 1))], LIMITS, 0) == (codes.INVALID_REQUEST, False)
    assert partition.state == before


def test_a_partition_that_was_read_by_nobody_has_nothing_to_say_of() -> None:
    partition = SharePartition(State(5))
    said = [Acknowledgement(5, 5, (ACCEPT,))]
    assert partition.acknowledge("a", said, LIMITS, 0) == (codes.INVALID_RECORD_STATE, False)
