"""`DispatchBound`: its figures, against the encoder that they are derived from."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

import pytest

from keylane.offsets import DispatchBound, Encoding, OffsetMap, PartitionTracker, encode
from keylane.offsets.tracker import MARK_BYTES, MAX_SPAN

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_the_figures_for_kafkas_default_cap() -> None:
    assert DispatchBound.for_cap(4096) == DispatchBound(max_span=24_496, max_incomplete=383)


@pytest.mark.parametrize("cap", [20, 100, 512, 1000, 4096, 10_000, 65_536])
def test_the_figures_are_what_the_v2_encodings_hold_beside_a_mark_and_no_less(cap: int) -> None:
    bound = DispatchBound.for_cap(cap)
    room = cap // 4 * 3 - MARK_BYTES

    def size(offset_map: OffsetMap, encoding: Encoding) -> int:
        return len(b64decode(encode(offset_map, encoding)))

    assert size(OffsetMap(0, [0], bound.max_span - 1), Encoding.BITSET_V2) <= room
    assert size(OffsetMap(0, [0], bound.max_span), Encoding.BITSET_V2) > room

    def spread(count: int) -> OffsetMap:  # no two adjacent, as far apart as they like
        return OffsetMap(0, [i * 100_000 for i in range(count)], count * 100_000)

    assert size(spread(bound.max_incomplete), Encoding.RUN_LENGTH_V2) <= room
    assert size(spread(bound.max_incomplete + 1), Encoding.RUN_LENGTH_V2) > room


def limit(bound: DispatchBound, offsets: Sequence[int]) -> int:
    """Up to where these may start, of a partition that has nothing else."""
    tracker = PartitionTracker(0)
    tracker.observe(offsets)
    return tracker.dispatch_limit(bound)


def test_one_limit_is_enough() -> None:
    bound = DispatchBound(max_span=100, max_incomplete=3)
    assert limit(bound, range(200)) == 99
    assert limit(bound, [0, 5_000_000, 9_999_999]) == 9_999_999
    assert limit(bound, [0, 50, 100, 101]) == 100
    assert limit(bound, [0, MAX_SPAN]) == MAX_SPAN - 1  # beyond 32-bit lengths no map can be written


@pytest.mark.parametrize("cap", [-1, 0, 1, 8, 12, 15])
def test_without_room_for_any_map_records_run_one_by_one(cap: int) -> None:
    assert limit(DispatchBound.for_cap(cap), range(10)) == 0
