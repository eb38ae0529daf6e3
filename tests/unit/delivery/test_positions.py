"""What the group has committed against what a store has seen: offset by offset, the same as the runs say."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from keylane.delivery.positions import joined, map_of, position_of, runs_of, unseen
from keylane.delivery.stores import Position
from keylane.offsets import OffsetMap

TOP = 12
"""No map speaks of offsets from here on."""


@st.composite
def offset_maps(draw: st.DrawFn) -> OffsetMap:
    base = draw(st.integers(0, TOP - 1))
    highest = draw(st.integers(base - 1, TOP - 1))
    incomplete = draw(st.sets(st.integers(base, max(base, highest))))
    return OffsetMap(base, [one for one in incomplete if one <= highest], highest)


def complete(offsets: OffsetMap) -> set[int]:
    return {offset for offset in range(TOP) if offsets.is_complete(offset)}


@given(offset_maps(), offset_maps())
def test_what_is_unseen_is_complete_in_one_and_not_in_the_other(committed: OffsetMap, seen: OffsetMap) -> None:
    runs = unseen(committed, seen)
    assert {offset for run in runs for offset in run} == complete(committed) - complete(seen)
    assert all(len(run) for run in runs)


@given(offset_maps(), offset_maps())
def test_joined_maps_have_complete_what_either_has(one: OffsetMap, other: OffsetMap) -> None:
    assert complete(joined(one, other)) == complete(one) | complete(other)


@given(offset_maps())
def test_a_position_says_what_its_map_says(offsets: OffsetMap) -> None:
    assert complete(map_of(position_of(offsets))) == complete(offsets)


def test_metadata_of_the_users_own_is_no_map() -> None:
    assert map_of(Position(7, "written by an application")) == OffsetMap(7)


@given(st.lists(st.integers(0, TOP)))
def test_runs_have_each_offset_once(offsets: list[int]) -> None:
    runs = runs_of(set(offsets))
    assert [offset for begin, end in runs for offset in range(begin, end)] == sorted(set(offsets))
    assert all(end < begin for (_, end), (begin, _) in pairwise(runs))
