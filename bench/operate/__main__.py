"""`make bench-operate`: what it costs a member to be operated, or to hold a key while all others go on: processor time
a record at a steady rate, and a second without records.

The idea: two processes differ by more than that costs, and so do two minutes of a machine. So one process with one
member is operated and is not, by turns of some seconds, and each turn is held against what came just before and just
after it. What is said is the median of many turns, and within what it lies in 95 of 100 cases.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pages import put_into_page, table
from peers.jvm import LineProcess
from processors import taken_by_others, times

from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTITIONS = 4
WHAT = {"operations": "operated", "key": "a key of 1,000 held"}
"""What a member does in each second stretch."""
IDLE_TURNS = 5
"""Without records nothing else runs in the process: few are enough."""


def main() -> int:
    options = arguments()
    load, before = os.getloadavg()[0], times()
    measured: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder, BrokerProcess(Path(folder, "data")) as broker:
        for what in options.parts:
            idle = stretches(broker.bootstrap, options, what, 0, IDLE_TURNS)
            busy = stretches(broker.bootstrap, options, what, options.rate, options.turns)
            measured[what] = {"busy": busy, "idle": idle, **summary(busy, idle)}
    found: dict[str, Any] = {
        "rate": options.rate,
        "work_ms": options.work_ms,
        "seconds": options.seconds,
        "cpus": os.cpu_count(),
        "load": round(load, 1),
        "others": taken_by_others(before, times()),
        "parts": measured,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "operate.json").write_text(json.dumps(found, indent=1) + "\n")
    if options.page is not None:
        put_into_page(options.page, "operate", markdown(found))
    print(markdown(found))
    return 0


def stretches(bootstrap: str, options: argparse.Namespace, what: str, rate: int, turns: int) -> list[dict[str, Any]]:
    """Of one member: without it, with it, without it, and so on."""
    topic = f"operate-{time.time_ns()}"
    Admin({"bootstrap.servers": bootstrap}).create_topics({topic: PARTITIONS}, config={"retention.bytes": "50000000"})
    member = [sys.executable, "-m", "operate.member", bootstrap, topic, str(options.seconds), str(turns)]
    feed = [sys.executable, "-m", "operate.feed", bootstrap, topic, str(PARTITIONS), str(rate)]
    found: list[dict[str, Any]] = []
    with ExitStack() as stack:
        lines = stack.enter_context(LineProcess([*member, str(options.work_ms), what])).lines()
        assert next(lines) == "assigned"
        if rate:
            stack.enter_context(LineProcess(feed))
        for line in lines:
            found.append(json.loads(line))
            print(f"{what} {'on' if len(found) % 2 == 0 else 'off'}: {line}", flush=True)
    assert len(found) == 2 * turns + 1, "the member ended before its time"
    return found


def summary(busy: Sequence[dict[str, Any]], idle: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and of what operations cost more the interval too."""
    costs = [1e6 * one["processor_s"] / one["records"] for one in busy]
    percent = [100 * (on / off - 1) for on, off in beside_neighbours(costs)]
    second = [1e3 * one["processor_s"] / one["seconds"] for one in idle]
    more_ms = statistics.median(on - off for on, off in beside_neighbours(second))
    rates = [one["records"] / one["seconds"] for one in busy]
    busy_ms = statistics.median(1e3 * one["processor_s"] / one["seconds"] for one in busy[::2])
    low, high = interval(percent)
    return {
        "turns": len(percent),
        "off_us": round(statistics.median(costs[::2]), 2),
        "on_us": round(statistics.median(costs[1::2]), 2),
        "overhead_percent": round(statistics.median(percent), 2),
        "interval_percent": [round(low, 2), round(high, 2)],
        "idle_off_ms": round(statistics.median(second[::2]), 2),
        "idle_more_ms": round(more_ms, 2),
        "idle_share_percent": round(100 * more_ms / busy_ms, 2),
        "slowest": round(min(rates)),
    }


def beside_neighbours(values: Sequence[float]) -> list[tuple[float, float]]:
    """Each second one, and the mean of the two around it: what rises or falls steadily is the same in both."""
    return [(values[at], (values[at - 1] + values[at + 1]) / 2) for at in range(1, len(values) - 1, 2)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Within which the median lies in 95 of 100 cases, whatever the values are spread like: the binomial's ranks."""
    ordered, count = sorted(values), len(values)
    first = max(0, int((count - 1.96 * count**0.5) / 2) - 1)
    return ordered[first], ordered[count - 1 - first]


def markdown(found: dict[str, Any]) -> str:
    """The table for the docs."""
    rows = [_row(WHAT[what], found, one) for what, one in found["parts"].items()]
    head = ["", "records/s", "handler", "a record, without", "with", "more (95 of 100)", "turns"]
    return table("", [*head, "a second idle, without", "more", "of what the records take", "load"], rows).lstrip()


def _row(what: str, run: dict[str, Any], found: dict[str, Any]) -> list[str]:
    low, high = found["interval_percent"]
    return [
        what,
        f"{found['slowest']:,}",
        f"{run['work_ms']:g} ms",
        f"{found['off_us']:.1f} µs",
        f"{found['on_us']:.1f} µs",
        f"{found['overhead_percent']:+.2f} % ({low:+.2f} to {high:+.2f} %)",
        f"{found['turns']}",
        f"{found['idle_off_ms']:.1f} ms",
        f"{found['idle_more_ms']:+.1f} ms",
        f"{found['idle_share_percent']:+.2f} %",
        f"{run['load']:.1f}",
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-operate", description=__doc__)
    add = partial(parser.add_argument, metavar="N", type=int)
    add("--rate", default=10_000, help="records a second (10,000)")
    add("--seconds", default=8, help="how long each stretch counts, of which a turn has one operated (8)")
    add("--turns", default=40, help="how many (40: a quarter of an hour for each part)")
    parser.add_argument("--parts", nargs="+", choices=WHAT, default=[*WHAT], help="what is measured (both)")
    parser.add_argument("--work-ms", type=float, default=1.0, metavar="N", help="how long a handler waits (1)")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), metavar="DIR", help="where files go (artifacts)")
    text = "also put the table into this page (docs/benchmarks.md)"
    parser.add_argument("--page", type=Path, metavar="FILE", help=text)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
