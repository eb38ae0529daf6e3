"""`keylane operate hold-key | skip-key | limit-key | release-key`: what becomes of records by their keys or headers.

The idea: a rule is one expression and what becomes of the records for which it holds; a later rule for the same
expression takes the place of the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.asking import add_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from keylane.flow.keys import Where
    from keylane.operations.commands import Asked

WHICH = """\
Records are those of one key (--key), or those for which an expression holds (--where): terms with blanks between them,
all of which have to be so.

  key=AA*                   the key begins with AA; * stands for any bytes
  header.tenant=acme        a header of this name has this value
  topic=flights             only in this topic, beside a key or a header
  key=a\\*b key=a\\ b\\xff      a backslash: the next character as it is; \\x and two digits: a byte

Keys and values are compared as bytes, before any deserializer; nothing of an expression is executed. The expression,
and so a key that it names, is in the topics of the commands and of the reports.
"""

NOTES = """\
It holds on all members, through restarts and rebalances, until `release-key`. Of several rules that are about a record
a hold counts before a skip, and that before the lowest limit. Order stays: what is behind a record of its key waits.

The token is that of the members (Operations(token=...)): in the variable KEYLANE_OPERATIONS_TOKEN, or in a file that
--token-file names. It is never sent anywhere.

exit codes: 0 when every member has done it; 1 when one has not, or has not answered; 2 for wrong usage
"""

HOLD_EXAMPLES = f"""\
examples:
  keylane operate hold-key weather --key KL1234                    who would hold it, and nothing else
  keylane operate hold-key weather --key KL1234 --execute
  keylane operate hold-key weather --where 'key=KL* header.tenant=acme' --execute

Records that run end; none of these starts until `release-key`. All others go on. What is held counts among the records
that a member buffers, and that its offset map says are not complete; when either is full, its partition waits as well,
and the member's log says so.

{WHICH}
{NOTES}"""

SKIP_EXAMPLES = f"""\
examples:
  keylane operate skip-key weather --key KL1234 --execute

These records are complete without being processed, from the first that waits on, until `release-key`: also those that
are produced meanwhile. Each is in the member's log, and counted as skipped. What was skipped does not come back but by
`keylane records replay`.

{WHICH}
{NOTES}"""

LIMIT_EXAMPLES = f"""\
examples:
  keylane operate limit-key weather --key KL1234 --per-s 2 --execute
  keylane operate limit-key weather --where 'header.tenant=acme' --per-s 50 --execute

At most so many of these records start in a second, together, on each member (on Spark: on each lane). A key is in one
partition, so that its limit is that of the group.

{WHICH}
{NOTES}"""

RELEASE_EXAMPLES = f"""\
examples:
  keylane operate release-key weather --key KL1234 --execute
  keylane operate release-key weather --where 'key=KL* header.tenant=acme' --execute
  keylane operate release-key weather --all --execute

Takes one rule back, by its key or its expression, or all. `keylane operate show weather` has those that hold.

{WHICH}
{NOTES}"""


def add_key_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], send: Callable[[argparse.Namespace, Asked], int]
) -> list[argparse.ArgumentParser]:
    """Add the four; `send` sends what one of them asks, and returns the exit code."""
    hold = add_command(commands, "hold-key", "start no records of a key", HOLD_EXAMPLES, lambda a: send(a, _rule(a)))
    skip = add_command(commands, "skip-key", "pass over records of a key", SKIP_EXAMPLES, lambda a: send(a, _rule(a)))
    limit = add_command(commands, "limit-key", "slow a key down", LIMIT_EXAMPLES, lambda a: send(a, _rule(a)))
    release = add_command(
        commands, "release-key", "take a rule of a key back", RELEASE_EXAMPLES, lambda a: send(a, _release(a))
    )
    for command in (hold, skip, limit, release):
        which = command.add_mutually_exclusive_group(required=True)
        which.add_argument("--key", metavar="TEXT", help="this key, as UTF-8")
        which.add_argument("--where", metavar="EXPRESSION", help="what key and headers are like")
        if command is release:
            which.add_argument("--all", action="store_true", help="every rule")
    limit.add_argument("--per-s", type=float, required=True, metavar="N", help="records that may start in a second")
    return [hold, skip, limit, release]


def _where(args: argparse.Namespace) -> Where:
    """Raises `UsageError`."""
    from keylane.flow.keys import Where

    return Where.parse(args.where) if args.key is None else Where.of_key(args.key.encode(errors="surrogateescape"))


def _rule(args: argparse.Namespace) -> Asked:
    from keylane.flow.keys import KeyRule

    where = _where(args)
    if args.operate_command == "limit-key":
        return KeyRule(where, "limit", args.per_s)
    return KeyRule(where, "hold" if args.operate_command == "hold-key" else "skip")


def _release(args: argparse.Namespace) -> Asked:
    from keylane.operations.commands import Release

    return Release(None if args.all else _where(args))
