"""What users ask of lanes that run (`pause`, `adjust`, `seek`, …), over kills and rebalances."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

PARTITIONS = 4


def ran(work: Any) -> Counter[int]:
    """How often records of each partition ran."""
    return Counter(partition for _, partition, _ in work.outputs().outputs)


def test_calls_reach_every_lane_and_hold_for_one_that_is_killed(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    query = kl.spark.start(work.pipeline(), spark, lanes=2, progress_interval_ms=100)
    until(lambda: sorted(len(lane.partitions) for lane in query.lanes) == [2, 2], lambda: query.lanes)
    paused = (work.topic, 0)
    query.pause([paused])
    query.adjust(max_concurrency=3)
    assert query.snapshot().concurrency == 6
    work.fill(400)
    ends = work.admin.log_ends([(work.topic, partition) for partition in range(PARTITIONS)], read_committed=False)
    waiting = ends[paused]
    until(lambda: (query.snapshot().processed, query.snapshot().buffered) == (400 - waiting, waiting), query.snapshot)

    owner = next(lane for lane in query.lanes if f"{work.topic}-0" in lane.partitions)
    assert owner.pid is not None
    assert {lane: one.session_timeout_ms for lane, one in query.liveness().items()} == {0: 10_000, 1: 10_000}
    assert list(query.liveness([paused])) == [owner.lane]
    os.kill(owner.pid, signal.SIGKILL)
    until(lambda: query.lanes[owner.lane].launches == 2 and query.snapshot().buffered == waiting, lambda: query.lanes)
    assert query.snapshot().concurrency == 6
    assert ran(work)[0] == 0, "it is paused on the lane that started again, too"

    before = ran(work)
    query.seek({(work.topic, 1): 0})
    query.seek_to_time(0, [(work.topic, 2)])
    until(lambda: ran(work) == {**before, 1: before[1] + ends[work.topic, 1], 2: before[2] + ends[work.topic, 2]})
    query.resume([paused])
    until(lambda: work.lag() == 0, query.snapshot)
    query.stop()
    seen = work.outputs()
    assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])


@pytest.mark.full
def test_a_paused_partition_stays_paused_when_lanes_come_and_go(
    spark: SparkSession, work: Any, until: Callable[..., None]
) -> None:
    names = [(work.topic, partition) for partition in range(PARTITIONS)]
    query = kl.spark.start(work.pipeline(), spark, lanes=1, members="dynamic", progress_interval_ms=100)
    query.pause(names)
    query.set_lanes(2)
    until(lambda: sorted(len(lane.partitions) for lane in query.lanes) == [2, 2], lambda: query.lanes)
    work.fill(200)
    until(lambda: query.snapshot().buffered == 200, query.snapshot)
    query.set_lanes(1)
    until(lambda: [lane.state for lane in query.lanes] == ["running", "removed"], lambda: query.lanes)
    until(lambda: query.snapshot().buffered == 200, query.snapshot)
    assert work.outputs().outputs == []
    query.resume()
    until(lambda: work.lag() == 0, query.snapshot)
    query.stop()
    seen = work.outputs()
    assert (seen.lost, seen.repeated, seen.out_of_order("key")) == (set(), set(), [])
