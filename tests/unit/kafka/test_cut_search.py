"""Where a log was cut below what was read, by its records alone."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.kafka.cut_search import Found, search

EPOCH = 5
"""Of the newest record that was read."""


def found(records: list[Found], offset: int, log_start: int = 0) -> tuple[int | None, int]:
    """Where the log was cut, and the number of reads."""
    offsets = [one.offset for one in records]
    steps, reads = search(log_start, offset, EPOCH), 0
    try:
        at = next(steps)
        while True:
            reads += 1
            place = bisect_left(offsets, at)
            at = steps.send(records[place] if place < len(records) else None)
    except StopIteration as over:
        return over.value, reads


def run_of(first: int, last: int, epoch: int) -> list[Found]:
    return [Found(offset, epoch) for offset in range(first, last)]


def test_one_read_tells_that_nothing_was_cut() -> None:
    assert found(run_of(0, 100, EPOCH), 80) == (None, 1)
    assert found(run_of(0, 100, EPOCH), 100) == (None, 1)
    assert found([], 0) == (None, 0)
    assert found([], 50, log_start=50) == (None, 0)


def test_the_first_record_of_a_later_leader_is_where_it_was_cut() -> None:
    cut, reads = found(run_of(0, 60, EPOCH) + run_of(60, 100_000, EPOCH + 2), 99_000)
    assert cut == 60
    assert reads < 50
    assert found(run_of(40, 100, EPOCH + 1), 80, log_start=40)[0] == 40, "all of it is another log"


def test_what_nobody_reads_is_no_cut() -> None:
    """Ends of transactions, and what compaction took, lie between the last record and what was committed."""
    assert found(run_of(0, 60, EPOCH), 70)[0] is None
    assert found(run_of(0, 60, EPOCH) + run_of(80, 90, EPOCH + 1), 80)[0] is None
    assert found(run_of(80, 90, EPOCH + 1), 80)[0] is None


@given(st.sets(st.integers(0, 300)), st.data())
def test_it_finds_what_looking_at_each_record_finds(offsets: set[int], data: st.DataObject) -> None:
    epochs = sorted(data.draw(st.lists(st.integers(3, 7), min_size=len(offsets), max_size=len(offsets))))
    records = [Found(*one) for one in zip(sorted(offsets), epochs, strict=True)]
    offset = data.draw(st.integers(0, 301))
    later = [one for one in records if one.offset < offset and one.leader_epoch > EPOCH]
    known = [one.offset for one in records if one.leader_epoch <= EPOCH]
    cut, reads = found(records, offset)
    assert cut == (max(known, default=-1) + 1 if later else None)
    assert reads <= 20


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_short_logs(offset: int) -> None:
    assert found(run_of(0, 3, EPOCH + 1), offset)[0] == 0
