"""Whatever is dispatched under the bound, and whatever order it completes in: every map fits the cap, marked and
uncompressed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.offsets import DispatchBound, Encoding, OffsetMap, PartitionTracker, encode
from keylane.offsets.codec import V1_LIMIT
from kit.examples import examples

PLAIN = [encoding for encoding in Encoding if encoding.is_written and not encoding.is_zstd]


def smallest_plain(offset_map: OffsetMap) -> int:
    if not offset_map.span:
        return 0
    return min(
        len(encode(offset_map, encoding, is_marked=True))
        for encoding in PLAIN
        if not encoding.is_v1 or offset_map.span <= V1_LIMIT
    )


def run(cap: int, seed: int, steps: int, batch: int, stuck_share: float, far: int) -> int:
    """Polls, dispatches (out of order, as key order does) and completes at random; returns the longest map seen."""
    chance = random.Random(seed)
    bound = DispatchBound.for_cap(cap)
    tracker = PartitionTracker(chance.randrange(1000))
    buffered: list[int] = []
    running: list[int] = []
    stuck: list[int] = []
    longest = 0
    for _ in range(steps):
        if len(buffered) < 2 * batch:
            start = tracker.position + chance.choice([0, 0, 0, 1, far])
            tracker.observe(range(start, start + batch))
            buffered.extend(range(start, start + batch))
        chance.shuffle(buffered)
        waiting = []
        for offset in buffered:
            if offset <= tracker.dispatch_limit(bound):
                tracker.mark_dispatched(offset)
                (stuck if chance.random() < stuck_share else running).append(offset)
            else:
                waiting.append(offset)
        buffered = waiting
        chance.shuffle(running)
        keep = chance.randrange(len(running) + 1)
        tracker.complete(running[keep:])
        del running[keep:]
        if chance.random() < 0.05 and stuck:
            tracker.complete([stuck.pop(chance.randrange(len(stuck)))])
        snapshot = tracker.snapshot()
        longest = max(longest, smallest_plain(snapshot))
        assert longest <= cap
        assert len(encode(snapshot, is_marked=True)) <= cap
    return longest


@given(
    cap=st.integers(0, 400),
    seed=st.integers(0, 2**32),
    stuck_share=st.sampled_from([0, 0.01, 0.1, 0.5]),
    far=st.sampled_from([0, 7, 40_000, 10**6]),
)
@settings(max_examples=examples(60), deadline=None)
def test_every_reachable_map_fits_the_cap_without_compression(
    cap: int, seed: int, stuck_share: float, far: int
) -> None:
    run(cap, seed, steps=25, batch=60, stuck_share=stuck_share, far=far)


def test_the_default_cap_is_kept_and_nearly_used() -> None:
    """The invariant is not held by dispatching next to nothing: maps come close to the cap."""
    assert 3_900 < run(4096, seed=3, steps=30, batch=4_000, stuck_share=0.2, far=1) <= 4096


@given(st.integers(12, 600), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_completing_never_makes_a_map_that_does_not_fit(cap: int, chance: random.Random) -> None:
    """From a full state on either limit, complete everything one by one in a random order."""
    bound = DispatchBound.for_cap(cap)
    gap = chance.choice([1, 1, 2, 50_000])
    tracker = PartitionTracker(0)
    offsets = [i * gap for i in range(2 * max(bound.max_incomplete, bound.max_span))][:1_000]
    tracker.observe(offsets)
    dispatched = [offset for offset in offsets if offset <= tracker.dispatch_limit(bound)]
    tracker.mark_dispatched(dispatched[-1])
    chance.shuffle(dispatched)
    for index, offset in enumerate(dispatched):
        tracker.complete([offset])
        if index % 7 == 0:
            assert smallest_plain(tracker.snapshot()) <= cap


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_the_default_cap_holds_for_long(seed: int) -> None:
    run(4096, seed, steps=60, batch=2_000, stuck_share=(seed % 5) / 20, far=(seed % 3) * 20_000)
