"""`keylane dlq purge`: which letters are to go, and what was, or would be, deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.arguments import milliseconds
from keylane.cli.asking import DRY_RUN
from keylane.cli.tables import print_table, say
from keylane.desk.purge import Below

if TYPE_CHECKING:
    import argparse

    from keylane.cli.asking import Report


def below_of(args: argparse.Namespace) -> Below:
    """Raises `UsageError` for a time that is none."""
    if args.to_redriven:
        return Below("redriven")
    if args.to_datetime is not None:
        return Below("time", milliseconds("--to-datetime", args.to_datetime))
    return Below("latest") if args.to_offset is None else Below("offset", args.to_offset)


def print_purge(report: Report) -> None:
    """As a table."""
    headings = ("TOPIC", "PARTITION", "LOG START", "LOG END", "NEW START", "OFFSETS", "NOTE")
    names = ("topic", "partition", "log_start_offset", "log_end_offset", "new_start_offset", "records")
    rows = [
        (*(one[name] for name in names), "kept from its open transaction on" if one["open_transaction"] else "")
        for one in report["partitions"]
    ]
    print_table(headings, rows, numbers=range(1, 6))
    count = sum(one["records"] for one in report["partitions"])
    say(f"{count} offsets deleted" if report["executed"] else DRY_RUN)
