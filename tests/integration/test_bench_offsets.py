"""The harness of `make bench-offsets` on the embedded broker: rows, shapes and what is written of them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import offsets
import pytest
from contests import OURS, reporter
from offsets import fail_over, report, servers, size
from offsets.load import TOPIC
from offsets.speed import ROWS, Contest, Row, selected

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin

QUICK_S = 0.2


def test_rows_are_answered_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(offsets.__file__).parents[1]))
    rows = [
        Row("one", "commit", 1, 1, 1, 1.0, is_against_disk=True),
        Row("many", "commit", 3, 20, 100, 1.0),
        Row("fetch", "fetch", 3, 20, 100, 1.0),
        Row("clients", "commit", 50, 1, 1, 0.0),
    ]
    found = report.read(tmp_path / "none.json")
    with Contest(tmp_path, partitions=100) as contest:
        for row in rows:
            standings = contest.play(row, 1, QUICK_S, reporter(row.name))
            (run,) = standings[OURS].runs
            assert run["answered"] > 0
            assert run["least_of_a_connection"] > 0
            assert (run["p99_ms"] is not None) is (row.in_flight == 1)
            report.add_row(found, row, standings)
        with pytest.raises(RuntimeError, match="an answer that is not expected"):
            contest.play(Row("too many", "commit", 1, 1, 101, 1.0), 1, QUICK_S, reporter("too many"))
    found["environment"] = {"cpus": os.cpu_count()}
    path = tmp_path / "out" / "bench.json"
    report.write(path, found)
    assert json.loads(path.read_text()) == report.read(path) == found
    (text,) = report.markdown(found).values()
    bare = ["fdatasync, one after the other", "the same, over bytes that were written before"]
    bare = [f"| – {name}" for name in (*bare, "bare round trip", "bare round trip + sync")]
    names = [line.split(" | ")[0] for line in text.splitlines()[2:]]
    assert names == ["| one", *bare, "| many", "| fetch", "| clients"]


def test_many_groups_commit_at_their_coordinators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the rows of offset servers fill them with groups: each once, and then over and over."""
    monkeypatch.setenv("PYTHONPATH", str(Path(offsets.__file__).parents[1]))
    row = Row("groups", "commit", 4, 10, 1, 0.0, groups=30)
    with Contest(tmp_path, partitions=1) as contest:
        (once,) = contest.play(row, 1, 0, reporter(row.name))[OURS].runs
        assert once["least_of_a_connection"] >= 30
        (again,) = contest.play(row, 1, QUICK_S, reporter(row.name))[OURS].runs
        assert again["answered"] > 0


def test_offset_servers_are_reported_in_a_table_of_their_own() -> None:
    run = {"per_s": 1_000.0, "p50_ms": None, "p99_ms": None, "load": 2.0}
    peer = {"per_s": 400.0, "p50_ms": 3.25, "p99_ms": 20.0, "load": 1.0}
    rows = {servers.ROWS[0].name: {"peer": servers.COORDINATORS, "wanted": 5.0}}
    rows[servers.ROWS[0].name]["contestants"] = {OURS: [run], servers.COORDINATORS: [peer]}
    cost = {"servers": 2, "groups": 1_000, "per_s": 9_000.0, "servers_us": 51.2, "nodes_us": 8.0, "resident_mb": 61.0}
    relay = {"produced_ms_a_mb": 2.5, "fetched_ms_a_mb": 1.5, "load": 1.0}
    runs = [{"longest_s": seconds, "load": 1.0} for seconds in (0.4, 0.9, 0.5)]
    fail_overs = {"a server is stopped": {"asked_s": 1.0, "runs": runs}}
    measured = {"rows": rows, "costs": [cost | {"load": 3.0}], "relay": relay, "fail_overs": fail_overs}
    found = report.markdown({"rows": {}, "shapes": {}, "servers": measured})
    assert list(found) == ["offset servers"]
    text = found["offset servers"]
    assert "| commit, 4 × 100 in flight | 1,000/s | 400/s | 2.50 × | 5 × |  | 3.2; 20.0 ms | 1.0–2.0 |" in text
    assert "| 2 | 1,000 | 9,000/s | 51 µs | 8 µs | 61 MB | 3.0 |" in text
    assert "| a server is stopped | 0.5 s, at most 0.9 s | 3 | 1 s | 1.0 |" in text
    assert "takes 2.5 ms of their processor time, one that is fetched 1.5 ms (asked: 5 ms; load 1.0)." in text


def test_the_silence_of_a_fail_over_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fail_over, "STEADY_S", 0.1)
    with BrokerProcess(tmp_path / "data") as broker:
        Admin({"bootstrap.servers": broker.bootstrap}).create_topics({TOPIC: 1})

        def strike() -> None:
            broker.kill()
            time.sleep(0.5)
            broker.start()

        assert 0.5 < fail_over.silence([broker.bootstrap], strike)["longest_s"] < fail_over.GIVEN_UP_S


def test_shapes_are_measured(tmp_path: Path) -> None:
    shape = size.Shape(20, 2, 50)
    one = asyncio.run(size.measure(shape, str(tmp_path)))
    one |= asyncio.run(size.load(str(tmp_path)))
    assert one["entries"] == shape.entries == 2_000
    tail = asyncio.run(size.tail(shape, str(tmp_path / "tail")))
    assert tail["entries_per_s"] > 0
    text = report.markdown({"rows": {}, "shapes": {"20 × 2 × 50": one, "20 × 2 × 50 (tail)": tail}})
    assert list(text) == ["offset sizes"], "what a page has of speed stays"
    assert text["offset sizes"].count("| 20 × 2 × 50") == 2


def test_rows_are_found_by_pattern() -> None:
    assert selected(["*"]) == list(ROWS)
    assert {row.what for row in selected(["fetch*"])} == {"fetch"}
    assert selected([]) == []
    assert selected(["servers*"], servers.ROWS) == list(servers.ROWS)
    assert not selected(["servers*"])
