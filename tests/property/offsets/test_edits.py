"""An edit changes what it names, and nothing else, whatever the map."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import UsageError
from keylane.offsets import DispatchBound, Encoding, OffsetMap, decode, encode, encoding_of
from keylane.offsets.edits import replayed, rewritten, skipped, standing

AROUND = 60
"""Offsets that an example looks at."""
CAP = 4_096
WRITTEN = [encoding for encoding in Encoding if encoding.is_written]

offsets = st.sets(st.integers(0, AROUND - 1), max_size=8)


@st.composite
def maps(draw: st.DrawFn) -> OffsetMap:
    """Any: with a base that is complete, and with incomplete offsets at the top, as foreign writers leave them."""
    base = draw(st.integers(0, AROUND // 2))
    highest = draw(st.integers(base - 1, AROUND - 1))
    return OffsetMap(base, draw(st.sets(st.integers(base, AROUND))), highest)


def complete(offset_map: OffsetMap) -> set[int]:
    return {offset for offset in range(2 * AROUND) if offset_map.is_complete(offset)}


def is_tidy(offset_map: OffsetMap) -> bool:
    """Neither its base is complete nor, unless it says nothing, its top incomplete."""
    return not offset_map.is_complete(offset_map.base) and offset_map == offset_map.trimmed()


@given(maps(), offsets)
def test_a_replay_makes_these_incomplete_and_no_other(committed: OffsetMap, chosen: set[int]) -> None:
    edited = replayed(committed, chosen)
    assert complete(edited) == complete(committed) - chosen
    assert is_tidy(edited)


@given(maps(), offsets)
def test_a_skip_makes_these_complete_and_no_other(committed: OffsetMap, chosen: set[int]) -> None:
    edited = skipped(committed, chosen)
    assert complete(edited) == complete(committed) | chosen
    assert is_tidy(edited)


@given(maps(), offsets)
def test_a_skip_takes_a_replay_back(committed: OffsetMap, chosen: set[int]) -> None:
    replays = {offset for offset in chosen if committed.is_complete(offset)}
    assert skipped(replayed(committed, replays), replays) == skipped(committed, ())


@given(maps(), st.integers(0, 2 * AROUND))
def test_a_standing_is_what_the_map_says(committed: OffsetMap, offset: int) -> None:
    found = standing(committed, offset)
    assert (found in ("below", "complete")) == committed.is_complete(offset)
    assert (found == "below") == (offset < committed.base)
    above = range(offset + 1, 2 * AROUND)
    assert found != "incomplete" or any(map(committed.is_complete, above))
    assert found != "beyond" or not any(map(committed.is_complete, above))


@given(maps(), offsets, st.sampled_from(WRITTEN), st.booleans())
def test_an_edit_keeps_the_encoding(committed: OffsetMap, chosen: set[int], encoding: Encoding, goes: bool) -> None:
    edited = replayed(committed, chosen) if goes else skipped(committed, chosen)
    metadata = rewritten(edited, committed, encode(committed, encoding), CAP)
    assert decode(metadata, edited.base) == edited
    assert encoding_of(metadata) == (encoding.label if edited.span else None)


@given(st.integers(0, 2**40), st.lists(st.tuples(st.integers(1, 50_000), st.integers(1, 50_000)), max_size=500))
def test_what_is_written_always_fits_and_what_is_refused_does_not(base: int, runs: list[tuple[int, int]]) -> None:
    position, incomplete = base, []
    for length, rest in runs:
        incomplete.append(range(position, position + length))
        position += length + rest
    edited = OffsetMap(base, incomplete, position - 1)
    bound = DispatchBound.for_cap(CAP)
    fits = edited.span <= bound.max_span or edited.incomplete_count <= bound.max_incomplete
    try:
        metadata = rewritten(edited, OffsetMap(base), "", CAP)
    except UsageError:
        assert not fits
    else:
        assert fits
        assert len(metadata) <= CAP
        assert decode(metadata, base) == edited
