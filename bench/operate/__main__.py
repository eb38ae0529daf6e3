"""`make bench-operate`: processor time of a member with operations and of one without, by turns: a record, at a steady
rate, and a second without records.

The idea: most of what operations cost they cost a second, whatever comes; on a busy machine that is seen where nothing
else runs in the process, and lost in the noise of runs with records.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pages import put_into_page, table
from peers.jvm import LineProcess
from processors import taken_by_others, times

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin

PARTITIONS = 4
WARM_S = 5
"""Before anything counts."""

Switch = Literal["off", "on"]


def main() -> int:
    options = arguments()
    runs: dict[Switch, list[dict[str, Any]]] = {"off": [], "on": []}
    idle: dict[Switch, list[float]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder, BrokerProcess(Path(folder, "data")) as broker:
        for turn in range(options.repeat):
            order: list[Switch] = ["off", "on"] if turn % 2 == 0 else ["on", "off"]
            for switch in order:
                idle[switch].append(without_records(broker.bootstrap, switch, options))
                runs[switch].append(one(broker.bootstrap, switch, options))
    found = summary(runs, idle, options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "operate.json").write_text(json.dumps(found | {"runs": runs}, indent=1) + "\n")
    if options.page is not None:
        put_into_page(options.page, "operate", markdown(found))
    print(markdown(found))
    return 0


def one(bootstrap: str, switch: Switch, options: argparse.Namespace) -> dict[str, Any]:
    """One member on a topic of its own, fed at the rate."""
    topic = f"operate-{time.time_ns()}"
    Admin({"bootstrap.servers": bootstrap}).create_topics({topic: PARTITIONS})
    first, records = options.rate * WARM_S, options.rate * (WARM_S + options.seconds)
    member = [sys.executable, "-m", "operate.member", bootstrap, topic, *map(str, (records, first))]
    feed = [sys.executable, "-m", "operate.feed", bootstrap, topic, *map(str, (PARTITIONS, options.rate, records))]
    load, before = os.getloadavg()[0], times()
    with LineProcess([*member, switch, str(options.work_ms)]) as process:
        lines = process.lines()
        assert next(lines) == "assigned"
        subprocess.run(feed, check=True)
        processor_s, seconds = map(float, next(lines).split())
    result = {
        "operations": switch,
        "us_a_record": round(processor_s / (records - first) * 1e6, 3),
        "rate": round((records - first) / seconds),
        "load": round(load, 1),
        "others": taken_by_others(before, times()),
    }
    print(result, flush=True)
    return result


def without_records(bootstrap: str, switch: Switch, options: argparse.Namespace) -> float:
    """Milliseconds of processor time a second."""
    topic = f"operate-{time.time_ns()}"
    Admin({"bootstrap.servers": bootstrap}).create_topics({topic: PARTITIONS})
    command = [sys.executable, "-m", "operate.member", bootstrap, topic, "0", str(options.seconds), switch, "0"]
    with LineProcess(command) as process:
        lines = process.lines()
        assert next(lines) == "assigned"
        processor_s, seconds = map(float, next(lines).split())
    found = 1000 * processor_s / seconds
    print(f"idle, operations {switch}: {found:.2f} ms a second", flush=True)
    return found


def summary(
    runs: dict[Switch, list[dict[str, Any]]], idle: dict[Switch, list[float]], options: argparse.Namespace
) -> dict[str, Any]:
    """Medians; the overhead is the median of what the two of a turn differ by."""
    costs = {switch: [run["us_a_record"] for run in some] for switch, some in runs.items()}
    each = [100 * (on / off - 1) for off, on in zip(costs["off"], costs["on"], strict=True)]
    everything = [*runs["off"], *runs["on"]]
    more_ms = statistics.median(idle["on"]) - statistics.median(idle["off"])
    busy_ms = options.rate * statistics.median(costs["off"]) / 1000
    return {
        "rate": options.rate,
        "work_ms": options.work_ms,
        "seconds": options.seconds,
        "repeat": options.repeat,
        "off_us": statistics.median(costs["off"]),
        "on_us": statistics.median(costs["on"]),
        "overhead_percent": round(statistics.median(each), 2),
        "turns_percent": [round(one, 2) for one in each],
        "idle_off_ms": round(statistics.median(idle["off"]), 2),
        "idle_on_ms": round(statistics.median(idle["on"]), 2),
        "idle_share_percent": round(100 * more_ms / busy_ms, 2),
        "slowest": min(run["rate"] for run in everything),
        "load": max(run["load"] for run in everything),
        "cpus": os.cpu_count(),
    }


def markdown(found: dict[str, Any]) -> str:
    """The table for the docs."""
    spread = f"{min(found['turns_percent']):+.1f} to {max(found['turns_percent']):+.1f} %"
    row = [
        f"{found['slowest']:,}",
        f"{found['work_ms']:g} ms",
        f"{found['off_us']:.1f} µs",
        f"{found['on_us']:.1f} µs",
        f"{found['overhead_percent']:+.1f} % ({spread})",
        f"{found['idle_off_ms']:.1f} ms",
        f"{found['idle_on_ms']:.1f} ms",
        f"{found['idle_share_percent']:+.1f} %",
        f"{found['load']:.1f}",
    ]
    head = ["records/s", "handler", "a record, without", "with", "more (all turns)", "a second idle, without", "with"]
    return table("", [*head, "of what the records take", "load"], [row]).lstrip()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-operate", description=__doc__)
    add = partial(parser.add_argument, metavar="N", type=int)
    add("--rate", default=10_000, help="records a second (10,000)")
    add("--seconds", default=20, help="how long each run counts (20)")
    add("--repeat", default=7, help="turns, each with both (7)")
    parser.add_argument("--work-ms", type=float, default=1.0, metavar="N", help="how long a handler waits (1)")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), metavar="DIR", help="where files go (artifacts)")
    text = "also put the table into this page (docs/benchmarks.md)"
    parser.add_argument("--page", type=Path, metavar="FILE", help=text)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
