"""What `keylane run` shows of a snapshot while it works."""

from __future__ import annotations

import io

from rich.console import Console

from keylane import Snapshot
from keylane.cli.progress import BarProgress
from keylane.cli.run import completed, note_of, state_of
from keylane.consumer.snapshot import OldestRecord, PartitionSnapshot, Wait


def part(partition: int, base: int, incomplete: int, position: int, end: int | None) -> PartitionSnapshot:
    left = None if end is None else end - position + incomplete
    return PartitionSnapshot("t", partition, base, base, base - 1, incomplete, position, end, remaining=left)


def test_a_note_has_rate_flight_lag_and_troubles() -> None:
    snapshot = Snapshot(
        processed=1_000,
        failed=7,
        retried=5,
        skipped=2,
        in_flight=12,
        oldest=OldestRecord("t", 1, 55, 12_300),
        partitions=(part(0, 10, 0, 10, 1_010), part(1, 5, 3, 18, 18)),
    )
    assert note_of(snapshot, 512.4) == (
        "512/s, 12 in flight, remaining 1,003, lag 1,013, 7 failed attempts, 5 retries, 2 skipped, t-1@55 for 12 s"
    )
    assert completed(snapshot) == 1_002


def test_a_note_says_what_a_consumer_waits_for() -> None:
    wait = Wait("g", ("keylane-1",), 45_000)
    assert note_of(Snapshot(waits=wait), 0) == f"0/s, 0 in flight, {wait}"


def test_a_note_leaves_out_what_is_quick_or_unknown() -> None:
    snapshot = Snapshot(in_flight=1, oldest=OldestRecord("t", 1, 55, 999), partitions=(part(0, 0, 0, 0, None),))
    assert note_of(snapshot, 0) == "0/s, 1 in flight"


def test_a_bar_follows_its_total() -> None:
    stream = io.StringIO()
    with BarProgress(Console(file=stream, force_terminal=True, width=100, color_system=None)).step("Run", 0) as step:
        step.update(10, "5/s", 2_500)
    assert "10/2,500" in stream.getvalue()


def test_what_is_news_is_a_line_at_once() -> None:
    quiet = state_of(Snapshot(processed=5, in_flight=1, partitions=(part(0, 0, 0, 0, None),)))
    assert state_of(Snapshot(processed=9, in_flight=3, partitions=(part(0, 7, 0, 9, None),))) == quiet
    for news in (
        Snapshot(partitions=(part(0, 0, 0, 0, None),)),
        Snapshot(in_flight=1),
        Snapshot(in_flight=1, failed=1, partitions=(part(0, 0, 0, 0, None),)),
        Snapshot(in_flight=1, waits=Wait("g", (), 1), partitions=(part(0, 0, 0, 0, None),)),
    ):
        assert state_of(news) != quiet
