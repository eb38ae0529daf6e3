"""`keylane operate pause | resume | drain | adjust | seek | …-key`: one command to members, and their answers.

The idea: a member that is heard is expected to answer; what it does not say is said here. A seek is looked at by
partition as well: each is done by the member that has it, or by nobody.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keylane.cli.arguments import TOKEN_VARIABLE
from keylane.cli.asking import DRY_RUN, admin_with, settings_of
from keylane.cli.exits import EXIT_FAILURE
from keylane.cli.tables import print_table
from keylane.consumer.passing import Passing
from keylane.errors import UsageError
from keylane.kafka.membership import Seek
from keylane.operations.commands import named
from keylane.operations.operator import Operator
from keylane.pipeline import Operations

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection

    from keylane.cli.asking import Report
    from keylane.kafka.admin import Admin
    from keylane.operations.commands import Asked, Command, Name
    from keylane.operations.reports import Members, Seen

NOT_DONE = {
    "accepted": "it began, and did not say how that ended: look at where the group stands",
    "no answer": "it did not answer in time, and may do it still",
    "silent": "nothing was heard of it any more: it has ended, or hangs",
    "refused": "it takes no commands: it has no token, or may not read them; its log says which",
    "busy": "it is paused, and records are still in handlers, or are not committed yet",
}
"""Why a member has not done it, where it does not say so itself."""


def token_of(args: argparse.Namespace) -> str | None:
    """What proves that a command may be sent; None without any. Raises `UsageError`."""
    if args.token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return Path(args.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"--token-file {args.token_file}: cannot be read: {reason}") from None


def send(args: argparse.Namespace, ask: Callable[[Admin], Asked], *, drains: bool = False) -> tuple[Report, int]:
    """Send what `ask` makes, or say who would get it; returns the report and the exit code. Raises `UsageError`."""
    if args.wait_ms < 0:
        raise UsageError(f"--wait-ms {args.wait_ms}: give a whole number of at least 0")
    kafka = settings_of(args, {})
    admin = admin_with(args, kafka)
    asked = ask(admin)
    token = token_of(args)
    if token is not None:
        Operations(token=token)  # refused here as it is there
    with Operator(kafka, args.group, token, admin) as operator:
        members = _expected(operator, args.group, asked)
        operator.check(asked)
        if not args.execute:
            return _report(args, None, [_row(one, "", "") for one in members.values()], [], []), 0
        if token is None:
            raise UsageError(
                f"a command needs the members' token: give it in {TOKEN_VARIABLE}, or name a file with --token-file"
            )
        until = time.monotonic() + args.wait_ms / 1000
        command = operator.send(asked, f"{getpass.getuser()}@{socket.gethostname()}")
        return _answers(args, operator, command, members, until, drains=drains)


def _expected(operator: Operator, group: str, asked: Asked) -> dict[str, Seen]:
    """The members that are to do it. Raises `UsageError` when none could."""
    present = operator.members.present(_now_ms())
    if present and not any(one.report["takes_commands"] for one in present.values()):
        raise UsageError(
            f"the members of the group {group!r} only report: give their pipeline operations=Operations(token=...)"
        )
    if not present and isinstance(asked, Seek):
        raise UsageError(f"no member of the group {group!r} is heard: `keylane groups reset {group}` moves its offsets")
    if not present and isinstance(asked, Passing):
        raise UsageError(f"no member of the group {group!r} is heard: `keylane records skip|park` needs none")
    return present


def _answers(
    args: argparse.Namespace,
    operator: Operator,
    command: Command,
    members: dict[str, Seen],
    until: float,
    *,
    drains: bool,
) -> tuple[Report, int]:
    """What became of a command that was sent."""

    def pending() -> list[str]:
        results = operator.results_of(command)
        return [
            name
            for name in members
            if members[name].report["takes_commands"]
            and (name not in results or results[name].state == "accepted")
            and name in operator.members.reports
            and not operator.members.reports[name].is_silent(_now_ms())
        ]

    operator.wait(lambda: not pending(), until)
    done = [name for name, one in operator.results_of(command).items() if one.state == "done"]
    working: Collection[str] = ()
    if drains:
        operator.wait(lambda: not busy(operator.members, command, done), until)
        working = busy(operator.members, command, done)
    results = operator.results_of(command)
    waiting = pending()
    rows = []
    for name, seen in members.items():
        result = results.get(name)
        if not seen.report["takes_commands"]:
            rows.append(_row(seen, "refused", NOT_DONE["refused"]))
        elif result is not None and result.state != "accepted":
            state = "busy" if name in working else str(result.state)
            rows.append(_row(seen, state, result.text or NOT_DONE.get(state, "")))
        else:
            began = result is not None
            state = ("accepted" if began else "no answer") if name in waiting else "silent"
            rows.append(_row(seen, state, NOT_DONE["accepted" if began else state]))
    partitions, records = _partitions(operator, command), _records(operator, command)
    is_done = all(one["member"] for one in (*partitions, *records))
    if not records:  # else it is told by record: a member may have one, and not another one
        is_done = is_done and all(row["state"] == "done" for row in rows)
    return _report(args, command, rows, partitions, records), 0 if is_done else EXIT_FAILURE


def busy(told: Members, command: Command, members: Collection[str]) -> list[str]:
    """Those that still have something in handlers, or to commit; they may have ended meanwhile."""
    return [
        name
        for name in members
        if (seen := told.reports.get(name)) is not None
        and (seen.report["command"] < command.number or not is_drained(seen, command.partitions))
    ]


def is_drained(seen: Seen, names: Collection[Name] | None) -> bool:
    """Whether of these partitions (None: of all that it has) nothing is in handlers, and all that is complete is
    committed."""
    return not any(
        one["in_handlers"] or one["uncommitted"]
        for one in seen.report["snapshot"]["partitions"]
        if names is None or (one["topic"], one["partition"]) in names
    )


def _partitions(operator: Operator, command: Command) -> list[Report]:
    """Of a seek: who did it in which partition."""
    if not isinstance(command.asked, Seek):
        return []
    by = {name: one.member for one in operator.results_of(command).values() for name in one.partitions or ()}
    return [{"topic": name[0], "partition": name[1], "member": by.get(name)} for name in command.partitions or ()]


def _records(operator: Operator, command: Command) -> list[Report]:
    """Of single records: who has done which."""
    if not isinstance(command.asked, Passing):
        return []
    by = {name: one.member for one in operator.results_of(command).values() for name in one.records or ()}
    return [{"record": name, "member": by.get(name)} for name in map(named, command.asked.records)]


def _row(seen: Seen, state: str, text: str) -> Report:
    report = seen.report
    return {
        "member": report["member"],
        "runs": report["runs"],
        "client_id": report["client_id"],
        "partitions": len(report["snapshot"]["partitions"]),
        "state": state or None,
        "text": text or None,
    }


def _report(
    args: argparse.Namespace,
    command: Command | None,
    members: list[Report],
    partitions: list[Report],
    records: list[Report],
) -> Report:
    return {
        "group": args.group,
        "do": args.operate_command,
        "executed": args.execute,
        "command": None if command is None else command.id,
        "members": members,
        "partitions": partitions,
        "records": records,
    }


def print_answers(report: Report) -> None:
    """As a table, and a line for what was not done."""
    headings = ("MEMBER", "RUNS", "CLIENT ID", "PARTITIONS", *(("RESULT", "WHY") if report["executed"] else ()))
    names = ("member", "runs", "client_id", "partitions", *(("state", "text") if report["executed"] else ()))
    if report["members"]:
        print_table(headings, ([one[name] for name in names] for one in report["members"]), numbers=[3])
    else:
        print("no member is heard: those that start later begin with it")
    for one in report["partitions"]:
        if one["member"] is None:
            print(
                f"{one['topic']}-{one['partition']}: not sought: no member had it, or said so; look, and send it again"
            )
    for one in report["records"]:
        print(f"{one['record']}: {'done' if one['member'] else 'not done: no member had it, or one has said why'}")
    if not report["executed"]:
        print(DRY_RUN)
        return
    done = sum(one["state"] == "done" for one in report["members"])
    print(f"{report['do']}: done by {done} of {len(report['members'])} members (command {report['command']})")


def _now_ms() -> int:
    return int(time.time() * 1000)
