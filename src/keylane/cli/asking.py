"""What the commands that ask brokers have in common: their options, the client that asks, and how they show an answer.

The idea: a command gathers one plain report, which `--json` prints, and shows the same report as tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keylane.cli.tables import say_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.desk import Report as Report  # other commands have it from here
    from keylane.kafka.admin import Admin

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_MS = 10_000

DRY_RUN = "nothing was changed: add --execute to do it"


Settings = Mapping[str, Any]
"""Of Kafka's clients."""


def add_bootstrap(parser: argparse.ArgumentParser, help_: str) -> None:
    """`--bootstrap`, and the name that Kafka's own tools have for it."""
    parser.add_argument("--bootstrap", "--bootstrap-server", metavar="HOST:PORT", dest="bootstrap", help=help_)


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help_: str,
    examples: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """A command that asks brokers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_,
        description=help_[0].upper() + help_[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_bootstrap(parser, f"brokers to ask (default: bootstrap.servers of --command-config, else {DEFAULT_BOOTSTRAP})")
    add("--command-config", metavar="FILE", help="client settings (TLS, SASL), a line NAME=VALUE each")
    add("--timeout-ms", type=int, default=DEFAULT_TIMEOUT_MS, metavar="N", help="per question (default %(default)s)")
    add("--json", action="store_true", help="one JSON object on standard output instead of tables")
    parser.set_defaults(func=run)
    return parser


def add_offsets_servers(parser: argparse.ArgumentParser, what: str) -> None:
    """Whom to ask about a group, where it is not at the brokers; `offsets_servers_of` reads it."""
    parser.add_argument("--offsets-servers", metavar="HOST:PORT", help=f"offset servers that have {what}")


def add_execute(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--execute", action="store_true", help="do it; without this, only say what would be done")


def admin_of(args: argparse.Namespace) -> Admin:
    """Who asks. Raises `UsageError`."""
    return admin_with(args, settings_of(args, {}))


def admin_with(args: argparse.Namespace, settings: Settings) -> Admin:
    """Who asks with these settings. Raises `UsageError`."""
    from keylane.errors import UsageError
    from keylane.kafka.admin import Admin

    if args.timeout_ms < 1:
        raise UsageError(f"--timeout-ms {args.timeout_ms}: give a whole number of at least 1")
    return Admin(settings, timeout_ms=args.timeout_ms)


def settings_of(args: argparse.Namespace, defaults: Settings) -> dict[str, Any]:
    """Client settings: these, those of --command-config, --bootstrap and --offsets-servers; the later wins. Raises
    `UsageError`."""
    from keylane.cli.client_settings import read_client_settings

    settings = dict(defaults) | (read_client_settings(args.command_config) if args.command_config else {})
    servers = args.bootstrap or settings.get("bootstrap.servers") or DEFAULT_BOOTSTRAP
    return settings | {"bootstrap.servers": servers} | offsets_servers_of(args)


def offsets_servers_of(args: argparse.Namespace) -> dict[str, str]:
    """The client setting that --offsets-servers gives; empty without it. Raises `UsageError` for what is no address."""
    from keylane.kafka.link import addresses_in
    from keylane.pipeline import OFFSETS_SERVERS

    if (given := getattr(args, "offsets_servers", None)) is None:
        return {}
    addresses_in(given, "--offsets-servers")
    return {OFFSETS_SERVERS: given}


def show(args: argparse.Namespace, report: Report, as_tables: Callable[[Report], None]) -> int:
    """Print the report; returns the exit code."""
    if args.json:
        say_json(report)
    else:
        as_tables(report)
    return 0
