"""`keylane dlq`: list, show, redrive, purge: dead letters, and what to do with them.

The idea: a dead-letter topic is read from its start, and each letter's headers say where the record was and how it died
(`keylane.consumer.dead_letters`). A redrive is a consumer group of its own on that topic: what came back is complete in
its offset map, and everything else waits. Keys, values and headers of records are shown with `--payload` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.asking import add_command, add_execute, add_offsets_servers, show

if TYPE_CHECKING:
    import argparse

DESCRIPTION = "Dead letters: look at them, send them back to their topics, delete them."

LIST_EXAMPLES = """\
examples:
  keylane dlq list orders.dead
  keylane dlq list --pipeline pipeline.py                       of the pipeline's DeadLetter topic
  keylane dlq list orders.dead --error ValueError --since 2026-11-24T02:00
  keylane dlq list orders.dead --topic orders --reason 'timed out' --waiting --json

columns:
  LETTER    where it is: topic:partition@offset, as `keylane dlq show` takes it
  FROM      where the record was
  ROUNDS    how often it came back from the dead before
  REDRIVEN  whether a redrive (of --group) sent it back

letters of: keylane, Spring (kafka_dlt-*), Kafka Connect, Kafka Streams, share groups
exit codes: 0; 1 when no broker answers or one refuses; 2 for wrong usage
"""

SHOW_EXAMPLES = """\
examples:
  keylane dlq show orders.dead:3@1041
  keylane dlq show orders.dead:3@1041 --payload                 key, value and headers too
  keylane dlq show orders.dead:3@1041 --payload --pipeline pipeline.py --json

With --pipeline key and value are shown as its deserializers make them; else as text, or Base64 where they are none.
"""

REDRIVE_EXAMPLES = """\
examples:
  keylane dlq redrive orders.dead                               what would go where, and nothing else
  keylane dlq redrive orders.dead --execute
  keylane dlq redrive orders.dead --error TimeoutError --rate 50 --execute
  keylane dlq redrive orders.dead --to orders.repaired --limit 10 --execute

Letters go back in their order, to the partition that the record had (to another topic: by key), with the record's key
and headers and one set of keylane.* headers, in transactions that hold the redrive's own position: killed anywhere, it
loses none and sends none twice. Start it again, and it goes on. Two at once for one group: the later one goes on.

exit codes: 0; 1 when none went of those that were to, each reason in a line, or no broker answers; 2 for wrong usage
"""

PURGE_EXAMPLES = """\
examples:
  keylane dlq purge orders.dead --to-redriven                   what would be deleted, and nothing else
  keylane dlq purge orders.dead --to-redriven --execute
  keylane dlq purge orders.dead --to-datetime 2026-11-01 --execute
  keylane dlq purge orders.dead --topic orders.dead:0 --to-offset 1200 --execute

Letters below are gone for good. --to-redriven stops at the first letter of a partition that did not come back.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane dlq`, with its own subcommands."""
    dlq = subparsers.add_parser("dlq", description=DESCRIPTION)
    commands = dlq.add_subparsers(metavar="COMMAND", dest="dlq_command", required=True)
    list_ = add_command(commands, "list", "list dead letters", LIST_EXAMPLES, run_list)
    show_ = add_command(commands, "show", "show one dead letter", SHOW_EXAMPLES, run_show)
    redrive = add_command(commands, "redrive", "send dead letters back to their topics", REDRIVE_EXAMPLES, run_redrive)
    purge = add_command(commands, "purge", "delete dead letters up to an offset or a time", PURGE_EXAMPLES, run_purge)
    show_.add_argument("letter", metavar="TOPIC:N@OFFSET", help="the letter, as `keylane dlq list` names it")
    for command in (list_, redrive, purge):
        command.add_argument("dlq", metavar="DLQ", nargs="?", help="the dead-letter topic (default: the pipeline's)")
    for command in (list_, show_, redrive, purge):
        command.add_argument(
            "--pipeline",
            metavar="FILE[:NAME]",
            help="a pipeline: its brokers, its dead-letter topic, its deserializers",
        )
    for command in (list_, redrive):
        _add_filters(command)
    for command in (list_, show_):
        command.add_argument("--payload", action="store_true", help="show keys, values and headers of records")
    for command in (list_, redrive, purge):
        add_offsets_servers(command, "the group of --in-group; a redrive's own is at the brokers")
        command.add_argument("--group", metavar="GROUP", help="the redrive's group (default: keylane-redrive-DLQ)")
    list_.add_argument("--limit", type=int, default=100, metavar="N", help="the oldest N (default %(default)s)")
    list_.add_argument("--waiting", action="store_true", help="only those that no redrive sent back")
    _add_redrive(redrive)
    _add_purge(purge)


def _add_filters(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--topic", metavar="TOPIC", help="only records of this topic")
    add("--error", metavar="CLASS", help="only this class of error, with or without its module")
    add("--reason", metavar="TEXT", help="only where the error's text has this in it")
    add("--key", metavar="TEXT", help="only this key")
    add("--since", metavar="TIME", help="only letters written at or after this time (ISO 8601)")
    add("--until", metavar="TIME", help="only letters written before this time")


def _add_redrive(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--to", metavar="TOPIC", help="send them here (default: to the topic where the record was)")
    add("--in-group", metavar="GROUP", help="send nothing: members of this group run the records again, where they are")
    add("--token-file", metavar="FILE", help="a file with the token of those members")
    add("--max-rounds", type=int, default=3, metavar="N", help="leave what came back N times (default %(default)s)")
    add("--rate", type=float, metavar="N", help="so many a second at most (default: as fast as the brokers are)")
    add("--limit", type=int, metavar="N", help="so many at most, then stop")
    add_execute(command)


def _add_purge(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--topic", action="append", default=[], metavar="DLQ[:N,N-N]", help="only these partitions; may be repeated")
    target = command.add_mutually_exclusive_group(required=True)
    target.add_argument("--to-redriven", action="store_true", help="what a redrive (of --group) sent back")
    target.add_argument(
        "--to-datetime", metavar="TIME", help="everything before the first letter at or after this time"
    )
    target.add_argument("--to-offset", type=int, metavar="N", help="everything below this offset")
    target.add_argument("--to-latest", action="store_true", help="everything")
    add_execute(command)


# --- commands ---


def run_list(args: argparse.Namespace) -> int:
    """Show letters; returns the exit code."""
    from keylane.cli.dlq_letters import print_list, queue_of, wanted_of
    from keylane.desk.letters import list_report

    queue, wanted = queue_of(args), wanted_of(args)
    return show(args, list_report(queue, wanted, args.limit, waiting=args.waiting, payloads=args.payload), print_list)


def run_show(args: argparse.Namespace) -> int:
    """Show one letter; returns the exit code."""
    from keylane.cli.dlq_letters import queue_of
    from keylane.cli.tables import print_fields
    from keylane.desk.letters import show_report
    from keylane.desk.places import place

    topic, partition, offset = place("letter", args.letter)
    return show(args, show_report(queue_of(args, topic), partition, offset, payloads=args.payload), print_fields)


def run_redrive(args: argparse.Namespace) -> int:
    """Send letters back, or say which would go where; returns the exit code."""
    from keylane.cli.dlq_letters import print_redrive, queue_of, wanted_of
    from keylane.cli.exits import EXIT_FAILURE
    from keylane.desk.redrive import How, did_nothing, redrive

    queue, wanted = queue_of(args), wanted_of(args)
    how = How(args.execute, args.to, args.max_rounds, args.rate, args.limit)
    if args.in_group is None:
        report = redrive(queue, wanted, how)
    else:
        from keylane.cli.operate_answers import token_of
        from keylane.desk.redrive_in_group import redrive_in_group

        report = redrive_in_group(queue, wanted, how, args.in_group, token_of(args))
    code = show(args, report, print_redrive)
    return EXIT_FAILURE if did_nothing(report) else code


def run_purge(args: argparse.Namespace) -> int:
    """Delete letters, or say which would be deleted; returns the exit code."""
    from keylane.cli.dlq_letters import queue_of
    from keylane.cli.dlq_purge import below_of, print_purge
    from keylane.desk.purge import purge

    queue = queue_of(args)
    return show(args, purge(queue, args.topic, below_of(args), execute=args.execute), print_purge)
