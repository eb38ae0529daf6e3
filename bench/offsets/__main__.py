"""`make bench-offsets`: run the rows and shapes, print them, and merge them into a JSON file and the docs' page."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
from contests import apache_kafka, arguments, nobody, reporter
from pages import put_into_page

from offsets import report, servers
from offsets.fail_over import KINDS
from offsets.size import Shape
from offsets.speed import Contest, selected

if TYPE_CHECKING:
    import argparse

SHAPES = (Shape(1_000, 16, 1_000), Shape(160_000, 1, 100), Shape(1_000, 1, 1_000), Shape(10_000, 1, 100))
"""16 million entries in both shapes, and a million."""
SINGLES = Shape(4_000_000, 1, 1)
"""One entry a group: reported. Sixteen million take 15 GB."""
TAILS = (Shape(100, 1, 1, 5_000), Shape(300_000, 1, 1), Shape(5_000, 1, 100), Shape(50, 10, 1_000))
"""Commits of one partition by a hundred groups, over and over; by new groups only; and larger commits."""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers and load generator end with us
    options = arguments(
        "bench-offsets", __doc__, "commit*", "memory, snapshots and replay, up to 16 million entries (10 minutes)"
    )
    found = report.read(options.json)
    found["environment"] = environment()
    lacking = peers.missing()
    if lacking:
        print(f"without Apache Kafka: {lacking}")
    try:
        measure(options, found, with_kafka=lacking is None)
    finally:
        report.write(options.json, found)
    for place, text in report.markdown(found).items():
        print(text)
        if options.page:
            put_into_page(options.page, place, text)
    return 0


def measure(options: argparse.Namespace, found: report.Found, *, with_kafka: bool) -> None:
    """All that is asked for, into `found`, which has what is measured also when it is stopped."""
    with tempfile.TemporaryDirectory(prefix="keylane-bench-", dir=options.folder) as folder:
        rows = selected(options.rows)
        if rows:
            with Contest(Path(folder), apache_kafka if with_kafka else nobody) as contest:
                print("warming up …", flush=True)
                contest.warm_up(2 if options.quick else 40)
                for row in rows:
                    repeat, seconds = (1, 1) if options.quick else (options.repeat, options.seconds)
                    standings = contest.play(row, repeat, seconds, reporter(row.name))
                    report.add_row(found, row, standings)
        if with_kafka:
            of_servers(Path(folder), options, found)
        if options.sizes:
            for name, one in sizes(Path(folder)):
                found["shapes"][name] = one


def of_servers(folder: Path, options: argparse.Namespace, found: report.Found) -> None:
    """Offset servers and the same brokers' own coordinators, by turns; then what a commit costs."""
    rows = selected(options.rows, servers.ROWS)
    parts = (servers.RELAY, servers.COST, servers.FAIL_OVER)
    relay, cost, fails = (any(fnmatch.fnmatch(name, one) for one in options.rows) for name in parts)
    if not (rows or relay or cost or fails):
        return
    repeat, seconds = (1, 1) if options.quick else (options.repeat, options.seconds)
    measured = found.setdefault("servers", {"rows": {}})
    with servers.ServersContest(folder) as contest:
        if rows or relay or fails:
            with contest.serving("bench", servers.SERVERS):
                if rows:
                    print("warming up …", flush=True)
                    contest.warm_up(2 if options.quick else 40)
                for row in rows:
                    report.add_row(measured, row, contest.play(row, repeat, seconds, reporter(row.name)))
                if relay:
                    measured["relay"] = contest.relay(servers.RELAYED_RECORDS)
                if fails:
                    measured["fail_overs"] = {kind.name: {"asked_s": kind.asked_s, "runs": []} for kind in KINDS}
                    for kind in KINDS * repeat:
                        run = contest.fail_over(kind, "bench")
                        measured["fail_overs"][kind.name]["runs"].append(run)
                        print(f"{kind.name}: {run}", flush=True)
        if cost:
            few, *more = servers.QUICK_GROUPS if options.quick else servers.GROUPS
            shapes = [(count, few) for count in range(1, servers.SERVERS + 1)]
            shapes += [(1, groups) for groups in more] + [(servers.SERVERS, more[-1])]
            print("warming up …", flush=True)
            contest.cost(1, few, 1 if options.quick else 20)
            measured["costs"] = []
            for count, groups in shapes:
                measured["costs"].append(contest.cost(count, groups, seconds))
                print(measured["costs"][-1], flush=True)


def sizes(folder: Path) -> list[tuple[str, dict[str, float]]]:
    found = []
    for shape in (*SHAPES, SINGLES):
        kept = folder / "snapshot"
        kept.mkdir()
        one = child("measure", kept, shape) | child("load", kept, shape)
        found.append((name_of(shape), one))
        print(name_of(shape), one, flush=True)
        for path in kept.iterdir():
            path.unlink()
        kept.rmdir()
    for shape in TAILS:
        one = child("tail", folder, shape)
        found.append((f"{name_of(shape)} (tail)", one))
        print(name_of(shape), one, flush=True)
    return found


def name_of(shape: Shape) -> str:
    name = " × ".join(f"{number:,}" for number in shape[:3])
    return name if shape.times == 1 else f"{name}, {shape.times:,} times"


def child(what: str, folder: Path, shape: Shape) -> dict[str, float]:
    command = [sys.executable, "-m", "offsets.size", what, str(folder), *map(str, shape)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(said)
    return found


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    with contextlib.suppress(OSError, IndexError):
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        return {"cpus": os.cpu_count(), "cpu": models[0].partition(": ")[2], "python": platform.python_version()}
    return {"cpus": os.cpu_count(), "python": platform.python_version()}


if __name__ == "__main__":
    sys.exit(main())
