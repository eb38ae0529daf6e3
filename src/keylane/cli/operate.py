"""`keylane operate`: look at the members of a group while they run, and tell them what to do.

The idea: members that are asked to (`operations=Operations(...)`, `keylane run --operate`) report to one topic and read
commands from another one. A command that changes something says first which members are there, and is sent with
`--execute` only; then each member's answer is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.arguments import add_offset_targets
from keylane.cli.asking import add_command, add_execute, add_offsets_servers, show
from keylane.cli.operate_keys import add_key_commands
from keylane.cli.operate_records import add_record_commands

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from keylane.kafka.admin import Admin
    from keylane.operations.commands import Adjusting, Asked

DESCRIPTION = "The members of a group while they run: what they do, and what they shall do."

SHOW_EXAMPLES = """\
examples:
  keylane operate show weather
  keylane operate show weather --json

exit codes: 0; 1 when no broker answers or one refuses; 2 for wrong usage and for a group that never reported
"""

KEYS_EXAMPLES = """\
examples:
  keylane operate keys weather                       the longest queues, and why each waits
  keylane operate keys weather --limit 200 --json

columns:
  HEAD    the record that the others wait for; its key, where members show it (Operations(show_keys=True))
  BEHIND  how many wait (under ordering="partition": of the partition)
  WHY     running; store: waits for a connection of the store; queued: with the workers; delivering: its outputs wait
          for the broker, or its result to be seen; retry: it failed; throttled: its service asks for a slower pace;
          scheduled: not_before; rate; service: it is down; paused, or its key is held; commit: too far ahead of what is
          committed; ready: no worker is free
  FOR     since its first attempt
  UNTIL   when it goes on, where that is known
"""

LOG_EXAMPLES = """\
examples:
  keylane operate log weather                        commands of the last seven days, and what members answered
  keylane operate log weather --json
"""

TOKEN = """\
The token is that of the members (Operations(token=...)): in the variable KEYLANE_OPERATIONS_TOKEN, or in a file that
--token-file names. It is never sent anywhere.

exit codes: 0 when every member has done it; 1 when one has not, or has not answered; 2 for wrong usage
"""

PAUSE_EXAMPLES = f"""\
examples:
  keylane operate pause weather                      who would pause, and nothing else
  keylane operate pause weather --execute
  keylane operate pause weather --topic flights:0,3-5 --execute

Members finish what is in handlers, commit, stay in the group, and start nothing more until `resume`. It holds for
members that start later, too.

{TOKEN}"""

RESUME_EXAMPLES = f"""\
examples:
  keylane operate resume weather --execute           all, whatever was paused
  keylane operate resume weather --topic flights:0,3-5 --execute

{TOKEN}"""

DRAIN_EXAMPLES = f"""\
examples:
  keylane operate drain weather --execute
  keylane operate drain weather --topic flights:0 --execute --wait-ms 600000

As `pause`; and it returns once nothing is in handlers and all that is complete is committed. What waits for another
attempt goes on with `resume`. When the time is up it stays paused.

{TOKEN}"""

ADJUST_EXAMPLES = f"""\
examples:
  keylane operate adjust weather --max-concurrency 20 --execute
  keylane operate adjust weather --records-per-s 50 --per-key 1 --execute
  keylane operate adjust weather --records-per-s unlimited --execute
  keylane operate adjust weather --as-in-pipeline --execute

Of each member, on Spark of each lane. It holds for members that start later, too, until --as-in-pipeline. Rates that
are not named stay as they are.

{TOKEN}"""

SEEK_EXAMPLES = f"""\
examples:
  keylane operate seek weather --topic flights --to-datetime 2026-11-21T08:00:00+01:00 --execute
  keylane operate seek weather --topic flights:0 --to-offset 1200 --execute

Members finish what is in handlers of these partitions, commit, and go on at the new offset; what was complete behind it
runs again. Each partition is sought once, by the member that has it when the command comes; one that nobody has then is
named. An offset outside of the log is its nearer end. A group without members: `keylane groups reset`.

{TOKEN}"""

RATES = ("records_per_s", "per_partition", "per_key")

SELECT_HELP = "only this topic, or these partitions of it (flights:0,3-5); may be repeated (default: all)"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane operate`, with its own subcommands."""
    operate = subparsers.add_parser(
        "operate",
        description=DESCRIPTION,
    )
    commands = operate.add_subparsers(metavar="COMMAND", dest="operate_command", required=True)
    show_ = add_command(commands, "show", "show the members of a group, and what they do", SHOW_EXAMPLES, run_show)
    keys = add_command(commands, "keys", "show which keys have most records waiting, and why", KEYS_EXAMPLES, run_keys)
    keys.add_argument("--limit", type=int, default=20, metavar="N", help="so many at most (default %(default)s)")
    log = add_command(commands, "log", "show the commands that members had, and their results", LOG_EXAMPLES, run_log)
    pause = add_command(commands, "pause", "start no more records", PAUSE_EXAMPLES, run_pause)
    resume = add_command(commands, "resume", "go on with what was paused", RESUME_EXAMPLES, run_resume)
    drain = add_command(commands, "drain", "pause, and wait for what is in handlers", DRAIN_EXAMPLES, run_drain)
    adjust = add_command(commands, "adjust", "change concurrency and rates", ADJUST_EXAMPLES, run_adjust)
    seek = add_command(commands, "seek", "go on at other offsets", SEEK_EXAMPLES, run_seek)
    by_key = add_key_commands(commands, lambda args, asked: _send(args, lambda _: asked))
    records = add_record_commands(commands, _send)
    for command in (show_, keys, log, pause, resume, drain, adjust, seek, *by_key, *records):
        add_offsets_servers(command, "the group")
        command.add_argument("group", metavar="GROUP", help="the group's id (group.id)")
    for command in records:
        command.add_argument("records", metavar="TOPIC:N@OFFSET", nargs="+", help="a record: topic, partition, offset")
    for command in (pause, resume, drain, seek):
        command.add_argument("--topic", action="append", default=[], metavar="TOPIC[:N,N-N]", help=SELECT_HELP)
    _add_adjust(adjust)
    add_offset_targets(seek)
    for command in (pause, resume, drain, adjust, seek, *by_key, *records):
        command.add_argument("--token-file", metavar="FILE", help="a file with the token of the members")
        wait = "how long to wait for the members' answers (default %(default)s)"
        command.add_argument("--wait-ms", type=int, default=30_000, metavar="N", help=wait)
        add_execute(command)


def _add_adjust(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--max-concurrency", type=int, metavar="N", help="calls of the handler at once")
    for name, what in (("records-per-s", "over all"), ("per-partition", "of each partition"), ("per-key", "of a key")):
        add(f"--{name}", metavar="N", help=f"records that may start a second, {what}; or unlimited")
    add("--as-in-pipeline", action="store_true", help="take back all that was adjusted")


# --- commands ---


def run_show(args: argparse.Namespace) -> int:
    """Show the members; returns the exit code."""
    from keylane.cli.operate_show import members_of, print_members
    from keylane.desk.members import members_report
    from keylane.operations.clock import now_ms

    return show(args, members_report(members_of(args), now_ms()), print_members)


def run_keys(args: argparse.Namespace) -> int:
    """Show the longest queues; returns the exit code."""
    from keylane.cli.operate_show import members_of, print_keys
    from keylane.desk.members import keys_report
    from keylane.errors import UsageError
    from keylane.operations.clock import now_ms

    if args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give a whole number of at least 1")
    return show(args, keys_report(members_of(args), now_ms(), args.limit), print_keys)


def run_log(args: argparse.Namespace) -> int:
    """Show commands and answers; returns the exit code."""
    from keylane.cli.operate_show import members_of, print_log
    from keylane.desk.members import log_report

    return show(args, log_report(members_of(args)), print_log)


def run_pause(args: argparse.Namespace) -> int:
    """Pause; returns the exit code."""
    from keylane.consumer.events import Pause

    return _send(args, lambda admin: Pause(_selected(args, admin)))


def run_resume(args: argparse.Namespace) -> int:
    """Resume; returns the exit code."""
    from keylane.consumer.events import Resume

    return _send(args, lambda admin: Resume(_selected(args, admin)))


def run_drain(args: argparse.Namespace) -> int:
    """Pause, and wait for what is in handlers; returns the exit code."""
    from keylane.consumer.events import Pause

    return _send(args, lambda admin: Pause(_selected(args, admin)))


def run_adjust(args: argparse.Namespace) -> int:
    """Change concurrency and rates; returns the exit code."""
    return _send(args, lambda _: _adjusting(args))


def run_seek(args: argparse.Namespace) -> int:
    """Go on at other offsets; returns the exit code."""
    from keylane.cli.groups_change import Target
    from keylane.desk.commands import seeking
    from keylane.errors import UsageError

    to = Target.of(args.to_earliest, args.to_latest, args.to_datetime, args.to_offset)
    if not args.topic:
        raise UsageError("seek: name what to seek in with --topic TOPIC[:N,N-N]")
    return _send(args, lambda admin: seeking(_selected(args, admin) or (), to.kind, to.value))


def _send(args: argparse.Namespace, ask: Callable[[Admin], Asked]) -> int:
    from keylane.cli.operate_answers import order, print_answers

    report, code = order(args, ask)
    show(args, report, print_answers)
    return code


def _selected(args: argparse.Namespace, admin: Admin) -> tuple[tuple[str, int], ...] | None:
    """The partitions that --topic names; None for all. Raises `UsageError`."""
    from keylane.desk.groups import named_in, selected

    return tuple(selected(args.topic, admin.topics(named_in(args.topic)))) if args.topic else None


def _adjusting(args: argparse.Namespace) -> Adjusting:
    """Raises `UsageError` for what cannot be, and for nothing."""
    from keylane.desk.commands import adjustment

    rates = {name: _rate(name, text) for name in RATES if (text := getattr(args, name)) is not None}
    return adjustment(args.max_concurrency, rates, as_in_pipeline=args.as_in_pipeline)


def _rate(name: str, text: str) -> float | None:
    from keylane.errors import UsageError

    if text == "unlimited":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--{name.replace('_', '-')} {text}: give records a second, or unlimited") from None
