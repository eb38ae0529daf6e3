"""`keylane budgets`: list, show: what all who share a budget have left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.cli.asking import add_command, settings_of, show
from keylane.cli.tables import print_table, say

if TYPE_CHECKING:
    import argparse

DESCRIPTION = "Budgets: what pipelines may spend together of a service, and what is left."

LIST_EXAMPLES = """\
examples:
  keylane budgets list
  keylane budgets list --bootstrap-server kafka.example:9092 --json
"""

SHOW_EXAMPLES = """\
examples:
  keylane budgets show openai
  keylane budgets show openai --json

columns:
  AVAILABLE  of the unit, at the last record of the budget's log; below 0 it is spent already by those who wait
  FREE IN    seconds behind that record until more may be spent
  GRANTED    to the group, in the records that were read: the last 8,192
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane budgets`, with its own subcommands."""
    budgets = subparsers.add_parser("budgets", description=DESCRIPTION)
    commands = budgets.add_subparsers(metavar="COMMAND", dest="budgets_command", required=True)
    add_command(commands, "list", "list the budgets", LIST_EXAMPLES, run_list)
    one = add_command(commands, "show", "how a budget stands, and who spends it", SHOW_EXAMPLES, run_show)
    one.add_argument("budget", metavar="BUDGET", help="its name")


def run_list(args: argparse.Namespace) -> int:
    """Show all budgets; returns the exit code."""
    from keylane.budgets.reports import budgets_of, report_of

    settings = settings_of(args, {})
    return show(args, {"budgets": [report_of(settings, name) for name in budgets_of(settings)]}, _print_list)


def run_show(args: argparse.Namespace) -> int:
    """Show one budget; returns the exit code. Raises `UsageError` for one that is not there."""
    from keylane.budgets.reports import report_of

    return show(args, report_of(settings_of(args, {}), args.budget), _print_show)


def _print_list(report: dict[str, Any]) -> None:
    if not report["budgets"]:
        say("no budgets: a pipeline with budget=... makes one")
        return
    rows = [(one["budget"], *cells) for one in report["budgets"] for cells in _rows(one)]
    print_table(["BUDGET", "LIMIT", "AVAILABLE", "FREE IN"], rows, numbers=(2, 3))


def _print_show(report: dict[str, Any]) -> None:
    print_table(["LIMIT", "AVAILABLE", "FREE IN"], _rows(report), numbers=(1, 2))
    rows = [
        (one["group"], one["members"], ", ".join(f"{amount:g} {unit}" for unit, amount in one["granted"].items()))
        for one in report["groups"]
    ]
    if rows:
        say()
        print_table(["GROUP", "MEMBERS", "GRANTED"], rows, numbers=(1,))


def _rows(report: dict[str, Any]) -> list[tuple[str | None, ...]]:
    rows: list[tuple[str | None, ...]] = [_cells(one) for one in report["limits"]]
    if (at_once := report["at_once"]) is not None:
        rows.append((f"{at_once['count']} at once", str(at_once["count"] - at_once["taken"]), None))
    return rows or [(None, None, None)]  # nobody has asked yet


def _cells(limit: dict[str, Any]) -> tuple[str, str, str]:
    span = "a day" if limit["per_ms"] is None else f"per {limit['per_ms'] / 1000:g} s"
    return f"{limit['count']:g} {limit['unit']} {span}", f"{limit['available']:g}", f"{limit['free_in_ms'] / 1000:g}"
