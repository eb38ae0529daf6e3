"""What a contest found: a table to read, a JSON file to compare, a picture for the docs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from engine.contest import Standing
    from engine.rows import Row

Standings = dict[str, "Standing"]
COLOURS = ("#1f6f8b", "#99c1de", "#e07a3f")


def table(found: Sequence[tuple[Row, Standings]]) -> Table:
    """Medians by row, see `cell`."""
    made = Table(
        title="Medians, first record to last: seconds and times the limit of its own handlers;\n"
        "with a handler that does nothing, records a second and processor time a record"
    )
    made.add_column("row")
    made.add_column("limit", justify="right")
    contestants = list(found[0][1])
    for name in contestants:
        made.add_column(name, justify="right")
    for row, standings in found:
        limits = [standing.median(lambda result: result.limit_s) for standing in standings.values()]
        limit = f"{limits[0]:.2f} s" if row.topic.sleeping else ""
        made.add_row(row.name, limit, *(cell(row, standings[name]) for name in contestants))
    return made


def cell(row: Row, standing: Standing) -> str:
    """Seconds from the first record to the last and times the limit, or records a second and processor time."""
    seconds = standing.median(lambda result: result.from_first_s)
    if row.topic.sleeping:
        return f"{seconds:.2f} s  {standing.times_the_limit:.2f}×"
    processor_us = standing.median(lambda result: result.processor_us_a_record)
    return f"{standing.median(lambda result: result.records_per_s):,.0f}/s  {processor_us:.1f} µs"


def markdown(found: Sequence[tuple[Row, Standings]]) -> str:
    """The table for the docs."""
    contestants = list(found[0][1])
    lines = [f"| row | limit | {' | '.join(contestants)} |", f"|---|---:|{'---:|' * len(contestants)}"]
    for row, standings in found:
        limit = next(iter(standings.values())).median(lambda result: result.limit_s)
        cells = [cell(row, standings[name]).replace("  ", " · ") for name in contestants]
        lines.append(f"| {row.name} | {f'{limit:.2f} s' if row.topic.sleeping else ''} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_json(path: Path, found: Sequence[tuple[Row, Standings]], environment: Mapping[str, Any]) -> None:
    rows = [
        asdict(row) | {"contestants": {name: [asdict(r) for r in one.results] for name, one in standings.items()}}
        for row, standings in found
    ]
    path.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")


def environment(broker: str) -> dict[str, Any]:
    """What the figures depend on."""
    versions = {name: importlib.metadata.version(name) for name in ("keylane", "confluent-kafka")}
    return {
        "broker": broker,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "java": _java_version(),
        "platform": platform.platform(),
        **versions,
    }


def _java_version() -> str | None:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.splitlines()[0]


def draw(path: Path, found: Sequence[tuple[Row, Standings]]) -> None:
    """Bars: how many times the limit by row and concurrency, and records a second where the handler does nothing."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    sleeping = [entry for entry in found if entry[0].topic.sleeping]
    panels: list[tuple[str, list[tuple[Row, Standings]]]] = [
        (f"concurrency {concurrency}: times the limit", [e for e in sleeping if e[0].concurrency == concurrency])
        for concurrency in sorted({row.concurrency for row, _ in sleeping})
    ]
    panels.append(("handler that does nothing: records a second", [e for e in found if not e[0].topic.sleeping]))
    panels = [panel for panel in panels if panel[1]]
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(10, 3.4 * len(panels)), squeeze=False, layout="constrained")
    for axis, (title, entries) in zip(axes[:, 0], panels, strict=True):
        _bars(axis, title, entries)
    axes[0, 0].legend(frameon=False, ncols=3, loc="upper left", fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(axis: Any, title: str, entries: list[tuple[Row, Standings]]) -> None:
    contestants = list(entries[0][1])
    width = 0.8 / len(contestants)
    sleeping = entries[0][0].topic.sleeping
    for index, name in enumerate(contestants):
        standings = [one[name] for _, one in entries]
        heights = [s.times_the_limit if sleeping else s.median(lambda r: r.records_per_s) for s in standings]
        places = [place + (index - (len(contestants) - 1) / 2) * width for place in range(len(entries))]
        axis.bar(places, heights, width * 0.92, label=name, color=COLOURS[index % len(COLOURS)])
    if sleeping:
        axis.axhline(1, color="black", linewidth=0.8)
    axis.set_title(title, fontsize=10, loc="left")
    names = [row.name.split("/")[0] if sleeping else row.name for row, _ in entries]
    axis.set_xticks(range(len(entries)), names, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
