"""The dispatch bound and the map's sizes with Kafka's real cap of 4,096 characters."""

from __future__ import annotations

import base64
import random

import pytest

from keylane.offsets import DispatchBound, OffsetMap, PartitionTracker, encode
from keylane.pipeline import DEFAULT_METADATA_CAP

BOUND = DispatchBound.for_cap(DEFAULT_METADATA_CAP)
CHUNK = 10_000


@pytest.mark.parametrize("records", [200_000, pytest.param(5_000_000, marks=pytest.mark.soak)])
def test_one_stuck_record_with_millions_of_completions_behind_it_never_stops_its_partition(records: int) -> None:
    tracker = PartitionTracker(0)
    done = 1
    while done < records:
        if tracker.position < done + CHUNK:
            tracker.observe(range(tracker.position, tracker.position + CHUNK))
        limit = tracker.dispatch_limit(BOUND)
        assert limit - done >= BOUND.max_incomplete - 2, "so many more may always run at once"
        tracker.mark_dispatched(limit)
        tracker.complete(range(done, limit + 1))
        done = limit + 1
    assert tracker.base == 0
    assert len(encode(tracker.snapshot())) <= 20
    tracker.complete([0])
    assert tracker.base == done


def test_alternating_holes_stop_before_the_cap_and_go_on_when_they_are_filled() -> None:
    tracker = PartitionTracker(0)
    tracker.observe(range(100_000))
    done = 0
    while (limit := tracker.dispatch_limit(BOUND)) >= done:
        tracker.mark_dispatched(limit)
        tracker.complete(range(done + 1, limit + 1, 2))
        done = limit + 1
        assert len(encode(tracker.snapshot())) <= DEFAULT_METADATA_CAP
    assert done == BOUND.max_span == 24_496, "what the map can hold, to the offset"
    tracker.complete(range(0, 1_000, 2))
    assert tracker.dispatch_limit(BOUND) == done + 999, "as many go on as the base moved"
    tracker.complete(range(1_000, done, 2))
    assert tracker.dispatch_limit(BOUND) == done + BOUND.max_span - 1 + (done % 2)


@pytest.mark.parametrize(
    ("span", "share", "sizes"),
    [(30, 0.5, (8, 12)), (2_000, 0.5, (254, 340)), (20_000, 0.5, (2_504, 3_340)), (4_000, 1.0, (5, 8))],
)
def test_maps_are_as_small_as_docs_offset_map_says(span: int, share: float, sizes: tuple[int, int]) -> None:
    rng = random.Random(4)
    holes = [0] + [offset for offset in range(1, span - 1) if rng.random() >= share]
    metadata = encode(OffsetMap(0, holes, span - 1))
    assert sizes == (len(base64.b64decode(metadata)), len(metadata)), "bytes, and characters of the commit"
