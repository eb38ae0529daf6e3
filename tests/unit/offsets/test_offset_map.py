"""`OffsetMap`: what it holds, what it refuses."""

from __future__ import annotations

import pickle

import pytest

from keylane.errors import UsageError
from keylane.offsets import OffsetMap

EXAMPLE = OffsetMap(100, [100, 103], 105)


def test_incomplete_iterates_offsets_in_order_and_is_a_set() -> None:
    assert list(EXAMPLE.incomplete) == [100, 103]
    assert EXAMPLE.incomplete == {100, 103}
    assert 103 in EXAMPLE.incomplete
    assert 104 not in EXAMPLE.incomplete
    assert not EXAMPLE.incomplete.__contains__("103")
    assert EXAMPLE.incomplete & {103, 104} == {103}
    assert (len(EXAMPLE.incomplete), EXAMPLE.incomplete_count) == (2, 2)


def test_complete_is_what_lies_below_the_base_or_up_to_the_highest_and_is_not_incomplete() -> None:
    assert [o for o in range(97, 110) if EXAMPLE.is_complete(o)] == [97, 98, 99, 101, 102, 104, 105]


def test_offsets_and_ranges_in_any_order_become_disjoint_runs() -> None:
    made = OffsetMap(0, [9, range(3, 6), 5, 4, range(6, 8), range(2, 2), 20], 30)
    assert made.runs == (range(3, 8), range(9, 10), range(20, 21))
    assert made == OffsetMap(0, [3, 4, 5, 6, 7, 9, 20], 30)
    assert OffsetMap(5, range(5, 8), 9) == OffsetMap(5, [5, 6, 7], 9)


def test_without_a_highest_nothing_from_the_base_on_is_complete() -> None:
    empty = OffsetMap(7)
    assert (empty.highest_completed, empty.span, empty.run_count) == (6, 0, 0)
    assert empty.is_complete(6)
    assert not empty.is_complete(7)


def test_incompletes_above_the_highest_say_nothing_new() -> None:
    assert OffsetMap(100, [100, 103, 104, range(106, 2**40)], 105) == OffsetMap(100, [100, 103, 104], 105)
    assert OffsetMap(100, [100], 99) == OffsetMap(100)


def test_a_run_of_any_length_costs_one_run() -> None:
    huge = OffsetMap(0, [range(2**31)], 2**31)
    assert huge.run_count == 1
    assert huge.incomplete_count == 2**31
    assert huge.is_complete(2**31)
    assert not huge.is_complete(2**31 - 1)


def test_trimmed_drops_incompletes_at_the_top_and_keeps_the_state() -> None:
    foreign = OffsetMap(10, [10, 12, 13], 13)
    assert foreign.trimmed() == OffsetMap(10, [10], 11)
    assert EXAMPLE.trimmed() is EXAMPLE
    assert OffsetMap(10, range(10, 14), 13).trimmed() == OffsetMap(10)


@pytest.mark.parametrize(("offset", "first"), [(0, 100), (100, 100), (101, 103), (103, 103), (104, 106), (200, 200)])
def test_first_incomplete(offset: int, first: int) -> None:
    assert EXAMPLE.first_incomplete(offset) == first


def test_incomplete_within_cuts_runs_at_the_edges() -> None:
    made = OffsetMap(0, [range(2, 5), 7, range(9, 12)], 20)
    assert made.incomplete_within(0, 21) == [(2, 5), (7, 8), (9, 12)]
    assert made.incomplete_within(3, 10) == [(3, 5), (7, 8), (9, 10)]
    assert made.incomplete_within(5, 7) == []


@pytest.mark.parametrize("start", [0, 4, 5, 6, 8, 10, 12, 40])
@pytest.mark.parametrize("end", [0, 5, 7, 8, 11, 12, 13, 30])
def test_what_remains_is_every_offset_of_the_log_that_is_not_complete(start: int, end: int) -> None:
    for made in (OffsetMap(5, [range(5, 7), 10], 11), OffsetMap(5), OffsetMap(5, [], 11), OffsetMap(0, [0], 2**40)):
        assert made.remaining(start, end) == sum(not made.is_complete(offset) for offset in range(start, end))


def test_it_is_a_value() -> None:
    assert OffsetMap(100, [103, 100], 105) == EXAMPLE
    assert OffsetMap(100, [100, 103], 106) != EXAMPLE
    assert OffsetMap(99, [100, 103], 105) != EXAMPLE
    assert EXAMPLE != "OffsetMap"
    assert len({EXAMPLE, OffsetMap(100, [103, 100], 105)}) == 1
    assert pickle.loads(pickle.dumps(EXAMPLE)) == EXAMPLE
    with pytest.raises(AttributeError, match="base cannot be set"):
        EXAMPLE.base = 3


def test_the_repr_is_one_short_line() -> None:
    assert repr(EXAMPLE) == "OffsetMap(base=100, incomplete={100, 103}, highest_completed=105)"
    assert repr(OffsetMap(0, range(3), 9)) == "OffsetMap(base=0, incomplete={0–2}, highest_completed=9)"
    assert len(repr(OffsetMap(0, range(0, 10_000, 2).__iter__(), 10_001))) < 120


@pytest.mark.parametrize(
    ("base", "incomplete", "highest", "names"),
    [
        (-1, (), None, "base=-1"),
        (2**63, (), None, f"base={2**63}"),
        (5, (), 3, "highest_completed=3"),
        (5, (), 2**63, f"highest_completed={2**63}"),
        (5, (4,), 9, "incomplete offset 4 is below base=5"),
        (5, (-(2**70),), 9, "is below base=5"),
        (5, (range(5, 9, 2),), 9, "step 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(base: int, incomplete: tuple[int], highest: int | None, names: str) -> None:
    with pytest.raises(UsageError, match=names.replace("*", r"\*")):
        OffsetMap(base, incomplete, highest)
