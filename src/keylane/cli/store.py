"""`keylane store`: check, forget, accept, schema: the store of a pipeline with `delivery=ExactlyOnce(store)`.

The idea: the store keeps a checksum of each record and where the group was, so that it can be held against the log and
the group. What it says, and what is changed, is `keylane.desk.stores`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from keylane.cli.asking import DRY_RUN, add_command, add_execute, admin_with, settings_of, show
from keylane.cli.tables import print_table, say

if TYPE_CHECKING:
    import argparse

    from keylane.desk import Report

CHECK_EXAMPLES = """\
examples:
  keylane store check pipeline.py
  keylane store check pipeline.py:orders --json

It reads the whole log of the pipeline's topics, and says of each partition where the group and the store are, from
which offset on the log is another one than the store has processed, and how many of its records the store has not
though they count as done. "Gone" counts those that the log has no longer, either: they cannot run. Changes nothing.
exit codes: 0 when nothing is missing; 1 when something is, or no broker or store answers; 2 for wrong usage
"""

FORGET_EXAMPLES = """\
examples:
  keylane store forget pipeline.py                what would be changed, and nothing else
  keylane store forget pipeline.py --execute

After a log was cut, restored or copied, or a store was: what the store has of another log is forgotten, and the group's
offset set, so that exactly the records run which the store has not. "Unsure" counts those of which only a sample is
kept, and which may have been processed. The group must have no members.
exit codes: 0; 1 when no broker or store answers; 2 for wrong usage, and for a group with members
"""

ACCEPT_EXAMPLES = """\
examples:
  keylane store accept pipeline.py                what would be changed, and nothing else
  keylane store accept pipeline.py --execute

What the group has committed counts as seen by the store: after `keylane groups reset` or `keylane records skip`, or
when the group ran without this store before. What a restored store has lost stays lost: that is for `keylane store
forget`. The group must have no members.
exit codes: 0; 1 when no broker or store answers; 2 for wrong usage, and for a group with members
"""

SCHEMA_EXAMPLES = """\
examples:
  keylane store schema | psql postgresql://admin@host/database
  keylane store schema --sqlite

For a database whose application may not make tables: run these statements as whoever may, and grant the application's
role SELECT, INSERT, UPDATE and DELETE on them. They also bring tables of an earlier version up to date.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane store`, with its own subcommands."""
    store = subparsers.add_parser("store", description="The store of a pipeline with delivery=ExactlyOnce(store).")
    commands = store.add_subparsers(metavar="COMMAND", dest="store_command", required=True)
    check = add_command(commands, "check", "hold a store against the log and the group", CHECK_EXAMPLES, run)
    forget = add_command(commands, "forget", "make exactly what a store has not run", FORGET_EXAMPLES, run)
    accept = add_command(commands, "accept", "take what the group has committed as seen", ACCEPT_EXAMPLES, run)
    for command in (check, forget, accept):
        command.add_argument("pipeline", metavar="FILE[:NAME]", help="the Python file that has the pipeline")
    for command in (forget, accept):
        add_execute(command)
    schema = add_command(commands, "schema", "print a store's tables as SQL", SCHEMA_EXAMPLES, run_schema)
    schema.add_argument("--sqlite", action="store_true", help="for SQLite (default: for PostgreSQL)")


def run(args: argparse.Namespace) -> int:
    """Hold the store against the log, and change what is asked for; returns the exit code."""
    from keylane.cli.groups_change import check_empty
    from keylane.cli.pipeline_file import load_pipeline
    from keylane.desk.stores import StoreDesk

    _, pipeline = load_pipeline(args.pipeline)
    admin = admin_with(args, settings_of(args, pipeline.kafka))
    command = args.store_command
    if command != "check":
        check_empty(admin, pipeline.group_id)
    desk = StoreDesk(admin, pipeline)
    findings = desk.look()
    executes = command != "check" and args.execute
    if executes:
        (desk.forget if command == "forget" else desk.accept)(findings)
    report: Report = {
        "group": pipeline.group_id,
        "command": command,
        "executed": executes,
        "partitions": [one.report() for one in findings],
    }
    show(args, report, print_findings)
    return 0 if command != "check" or all(one.is_well for one in findings) else 1


def print_findings(report: Report) -> None:
    """As a table."""

    headings = (
        "TOPIC",
        "PARTITION",
        "GROUP",
        "STORE",
        "PURGED",
        "LOG END",
        "OTHER FROM",
        "MISSING",
        "GONE",
        "MAY REPEAT",
        "NEW",
    )
    names = (
        "topic", "partition", "committed", "store_position", "purged_below", "log_end_offset", "other_log_from",
        "missing", "gone", "unsure", "new_offset",
    )  # fmt: skip
    rows = [tuple("-" if one[name] is None else one[name] for name in names) for one in report["partitions"]]
    print_table(headings, rows, numbers=range(1, len(names)))
    missing = sum(one["missing"] for one in report["partitions"])
    if report["command"] == "check":
        say(f"group {report['group']}: the store has not {missing} records that count as done")
    elif report["executed"]:
        done = "run now" if report["command"] == "forget" else "count as done"
        say(f"group {report['group']}: {missing} records {done}")
    else:
        say(DRY_RUN)
    if gone := sum(one["gone"] for one in report["partitions"]):
        say(
            f"of {gone} offsets more that count as done neither the store has the records nor the log: below its start "
            "retention has taken them, and what they did in the store's database has to come from elsewhere"
        )


def run_schema(args: argparse.Namespace) -> int:
    """Print the tables; returns the exit code."""
    from keylane.delivery.statements import schema_of
    from keylane.delivery.stored_steps import table_of

    dialect: Literal["sqlite", "postgresql"] = "sqlite" if args.sqlite else "postgresql"
    for statement in (*schema_of(dialect), table_of(dialect)):
        for line in f"{statement};".splitlines():
            say(line)
    return 0
