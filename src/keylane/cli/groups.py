"""`keylane groups list | describe GROUP`: who is in a group, what it has committed, and what its offset maps say.

The idea: one plain report (what `--json` prints) is gathered first; the tables show the same report. Works on Apache
Kafka and on the embedded broker, for groups of keylane's, of the JVM Parallel Consumer's, and of any other consumer's.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.members import Partition

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_MS = 10_000

PLAIN_WIDTH = 250
"""Columns of a table that goes to a file or a pipe: nothing is cut there."""

DESCRIPTION = "Consumer groups: members, committed offsets, offset maps and lag."

LIST_EXAMPLES = """\
examples:
  keylane groups list
  keylane groups list --bootstrap kafka.example:9092 --command-config client.properties
  keylane groups list --json
"""

DESCRIBE_EXAMPLES = """\
examples:
  keylane groups describe weather
  keylane groups describe weather --bootstrap kafka.example:9092 --json

columns:
  COMMITTED          the next offset to read: everything below is complete
  INCOMPLETE         offsets that the offset map has not complete, from the committed one to the highest completed
  HIGHEST COMPLETED  the highest offset that the offset map has complete
  LAG                log end - committed; completed records above the committed offset are not taken off

exit codes: 0; 1 when no broker answers or one refuses; 2 for wrong usage and for a group that does not exist
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `keylane groups`, with its own subcommands."""
    groups = subparsers.add_parser("groups", help="look at consumer groups", description=DESCRIPTION)
    commands = groups.add_subparsers(metavar="COMMAND", dest="groups_command", required=True)
    listing = _add_command(commands, "list", "list the groups", LIST_EXAMPLES)
    listing.set_defaults(func=run_list)
    describe = _add_command(commands, "describe", "members, offsets, offset maps and lag of a group", DESCRIBE_EXAMPLES)
    describe.add_argument("group", metavar="GROUP", help="the group's id (group.id)")
    describe.set_defaults(func=run_describe)


def _add_command(
    commands: argparse._SubParsersAction[Any], name: str, help_: str, examples: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_,
        description=help_[0].upper() + help_[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"brokers to ask (default: bootstrap.servers of --command-config, else {DEFAULT_BOOTSTRAP})",
    )
    add("--command-config", metavar="FILE", help="librdkafka client settings, a line NAME=VALUE each (TLS, SASL)")
    add("--timeout-ms", type=int, default=DEFAULT_TIMEOUT_MS, metavar="N", help="per question (default %(default)s)")
    add("--json", action="store_true", help="one JSON object on standard output instead of tables")
    return parser


# --- commands ---


def run_list(args: argparse.Namespace) -> int:
    """Show every group; returns the exit code."""
    groups = [{"group": one.group, "state": one.state, "protocol": one.protocol} for one in _admin(args).groups()]
    if args.json:
        print(json.dumps({"groups": groups}))
    elif groups:
        _print_table(("GROUP", "STATE", "PROTOCOL"), (one.values() for one in groups))
    else:
        print("no consumer groups")
    return 0


def run_describe(args: argparse.Namespace) -> int:
    """Show one group; returns the exit code. Raises `UsageError` for a group that does not exist."""
    report = gather(_admin(args), args.group)
    if args.json:
        print(json.dumps(report))
    else:
        _print_report(report)
    return 0


def _admin(args: argparse.Namespace) -> Admin:
    from keylane.errors import UsageError
    from keylane.kafka.admin import Admin

    if args.timeout_ms < 1:
        raise UsageError(f"--timeout-ms {args.timeout_ms}: give a whole number of at least 1")
    settings = _settings_file(args.command_config) if args.command_config else {}
    servers = args.bootstrap or settings.get("bootstrap.servers") or DEFAULT_BOOTSTRAP
    return Admin(settings | {"bootstrap.servers": servers}, timeout_ms=args.timeout_ms)


def _settings_file(name: str) -> dict[str, str]:
    from keylane.broker.config import parse_properties
    from keylane.errors import UsageError

    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"--command-config {name}: cannot be read: {reason}") from None
    return parse_properties(text, name)


# --- the report ---


def gather(admin: Admin, group: str) -> dict[str, Any]:
    """Everything about a group, as `--json` prints it (docs: `keylane groups describe --help`).

    `offset_map` is null without metadata, and for metadata that is not an offset map, which `metadata_error` then
    names. What is not known (an offset without a commit, the end of a topic that is gone) is null.
    """
    from keylane.errors import UsageError

    description = admin.describe_group(group)
    committed = admin.committed_offsets(group)
    if description.state == "dead" and not committed:
        raise UsageError(f"the group {group!r} does not exist: `keylane groups list` shows those that do")
    owners = {partition: member.member_id for member in description.members for partition in member.assignment}
    ends = admin.log_ends(sorted({*committed, *owners}))
    partitions = [
        _partition_report(partition, committed.get(partition), end, owners.get(partition))
        for partition, end in sorted(ends.items())
    ]
    lags = [one["lag"] for one in partitions if one["lag"] is not None]
    return {
        "group": group,
        "state": description.state,
        "protocol": description.protocol,
        "assignor": description.assignor or None,
        "coordinator": description.coordinator or None,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "group_instance_id": member.group_instance_id,
                "assignment": _by_topic(member.assignment),
            }
            for member in description.members
        ],
        "partitions": partitions,
        "lag": sum(lags) if lags else None,
    }


def _partition_report(
    partition: Partition, committed: CommittedOffset | None, log_end: int | None, member_id: str | None
) -> dict[str, Any]:
    from keylane.errors import MetadataError
    from keylane.offsets import decode

    offset_map, metadata_error = None, None
    if committed is not None and committed.metadata:
        try:
            decoded = decode(committed.metadata, committed.offset)
        except MetadataError as error:
            metadata_error = str(error)
        else:
            offset_map = {
                "incomplete": decoded.incomplete_count,
                "highest_completed": decoded.highest_completed,
            }
    lag = max(0, log_end - committed.offset) if committed is not None and log_end is not None else None
    return {
        "topic": partition[0],
        "partition": partition[1],
        "committed": committed.offset if committed is not None else None,
        "metadata": committed.metadata if committed is not None else None,
        "offset_map": offset_map,
        "metadata_error": metadata_error,
        "log_end_offset": log_end,
        "lag": lag,
        "member_id": member_id,
    }


def _by_topic(assignment: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in assignment:
        topics.setdefault(topic, []).append(partition)
    return topics


# --- tables ---


def _print_report(report: dict[str, Any]) -> None:
    parts = [report["state"], f"protocol {report['protocol']}"]
    parts += [f"assignor {report['assignor']}"] if report["assignor"] else []
    parts += [f"coordinator {report['coordinator']}"] if report["coordinator"] else []
    parts += [f"lag {report['lag']:,}"] if report["lag"] is not None else []
    print(f"group {report['group']}: {', '.join(parts)}\n")
    if report["members"]:
        rows = (
            (one["member_id"], one["client_id"], one["host"], _assignment_text(one["assignment"]))
            for one in report["members"]
        )
        _print_table(("MEMBER", "CLIENT ID", "HOST", "ASSIGNMENT"), rows)
    else:
        print("no members")
    print()
    if report["partitions"]:
        headings = (
            "TOPIC",
            "PARTITION",
            "COMMITTED",
            "INCOMPLETE",
            "HIGHEST COMPLETED",
            "LOG END",
            "LAG",
            "OFFSET MAP",
        )
        _print_table(headings, map(_partition_row, report["partitions"]), numbers=range(1, 7))
    else:
        print("nothing committed")
    for one in report["partitions"]:
        if one["metadata_error"]:
            print(f"{one['topic']}-{one['partition']}: {one['metadata_error']}")


def _partition_row(one: dict[str, Any]) -> tuple[Any, ...]:
    offset_map = one["offset_map"] or {"incomplete": None, "highest_completed": None}
    if one["committed"] is None:
        says = "nothing committed"
    elif one["metadata_error"]:
        says = "metadata is not an offset map"
    else:
        says = "yes" if one["offset_map"] else "none: nothing complete above"
    return (
        one["topic"],
        one["partition"],
        one["committed"],
        offset_map["incomplete"],
        offset_map["highest_completed"],
        one["log_end_offset"],
        one["lag"],
        says,
    )


def _assignment_text(assignment: dict[str, list[int]]) -> str:
    """`flights 0–3, 7; weather 0`: runs, since a member may have hundreds of partitions."""
    return "; ".join(f"{topic} {_runs_text(partitions)}" for topic, partitions in assignment.items()) or "–"


def _runs_text(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("–".join(map(str, run)) for run in runs)


def _print_table(headings: Iterable[str], rows: Iterable[Iterable[Any]], numbers: Iterable[int] = ()) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    right = set(numbers)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("–" if cell is None else str(cell)) for cell in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
