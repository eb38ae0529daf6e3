"""What a contest found: JSON that later runs are merged into, and from it the tables and the picture of the docs.

Rows take half an hour together, so they are run some at a time; what is written is always made from all that is known.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine.contest import Result, Standing
from engine.rows import Row, rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Standings = dict[str, Standing]
Found = dict[str, Any]
COLOURS = {"keylane threads": "#1f6f8b", "keylane asyncio": "#99c1de", "JVM Parallel Consumer": "#e07a3f"}


def load(path: Path) -> Found:
    """What earlier runs found; empty when there were none."""
    if not path.exists():
        return {"rows": {}}
    found: Found = json.loads(path.read_text())
    return found


def note_row(found: Found, row: Row, standings: Standings) -> None:
    """Put a row's results in the place of earlier ones."""
    found["rows"][row.name] = {name: [asdict(one) for one in standing.results] for name, standing in standings.items()}


def save(path: Path, found: Found) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def known(found: Found, section: str) -> list[tuple[Row, Standings]]:
    """The rows of a section that have results, in their order."""
    return [
        (row, {name: Standing([Result(**one) for one in results]) for name, results in found["rows"][row.name].items()})
        for row in rows(["*"], quick=False)
        if row.section == section and row.name in found["rows"]
    ]


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


# --- tables ---


def markdown(found: Found) -> str:
    """Everything that is known, as the docs have it."""
    parts = [_environment_line(found.get("environment", {}))]
    for section, title, cells in (
        ("wait", "Handlers that wait: seconds from the first record to the last, and times the limit", _waiting),
        ("noop", "A handler that does nothing: records a second, and processor time a record", _idle),
        (
            "cost",
            "What a record costs when something grows (threads at 16): elapsed and processor time a record",
            _cost,
        ),
    ):
        entries = known(found, section)
        if entries:
            parts.append(f"**{title}**\n\n{_table(entries, cells, with_limit=section == 'wait')}")
    parts += [f"**{table['title']}**\n\n{table['markdown']}" for table in found.get("tables", {}).values()]
    return "\n".join(parts)


def _environment_line(said: Mapping[str, Any]) -> str:
    names = ("broker", "python", "java", "confluent-kafka")
    return f"{said.get('cpus')} cores; " + "; ".join(f"{name}: {said.get(name)}" for name in names) + ".\n"


def _table(entries: Sequence[tuple[Row, Standings]], cells: Any, *, with_limit: bool) -> str:
    names = [name for name in COLOURS if any(name in standings for _, standings in entries)]
    head = ["row", *(["limit"] if with_limit else []), *names, "load"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for row, standings in entries:
        limits = [standing.median(lambda result: result.limit_s) for standing in standings.values()]
        limit = [f"{limits[0]:.2f} s"] if with_limit else []
        shown = [cells(standings[name]) if name in standings else "" for name in names]
        loads = sorted(result.load for standing in standings.values() for result in standing.results)
        lines.append(f"| {' | '.join([row.name, *limit, *shown, f'{loads[len(loads) // 2]:.1f}'])} |")
    return "\n".join(lines) + "\n"


def cell(row: Row, standing: Standing) -> str:
    """One result, for the console."""
    return {"wait": _waiting, "noop": _idle, "cost": _cost}[row.section](standing)


def _waiting(standing: Standing) -> str:
    seconds = standing.median(lambda result: result.from_first_s)
    return f"{seconds:.2f} s · {standing.times_the_limit:.2f}×"


def _idle(standing: Standing) -> str:
    processor_us = standing.median(lambda result: result.processor_us_a_record)
    return f"{standing.median(lambda result: result.records_per_s):,.0f}/s · {processor_us:.1f} µs"


def _cost(standing: Standing) -> str:
    processor_us = standing.median(lambda result: result.processor_us_a_record)
    return f"{standing.median(lambda result: 1e6 / result.records_per_s):.2f} µs · {processor_us:.2f} µs"


# --- the picture ---


def draw(path: Path, found: Found) -> None:
    """Bars: how many times the limit by row and concurrency, and records a second where the handler does nothing."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    waiting = known(found, "wait")
    panels: list[tuple[str, list[tuple[Row, Standings]]]] = [
        (f"concurrency {concurrency}: times the limit", [e for e in waiting if e[0].concurrency == concurrency])
        for concurrency in sorted({row.concurrency for row, _ in waiting})
    ]
    panels.append(("handler that does nothing: records a second", known(found, "noop")))
    panels = [panel for panel in panels if panel[1]]
    if not panels:
        return
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(10, 3.4 * len(panels)), squeeze=False, layout="constrained")
    for axis, (title, entries) in zip(axes[:, 0], panels, strict=True):
        _bars(axis, title, entries)
    axes[0, 0].legend(frameon=False, ncols=3, loc="upper left", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(axis: Any, title: str, entries: list[tuple[Row, Standings]]) -> None:
    contestants = [name for name in COLOURS if any(name in standings for _, standings in entries)]
    width = 0.8 / len(contestants)
    waiting = entries[0][0].section == "wait"
    for index, name in enumerate(contestants):
        heights, places = [], []
        for place, (_, standings) in enumerate(entries):
            if name in standings:
                one = standings[name]
                heights.append(one.times_the_limit if waiting else one.median(lambda r: r.records_per_s))
                places.append(place + (index - (len(contestants) - 1) / 2) * width)
        axis.bar(places, heights, width * 0.92, label=name, color=COLOURS[name])
    if waiting:
        axis.axhline(1, color="black", linewidth=0.8)
    axis.set_title(title, fontsize=10, loc="left")
    names = [row.name.split("/")[0] if waiting else row.name for row, _ in entries]
    axis.set_xticks(range(len(entries)), names, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
