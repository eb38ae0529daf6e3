"""Spans against plain sets of offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from keylane.offsets import OffsetMap
from keylane.spark.structured import spans
from keylane.spark.structured.plans import complete_in_both

parts = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)
names = st.tuples(st.sampled_from("ab"), st.integers(0, 3))


def offsets(some: spans.Spans) -> list[int]:
    return [one for start, stop in some for one in range(start, stop)]


@given(parts)
def test_joined_spans_are_the_union_in_order_without_overlap(some: list[tuple[int, int]]) -> None:
    found = spans.joined(some)
    assert offsets(found) == sorted({one for start, stop in some for one in range(start, stop)})
    assert all(a[1] < b[0] for a, b in pairwise(found))
    assert spans.count(found) == len(offsets(found))


@given(st.integers(0, 30), st.sets(st.integers(0, 60)), st.integers(0, 40), st.integers(0, 70), st.integers(0, 70))
def test_incomplete_is_what_the_map_does_not_have(base: int, some: set[int], span: int, start: int, stop: int) -> None:
    known = OffsetMap(base, {one for one in some if one >= base}, base - 1 + span)
    expected = [one for one in range(max(start, base), stop) if not known.is_complete(one)]
    assert offsets(spans.incomplete(max(start, base), stop, known)) == expected


@given(parts, st.integers(1, 9))
def test_a_split_loses_nothing_and_is_even(some: list[tuple[int, int]], number: int) -> None:
    whole = spans.joined(some)
    found = spans.split(whole, number)
    assert [one for part in found for one in offsets(part)] == offsets(whole)
    sizes = [spans.count(part) for part in found]
    assert len(found) == min(number, spans.count(whole))
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(st.dictionaries(names, parts, max_size=4), st.none() | st.integers(1, 20), st.none() | st.integers(1, 20))
def test_tasks_keep_every_offset_and_both_bounds(
    wanted: dict[tuple[str, int], list[tuple[int, int]]], least: int | None, most: int | None
) -> None:
    whole = {name: spans.joined(some) for name, some in wanted.items()}
    found = spans.tasks(whole, least, most)
    for name, some in whole.items():
        assert [one for task, part in found if task == name for one in offsets(part)] == offsets(some)
    assert all(0 < spans.count(part) <= (most or 10**9) for _, part in found)
    assert len(found) >= min(least or 0, sum(map(spans.count, whole.values())))


@given(st.dictionaries(names, st.integers(0, 10**12), max_size=6), st.integers(0, 10**9))
def test_shares_are_exactly_the_limit_and_never_more_than_there_is(
    available: dict[tuple[str, int], int], limit: int
) -> None:
    found = spans.shares(available, limit)
    assert sum(found.values()) == min(limit, sum(available.values()))
    assert all(0 <= found[name] <= size for name, size in available.items())


@st.composite
def maps(draw: st.DrawFn) -> OffsetMap:
    base, span = draw(st.integers(0, 30)), draw(st.integers(0, 20))
    some = draw(st.sets(st.integers(base, base + 20)))
    return OffsetMap(base, some, base + span - 1)


@given(maps(), maps())
def test_two_sources_of_a_partition_are_through_with_what_each_of_them_is(one: OffsetMap, other: OffsetMap) -> None:
    both = complete_in_both(one, other)
    for offset in range(60):
        assert both.is_complete(offset) == (one.is_complete(offset) and other.is_complete(offset))
