"""Rates and latencies of the last minutes, of reports that come when they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from keylane import Snapshot
from keylane.flow.workers import Meter
from keylane.operations.reports import Seen
from keylane.ui.history import EVERY_MS, KEPT_MS, History

if TYPE_CHECKING:
    from keylane.operations.reports import Report

MS = 1_000_000


def seen(at_ms: int, processed: int, took: tuple[int, ...] = (), *, failed: int = 0) -> Seen:
    """A report; `took` are the handlers so far, in nanoseconds."""
    meter = Meter()
    for one in took:
        meter.add(one)
    snapshot = Snapshot(processed=processed, failed=failed, handler_latency=meter.histogram()).to_dict()
    return Seen(cast("Report", {"reported_ms": at_ms, "snapshot": snapshot, "interval_ms": 2_000}), at_ms)


def partition(end: int, remaining: int | None, number: int = 0) -> dict[str, Any]:
    return {"topic": "t", "partition": number, "log_end_offset": end, "remaining": remaining}


def test_a_rate_is_of_the_last_two_reports_of_each_member_and_holds_until_the_next() -> None:
    history = History()
    history.add({"a": seen(1_000, 100), "b": seen(1_500, 7)}, 2_000, 5)
    point = history.add({"a": seen(3_000, 300, failed=4), "b": seen(1_500, 7)}, 4_000, 4)
    assert point is not None
    assert (point.processed_per_s, point.failed_per_s, point.remaining) == (100.0, 2.0, 4)
    point = history.add({"a": seen(3_000, 300, failed=4), "b": seen(5_500, 47)}, 6_000, 4)
    assert point is not None
    assert point.processed_per_s == 110.0


def test_a_member_that_started_again_has_no_rate_below_nothing() -> None:
    history = History()
    history.add({"a": seen(1_000, 100)}, 0, None)
    point = history.add({"a": seen(2_000, 3)}, EVERY_MS, None)
    assert point is not None
    assert point.processed_per_s == 0.0


def test_a_member_that_is_not_heard_any_more_has_no_rate() -> None:
    history = History()
    history.add({"a": seen(1_000, 0), "b": seen(1_000, 0)}, 0, None)
    history.add({"a": seen(2_000, 10), "b": seen(2_000, 20)}, EVERY_MS, None)
    point = history.add({"a": seen(2_000, 10)}, 2 * EVERY_MS, None)
    assert point is not None
    assert point.processed_per_s == 10.0


def test_latencies_are_of_the_handlers_since_the_report_before() -> None:
    slow, quick = (2_000 * MS,) * 100, (4 * MS,) * 100
    history = History()
    history.add({"a": seen(1_000, 0, slow)}, 0, None)
    point = history.add({"a": seen(2_000, 100, (*slow, *quick))}, EVERY_MS, None)
    assert point is not None
    assert point.p50_ms is not None
    assert point.p99_ms is not None
    assert 4 <= point.p50_ms < 9, "by what was slow before it would be 2 s"
    assert 4 <= point.p99_ms < 9


def test_an_older_member_tells_no_counts_and_is_shown_all_the_same() -> None:
    history = History()
    for at_ms in (1_000, 2_000):
        one = seen(at_ms, at_ms)
        del one.report["snapshot"]["handler_latency"]["counts"]
        point = history.add({"a": one}, at_ms * EVERY_MS, None)
    assert point is not None
    assert (point.processed_per_s, point.p50_ms) == (1_000.0, None)


def test_without_reports_what_was_completed_shows_in_commits() -> None:
    history = History()
    history.stands([partition(100, 60), partition(50, 50, 1), partition(9, None, 2)], 1_000)
    history.stands([partition(140, 40), partition(50, 30, 1), partition(9, 1, 2)], 3_000)
    point = history.add({}, 3_000, 71)
    assert point is not None
    assert point.processed_per_s == 40.0, "60 of the first, 20 of the second in 2 s; nothing is known of the third"
    assert (point.failed_per_s, point.in_flight, point.remaining) == (None, None, 71)


def test_points_are_kept_for_ten_minutes_at_most_one_every_two_seconds() -> None:
    history = History()
    made = [history.add({}, at_ms, at_ms) for at_ms in range(0, 2 * KEPT_MS, 500)]
    assert sum(one is not None for one in made) == 2 * KEPT_MS // EVERY_MS
    assert len(history.points) == KEPT_MS // EVERY_MS + 1
