"""`DispatchBound`: its figures, against the encoder that they are derived from."""

from __future__ import annotations

import pytest

from keylane.offsets import DispatchBound, Encoding, OffsetMap, encode
from keylane.offsets.codec import MAX_SPAN


def test_the_figures_for_kafkas_default_cap() -> None:
    assert DispatchBound.for_cap(4096) == DispatchBound(max_span=24_528, max_incomplete=383)


@pytest.mark.parametrize("cap", [12, 16, 100, 512, 1000, 4096, 10_000, 65_536])
def test_the_figures_are_what_the_v2_encodings_hold_and_no_less(cap: int) -> None:
    bound = DispatchBound.for_cap(cap)
    span = bound.max_span
    assert len(encode(OffsetMap(0, [0], span - 1), Encoding.BITSET_V2)) <= cap
    assert len(encode(OffsetMap(0, [0], span), Encoding.BITSET_V2)) > cap

    def spread(count: int) -> OffsetMap:  # no two adjacent, as far apart as they like
        return OffsetMap(0, [i * 100_000 for i in range(count)], count * 100_000)

    assert len(encode(spread(bound.max_incomplete), Encoding.RUN_LENGTH_V2)) <= cap
    assert len(encode(spread(bound.max_incomplete + 1), Encoding.RUN_LENGTH_V2)) > cap


def test_one_limit_is_enough() -> None:
    bound = DispatchBound(max_span=100, max_incomplete=3)
    assert bound.allows(100, 90)
    assert bound.allows(10_000_000, 3)
    assert not bound.allows(101, 4)
    assert not bound.allows(MAX_SPAN + 1, 1)  # beyond 32-bit lengths no map can be written


@pytest.mark.parametrize("cap", [-1, 0, 1, 8, 11])
def test_without_room_for_any_map_records_run_one_by_one(cap: int) -> None:
    bound = DispatchBound.for_cap(cap)
    assert bound.allows(1, 1)
    assert not bound.allows(2, 1)
