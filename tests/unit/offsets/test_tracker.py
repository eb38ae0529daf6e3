"""`PartitionTracker`, event by event. `tests/property/offsets` runs it against a naive model."""

from __future__ import annotations

import pickle

import pytest

from keylane.errors import InternalError
from keylane.offsets import DispatchBound, OffsetMap, PartitionTracker, decode, encode
from keylane.offsets.tracker import COMPACT_AT, THIN_AT

BOUND = DispatchBound.for_cap(4096)


def size(tracker: PartitionTracker) -> int:
    """What it holds, in bytes, without what each has."""
    return len(pickle.dumps(tracker)) - len(pickle.dumps(PartitionTracker(0)))


def tracked(base: int, polled: int) -> PartitionTracker:
    """Polled and dispatched, nothing complete."""
    tracker = PartitionTracker(base)
    tracker.observe(range(base, base + polled))
    tracker.mark_dispatched(base + polled - 1)
    return tracker


def test_the_base_is_the_lowest_incomplete_offset() -> None:
    tracker = tracked(10, 5)
    assert (tracker.base, tracker.position, tracker.pending) == (10, 15, 5)
    assert tracker.complete([12, 11]) == 2
    assert tracker.base == 10
    assert tracker.snapshot() == OffsetMap(10, [10], 12)
    assert tracker.complete([10]) == 1
    assert tracker.base == 13
    assert tracker.snapshot() == OffsetMap(13)
    assert tracker.complete([13, 14]) == 2
    assert (tracker.base, tracker.pending, tracker.highest_completed) == (15, 0, 14)


def test_completing_twice_or_below_the_base_changes_nothing() -> None:
    tracker = tracked(0, 4)
    tracker.complete([0, 2])
    before = (tracker.changes, tracker.snapshot(), tracker.pending)
    assert tracker.complete([0, 2]) == 0
    assert tracker.complete([]) == 0
    assert (tracker.changes, tracker.snapshot(), tracker.pending) == before


def test_changes_tells_whether_a_commit_would_say_something_new() -> None:
    tracker = PartitionTracker(0)
    tracker.observe(range(4))
    tracker.mark_dispatched(3)
    assert tracker.changes == 0
    tracker.complete([3])
    first = tracker.changes
    assert first > 0
    tracker.observe([4, 5])
    assert tracker.changes == first
    tracker.observe_end(9)
    assert tracker.changes == first
    tracker.complete([0, 1, 2, 4, 5])
    assert tracker.changes > first


def test_gaps_in_the_log_count_as_complete() -> None:
    tracker = PartitionTracker(100)
    assert tracker.observe([103, 104, 110]) == 0
    assert (tracker.base, tracker.position, tracker.pending) == (103, 111, 3)
    tracker.complete([103, 104])
    assert tracker.base == 110
    tracker.complete([110])
    assert tracker.base == 111
    tracker.observe_end(115)
    assert (tracker.base, tracker.position) == (115, 115)
    tracker.observe_end(112)
    assert tracker.position == 115


def test_a_record_polled_again_is_a_defect_unless_it_is_below_the_base() -> None:
    tracker = tracked(10, 5)
    tracker.complete([10, 11])
    assert tracker.observe([10, 11]) == 2
    with pytest.raises(InternalError, match="offset 13 was polled again; the next one expected is 15"):
        tracker.observe([13])
    with pytest.raises(InternalError, match="offset 12 was polled again"):
        tracker.observe([11, 12, 13, 14, 15])


def test_what_was_never_polled_can_neither_be_dispatched_nor_complete() -> None:
    tracker = PartitionTracker(OffsetMap(0, [0], 50))
    tracker.observe(range(5))
    with pytest.raises(InternalError, match="offset 20 completed and was never polled; the next one is 5"):
        tracker.complete([20])
    with pytest.raises(InternalError, match="offset 60 was dispatched and never polled"):
        tracker.mark_dispatched(60)


# --- starting from a committed map ---


def test_what_the_committed_map_has_complete_is_skipped() -> None:
    tracker = PartitionTracker(OffsetMap(100, [100, 103], 105))
    assert tracker.observe(range(100, 104)) == 2
    assert [o for o in range(100, 104) if not tracker.is_complete(o)] == [100, 103]
    assert tracker.observe(range(104, 108)) == 2
    assert tracker.pending == 4
    tracker.complete([100, 103, 106, 107])
    assert tracker.base == 108


def test_the_committed_map_is_carried_on_before_its_records_are_polled() -> None:
    committed = OffsetMap(0, [0, 5_000], 4_999_999)
    tracker = PartitionTracker(committed)
    assert tracker.snapshot() == committed
    tracker.observe(range(100))
    assert tracker.snapshot() == committed
    tracker.mark_dispatched(0)
    tracker.complete([0])
    assert tracker.snapshot() == OffsetMap(5_000, [5_000], 4_999_999)
    assert tracker.position == 5_000
    assert tracker.observe(range(100, 5_002)) == 4_901
    tracker.complete([5_000])
    assert tracker.base == 5_000_000


def test_a_map_whose_base_is_complete_moves_the_base_and_takes_its_records_as_skipped() -> None:
    tracker = PartitionTracker(OffsetMap(100, [104], 110))
    assert (tracker.base, tracker.position) == (104, 104)
    assert tracker.observe(range(100, 106)) == 5
    assert tracker.pending == 1


def test_a_hostile_map_costs_nothing() -> None:
    tracker = PartitionTracker(decode("ZX////8=", 0))  # RunLength v2: one run of 2^31 - 1 incompletes
    assert tracker.snapshot() == OffsetMap(0)
    complete = PartitionTracker(OffsetMap(0, [0, range(10, 2**31)], 2**40))
    assert complete.observe(range(20)) == 9
    assert complete.incomplete == 1 + 2**31 - 10
    assert complete.snapshot().highest_completed == 2**40


def test_incompletes_of_the_map_that_left_the_log_count_as_complete() -> None:
    tracker = PartitionTracker(OffsetMap(0, [0, 4, 7], 9))
    assert tracker.incomplete == 3
    tracker.observe([0, 1, 2, 3, 6, 7])
    assert tracker.incomplete == 2
    tracker.complete([0])
    assert tracker.base == 7


# --- retention ---


def test_retention_drops_what_was_not_polled_and_counts_what_is_lost() -> None:
    tracker = PartitionTracker(OffsetMap(100, [100, 103], 105))
    assert tracker.drop_below(90) == 0
    assert tracker.drop_below(103) == 1
    assert tracker.base == 103
    assert tracker.drop_below(110) == 1 + 4  # 103, and 106 to 109 of which the map says nothing
    assert (tracker.base, tracker.position, tracker.incomplete) == (110, 110, 0)


def test_retention_leaves_what_was_polled() -> None:
    tracker = tracked(0, 10)
    tracker.complete([5])
    assert tracker.drop_below(7) == 0
    assert tracker.base == 0
    assert tracker.drop_below(15) == 5
    assert (tracker.base, tracker.position, tracker.pending) == (0, 15, 9)


# --- the dispatch bound ---


def test_span_and_incomplete_follow_dispatch_not_polling() -> None:
    tracker = PartitionTracker(0)
    tracker.observe(range(100))
    assert (tracker.span, tracker.incomplete) == (0, 0)
    tracker.mark_dispatched(9)
    assert (tracker.span, tracker.incomplete) == (10, 10)
    tracker.complete([3, 4])
    assert (tracker.span, tracker.incomplete) == (10, 8)
    tracker.complete([0, 1, 2])
    assert (tracker.span, tracker.incomplete) == (5, 5)
    tracker.complete([49])  # a completion says that it was dispatched
    assert (tracker.span, tracker.incomplete) == (45, 44)


def test_one_stuck_record_never_stops_its_partition() -> None:
    tracker = PartitionTracker(0)
    for start in range(0, 5_000_000, 50_000):
        batch = range(start, start + 50_000)
        tracker.observe(batch)
        assert tracker.dispatch_limit(BOUND) == (24_495 if start == 0 else start + 381)
        tracker.complete(batch[1:] if start == 0 else batch)
        assert size(tracker) <= THIN_AT
    assert tracker.snapshot() == OffsetMap(0, [0], 4_999_999)
    assert len(encode(tracker.snapshot())) == 12
    tracker.complete([0])
    assert tracker.base == 5_000_000
    assert tracker.snapshot() == OffsetMap(5_000_000)


def test_the_window_is_cut_as_the_base_moves() -> None:
    tracker = PartitionTracker(0)
    for start in range(0, 200_000, 100):
        tracker.observe(range(start, start + 100))
        tracker.complete(range(start, start + 100))
        assert size(tracker) <= COMPACT_AT + 100
    assert tracker.base == 200_000


def test_a_wide_gap_costs_nothing() -> None:
    tracker = PartitionTracker(0)
    tracker.observe([0, 1, 2, 3_000_000_000, 3_000_000_001])
    assert size(tracker) < 1_000
    assert tracker.dispatch_limit(BOUND) < 3_000_000_000  # no run of 32 bits reaches it
    tracker.complete([1, 2])
    assert tracker.dispatch_limit(BOUND) < 3_000_000_000
    tracker.complete([0])
    assert tracker.base == 3_000_000_000
    assert tracker.dispatch_limit(BOUND) >= 3_000_000_001
    tracker.complete([3_000_000_001])
    assert tracker.snapshot() == OffsetMap(3_000_000_000, [3_000_000_000], 3_000_000_001)


def test_stuck_records_complete_in_any_order() -> None:
    tracker = PartitionTracker(0)
    stuck = [5, 700, 40_000]
    for start in range(0, 3 * THIN_AT, 1024):
        tracker.observe(range(start, start + 1024))
        tracker.complete([o for o in range(start, start + 1024) if o not in stuck])
    tracker.observe([3 * THIN_AT])
    assert size(tracker) <= THIN_AT
    assert [o for o in [*stuck, 6, 699, 50_000] if tracker.is_complete(o)] == [6, 699, 50_000]
    assert tracker.snapshot() == OffsetMap(5, stuck, 3 * THIN_AT - 1)
    assert tracker.complete([700, 699]) == 1
    assert tracker.snapshot() == OffsetMap(5, [5, 40_000], 3 * THIN_AT - 1)
    assert tracker.complete([5]) == 1
    assert tracker.base == 40_000
    assert tracker.complete([40_000]) == 1
    assert tracker.base == 3 * THIN_AT
    assert tracker.pending == 1
