"""`keylane operate skip-record | park-record | replay-record`: single records of a group whose members run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.asking import add_command, settings_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from keylane.kafka.admin import Admin
    from keylane.operations.commands import Asked

TOKEN = """\
The token is that of the members (Operations(token=...)): in the variable KEYLANE_OPERATIONS_TOKEN, or in a file that
--token-file names. It is never sent anywhere.

exit codes: 0 when each record is done; 1 when one is not, or nobody has said so; 2 for wrong usage
"""

NOTES = f"""\
A record is taken out where it waits: for another attempt, for its time, its rate or its service, held by its key, or
paused. One that runs, or that waits behind an earlier one of its key, is not, and the answer says so: hold its key
first (`keylane operate hold-key`), or begin with the earlier one (`keylane operate keys` shows it). "done" says that a
commit has it; what is not said to be done may run, once. A group without members: `keylane records skip|park`.

{TOKEN}"""

SKIP_EXAMPLES = f"""\
examples:
  keylane operate skip-record weather flights:3@1041               who would be asked, and nothing else
  keylane operate skip-record weather flights:3@1041 --execute

The record is complete without being processed, and the next one of its key goes on.

{NOTES}"""

PARK_EXAMPLES = f"""\
examples:
  keylane operate park-record weather flights:3@1041 --dlq flights.dead --execute
  keylane operate park-record weather flights:3@1041 --dlq flights.dead --reason 'ticket 481' --execute

The record goes to the dead-letter topic and is complete then; the next one of its key goes on. `keylane dlq redrive`
brings it back, as it was.

{NOTES}"""

REPLAY_EXAMPLES = f"""\
examples:
  keylane operate replay-record weather flights:3@1041             who would be asked, and nothing else
  keylane operate replay-record weather flights:3@1041 --execute

The record is complete, and runs again: before later ones of its key that are not complete, and no other one with it.
The member that has its partition finishes what is in handlers there, commits that the record is not complete, and goes
on; "done" says that a commit has it so. A group without members: `keylane records replay`.

{TOKEN}"""


def add_record_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    send: Callable[[argparse.Namespace, Callable[[Admin], Asked]], int],
) -> list[argparse.ArgumentParser]:
    """Add the three; `send` sends what one of them asks, and returns the exit code."""
    skip, park, replay = (
        add_command(commands, name, help_, examples, lambda args: send(args, lambda admin: _asked(args, admin)))
        for name, help_, examples in (
            ("skip-record", "pass over single records that wait", SKIP_EXAMPLES),
            ("park-record", "set single records that wait aside, as dead letters", PARK_EXAMPLES),
            ("replay-record", "let single records that are complete run again", REPLAY_EXAMPLES),
        )
    )
    park.add_argument("--dlq", metavar="TOPIC", required=True, help="the dead-letter topic")
    park.add_argument("--reason", metavar="TEXT", help="what the letter says, beside who parked the record")
    return [skip, park, replay]


def _asked(args: argparse.Namespace, admin: Admin) -> Asked:
    from keylane.desk.records import asked_of

    do, dlq, reason = args.operate_command, getattr(args, "dlq", None), getattr(args, "reason", None)
    return asked_of(admin, settings_of(args, {}), do, args.records, dlq, reason)
