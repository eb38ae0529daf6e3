"""`make bench-broker`: run the rows, print them, and merge them into a JSON file and the docs' page."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers

from broker import report, size
from broker.speed import Contest, selected

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers and load generator end with us
    options = arguments()
    found = report.read(options.json)
    lacking = peers.missing()
    if lacking:
        print(f"without Apache Kafka: {lacking}")
    with tempfile.TemporaryDirectory(prefix="keylane-bench-", dir=options.folder) as folder:
        if options.sizes:
            found["starts"] = size.starts(Path(folder))
            found["many"] = size.many_partitions(Path(folder))
        rows = selected(options.rows)
        if rows:
            with Contest(Path(folder), with_kafka=lacking is None) as contest:
                print("warming up …", flush=True)
                contest.warm_up(2 if options.quick else 20)
                for row in rows:
                    repeat, seconds = (1, 1) if options.quick else (options.repeat, options.seconds)
                    report.add_row(found, row, contest.play(row, repeat, seconds, reporter(row.name)))
    report.write(options.json, found)
    text = report.markdown(found)
    print(text)
    if options.page:
        report.put_into_page(options.page, text)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-broker", description=__doc__)
    add = parser.add_argument
    add("--rows", nargs="*", default=["*"], metavar="NAME", help="rows by name or pattern: 'produce*' (all)")
    add("--sizes", action="store_true", help="also start-up, and memory under 10,000 partitions (half a minute)")
    add("--repeat", type=int, default=3, help="runs a row and contestant; the median counts (3)")
    add("--seconds", type=float, default=4, help="length of a run (4)")
    add("--quick", action="store_true", help="each row once, for a second")
    add("--folder", default=None, metavar="DIR", help="a folder on the disk to measure (the temporary folder)")
    add("--json", type=Path, default=Path("artifacts/bench-broker.json"), help="where results are merged into")
    add("--page", type=Path, metavar="FILE", help="also put the tables into this page (docs/benchmarks.md)")
    return parser.parse_args()


def reporter(name: str) -> Callable[[str, Any], None]:
    def line(contestant: str, run: Any) -> None:
        print(f"{name:32} {contestant:28} {run['per_s']:>10,.0f}/s  load {run['load']:.1f}", flush=True)

    return line


if __name__ == "__main__":
    sys.exit(main())
