"""The harness of `make bench-broker` on the embedded broker: every kind of row, and what is written of them."""

from __future__ import annotations

import json
from pathlib import Path

import broker
import pytest
from broker import report, size
from broker.speed import Contest, Row
from contests import FLUSHING, KAFKA, OURS, reporter

QUICK_S = 0.2
ROWS = (
    Row("produce", "produce", 1_000, 2, 2, 0, (KAFKA, FLUSHING)),
    Row("fetch", "fetch", 100, 1, 1, 12_345),
    Row("single", "single", 100, 1, 1, 0, (KAFKA, FLUSHING)),
    Row("transactions", "transactions", 100),
    Row("session", "session", 100, 20, 1, 3),
    Row("sessionless", "sessionless", 100, 20, 1, 3),
    Row("rebalance", "rebalance consumer", 100, 4, 2),
)


@pytest.mark.full
def test_rows_are_run_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(broker.__file__).parents[1]))
    found = report.read(tmp_path / "none.json")
    with Contest(tmp_path) as contest:
        for row in ROWS:
            runs = contest.play(row, 1, QUICK_S, reporter(row.name))
            assert list(runs) == [OURS]
            figures = ["comes_nothing_s", "comes_longest_s", "goes_nothing_s", "goes_longest_s"]
            assert all(runs[OURS][0][name] > 0 for name in (figures if "rebalance" in row.what else ["per_s"]))
            report.add_row(found, row, runs)
    path = tmp_path / "out" / "bench.json"
    report.write(path, found)
    assert json.loads(path.read_text()) == report.read(path) == found
    text = report.markdown(found)
    assert [line.split(" | ")[0] for line in text.splitlines()[2:]] == [f"| {row.name}" for row in ROWS]


def test_what_was_asked_for_is_computed() -> None:
    runs = {
        OURS: [{"per_s": 90.0, "load": 1.0, "disk_bytes_per_s": 1e5}],
        KAFKA: [{"per_s": 120.0, "load": 1.0}],
        FLUSHING: [{"per_s": 45.0, "load": 1.0}],
    }
    found: report.Found = {"rows": {}}
    report.add_row(found, ROWS[0], runs)
    assert "0.8 of the disk (100/s) | 2.00 ×; 0.90" in report.markdown(found)


def test_sizes_are_measured(tmp_path: Path) -> None:
    many = size.many_partitions(tmp_path, topics=20, partitions=5)
    assert many["mb"] >= many["empty_mb"] > 0
    text = report.markdown({"rows": {}, "starts": {OURS: 0.3}, "many": many})
    assert "20 topics of 5 partitions" in text
