"""`keylane`: finds the command, runs it, and turns every error into one line and an exit code: only here.

A command is a module of this package with `add_parser(subparsers)`, which sets `func`: arguments to exit code. Only the
one that is asked for is imported, and it imports what it needs when it runs, so that `keylane broker` starts without
Spark, Kafka clients or progress bars.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn, cast

from keylane.cli.exits import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE
from keylane.cli.logs import log_to_stderr
from keylane.cli.streams import prepare_streams, send_nowhere
from keylane.errors import ERROR_PREFIX, InternalError, KeylaneError, UsageError
from keylane.telling import did_you_mean, size_in_utf8, visible
from keylane.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

COMMANDS = {
    "demo": "real flights through Spark lanes, with a report",
    "run": "run the pipeline in a file",
    "broker": "run a durable Kafka-protocol broker on one node; check or repair its data",
    "offsets": "serve committed offsets from a replicated log",
    "groups": "look at consumer groups, and change them",
    "records": "look at single records of a group; replay, skip, park them",
    "topics": "list, describe, create and delete topics",
    "budgets": "look at what pipelines may spend together, and what is left",
    "dlq": "look at dead letters, send them back, delete them",
    "store": "look at a store of exactly once; make what it has not run",
    "operate": "look at members while they run; pause, adjust, seek, drain, hold keys",
    "ui": "a page in the browser that shows groups, and acts on them",
}
"""Each with its line in the list of all, for which none of them is imported."""

EXAMPLES = """\
examples:
  keylane demo                                   real flights through Spark lanes, with a report and a picture
  keylane demo --no-spark --ordering partition   the same in this process
  keylane run pipeline.py                        run the pipeline in a file until Ctrl-C
  keylane run pipeline.py --spark 'local[4]'     the same on Spark lanes
  keylane broker --data-dir data --port 9092     a durable broker for development and tests
  keylane offsets serve --log kafka1:9092        committed offsets on several servers, beside Apache Kafka
  keylane groups describe weather                members, offsets, maps and lag of a group
  keylane records replay weather flights:3@1041  let one record run again, and no other
  keylane topics create flights --partitions 8   a topic, before records come
  keylane dlq list flights.dead                  dead letters: where from, and why
  keylane operate show weather                   the members of a group while they run, and what they do
  keylane ui                                     all of that in the browser, live
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (argparse's exit after --help and --version excepted)."""
    prepare_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _check_text(arguments)
        parser = build_parser(arguments)
        if not arguments:
            parser.print_help()
            return 0
        args = parser.parse_args(arguments)
        log_to_stderr(verbose=args.verbose)
        run: Callable[[argparse.Namespace], int] = args.func
        code = run(args)
        sys.stdout.flush()
    except KeylaneError as error:
        return report(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        send_nowhere(sys.stdout)
        return EXIT_FAILURE
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        send_nowhere(sys.stdout)
        print(f"{ERROR_PREFIX}standard output: {error.strerror}", file=sys.stderr)
        return EXIT_FAILURE
    except Exception:
        traceback.print_exc()
        print(f"{ERROR_PREFIX}this is a defect of keylane; please report it with the lines above", file=sys.stderr)
        return EXIT_FAILURE
    return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error does; subparsers are of this class too."""

    def error(self, message: str) -> NoReturn:
        hint = self._hint(message)
        raise UsageError(f"{message}{hint and f'; {hint}'} (see `{self.prog} --help`)")

    def _hint(self, message: str) -> str:
        """Which option or command may be meant. Those of commands are the outer parser's to complain about."""
        if found := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
            elsewhere = self.having(found[1])
            return f"that is an option of {elsewhere}" if elsewhere else did_you_mean(found[1], self.options())
        if found := re.match(r"argument \w+: invalid choice: '([^']*)'", message):
            return did_you_mean(found[1], [name for action in self._commands() for name in _parsers(action)])
        return ""

    def having(self, option: str) -> str:
        """The commands that have this option; empty when none has."""
        own = f"`{self.prog}`" if option in self._option_string_actions else ""
        below = [one.having(option) for action in self._commands() for one in _parsers(action).values()]
        return ", ".join(one for one in [own, *below] if one)

    def options(self) -> set[str]:
        """Of this parser and of those of its commands."""
        own = {name for name in self._option_string_actions if name.startswith("--")}
        return own.union(*(one.options() for action in self._commands() for one in _parsers(action).values()))

    def _commands(self) -> list[argparse._SubParsersAction[_Parser]]:
        return [one for one in self._actions if isinstance(one, argparse._SubParsersAction)]  # noqa: SLF001 - argparse has no other name for it


def _parsers(action: argparse._SubParsersAction[_Parser]) -> Mapping[str, _Parser]:
    found: Any = action.choices
    return cast("Mapping[str, _Parser]", found)


def build_parser(arguments: Sequence[str]) -> _Parser:
    """The parser with the command that the arguments name, or with the names of all when they name none."""
    parser = _Parser(
        prog="keylane",
        description="Kafka records in parallel, in order per key, on Spark or in one process: at least or exactly once",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"keylane {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what happens, not only what goes wrong")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    named = next((word for word in arguments if not word.startswith("-")), None)
    if named in COMMANDS:
        importlib.import_module(f"keylane.cli.{named}").add_parser(subparsers)
    else:
        for command, text in COMMANDS.items():
            subparsers.add_parser(command, help=text)
    return parser


def _check_text(arguments: Sequence[str]) -> None:
    """Raises `UsageError` for an argument of a terminal in another encoding, unless it is a file's name."""
    for one in arguments:
        if size_in_utf8(one) is None and not os.path.lexists(one):
            raise UsageError(f"the argument {one!a} is no UTF-8: set the terminal, or LANG, to UTF-8")


def report(error: KeylaneError) -> int:
    """Print an error as one line; returns the exit code of its kind."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, InternalError):
        text = f"{text} (a defect of keylane; please report it)"
    print(f"{ERROR_PREFIX}{visible(text)}", file=sys.stderr)
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE
