"""`keylane broker`: run the embedded broker in this process; `check` and `repair` its data folder; who may connect."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keylane.broker.run import add_arguments
from keylane.cli.exits import EXIT_FAILURE
from keylane.cli.tables import say, say_json
from keylane.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from keylane.broker.backup import Backup
    from keylane.storage.findings import Finding

EXAMPLES = """\
examples:
  keylane broker --data-dir data --port 9092     run a broker
  keylane broker --ephemeral --port 0 --print-bootstrap --until-stdin-ends
                                                 one for a test of any language: read its address from the first line
                                                 that it prints, close its standard input when the test is over
  keylane broker check data                      is everything in its folder sound? (exit code 1 when not)
  keylane broker repair data                     cut off what is damaged; what is changed is copied first
  keylane broker backup data /backups/monday     copy one moment of its folder, also while the broker runs
  keylane broker restore /backups/monday data2   make a data folder of it
  keylane broker users add users.json alice      let alice connect to a listener with SASL (asks for a password)
"""

USERS_EXAMPLES = """\
examples:
  keylane broker users add users.json alice                       asks for a password
  keylane broker users add users.json alice < password.txt        the first line of standard input
  keylane broker users list users.json
  keylane broker users remove users.json alice
  keylane broker --data-dir data --set listeners=SASL_SSL://127.0.0.1:9093 --set keylane.users.file=users.json \\
      --set ssl.certificate.location=broker.pem --set ssl.key.location=broker.key

The file holds salted SCRAM credentials, no passwords. A running broker sees changes at once; who is connected stays.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand; its `func` takes the parsed arguments and returns the exit code."""
    import argparse

    parser = subparsers.add_parser(
        "broker",
        description="A durable Kafka-protocol broker on one node. It prints its address when it is ready.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    actions = parser.add_subparsers(metavar="ACTION", dest="action", title="actions instead of running")
    for name, run, text in (
        ("check", check, "check every file of a stopped broker's data folder; nothing is changed"),
        ("repair", repair, "cut off what is damaged, and what stands behind it in the same log; a copy is kept"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("folder", metavar="DIR", help="the broker's --data-dir")
        action.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
        action.set_defaults(func=run)
    for name, run, text, source, target in (
        (
            "backup",
            backup,
            "copy one moment of a data folder, also while the broker runs; one that was interrupted goes on",
            ("folder", "DIR", "the broker's --data-dir"),
            ("target", "TO", "a new folder; or the one of a backup that was interrupted"),
        ),
        (
            "restore",
            restore,
            "make a data folder of a backup, and hold every byte against its checksum",
            ("source", "FROM", "the folder of a backup"),
            ("folder", "DIR", "the new data folder: new, or empty"),
        ),
    ):
        action = actions.add_parser(name, help=text, description=text)
        for dest, metavar, what in (source, target):
            action.add_argument(dest, metavar=metavar, help=what)
        action.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
        action.set_defaults(func=run)
    _add_users(actions)


def _add_users(actions: argparse._SubParsersAction[Any]) -> None:
    import argparse

    text = "add, remove and list the users that may connect to a listener with SASL"
    users = actions.add_parser(
        "users",
        help=text,
        description=text,
        epilog=USERS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = users.add_subparsers(metavar="COMMAND", dest="users_command", required=True)
    for name, run, text in (
        ("add", users_add, "add a user, or change a password: asked for, or the first line of standard input"),
        ("remove", users_remove, "remove a user"),
        ("list", users_list, "list the names"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("file", metavar="FILE", help="the users file (keylane.users.file)")
        if name != "list":
            command.add_argument("user", metavar="NAME", help="the user's name")
        command.set_defaults(func=run)


def check(arguments: argparse.Namespace) -> int:
    """0 when everything is sound, 1 when something is damaged."""
    from keylane.broker.checkup import check_folder
    from keylane.storage.filesystem import OsFileSystem

    found = check_folder(OsFileSystem(), str(Path(arguments.folder).absolute()))
    bad = [finding for finding in found if finding.is_bad]
    if arguments.as_json:
        say_json({"sound": not bad, "files": [finding._asdict() for finding in found]}, indent=1)
    else:
        _print_findings([finding for finding in found if finding.state != "sound"])
        say(f"{len(found)} files, {len(bad)} damaged" + (": see `keylane broker repair`" if bad else ""))
    return EXIT_FAILURE if bad else 0


def repair(arguments: argparse.Namespace) -> int:
    """0 when everything is sound now, 1 when something could not be mended."""
    from keylane.broker.checkup import repair_folder
    from keylane.storage.filesystem import OsFileSystem

    done, left = repair_folder(OsFileSystem(), str(Path(arguments.folder).absolute()))
    if arguments.as_json:
        files = {"repaired": [one._asdict() for one in done], "left": [finding._asdict() for finding in left]}
        say_json({"sound": not left, **files}, indent=1)
    else:
        for path, what, copy in done:
            say(f"{path}: {what} (copy: {copy})")
        _print_findings(left)
        last = "cannot be mended: restore them from a copy" if left else "everything is sound now"
        say(f"{len(done)} files changed; " + (f"{len(left)} {last}" if left else last))
    return EXIT_FAILURE if left else 0


def backup(arguments: argparse.Namespace) -> int:
    """0 when it is whole and durable."""
    from keylane.broker.backup import back_up
    from keylane.storage.filesystem import OsFileSystem, now_ms

    source, target = Path(arguments.folder).absolute(), Path(arguments.target).absolute()
    made = back_up(OsFileSystem(), str(source), str(target), now_ms)
    _say_backup(arguments, made, f"{target}: a backup of {source}")
    return 0


def restore(arguments: argparse.Namespace) -> int:
    """0 when the folder is whole and durable."""
    from keylane.broker.backup import restore
    from keylane.storage.filesystem import OsFileSystem

    source, target = Path(arguments.source).absolute(), Path(arguments.folder).absolute()
    found = restore(OsFileSystem(), str(source), str(target))
    _say_backup(arguments, found, f"{target}: restored from {source}")
    return 0


def _say_backup(arguments: argparse.Namespace, made: Backup, what: str) -> None:
    if arguments.as_json:
        say_json({"files": len(made.files), "bytes": made.size, "taken_ms": made.taken_ms})
    else:
        say(f"{what}: {made.describe()}")


def _print_findings(findings: Sequence[Finding]) -> None:
    for path, state, size, position, reason in findings:
        say(f"{path}: {state} at byte {position} of {size}{f': {reason}' if reason else ''}")


def users_add(arguments: argparse.Namespace) -> int:
    """The password never stands on a command line, where every user of the machine can read it."""
    from keylane.broker.users import add_user

    is_new = add_user(Path(arguments.file), arguments.user, _password())
    say(f"{arguments.user}: {'added' if is_new else 'has a new password'}")
    return 0


def users_remove(arguments: argparse.Namespace) -> int:
    """Connections that the user has now stay."""
    from keylane.broker.users import remove_user

    remove_user(Path(arguments.file), arguments.user)
    say(f"{arguments.user}: removed")
    return 0


def users_list(arguments: argparse.Namespace) -> int:
    """A name a line."""
    from keylane.broker.users import read_users

    for name in sorted(read_users(Path(arguments.file))):
        say(name)
    return 0


def _password() -> str:
    """Raises `UsageError` when it is not typed twice the same."""
    import getpass

    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise UsageError("the two passwords differ: nothing was changed")
    return password
