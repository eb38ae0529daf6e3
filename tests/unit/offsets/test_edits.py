"""Edits of an offset map, and how they are written: examples, and what is refused."""

from __future__ import annotations

import base64

import pytest

from keylane.errors import UsageError
from keylane.offsets import OffsetMap, decode, encode, encoding_of
from keylane.offsets.edits import replayed, rewritten, skipped, standing

CAP = 4_096
COMMITTED = OffsetMap(100, [100, 103], 105)
WRITTEN_BY_THE_JVM = "bAAGNgA="
"""The same, by the Parallel Consumer (BitSet v1)."""


def test_the_base_goes_back_to_what_runs_again() -> None:
    edited = replayed(COMMITTED, [97])
    assert (edited.base, list(edited.incomplete), edited.highest_completed) == (97, [97, 100, 103], 105)
    assert replayed(OffsetMap(10), [9]) == OffsetMap(9), "nothing above it is complete, so there is nothing to say"
    assert replayed(COMMITTED, [105]) == OffsetMap(100, [100, 103], 104)


def test_the_base_goes_over_what_is_skipped() -> None:
    assert skipped(COMMITTED, [100]) == OffsetMap(103, [103], 105)
    assert skipped(COMMITTED, [100, 103]) == OffsetMap(106)
    assert skipped(COMMITTED, [108]) == OffsetMap(100, [100, 103, 106, 107], 108)
    assert skipped(OffsetMap(7), [7]) == OffsetMap(8)


def test_standings() -> None:
    found = [standing(COMMITTED, offset) for offset in (99, 100, 101, 103, 105, 106)]
    assert found == ["below", "incomplete", "complete", "incomplete", "complete", "beyond"]


def test_a_map_of_the_jvm_parallel_consumer_keeps_its_encoding() -> None:
    edited = replayed(COMMITTED, [101])
    metadata = rewritten(edited, COMMITTED, WRITTEN_BY_THE_JVM, CAP)
    assert (encoding_of(metadata), decode(metadata, edited.base)) == ("BitSet v1", edited)


def test_an_encoding_that_cannot_carry_the_map_gives_way() -> None:
    far = OffsetMap(100_000, [100_000], 100_001)
    edited = replayed(far, [10])
    metadata = rewritten(edited, far, encode(far, "RunLength v1"), CAP)
    assert (encoding_of(metadata), decode(metadata, edited.base)) == ("RunLength v2", edited)
    very_far = OffsetMap(2**31 - 2, [2**31 - 2], 2**31 - 1)
    edited = replayed(very_far, [1])
    metadata = rewritten(edited, very_far, encode(very_far, "BitSet v2"), CAP)
    assert (encoding_of(metadata), decode(metadata, edited.base)) == ("RunLength v2", edited)


def test_an_encoding_that_is_never_written_is_refused_by_name() -> None:
    metadata = base64.b64encode(b"L\0\1\0").decode()
    committed = decode(metadata, 5)
    with pytest.raises(UsageError, match="encoding ByteArray, which is read and not written"):
        rewritten(skipped(committed, [5]), committed, metadata, CAP)


def test_a_map_that_a_consumer_could_not_write_later_is_refused() -> None:
    """It could be written now, as one run; completed at random, it could not."""
    far = skipped(OffsetMap(0), [50_000])
    with pytest.raises(UsageError, match="would have 50000 incomplete of 50001 offsets, more than 4096 characters"):
        rewritten(far, OffsetMap(0), "", CAP)
    nearer = skipped(far, range(1_000))
    assert decode(rewritten(nearer, far, encode(far), CAP), nearer.base) == nearer, "no harder than before"
    with pytest.raises(UsageError, match="would have 1 incomplete of 2 offsets, more than 4 characters"):
        rewritten(OffsetMap(0, [0], 1), OffsetMap(0), "", 4)
