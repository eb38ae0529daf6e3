"""What is written is read back, whatever the map and the encoding; what is read never crashes."""

from __future__ import annotations

import base64
import binascii

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from keylane.errors import MetadataError, UsageError
from keylane.offsets import Encoding, OffsetMap, decode, encode
from keylane.offsets.codec import V1_LIMIT, is_marked
from keylane.offsets.tracker import MARK_BYTES
from kit.examples import examples

WRITTEN = [encoding for encoding in Encoding if encoding.is_written]


@st.composite
def offset_maps(draw: st.DrawFn, longest_run: int = 200) -> OffsetMap:
    """Maps made of alternating runs that end with a complete one, or with none at all."""
    base = draw(st.one_of(st.integers(0, 200), st.integers(0, 2**62)))
    lengths = draw(st.lists(st.integers(1, longest_run), max_size=40))
    position = base + draw(st.sampled_from([0, 0, 0, 3]))  # a base that is itself complete is rare, and foreign
    incomplete = []
    for incomplete_length, complete_length in zip(lengths[::2], lengths[1::2], strict=False):
        incomplete.append(range(position, position + incomplete_length))
        position += incomplete_length + complete_length
    return OffsetMap(base, incomplete, position - 1)


def decoded_or_error(text: str, base: int, **options: int) -> OffsetMap | str:
    try:
        return decode(text, base, **options)
    except MetadataError as error:
        return str(error)


@given(offset_maps())
def test_the_smallest_encoding_round_trips_and_is_the_smallest(offset_map: OffsetMap) -> None:
    text = encode(offset_map)
    assert decode(text, offset_map.base) == offset_map
    assert len(text) <= min(len(encode(offset_map, encoding)) for encoding in WRITTEN)


@pytest.mark.parametrize("encoding", WRITTEN, ids=lambda e: e.label)
@given(offset_map=offset_maps(longest_run=60_000))
@settings(max_examples=40)
def test_every_encoding_round_trips_or_says_that_it_cannot_carry_the_map(
    encoding: Encoding, offset_map: OffsetMap
) -> None:
    lengths = [run.stop - run.start for run in offset_map.runs]
    ends = [offset_map.base, *(run.stop for run in offset_map.runs)]
    lengths += [start - end for start, end in zip((run.start for run in offset_map.runs), ends, strict=False)]
    lengths.append(offset_map.highest_completed + 1 - ends[-1])
    longest = offset_map.span if encoding.is_bitset else max(lengths)
    if encoding.is_v1 and longest > V1_LIMIT:
        with pytest.raises(UsageError, match=f"carries lengths up to 32767, not {longest}"):
            encode(offset_map, encoding)
    else:
        assert decode(encode(offset_map, encoding), offset_map.base) == offset_map


@given(offset_maps(longest_run=3_000), st.sampled_from([None, *WRITTEN]))
@settings(max_examples=examples(3_000), deadline=None)
def test_a_mark_changes_nothing_of_the_map_and_costs_next_to_nothing(
    offset_map: OffsetMap, encoding: Encoding | None
) -> None:
    try:
        plain = encode(offset_map, encoding)
    except UsageError:
        assume(False)
    marked = encode(offset_map, encoding, is_marked=True)
    assert decode(marked, offset_map.base).trimmed() == offset_map
    assert not is_marked(plain)
    assert is_marked(marked) == bool(plain), "an empty map has nothing to mark"
    assert len(marked) <= len(plain) + (MARK_BYTES + 2) // 3 * 4
    if len(binascii.a2b_base64(plain)) % 3:
        assert binascii.a2b_base64(marked) == binascii.a2b_base64(plain)


@given(offset_maps(longest_run=2**26))
@settings(max_examples=50)
def test_wide_maps_round_trip(offset_map: OffsetMap) -> None:
    assume(offset_map.run_count < 20)
    assert decode(encode(offset_map), offset_map.base) == offset_map


@given(st.one_of(st.text(max_size=60), st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())))
@example("=")
def test_any_text_is_a_map_or_a_metadata_error(text: str) -> None:
    decoded = decoded_or_error(text, 1_000)
    if isinstance(decoded, OffsetMap):
        assert decode(encode(decoded), 1_000) == decoded
    else:
        assert "\n" not in decoded


@given(offset_maps(), st.sampled_from(WRITTEN), st.data())
def test_damaged_metadata_is_an_error_or_a_map_and_never_marks_more_than_its_span(
    offset_map: OffsetMap, encoding: Encoding, data: st.DataObject
) -> None:
    raw = bytearray(binascii.a2b_base64(encode(offset_map, encoding)))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    decoded = decoded_or_error(base64.b64encode(raw).decode(), offset_map.base, max_span=1_000_000)
    if isinstance(decoded, OffsetMap):
        assert decoded.base == offset_map.base
        assert 0 <= decoded.span <= 1_000_000
    else:
        assert "\n" not in decoded


@given(offset_maps(), st.data())
def test_cutting_a_map_short_never_completes_what_was_incomplete(offset_map: OffsetMap, data: st.DataObject) -> None:
    encoding = data.draw(st.sampled_from(WRITTEN))
    raw = binascii.a2b_base64(encode(offset_map, encoding))
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    decoded = decoded_or_error(base64.b64encode(cut).decode(), offset_map.base)
    if isinstance(decoded, OffsetMap):
        assert not any(decoded.is_complete(offset) for run in offset_map.runs for offset in run)
