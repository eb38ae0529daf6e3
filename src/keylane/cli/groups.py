"""`keylane groups`: list, describe, offsets, map, reset, delete: what groups have committed, and how to change it.

The idea: every command asks through `keylane.kafka.admin`, gathers one plain report (what `--json` prints), and shows
the same report as tables. What changes anything shows what it would do, and does it with `--execute` only. All of it
works on Apache Kafka and on the embedded broker, for groups of keylane's, of the JVM Parallel Consumer's, and of any
other consumer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.arguments import add_offset_targets
from keylane.cli.asking import add_command, add_execute, add_offsets_servers, admin_of, admin_with, settings_of, show
from keylane.cli.tables import print_table, say, say_json

if TYPE_CHECKING:
    import argparse

DESCRIPTION = "Consumer groups: members, committed offsets, offset maps, lag and what remains; resets and deletes."

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


SELECT_HELP = "only this topic, or these partitions of it (flights:0,3-5); may be repeated (default: all committed)"

DELETE_SELECT_HELP = "delete only the offsets of this topic, or of these partitions of it; may be repeated"

OFFSETS_EXAMPLES = """\
examples:
  keylane groups offsets weather
  keylane groups offsets weather --topic flights:0-3 --json
"""

MAP_EXAMPLES = """\
examples:
  keylane groups map weather
  keylane groups map weather --topic flights:2 --json

An offset map is what keylane and the JVM Parallel Consumer keep in the metadata of a commit: which offsets above the
committed one are complete. INCOMPLETE shows the others, up to the highest that is complete.
"""

RESET_EXAMPLES = """\
examples:
  keylane groups reset weather --to-earliest                        what it would do, and nothing else
  keylane groups reset weather --to-earliest --execute
  keylane groups reset weather --topic flights:0,3-5 --to-offset 1200 --execute
  keylane groups reset weather --to-datetime 2026-11-21T08:00:00+01:00 --execute
  keylane groups reset new-group --topic flights --to-latest --execute

The group must have no members. Offset maps are dropped: from the new offset on, everything is processed (again).
A time without a zone is UTC; after the last record it means the log's end. Offsets outside the log become its bounds.
"""

DELETE_EXAMPLES = """\
examples:
  keylane groups delete weather                       what it would delete, and nothing else
  keylane groups delete weather weather-test --execute
  keylane groups delete weather --topic flights:0,3-5 --execute

A group with members is refused, and then none of them is deleted. With --topic only the offsets of these partitions
go; the coordinator refuses those of topics that a member subscribes to.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane groups`, with its own subcommands."""
    groups = subparsers.add_parser("groups", description=DESCRIPTION)
    commands = groups.add_subparsers(metavar="COMMAND", dest="groups_command", required=True)
    add_offsets_servers(add_command(commands, "list", "list the groups", LIST_EXAMPLES, run_list), "the groups")
    describe = "members, offsets, offset maps, lag and what remains of a group"
    offsets = "what a group has committed, with metadata and lag"
    maps = "decode the offset maps of a group"
    reset = "set the offsets of a group without members"
    for name, help_, examples, run in (
        ("describe", describe, DESCRIBE_EXAMPLES, run_describe),
        ("offsets", offsets, OFFSETS_EXAMPLES, run_offsets),
        ("map", maps, MAP_EXAMPLES, run_map),
        ("reset", reset, RESET_EXAMPLES, run_reset),
    ):
        command = add_command(commands, name, help_, examples, run)
        add_offsets_servers(command, "the group")
        command.add_argument("group", metavar="GROUP", help="the group's id (group.id)")
        if name != "describe":
            command.add_argument("--topic", action="append", default=[], metavar="TOPIC[:N,N-N]", help=SELECT_HELP)
        if name == "reset":
            add_offset_targets(command)
            add_execute(command)
    what = "delete groups without members, or some of a group's offsets"
    delete = add_command(commands, "delete", what, DELETE_EXAMPLES, run_delete)
    add_offsets_servers(delete, "the groups")
    delete.add_argument("groups", metavar="GROUP", nargs="+", help="the groups' ids (group.id)")
    delete.add_argument("--topic", action="append", default=[], metavar="TOPIC[:N,N-N]", help=DELETE_SELECT_HELP)
    add_execute(delete)


# --- commands ---


def run_list(args: argparse.Namespace) -> int:
    """Show every group; returns the exit code."""
    from keylane.desk.groups import list_report

    groups = list_report(admin_of(args))
    if args.json:
        say_json({"groups": groups})
    elif groups:
        headings = ("GROUP", "STATE", "PROTOCOL", "MEMBERS", "LAG", "REMAINING")
        print_table(headings, (one.values() for one in groups), numbers=range(3, 6))
    else:
        say("no consumer groups")
    return 0


def run_describe(args: argparse.Namespace) -> int:
    """Show one group; returns the exit code. Raises `UsageError` for a group that does not exist."""
    from keylane.cli.groups_describe import print_report
    from keylane.desk.groups import gather
    from keylane.desk.members import breakers_of_group

    kafka = settings_of(args, {})
    admin = admin_with(args, kafka)
    report = gather(admin, args.group) | {"breakers": breakers_of_group(kafka, admin, args.group)}
    return show(args, report, print_report)


def run_offsets(args: argparse.Namespace) -> int:
    """Show what a group has committed; returns the exit code."""
    from keylane.cli.groups_offsets import offsets_report, print_offsets

    return show(args, offsets_report(admin_of(args), args.group, args.topic), print_offsets)


def run_map(args: argparse.Namespace) -> int:
    """Show the offset maps of a group; returns the exit code."""
    from keylane.cli.groups_offsets import map_report, print_maps

    return show(args, map_report(admin_of(args), args.group, args.topic), print_maps)


def run_reset(args: argparse.Namespace) -> int:
    """Set offsets, or say what would be set; returns the exit code."""
    from keylane.cli.groups_change import Target, print_reset, reset

    target = Target.of(args.to_earliest, args.to_latest, args.to_datetime, args.to_offset)
    report = reset(admin_of(args), args.group, args.topic, target, execute=args.execute)
    return show(args, report, print_reset)


def run_delete(args: argparse.Namespace) -> int:
    """Delete groups or offsets, or say which would be deleted; returns the exit code."""
    from keylane.cli.groups_change import delete, delete_offsets, print_delete, print_delete_offsets

    if args.topic:
        report = delete_offsets(admin_of(args), args.groups, args.topic, execute=args.execute)
        return show(args, report, print_delete_offsets)
    return show(args, delete(admin_of(args), args.groups, execute=args.execute), print_delete)
