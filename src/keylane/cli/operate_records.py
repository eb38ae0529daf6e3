"""`keylane operate skip-record | park-record`: single records that wait, of a group whose members run."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING

from keylane.cli.arguments import check_topic, place
from keylane.cli.asking import add_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from keylane.kafka.admin import Admin
    from keylane.operations.commands import Asked

NOTES = """\
A record is taken out where it waits: for another attempt, for its time, its rate or its service, held by its key, or
paused. One that runs, or that waits behind an earlier one of its key, is not, and the answer says so: hold its key
first (`keylane operate hold-key`), or begin with the earlier one (`keylane operate keys` shows it). "done" says that a
commit has it; what is not said to be done may run, once. A group without members: `keylane records skip|park`.

The token is that of the members (Operations(token=...)): in the variable KEYLANE_OPERATIONS_TOKEN, or in a file that
--token-file names. It is never sent anywhere.

exit codes: 0 when each record is done; 1 when one is not, or nobody has said so; 2 for wrong usage
"""

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


def add_record_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    send: Callable[[argparse.Namespace, Callable[[Admin], Asked]], int],
) -> list[argparse.ArgumentParser]:
    """Add both; `send` sends what one of them asks, and returns the exit code. Their group is to be added first."""
    both = [
        add_command(commands, name, help_, examples, lambda args: send(args, lambda admin: _passing(args, admin)))
        for name, help_, examples in (
            ("skip-record", "pass over single records that wait", SKIP_EXAMPLES),
            ("park-record", "set single records that wait aside, as dead letters", PARK_EXAMPLES),
        )
    ]
    both[1].add_argument("--dlq", metavar="TOPIC", required=True, help="the dead-letter topic")
    both[1].add_argument("--reason", metavar="TEXT", help="what the letter says, beside who parked the record")
    return both


def _passing(args: argparse.Namespace, admin: Admin) -> Asked:
    """Raises `UsageError` for what is no record, or in no partition, and for a topic that does not exist."""
    from keylane.errors import UsageError
    from keylane.operations.commands import passing

    places = list(dict.fromkeys(place("record", name) for name in args.records))
    counts = admin.topics()
    for one in places:
        check_topic(one.topic, counts)
        if one.partition >= counts[one.topic]:
            raise UsageError(f"{one}: the topic has partitions 0 to {counts[one.topic] - 1}")
    if args.operate_command == "skip-record":
        return passing(places)
    check_topic(args.dlq, counts)
    by = f"by {getpass.getuser()}@{socket.gethostname()}"
    return passing(places, args.dlq, by if args.reason is None else f"{by}: {args.reason}")
