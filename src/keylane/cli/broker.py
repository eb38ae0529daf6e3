"""`keylane broker`: run the embedded broker in this process; `check` and `repair` its data folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keylane.broker.run import add_arguments
from keylane.cli.exits import EXIT_FAILURE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from keylane.storage.findings import Finding

EXAMPLES = """\
examples:
  keylane broker --data-dir data --port 9092     run a broker
  keylane broker check data                      is everything in its folder sound? (exit code 1 when not)
  keylane broker repair data                     cut off what is damaged; what is changed is copied first
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand; its `func` takes the parsed arguments and returns the exit code."""
    import argparse

    parser = subparsers.add_parser(
        "broker",
        help="run a durable Kafka-protocol broker on one node; check or repair its data",
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


def check(arguments: argparse.Namespace) -> int:
    """0 when everything is sound, 1 when something is damaged."""
    from keylane.broker.checkup import check_folder
    from keylane.storage.filesystem import OsFileSystem

    found = check_folder(OsFileSystem(), str(Path(arguments.folder).absolute()))
    bad = [finding for finding in found if finding.is_bad]
    if arguments.as_json:
        print(json.dumps({"sound": not bad, "files": [finding._asdict() for finding in found]}, indent=1))
    else:
        _print_findings([finding for finding in found if finding.state != "sound"])
        print(f"{len(found)} files, {len(bad)} damaged" + (": see `keylane broker repair`" if bad else ""))
    return EXIT_FAILURE if bad else 0


def repair(arguments: argparse.Namespace) -> int:
    """0 when everything is sound now, 1 when something could not be mended."""
    from keylane.broker.checkup import repair_folder
    from keylane.storage.filesystem import OsFileSystem

    done, left = repair_folder(OsFileSystem(), str(Path(arguments.folder).absolute()))
    if arguments.as_json:
        files = {"repaired": [one._asdict() for one in done], "left": [finding._asdict() for finding in left]}
        print(json.dumps({"sound": not left, **files}, indent=1))
    else:
        for path, what, copy in done:
            print(f"{path}: {what} (copy: {copy})")
        _print_findings(left)
        last = "cannot be mended: restore them from a copy" if left else "everything is sound now"
        print(f"{len(done)} files changed; " + (f"{len(left)} {last}" if left else last))
    return EXIT_FAILURE if left else 0


def _print_findings(findings: Sequence[Finding]) -> None:
    for path, state, size, position, reason in findings:
        print(f"{path}: {state} at byte {position} of {size}{f': {reason}' if reason else ''}")
