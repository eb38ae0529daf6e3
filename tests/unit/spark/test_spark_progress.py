"""Progress: the shape of Structured Streaming's, from merged snapshots."""

from __future__ import annotations

from keylane.consumer.snapshot import OldestRecord, PartitionSnapshot, Snapshot
from keylane.spark.lane_record import LaneStatus
from keylane.spark.progress import Progress, ProgressReporter, QueryName

QUERY = QueryName(id="an-id", run_id="a-run", name="weather", group="g", topics=("flights",))
LANE = LaneStatus(0, "running", 1, "host", "driver", 1, 0, ("flights-0",))


def partition(
    number: int, committed: int | None, log_end: int | None, incomplete: int = 0, remaining: int | None = None
) -> PartitionSnapshot:
    base = committed or 0
    place = (base, committed, base - 1, incomplete, base + incomplete, log_end)
    return PartitionSnapshot("flights", number, *place, remaining=remaining)


def report(
    reporter: ProgressReporter, snapshot: Snapshot, lanes: list[LaneStatus], now: float, wall_clock: float
) -> Progress:
    """Of one lane."""
    return reporter.report(snapshot, [snapshot.partitions], lanes, now, wall_clock)


def test_rows_and_rates_are_of_the_time_since_the_last_progress() -> None:
    reporter = ProgressReporter(QUERY)
    first = report(reporter, Snapshot(processed=10, buffered=5), [], now=100.0, wall_clock=0.0).to_dict()
    assert (first["numInputRows"], first["processedRowsPerSecond"]) == (10, 0.0)
    second = report(
        reporter, Snapshot(processed=14, skipped=1, dead_lettered=1, buffered=9), [], now=102.0, wall_clock=2.0
    ).to_dict()
    assert second["numInputRows"] == 6
    assert second["processedRowsPerSecond"] == 3.0
    assert second["inputRowsPerSecond"] == 5.0  # 25 taken, 15 before, in 2 s
    assert second["durationMs"] == {"triggerExecution": 2000}
    assert second["timestamp"] == "1970-01-01T00:00:02.000Z"
    assert (second["id"], second["runId"], second["name"], second["batchId"]) == ("an-id", "a-run", "weather", 1)


def test_offsets_are_those_committed_before_and_now_and_the_log_ends() -> None:
    reporter = ProgressReporter(QUERY)
    report(reporter, Snapshot(partitions=(partition(0, 10, 100), partition(1, None, None))), [], 0.0, 0.0)
    source = report(reporter, Snapshot(partitions=(partition(0, 40, 110),)), [], 1.0, 0.0).to_dict()["sources"][0]
    assert source["description"] == "keylane[group g, topics flights]"
    assert source["startOffset"] == {"flights": {"0": 10}}
    assert source["endOffset"] == {"flights": {"0": 40}}
    assert source["latestOffset"] == {"flights": {"0": 110}}
    behind = {"minOffsetsBehindLatest": "70", "maxOffsetsBehindLatest": "70", "avgOffsetsBehindLatest": "70.0"}
    assert source["metrics"] == {"lag": 70, "remaining": 70, **behind}
    assert reporter.lag == 70


def test_what_partitions_are_behind_the_latest_is_told_as_by_sparks_own_source() -> None:
    reporter = ProgressReporter(QUERY, {("flights", 2): 7})
    made = report(reporter, Snapshot(partitions=(partition(0, 90, 100), partition(1, 5, 45))), [], 0.0, 0.0)
    metrics = made.to_dict()["sources"][0]["metrics"]
    assert {name: metrics[f"{name}OffsetsBehindLatest"] for name in ("min", "max", "avg")} == {
        "min": "10",
        "max": "40",
        "avg": "25.0",
    }
    none = report(ProgressReporter(QUERY), Snapshot(), [], 0.0, 0.0).to_dict()
    assert none["sources"][0]["metrics"] == {"lag": None, "remaining": None}


def test_what_remains_is_what_the_lanes_told_last_and_at_most_the_lag() -> None:
    reporter = ProgressReporter(QUERY, {("flights", 1): 50})
    reporter.note_committed({("flights", 0): 0, ("flights", 1): 20})
    assert reporter.remaining == 30, "a partition that no lane has told of"
    reporter.note((partition(0, 0, 6_000, remaining=1_432),))
    assert (reporter.lag, reporter.remaining) == (6_030, 1_462)
    reporter.note(())
    assert reporter.remaining == 1_462, "while no lane has it"
    reporter.note((partition(0, 0, 6_000, remaining=2_000),))
    assert reporter.remaining == 2_030, "a lane that was killed takes what it had not committed with it"
    reporter.note_committed({("flights", 0): 6_000, ("flights", 1): 50})
    assert (reporter.lag, reporter.remaining) == (0, 0)
    assert ProgressReporter(QUERY).remaining is None


def test_a_partition_between_two_lanes_keeps_what_was_known() -> None:
    reporter = ProgressReporter(QUERY)
    reporter.note((partition(0, 40, 100),))
    reporter.note(())
    reporter.note((partition(0, None, 120),))
    assert reporter.lag == 80
    reporter.note_committed({("flights", 0): 120})
    assert reporter.lag == 0
    reporter.note((partition(0, 40, 100),))
    assert reporter.lag == 0, "the lane that had it before tells late"


def test_the_log_ends_of_the_start_count_until_lanes_know_newer_ones() -> None:
    reporter = ProgressReporter(QUERY, {("flights", 0): 50})
    reporter.note_committed({("flights", 0): 20})
    assert reporter.lag == 30
    reporter.note((partition(0, 20, 60),))
    assert reporter.lag == 40


def test_nothing_known_is_no_lag_and_not_zero() -> None:
    assert ProgressReporter(QUERY).lag is None


def test_a_killed_lane_takes_unreported_rows_with_it_and_rates_stay_above_zero() -> None:
    reporter = ProgressReporter(QUERY)
    report(reporter, Snapshot(processed=100, buffered=50), [], 0.0, 0.0)
    progress = report(reporter, Snapshot(processed=90), [], 1.0, 0.0).to_dict()
    assert progress["numInputRows"] == 0
    assert progress["inputRowsPerSecond"] == 0.0


def test_keylanes_own_gauges() -> None:
    oldest = OldestRecord("flights", 3, 17, 1200)
    snapshot = Snapshot(
        in_flight=4, buffered=9, oldest=oldest, partitions=(partition(0, 1, 9, 3), partition(1, 1, 9, 2))
    )
    progress = report(ProgressReporter(QUERY), snapshot, [LANE], 0.0, 0.0).to_dict()
    assert (progress["inFlight"], progress["buffered"], progress["incomplete"]) == (4, 9, 5)
    assert progress["oldestRecord"] == {"topic": "flights", "partition": 3, "offset": 17, "ageMs": 1200}
    assert progress["lanes"] == [LANE.to_dict()]


def test_offsets_by_topic_are_sorted() -> None:
    reporter = ProgressReporter(QUERY)
    reporter.note_committed({("b", 1): 2, ("a", 10): 3, ("a", 9): 4})
    progress = report(reporter, Snapshot(), [], 0.0, 0.0)
    reporter.note_committed({("a", 0): 5, ("b", 1): 3})
    assert progress.committed.by_topic() == {"a": {"9": 4, "10": 3}, "b": {"1": 2}}, "as it was then"
    assert progress.log_ends.by_topic() == {}


def test_what_any_of_many_lanes_says_anew_counts() -> None:
    reporter = ProgressReporter(QUERY)
    first, second = (partition(0, 10, 100),), (partition(1, 20, 100, incomplete=3),)
    reporter.report(Snapshot(), [first, second], [], 0.0, 0.0)
    assert reporter.lag == 170
    progress = reporter.report(Snapshot(), [first, (partition(1, 50, 100, incomplete=1),)], [], 1.0, 0.0)
    assert (progress.lag, progress.incomplete) == (140, 1)
    progress = reporter.report(Snapshot(), [(), second, first, (partition(2, 0, 5),)], [], 2.0, 0.0)
    assert progress.lag == 145, "more lanes, and one that has none any more"
