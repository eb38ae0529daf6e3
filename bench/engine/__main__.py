"""`make bench-engine`: run the rows, print the table, and leave JSON, Markdown and a picture in a folder."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import peers
from peers import jvm
from rich.console import Console

from engine import report
from engine.contest import Contest, Result
from engine.rows import Row, rows
from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = ("unordered/16", "noop-key/16", "noop-unordered/100")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that broker and contestants end with us
    options = arguments()
    selected = rows(options.rows, quick=options.quick)
    if not selected:
        names = " ".join(row.name for row in rows(["*"], quick=True))
        print(f"--rows {' '.join(options.rows)}: no row has such a name; there are {names}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else 140)
    lacking = jvm.missing()
    if lacking:
        console.print(f"without the JVM Parallel Consumer, and on the embedded broker: {lacking}")
    with contextlib.ExitStack() as stack:
        broker, bootstrap = start_broker(stack, options.bootstrap, lacking)
        contest = stack.enter_context(Contest(bootstrap, with_jvm=lacking is None))
        console.print(f"broker: {broker}; filling topics …")
        warm = [row for row in rows(["*"], quick=True) if row.name in WARM_UP]
        contest.fill([topic for row in [*warm, *selected] for topic in (row.topic, row.peer_topic)])
        console.print("warming up …")
        for row in warm:
            contest.warm_up(row)
        found = []
        for row in selected:
            standings = contest.play(row, 1 if options.quick else options.repeat, reporter(console, row))
            found.append((row, standings))
    console.print(report.table(found))
    folder: Path = options.out
    folder.mkdir(parents=True, exist_ok=True)
    report.write_json(folder / "bench-engine.json", found, report.environment(broker))
    (folder / "bench-engine.md").write_text(report.markdown(found))
    report.draw(folder / "bench-engine.png", found)
    console.print(f"wrote bench-engine.json, .md and .png to {folder}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-engine", description=__doc__)
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="NAME", help="rows by name or pattern: key-*/16")
    parser.add_argument("--repeat", type=int, default=3, help="runs a row and contestant; the median counts (3)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the records, each row once: a few minutes")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a running broker; else one is started")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), metavar="DIR", help="where files go (artifacts)")
    return parser.parse_args()


def start_broker(stack: contextlib.ExitStack, bootstrap: str | None, lacking: str | None) -> tuple[str, str]:
    """What it is, and its address."""
    if bootstrap:
        return f"at {bootstrap}", bootstrap
    if lacking:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="keylane-bench-"))
        return "keylane's embedded broker", stack.enter_context(BrokerProcess(Path(folder, "data"))).bootstrap
    return "Apache Kafka 4.3.1", stack.enter_context(peers.ApacheKafka()).bootstrap


def reporter(console: Console, row: Row) -> Callable[[str, Result], None]:
    def line(name: str, result: Result) -> None:
        pace = f"{result.records_per_s:>9,.0f}/s" if not row.topic.sleeping else f"limit {result.limit_s:6.2f} s"
        console.print(
            f"{row.name:18} {name:22} {result.from_first_s:7.2f} s  {pace}  "
            f"(from subscribe {result.from_subscribe_s:.2f} s, load {result.load:.1f})"
        )

    return line


if __name__ == "__main__":
    sys.exit(main())
