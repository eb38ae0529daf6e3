"""`keylane records`: show, replay, skip, park: single records of a group, by its committed offsets and offset maps.

The idea: a commit says of every record whether it is complete, so that one record runs again, or never, by a commit
that says something else of it and of no other one. Where records stand is `keylane.cli.records_show`, what is committed
instead `keylane.cli.records_edit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.asking import add_command, add_execute, add_offsets_servers, admin_with, settings_of, show

if TYPE_CHECKING:
    import argparse

    from keylane.cli.records_edit import Verb
    from keylane.pipeline import Pipeline

DESCRIPTION = "Single records of a group: where they stand; let some run again, or never, or set them aside."

DEFAULT_METADATA_MAX_BYTES = 4_096
"""Apache Kafka's default of `offset.metadata.max.bytes`."""

SHOW_EXAMPLES = """\
examples:
  keylane records show weather flights:3@1041
  keylane records show weather flights:3@1041 flights:3@1042 --json
  keylane records show weather flights:3@1041 --payload                 key, value and headers too
  keylane records show weather flights:3@1041 --payload --pipeline pipeline.py

standing:
  below       complete: below the committed offset
  complete    complete: the offset map has it so
  incomplete  not complete, and records behind it are
  beyond      not complete, nor is any record behind it: perhaps it was not read yet
  no commit   the group has committed nothing in the partition

With --pipeline key and value are shown as its deserializers make them; else as text, or Base64 where they are none.
exit codes: 0; 1 when no broker answers or one refuses; 2 for wrong usage and for a group that does not exist
"""

EDIT_NOTES = """\
The group must have no members. No other record changes: those that are complete stay complete, in the offset map of the
commit. Consumers that keep no offset map (plain ones) begin at the committed offset and do not look at the map. Records
that retention, a deletion or compaction took are refused, and metadata that is no offset map.
exit codes: 0; 1 when no broker answers or one refuses, or somebody else commits meanwhile; 2 for wrong usage, and for
what is refused
"""

REPLAY_EXAMPLES = f"""\
examples:
  keylane records replay weather flights:3@1041                         what would be committed, and nothing else
  keylane records replay weather flights:3@1041 flights:0@77 --execute

The records count as not complete: the group's consumers process them again when they start, after earlier records and
before later ones of their key that are not complete either.

{EDIT_NOTES}"""

SKIP_EXAMPLES = f"""\
examples:
  keylane records skip weather flights:3@1041                           what would be committed, and nothing else
  keylane records skip weather flights:3@1041 --execute

The records count as complete: the group's consumers never process them. Look at them first with `keylane records show`.

{EDIT_NOTES}"""

PARK_EXAMPLES = f"""\
examples:
  keylane records park weather flights:3@1041 --dlq flights.dead        what would be committed, and nothing else
  keylane records park weather flights:3@1041 --dlq flights.dead --execute
  keylane records park weather flights:3@1041 --pipeline pipeline.py --reason 'ticket 481' --execute

The record goes to the dead-letter topic, and counts as complete then: its key goes on behind it. `keylane dlq redrive`
brings it back, as it was. A record that has a letter there which nobody has sent back (by the redrive's usual group)
gets no second one.

{EDIT_NOTES}"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane records`, with its own subcommands."""
    records = subparsers.add_parser(
        "records",
        description=DESCRIPTION,
    )
    commands = records.add_subparsers(metavar="COMMAND", dest="records_command", required=True)
    show_ = add_command(commands, "show", "where records stand in a group", SHOW_EXAMPLES, run_show)
    replay = add_command(commands, "replay", "let complete records run again", REPLAY_EXAMPLES, run_edit)
    skip = add_command(commands, "skip", "let records never run", SKIP_EXAMPLES, run_edit)
    park = add_command(commands, "park", "set records aside as dead letters", PARK_EXAMPLES, run_edit)
    park.add_argument("--dlq", metavar="TOPIC", help="the dead-letter topic (default: the pipeline's)")
    park.add_argument("--pipeline", metavar="FILE[:NAME]", help="a pipeline: its brokers, its dead-letter topic")
    park.add_argument("--reason", metavar="TEXT", help="what the letter says, beside who parked the record")
    for command in (show_, replay, skip, park):
        add_offsets_servers(command, "the group")
        command.add_argument("group", metavar="GROUP", help="the group's id (group.id)")
        command.add_argument("records", metavar="TOPIC:N@OFFSET", nargs="+", help="a record: topic, partition, offset")
    show_.add_argument("--payload", action="store_true", help="show keys, values and headers")
    show_.add_argument("--pipeline", metavar="FILE[:NAME]", help="a pipeline: its brokers, its deserializers")
    for command in (replay, skip, park):
        command.add_argument(
            "--metadata-max-bytes",
            type=int,
            default=DEFAULT_METADATA_MAX_BYTES,
            metavar="N",
            help="what brokers take with a commit, offset.metadata.max.bytes (default %(default)s)",
        )
        add_execute(command)


# --- commands ---


def run_show(args: argparse.Namespace) -> int:
    """Show where records stand; returns the exit code."""
    from keylane.cli.records_show import print_records, show_report

    pipeline: Pipeline | None = None
    if args.pipeline:
        from keylane.cli.pipeline_file import load_pipeline

        _, pipeline = load_pipeline(args.pipeline)
    kafka = settings_of(args, pipeline.kafka if pipeline else {})
    report = show_report(admin_with(args, kafka), kafka, args.group, args.records, pipeline, payloads=args.payload)
    return show(args, report, print_records)


def run_edit(args: argparse.Namespace) -> int:
    """Commit something else, or say what would be committed; returns the exit code."""
    from keylane.cli.records_edit import edit, print_edit

    verb: Verb = args.records_command
    parking = None
    if verb == "park":
        from keylane.cli.records_park import parking_of

        parking = parking_of(args)
    kafka = settings_of(args, {}) if parking is None else parking.kafka
    admin, cap = admin_with(args, kafka), args.metadata_max_bytes
    report = edit(admin, kafka, args.group, args.records, verb, cap, execute=args.execute, parking=parking)
    return show(args, report, print_edit)
