"""`make bench-broker`: run the rows, print them, and merge them into a JSON file and the docs' page."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import peers
from contests import apache_kafka, arguments, nobody, reporter
from pages import put_into_page

from broker import report, size
from broker.speed import Contest, selected

if TYPE_CHECKING:
    import argparse


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers and load generator end with us
    options = arguments(
        "bench-broker", __doc__, "produce*", "start-up, and memory under 10,000 partitions (half a minute)"
    )
    found = report.read(options.json)
    lacking = peers.missing()
    if lacking:
        print(f"without Apache Kafka: {lacking}")
    try:
        measure(options, found, with_kafka=lacking is None)
    finally:
        report.write(options.json, found)
    text = report.markdown(found)
    print(text)
    if options.page:
        put_into_page(options.page, "broker", text)
    return 0


def measure(options: argparse.Namespace, found: report.Found, *, with_kafka: bool) -> None:
    """All that is asked for, into `found`, which has what is measured also when it is stopped."""
    with tempfile.TemporaryDirectory(prefix="keylane-bench-", dir=options.folder) as folder:
        if options.sizes:
            found["starts"] = size.starts(Path(folder))
            found["many"] = size.many_partitions(Path(folder))
        rows = selected(options.rows)
        if rows:
            with Contest(Path(folder), apache_kafka if with_kafka else nobody) as contest:
                print("warming up …", flush=True)
                contest.warm_up(2 if options.quick else 20)
                for row in rows:
                    repeat, seconds = (1, 1) if options.quick else (options.repeat, options.seconds)
                    report.add_row(found, row, contest.play(row, repeat, seconds, reporter(row.name)))


if __name__ == "__main__":
    sys.exit(main())
