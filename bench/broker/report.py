"""What the bench of the broker found: JSON, and the tables of the docs, which are put between their marks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from contests import FLUSHING, KAFKA, OURS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from broker.speed import Row

Found = dict[str, Any]
"""`rows` by name, `starts` and `many` (partitions)."""
DISK_SHARE = 0.8


def read(path: Path) -> Found:
    """What earlier runs left; rows that are run again take the place of the old ones."""
    return json.loads(path.read_text()) if path.exists() else {"rows": {}}


def write(path: Path, found: Found) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def add_row(found: Found, row: Row, runs: Mapping[str, Any]) -> None:
    found["rows"][row.name] = asdict(row) | {"peers": list(row.peers), "contestants": dict(runs)}


def median(runs: Any, figure: str) -> float | None:
    values = sorted(run[figure] for run in runs if run.get(figure) is not None)
    return values[len(values) // 2] if values else None


def markdown(found: Found) -> str:
    lines = [
        "| load | keylane | Apache Kafka | flushed | asked | is | load average |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_row(name, row) for name, row in found["rows"].items()]
    if "starts" in found:
        starts = "; ".join(f"{name} {seconds:.2f} s" for name, seconds in found["starts"].items())
        lines += ["", f"From the start of the process to its first answer: {starts}."]
    if "many" in found:
        lines += ["", _many(found["many"])]
    return "\n".join(lines) + "\n"


def _row(name: str, row: Mapping[str, Any]) -> str:
    runs = row["contestants"]
    rates = {who: median(runs.get(who, []), "per_s") for who in (OURS, KAFKA, FLUSHING)}
    cells = [name, *(_figure(row, runs.get(who, []), rates[who]) for who in rates), *_asked(row, runs, rates)]
    loads = [run["load"] for one in runs.values() for run in one]
    return f"| {' | '.join([*cells, f'{min(loads):.1f}–{max(loads):.1f}'])} |"


def _figure(row: Mapping[str, Any], runs: Any, rate: float | None) -> str:
    if rate is None:
        return ""
    if row["what"] == "single":
        return f"{rate:,.0f}/s, p99 {median(runs, 'p99_ms'):.2f} ms"
    megabytes = f", {rate * row['size'] / 1e6:,.0f} MB/s" if row["what"] in ("produce", "fetch") else ""
    return f"{rate:,.0f}/s{megabytes}"


def _asked(row: Mapping[str, Any], runs: Mapping[str, Any], rates: Mapping[str, float | None]) -> tuple[str, str]:
    """What was asked for, and what share of it is there."""
    ours, kafka, flushed = rates[OURS], rates[KAFKA], rates[FLUSHING]
    if ours is None or kafka is None:
        return "", ""
    if row["what"] == "fetch":
        return "Apache Kafka's", f"{ours / kafka:.2f} ×"
    if row["what"] != "produce" or flushed is None:
        return "", f"{ours / kafka:.2f} × Apache Kafka"
    disk = (median(runs[OURS], "disk_bytes_per_s") or 0) / row["size"]
    bound = min(disk, kafka)
    what = f"flushed; {DISK_SHARE} of {'the disk' if disk < kafka else 'Apache Kafka'} ({bound:,.0f}/s)"
    return what, f"{ours / flushed:.2f} ×; {ours / bound:.2f}"


def _many(one: Mapping[str, float]) -> str:
    return (
        f"{one['topics']:,} topics of {one['partitions']} partitions: {one['mb']:.0f} MB of memory "
        f"({one['empty_mb']:.0f} MB without any; {one['kb_a_partition']:.1f} KB a partition), made in "
        f"{one['made_s']:.1f} s;\na start on them takes {one['started_s']:.1f} s after a clean stop, "
        f"{one['recovered_s']:.1f} s after a crash."
    )
