"""What the bench of the offset store found: JSON, and the tables of the docs, which are put between their marks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from contests import KAFKA, OURS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offsets.speed import Row, Standing

Found = dict[str, Any]
"""`rows` by name (what was asked for, and runs by contestant), `shapes` by name, `environment`."""
MANY = 1_000
_SYNCED = "synced_round_trips_per_s"


def read(path: Path) -> Found:
    """What earlier runs left; rows that are run again take the place of the old ones."""
    return json.loads(path.read_text()) if path.exists() else {"rows": {}, "shapes": {}}


def add_row(found: Found, row: Row, standings: Mapping[str, Standing]) -> None:
    found["rows"][row.name] = asdict(row) | {"contestants": {name: one.runs for name, one in standings.items()}}


def write(path: Path, found: Found) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def markdown(found: Found) -> dict[str, str]:
    """By the name of their place in the page: the tables of speed and of size, of what has been measured."""
    made = {
        "offsets": _speed(found["rows"]),
        "offset servers": _servers(found.get("servers", {})),
        "offset sizes": _sizes(found["shapes"]),
    }
    return {name: "\n".join(lines) + "\n" for name, lines in made.items() if lines}


def _speed(rows: Mapping[str, Any]) -> list[str]:
    if not rows:
        return []
    head = ["| load | keylane | peer | ratio | asked | p99 | load average |", "|---|---:|---:|---:|---:|---:|---:|"]
    lines = [line for name, row in rows.items() for line in (_row(name, row), *_bounds(row))]
    return [*head, *lines, *_collapse(rows)]


def _sizes(shapes: Mapping[str, Any]) -> list[str]:
    if not shapes:
        return []
    lines = ["| groups × topics × partitions | bytes an entry | snapshot | written | loaded | longest stall |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    lines += [_shape(name, one) for name, one in shapes.items() if "bytes_an_entry" in one]
    lines += [
        "",
        "| tail: groups × topics × partitions a commit | entries a second | of processor time | load average |",
    ]
    lines += ["|---|---:|---:|---:|"]
    tails = {name: one for name, one in shapes.items() if "entries_per_s" in one}
    return lines + [
        f"| {name} | {one['entries_per_s']:,.0f} | {one['entries_per_cpu_s']:,.0f} | {one['load']:.1f} |"
        for name, one in tails.items()
    ]


def _servers(measured: Mapping[str, Any]) -> list[str]:
    lines = []
    if measured.get("rows"):
        lines += ["| load | 3 servers | 3 nodes | ratio | asked | p50; p99 | of the nodes | load average |"]
        lines += ["|---|---:|---:|---:|---:|---:|---:|---:|"]
        lines += [_server_row(name, row) for name, row in measured["rows"].items()]
    if "costs" in measured:
        head = (
            "servers",
            "groups",
            "commits",
            "processor time a commit",
            "of the nodes",
            "memory of the largest",
            "load",
        )
        lines += ["", f"| {' | '.join(head)} |", f"|{'---:|' * len(head)}"]
        lines += [
            f"| {one['servers']} | {one['groups']:,} | {one['per_s']:,.0f}/s | {one['servers_us']:.0f} µs | "
            f"{one['nodes_us']:.0f} µs | {one['resident_mb']:,.0f} MB | {one['load']:.1f} |"
            for one in measured["costs"]
        ]
    if "fail_overs" in measured:
        lines += ["", "| what happens | a group is silent | runs | asked | load |", "|---|---:|---:|---:|---:|"]
        lines += [_fail_over(name, one) for name, one in measured["fail_overs"].items()]
    if "relay" in measured:
        one = measured["relay"]
        produced, fetched = (f"{one[f'{what}_ms_a_mb']:.1f} ms" for what in ("produced", "fetched"))
        line = f"A megabyte that is produced through the servers takes {produced} of their processor time, one that is "
        lines += ["", f"{line}fetched {fetched} (asked: 5 ms; load {one['load']:.1f})."]
    return lines


def _fail_over(name: str, one: Mapping[str, Any]) -> str:
    runs = one["runs"]
    silences = sorted(run["longest_s"] for run in runs)
    asked = "" if one["asked_s"] is None else f"{one['asked_s']:.0f} s"
    cells = [name, f"{median(silences):.1f} s, at most {silences[-1]:.1f} s", str(len(runs)), asked]
    cells += [f"{max(run['load'] for run in runs):.1f}"]
    return f"| {' | '.join(cells)} |"


def _server_row(name: str, row: Mapping[str, Any]) -> str:
    ours, theirs = row["contestants"][OURS], row["contestants"][row["peer"]]
    rate, peer = median(ours, "per_s"), median(theirs, "per_s")
    spans = [
        f"{median(runs, 'p50_ms'):.1f}; {median(runs, 'p99_ms'):.1f} ms" if runs[0]["p50_ms"] else ""
        for runs in (ours, theirs)
    ]
    loads = [run["load"] for run in (*ours, *theirs)]
    cells = [name.removeprefix("servers: "), f"{rate:,.0f}/s", f"{peer:,.0f}/s", f"{rate / peer:.2f} ×"]
    cells += [f"{row['wanted']:.0f} ×" if row["wanted"] else "", *spans, f"{min(loads):.1f}–{max(loads):.1f}"]
    return f"| {' | '.join(cells)} |"


def _row(name: str, row: Mapping[str, Any]) -> str:
    runs = row["contestants"]
    ours = median(runs[OURS], "per_s")
    peer = median(runs.get(row["peer"], []), "per_s")
    times = row["partitions"]
    cells = [name, f"{ours * times:,.0f}/s"]
    cells.append("" if peer is None else f"{peer * times:,.0f}/s{'' if row['peer'] == KAFKA else ' (flushed)'}")
    cells.append("" if peer is None else f"{ours / peer:.2f} ×")
    cells.append(f"{row['wanted']:.1f} ×" if row["wanted"] else "")
    if row["is_against_disk"]:
        cells[3] += f"; {median([run['per_s'] / run['syncs_per_s'] for run in runs[OURS]]):.2f} of fdatasync"
        cells[4] += "; 0.8"
    p99 = median(runs[OURS], "p99_ms")
    cells.append("" if p99 is None else f"{p99:.1f} ms")
    loads = [run["load"] for one in runs.values() for run in one]
    cells.append(f"{min(loads):.1f}–{max(loads):.1f}")
    return f"| {' | '.join(cells)} |"


def _bounds(row: Mapping[str, Any]) -> list[str]:
    """Beside one client with one commit in flight: what the disk and the socket allow."""
    runs = [run for one in row["contestants"].values() for run in one if _SYNCED in run]
    if not runs:
        return []
    share = median([run[_SYNCED] / run["syncs_per_s"] for run in runs])
    ours = median([run["per_s"] / run[_SYNCED] for run in row["contestants"][OURS]])
    rates = {
        name: f"{median(runs, name):,.0f}/s"
        for name in ("syncs_per_s", "reserved_syncs_per_s", "round_trips_per_s", _SYNCED)
    }
    return [
        f"| – fdatasync, one after the other | | {rates['syncs_per_s']} | | | | |",
        f"| – the same, over bytes that were written before | | {rates['reserved_syncs_per_s']} | | | | |",
        f"| – bare round trip | | {rates['round_trips_per_s']} | | | | |",
        f"| – bare round trip + sync | | {rates[_SYNCED]} | {ours:.2f} ×; that has {share:.2f} of fdatasync | | | |",
    ]


def _collapse(rows: Mapping[str, Any]) -> list[str]:
    """What a thousand clients that each wait for their answer get of the best rate."""
    singles = [row for row in rows.values() if row["what"] == "commit" and row["partitions"] == 1]
    rates = {(row["connections"], row["in_flight"]): median(row["contestants"][OURS], "per_s") for row in singles}
    if (MANY, 1) not in rates:
        return []
    found = rates[MANY, 1]
    shares = (
        f"{found / max(rate for (_, depth), rate in rates.items() if depth == 1):.0%} of the best rate of any number"
    )
    pipelined = [rate for (_, depth), rate in rates.items() if depth > 1]
    deep = f", {found / max(pipelined):.0%} of the best rate of clients with 100 in flight" if pipelined else ""
    return ["", f"{MANY:,} clients that wait for each answer: {shares} of such clients (asked: 80 %){deep}."]


def _shape(name: str, one: Mapping[str, float]) -> str:
    return (
        f"| {name} | {one['bytes_an_entry']:.1f} | {one['snapshot_bytes'] / 1e6:,.0f} MB | "
        f"{one['snapshot_written_s']:.2f} s | {one['loaded_s']:.2f} s | {one['longest_stall_ms']:.0f} ms |"
    )


def median(runs: Any, figure: str | None = None) -> Any:
    values = sorted(run if figure is None else run[figure] for run in runs if figure is None or run.get(figure))
    return values[len(values) // 2] if values else None
