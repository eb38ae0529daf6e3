"""Snapshots travel and add up."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import fields
from pathlib import Path

import keylane
from keylane import Snapshot
from keylane.consumer.snapshot import OldestRecord, PartitionSnapshot
from keylane.flow.workers import Histogram, Meter

SOURCES = Path(keylane.__file__).parent


def part(partition: int, base: int, committed: int | None = None, end: int | None = 100) -> PartitionSnapshot:
    return PartitionSnapshot("t", partition, base, committed, base - 1, 2, base + 2, end)


def test_merging_adds_numbers_and_joins_partitions() -> None:
    a = Snapshot(processed=3, in_flight=1, oldest=OldestRecord("t", 0, 5, 10), partitions=(part(0, 5), part(1, 9)))
    b = Snapshot(processed=4, failed=1, oldest=OldestRecord("t", 2, 1, 700), partitions=(part(2, 1), part(0, 8)))
    both = a.merge(b)
    assert (both.processed, both.failed, both.in_flight) == (7, 1, 1)
    assert both.oldest == OldestRecord("t", 2, 1, 700)
    assert both.partitions == (part(0, 8), part(1, 9), part(2, 1)), "of a partition that moved, the further view"
    assert a.merge(b) == b.merge(a)


def test_merging_adds_histograms() -> None:
    quick, slow = Meter(), Meter()
    quick.add(1_000)
    slow.add(10**9)
    both = Snapshot(handler_latency=quick.histogram()).merge(Snapshot(handler_latency=slow.histogram()))
    assert both.handler_latency == Histogram.merged([quick.histogram(), slow.histogram()])
    assert both.to_dict()["handler_latency"]["count"] == 2


def test_an_empty_snapshot_changes_nothing() -> None:
    a = Snapshot(processed=3, partitions=(part(0, 5),))
    assert a.merge(Snapshot()) == a == Snapshot().merge(a)


def test_it_travels_by_pickle_and_json() -> None:
    a = Snapshot(processed=3, oldest=OldestRecord("t", 0, 5, 10), partitions=(part(0, 5),))
    assert pickle.loads(pickle.dumps(a)) == a
    assert json.loads(json.dumps(a.to_dict()))["partitions"][0]["base"] == 5


def test_lag_is_unknown_rather_than_made_up() -> None:
    assert part(0, 5, committed=60).lag == 40
    assert part(0, 5, committed=None).lag is None
    assert part(0, 5, committed=60, end=None).lag is None


def test_every_counter_is_in_the_snapshot_but_stale() -> None:
    files = [file for part in ("consumer", "flow") for file in (SOURCES / part).rglob("*.py")]
    counted = {name for file in files for name in re.findall(r'counters\["(\w+)"\]', file.read_text())}
    assert {"processed", "stale", "transactions_aborted"} <= counted
    counters = counted - {"stale"}
    assert counters <= {one.name for one in fields(Snapshot)}
