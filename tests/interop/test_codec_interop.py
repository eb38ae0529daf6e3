"""The offset map against the JVM Parallel Consumer's own encoders and decoders, in both directions.

What one writes, the other reads as the same state, in every encoding; both refuse the same encodings for the same map.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import jvm

from keylane.consumer.commits import EMPTY_MARKED
from keylane.errors import UsageError
from keylane.offsets import Encoding, OffsetMap, decode, encode
from keylane.offsets.codec import V1_LIMIT
from kit.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

JVM_NAMES = {
    "BitSet": Encoding.BITSET_V1,
    "BitSetCompressed": Encoding.BITSET_V1_ZSTD,
    "BitSetV2": Encoding.BITSET_V2,
    "BitSetV2Compressed": Encoding.BITSET_V2_ZSTD,
    "RunLength": Encoding.RUN_LENGTH_V1,
    "RunLengthCompressed": Encoding.RUN_LENGTH_V1_ZSTD,
    "RunLengthV2": Encoding.RUN_LENGTH_V2,
    "RunLengthV2Compressed": Encoding.RUN_LENGTH_V2_ZSTD,
}
LONGEST = 60_000
"""Offsets in the longest random map: what one poll of a busy partition leaves behind, and past the limit of v1."""


class Oracle:
    """The JVM's codec, with maps going in and coming out."""

    def __init__(self, process: jvm.LineProcess) -> None:
        self._process = process

    def decode(self, metadata: str, base: int) -> OffsetMap:
        answer = self._process.ask(f"decode {base} {metadata or '-'}")
        assert answer.startswith("ok "), answer
        _, highest, runs = answer.split(" ")
        incomplete = (
            [] if runs == "-" else [range(int(a), int(b) + 1) for a, b in (r.split("-") for r in runs.split(","))]
        )
        return OffsetMap(base, incomplete, int(highest))

    def encode(self, offset_map: OffsetMap) -> dict[str, str]:
        """The metadata by encoding, and under `smallest` what it would commit."""
        runs = ",".join(f"{run.start}-{run.stop - 1}" for run in offset_map.runs) or "-"
        answer = self._process.ask(f"encode {offset_map.base} {offset_map.highest_completed} {runs}")
        assert answer.startswith("ok "), answer
        return dict(pair.split("=", 1) for pair in answer.split(" ")[1:])


@pytest.fixture(scope="module")
def oracle(jvm_peers: None) -> Iterator[Oracle]:
    with jvm.LineProcess(jvm.command(jvm.OFFSET_MAP_ORACLE)) as process:
        yield Oracle(process)


def agree(oracle: Oracle, offset_map: OffsetMap) -> set[Encoding]:
    """Both directions, in every encoding that either offers; returns those that could carry the map."""
    base = offset_map.base
    written = oracle.encode(offset_map)
    assert decode(written.pop("smallest"), base) == offset_map
    assert oracle.decode(encode(offset_map), base) == offset_map
    assert oracle.decode(encode(offset_map, is_marked=True), base).trimmed() == offset_map
    for name, encoding in JVM_NAMES.items():
        if name in written:
            assert decode(written[name], base) == offset_map, name
            assert oracle.decode(encode(offset_map, encoding), base) == offset_map, name
            if offset_map.span or base:  # see below of offset 0
                marked = encode(offset_map, encoding, is_marked=True)
                assert oracle.decode(marked, base).trimmed() == offset_map, name
        else:
            with pytest.raises(UsageError, match=f"carries lengths up to {V1_LIMIT}"):
                encode(offset_map, encoding)
    return {JVM_NAMES[name] for name in written}


@st.composite
def offset_maps(draw: st.DrawFn) -> OffsetMap:
    """Runs of random lengths, incomplete first, the last one complete; bases from 1 to beyond 2^40."""
    base = draw(st.one_of(st.integers(1, 1_000), st.integers(2**40, 2**62)))
    longest = draw(st.sampled_from([1, 3, 40, 5_000]))
    lengths = draw(st.lists(st.tuples(st.integers(1, longest), st.integers(1, longest)), min_size=1, max_size=12))
    position, incomplete = base, []
    for incomplete_length, complete_length in lengths:
        incomplete.append(range(position, position + incomplete_length))
        position += incomplete_length + complete_length
    return OffsetMap(base, incomplete, position - 1)


@given(offset_map=offset_maps())
@settings(max_examples=examples(60), deadline=None)
def test_runs_of_any_length_mean_the_same_to_both(oracle: Oracle, offset_map: OffsetMap) -> None:
    agree(oracle, offset_map)


@pytest.mark.parametrize("seed", range(24))
def test_random_maps_mean_the_same_to_both(oracle: Oracle, seed: int) -> None:
    """Each offset complete by chance: from nearly nothing to nearly everything, up to 60,000 offsets."""
    rng = random.Random(seed)
    base = rng.choice([1, 100, 2**31 - 5, 2**40 + rng.randrange(2**40)])
    span = rng.choice([2, 9, 300, 2_000, 20_000, LONGEST])
    share = rng.choice([0.001, 0.02, 0.5, 0.98, 0.999])
    incomplete = [base, *(offset for offset in range(base + 1, base + span - 1) if rng.random() >= share)]
    carried = agree(oracle, OffsetMap(base, incomplete, base + span - 1))
    assert {e for e in JVM_NAMES.values() if not e.is_v1} <= carried
    assert (Encoding.BITSET_V1 in carried) == (span <= V1_LIMIT)


@pytest.mark.parametrize(("span", "bitset", "run_length"), [
    (V1_LIMIT, True, True),
    (V1_LIMIT + 1, False, True),  # a run of 32,767 after one incomplete
    (V1_LIMIT + 2, False, False),
])  # fmt: skip
def test_v1_ends_at_the_same_length_for_both(oracle: Oracle, span: int, *, bitset: bool, run_length: bool) -> None:
    carried = agree(oracle, OffsetMap(2**40, [2**40], 2**40 + span - 1))
    assert (Encoding.BITSET_V1 in carried, Encoding.BITSET_V1_ZSTD in carried) == (bitset, bitset)
    assert (Encoding.RUN_LENGTH_V1 in carried, Encoding.RUN_LENGTH_V1_ZSTD in carried) == (run_length, run_length)


@pytest.mark.parametrize("base", [1, 77, 2**40, 2**62])
def test_an_empty_map_means_the_same_to_both(oracle: Oracle, base: int) -> None:
    """Nothing above the base is complete: no metadata, or an encoding of nothing."""
    empty = OffsetMap(base)
    assert encode(empty) == ""
    assert oracle.decode("", base) == empty
    assert agree(oracle, empty) == set(JVM_NAMES.values())


def test_at_offset_zero_the_jvm_reads_no_metadata_as_nothing_complete(oracle: Oracle) -> None:
    """It takes an *encoded* empty run length at base 0 for "offset 0 is complete", which keylane never commits."""
    assert oracle.decode(encode(OffsetMap(0)), 0) == OffsetMap(0)
    assert oracle.decode(encode(OffsetMap(0), "RunLength v2"), 0).is_complete(0)
    assert not decode(encode(OffsetMap(0), "RunLength v2"), 0).is_complete(0)


def test_what_a_capped_commit_writes_is_read_by_the_jvm(oracle: Oracle) -> None:
    """The two hardest maps that the dispatch bound lets come about, in at most 4,096 characters."""
    rng = random.Random(7)
    bits = OffsetMap(2**40, [2**40 + i for i in range(24_495) if i == 0 or rng.random() < 0.5], 2**40 + 24_495)
    runs = OffsetMap(5, [5, *sorted(rng.sample(range(6, 10**6), 382))], 10**6)
    for offset_map in (bits, runs):
        metadata = encode(offset_map, is_marked=True)
        assert len(metadata) <= 4_096
        assert oracle.decode(metadata, offset_map.base).trimmed() == offset_map


def test_what_the_jvm_refuses_names_the_cause(oracle: Oracle) -> None:
    """Its refusals come back as such, so that no test above can pass on an error."""
    with pytest.raises(AssertionError, match="Unexpected magic"):
        oracle.decode("WGFiYw==", 100)


@pytest.mark.parametrize("base", [0, 1, 2**40])
def test_a_mark_without_a_map_is_read_by_the_jvm_as_nothing_complete(oracle: Oracle, base: int) -> None:
    assert oracle.decode(EMPTY_MARKED, base) == OffsetMap(base) == decode(EMPTY_MARKED, base)
