"""What the commands of `keylane operate` are given, and how they show the members' answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keylane.cli.asking import DRY_RUN, admin_with, settings_of
from keylane.cli.exits import EXIT_FAILURE
from keylane.cli.tables import print_table, say
from keylane.desk import TOKEN_VARIABLE
from keylane.desk.commands import Order, send
from keylane.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from keylane.cli.asking import Report
    from keylane.kafka.admin import Admin
    from keylane.operations.commands import Asked


def token_of(args: argparse.Namespace) -> str | None:
    """What proves that a command may be sent; None without any. Raises `UsageError`."""
    if args.token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return Path(args.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"--token-file {args.token_file}: cannot be read: {reason}") from None


def order(args: argparse.Namespace, ask: Callable[[Admin], Asked]) -> tuple[Report, int]:
    """Send what `ask` makes, or say who would get it; returns the report and the exit code. Raises `UsageError`."""
    if args.wait_ms < 0:
        raise UsageError(f"--wait-ms {args.wait_ms}: give a whole number of at least 0")
    kafka = settings_of(args, {})
    admin = admin_with(args, kafka)
    given = Order(args.group, args.operate_command, ask(admin), args.execute, args.wait_ms)
    report, is_done = send(kafka, admin, token_of(args), given)
    return report, 0 if is_done else EXIT_FAILURE


def print_answers(report: Report) -> None:
    """As a table, and a line for what was not done."""
    headings = ("MEMBER", "RUNS", "CLIENT ID", "PARTITIONS", *(("RESULT", "WHY") if report["executed"] else ()))
    names = ("member", "runs", "client_id", "partitions", *(("state", "text") if report["executed"] else ()))
    if report["members"]:
        print_table(headings, ([one[name] for name in names] for one in report["members"]), numbers=[3])
    else:
        say("no member is heard: those that start later begin with it")
    for one in report["partitions"]:
        if one["member"] is None:
            say(f"{one['topic']}-{one['partition']}: not sought: no member had it, or said so; look, and send it again")
    for one in report["records"]:
        say(f"{one['record']}: {'done' if one['member'] else 'not done: no member had it, or one has said why'}")
    if not report["executed"]:
        say(DRY_RUN)
        return
    done = sum(one["state"] == "done" for one in report["members"])
    say(f"{report['do']}: done by {done} of {len(report['members'])} members (command {report['command']})")
