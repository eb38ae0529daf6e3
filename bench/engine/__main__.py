"""`make bench-engine`: run rows, print what they took, merge the results into JSON, a picture and the docs' tables."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import peers
from pages import put_into_page
from peers import jvm

from engine import memory, pace, placement, report
from engine.contest import Contest, Result, keylane_and_peer
from engine.rows import Row, rows
from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = ("unordered/16", "noop-key/16", "noop-unordered/100")
MORE = {"latency", "memory", "processors"}
"""What is measured beside rows, when it is named."""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that broker and contestants end with us
    options = arguments()
    selected = rows(options.rows, quick=options.quick)
    more = MORE & set(options.rows)
    if options.rows and not selected and not more:
        names = " ".join([*(row.name for row in rows(["*"], quick=True)), *sorted(MORE)])
        print(f"--rows {' '.join(options.rows)}: no row has such a name; there are {names}", file=sys.stderr)
        return 2
    path = options.out / "engine.json"
    found = report.load(path)
    if options.rows:
        run(options, found, selected, more)
    report.save(path, found)
    report.draw(options.out / "engine.png", found)
    if options.page is not None:
        put_into_page(options.page, "engine", report.markdown(found))
    print(f"wrote engine.json and engine.png to {options.out}")
    return 0


def run(options: argparse.Namespace, found: report.Found, selected: list[Row], more: set[str]) -> None:
    """Run what was chosen, and put it into `found`."""
    lacking = jvm.missing()
    if lacking:
        print(f"without the JVM Parallel Consumer, and on the embedded broker: {lacking}")
    with contextlib.ExitStack() as stack:
        broker, bootstrap = start_broker(stack, options.bootstrap, lacking)
        contest = stack.enter_context(Contest(bootstrap, keylane_and_peer(bootstrap, with_jvm=lacking is None)))
        found["environment"] = report.environment(broker)
        warm_up(contest)
        for row in selected:
            contest.fill([row.topic, row.peer_topic])
            standings = contest.play(row, 1 if options.quick else options.repeat, reporter(row))
            report.note_row(found, row, standings)
            print(f"{row.name}: " + "; ".join(f"{name} {report.cell(row, one)}" for name, one in standings.items()))
            report.save(options.out / "engine.json", found)
        if "latency" in more:
            found.setdefault("tables", {})["latency"] = pace.table(pace.measure(contest, bootstrap, options.repeat))
        if "memory" in more:
            found.setdefault("tables", {})["memory"] = memory.measure(bootstrap)
        if "processors" in more:
            found.setdefault("tables", {})["processors"] = placement.measure(bootstrap, options.repeat)


def warm_up(contest: Contest) -> None:
    warm = [row for row in rows(["*"], quick=True) if row.name in WARM_UP]
    print("warming up …", flush=True)
    for row in warm:
        contest.fill([row.topic, row.peer_topic])
        contest.warm_up(row)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-engine", description=__doc__)
    add = parser.add_argument
    text = "rows by name or pattern (key-*/16), latency, memory, processors; none: only write the files again"
    add("--rows", nargs="*", default=["*", *sorted(MORE)], metavar="NAME", help=text)
    add("--repeat", type=int, default=3, help="runs a row and contestant; the median counts (3)")
    add("--quick", action="store_true", help="a fifth of the records, each row once: a few minutes")
    add("--bootstrap", metavar="HOST:PORT", help="a running broker; else one is started")
    add("--out", type=Path, default=Path("artifacts"), metavar="DIR", help="where files go, merged with what is there")
    add("--page", type=Path, metavar="FILE", help="also put the tables into this page (docs/benchmarks.md)")
    return parser.parse_args()


def start_broker(stack: contextlib.ExitStack, bootstrap: str | None, lacking: str | None) -> tuple[str, str]:
    """What it is, and its address."""
    if bootstrap:
        return f"at {bootstrap}", bootstrap
    if lacking:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="keylane-bench-"))
        return "keylane's embedded broker", stack.enter_context(BrokerProcess(Path(folder, "data"))).bootstrap
    return f"Apache Kafka {peers.kafka_release()}", stack.enter_context(peers.ApacheKafka()).bootstrap


def reporter(row: Row) -> Callable[[str, Result], None]:
    def line(name: str, result: Result) -> None:
        pace = f"limit {result.limit_s:6.2f} s" if row.topic.sleeping else f"{result.records_per_s:>9,.0f}/s"
        print(
            f"{row.name:20} {name:22} {result.from_first_s:7.2f} s  {pace}  "
            f"(from subscribe {result.from_subscribe_s:.2f} s, load {result.load:.1f})",
            flush=True,
        )

    return line


if __name__ == "__main__":
    sys.exit(main())
