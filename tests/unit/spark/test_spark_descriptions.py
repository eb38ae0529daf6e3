"""What Spark's UI says of lanes: in turn, and with the rate since the time before."""

from __future__ import annotations

from typing import Any

from keylane.consumer.snapshot import PartitionSnapshot, Snapshot
from keylane.spark.descriptions import AT_ONCE, RENEW_S, Descriptions
from keylane.spark.lane_record import LaneRecord
from keylane.spark.restarts import RestartLimits, Restarts


class Jobs:
    def __init__(self) -> None:
        self.said: list[tuple[int, tuple[str, ...], str]] = []

    def describe(self, lane: int, partitions: tuple[str, ...], figures: str) -> None:
        self.said.append((lane, partitions, figures))


def running(number: int) -> LaneRecord:
    lane = LaneRecord(number, Restarts(RestartLimits(1, 1_000)))
    lane.enter("running", 0.0)
    return lane


def reports(lane: LaneRecord, processed: int, committed: int) -> None:
    part = PartitionSnapshot("t", lane.lane, committed, committed, committed - 1, 0, committed, 9_000, remaining=1_500)
    lane.reported(Snapshot(processed=processed, in_flight=200, partitions=(part,)))


def made(lanes: list[LaneRecord]) -> tuple[Jobs, Descriptions]:
    jobs: Any = Jobs()
    return jobs, Descriptions(lanes, jobs)


def test_a_lane_has_its_rate_what_runs_and_what_is_left() -> None:
    lane = running(0)
    jobs, descriptions = made([lane])
    descriptions.renew(0.0)
    assert jobs.said == [], "it has told nothing yet"
    reports(lane, 0, 5_000)
    descriptions.describe(lane, 0.0)
    reports(lane, 9_000, 7_000)
    descriptions.renew(RENEW_S - 1)
    descriptions.renew(RENEW_S)
    assert jobs.said == [
        (0, ("t-0",), "0 records/s, 200 in flight, 1,500 remaining, lag 4,000"),
        (0, ("t-0",), "1,800 records/s, 200 in flight, 1,500 remaining, lag 2,000"),
    ]


def test_other_partitions_are_told_at_once_with_the_rate_of_before() -> None:
    lane = running(0)
    jobs, descriptions = made([lane])
    reports(lane, 0, 5_000)
    descriptions.describe(lane, 0.0)
    reports(lane, 1_000, 6_000)
    descriptions.describe(lane, 5.0)
    lane.reported(Snapshot(processed=1_100))
    descriptions.describe(lane, 5.1)
    reports(lane, 1_200, 6_200)
    descriptions.describe(lane, 6.0)
    assert [figures for _, _, figures in jobs.said[1:]] == [
        "200 records/s, 200 in flight, 1,500 remaining, lag 3,000",
        "200 records/s, 0 in flight",
        "200 records/s, 200 in flight, 1,500 remaining, lag 2,800",
    ]


def test_many_lanes_take_turns_and_those_that_do_not_run_have_none() -> None:
    lanes = [running(number) for number in range(2 * AT_ONCE + 1)]
    jobs, descriptions = made(lanes)
    for lane in lanes:
        reports(lane, 0, 1)
        descriptions.describe(lane, lane.lane / 1_000)
    lanes[0].enter("backing off", 1.0)
    jobs.said.clear()
    for progress in range(3):
        descriptions.renew(10.0 + progress)
    assert [lane for lane, _, _ in jobs.said] == list(range(1, 2 * AT_ONCE + 1))
