"""A lane's reports: whatever changes from one snapshot to the next, and whichever are left out, the driver has what was
sent."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keylane.consumer.snapshot import OldestRecord, PartitionSnapshot, Snapshot, Wait
from keylane.flow.breakers import OpenBreaker
from keylane.flow.failures import FailureKind
from keylane.flow.workers import BUCKETS, Histogram
from keylane.spark.reports import Heard, Sent

few = st.integers(0, 2)
partitions = st.builds(
    PartitionSnapshot,
    topic=st.sampled_from(["t", "u"]),
    partition=few,
    base=few,
    committed=st.none() | few,
    highest_completed=few,
    incomplete=few,
    position=few,
    log_end_offset=st.none() | few,
    paused=st.booleans(),
    metadata_encoding=st.sampled_from([None, "runs"]),
)
histograms = st.builds(lambda count, sum_s: Histogram((count,) * BUCKETS, sum_s), few, st.sampled_from([0.0, 0.5]))
numbers: dict[str, Any] = {one.name: few for one in fields(Snapshot) if one.type == "int"}
snapshots = st.builds(
    Snapshot,
    **numbers,
    handler_latency=histograms,
    commit_latency=histograms,
    oldest=st.none() | st.builds(OldestRecord, st.just("t"), few, few, few),
    partitions=st.lists(partitions, max_size=3).map(tuple),
    failures=st.lists(st.builds(FailureKind, st.just("E"), st.just("w"), few, st.just("f")), max_size=1).map(tuple),
    breakers=st.lists(st.builds(OpenBreaker, st.just("s"), few), max_size=1).map(tuple),
    waits=st.none() | st.just(Wait("g", ("m",), 10)),
)


@given(st.lists(st.tuples(snapshots, st.booleans()), max_size=6))
def test_the_driver_has_what_the_lane_sent(said: list[tuple[Snapshot, bool]]) -> None:
    lane, driver = Sent(), Heard()
    for snapshot, is_sent in said:
        if is_sent:
            assert driver.take(pickle.loads(pickle.dumps(lane.report(snapshot)))) == snapshot


@given(snapshots)
def test_a_lane_that_rests_says_little_and_is_what_it_was(snapshot: Snapshot) -> None:
    lane, driver = Sent(), Heard()
    was = driver.take(lane.report(snapshot))
    beat = pickle.dumps(lane.report(snapshot))
    assert len(beat) < 100
    assert driver.take(pickle.loads(beat)) is was
    assert all(type(one) is PartitionSnapshot for one in was.partitions)
