"""`keylane offsets`: serve committed offsets from a replicated log, and look at the servers that do."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING, Any

from keylane.cli.asking import add_command, add_execute, add_offsets_servers, admin_of, admin_with, settings_of, show
from keylane.cli.tables import print_table, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keylane.cli.asking import Report
    from keylane.offset_servers.nodes import Address

DESCRIPTION = "Committed offsets on several servers, in a replicated log of Apache Kafka."

SERVERS_CONFIG = "--servers-config"
COUNTS_S = 2.0
"""How long a server may take to tell its counts."""

SERVE_EXAMPLES = """\
examples:
  keylane offsets serve --log kafka1:9092,kafka2:9092,kafka3:9092 --advertise 127.0.0.1:9192
  keylane offsets serve --log kafka1:9092 --command-config log.properties --listen SASL_SSL://0.0.0.0:9192 \\
      --servers-config servers.properties --advertise offsets1.example:9192 --set keylane.users.file=users.json \\
      --set ssl.certificate.location=server.pem
  keylane offsets serve --log 127.0.0.1:9092 --allow-unreplicated-log        for a trial, beside one broker

Run as many as you like, on as many machines; they keep nothing on disk. Clients have them as bootstrap.servers. For
broker b of the log's cluster a server listens on its port + 1 + b as well, and clients have to reach these ports too.
"""

STATUS_EXAMPLES = """\
examples:
  keylane offsets status --log kafka1:9092
  keylane offsets status --log kafka1:9092 --command-config log.properties --servers-config servers.properties --json

exit codes: 0; 1 when a partition has no leader, or the log is not safe, or no broker answers; 2 for wrong usage
"""

MOVE_EXAMPLES = """\
examples:
  keylane offsets move weather --offsets-servers offsets1:9192                what it would do, and nothing else
  keylane offsets move weather --offsets-servers offsets1:9192 --execute
  keylane offsets move weather --offsets-servers offsets1:9192 --back --execute

The group must have no members at either place. Offsets go with their metadata (offset maps) and leader epochs, as they
are; nothing is overwritten, and the source's are deleted once the target has them. Killed anywhere, it loses none:
run it again.
exit codes: 0; 1 when no broker answers or one refuses, or somebody else commits meanwhile; 2 for wrong usage, and for
what is refused
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `keylane offsets`, with its own subcommands."""
    offsets = subparsers.add_parser("offsets", description=DESCRIPTION)
    commands = offsets.add_subparsers(metavar="COMMAND", dest="offsets_command", required=True)
    _add_serve(commands)
    status = add_command(commands, "status", "the servers, and what each of them leads", STATUS_EXAMPLES, run_status)
    status.add_argument("--log", dest="bootstrap", metavar="HOST:PORT", help="the same as --bootstrap")
    _add_servers_config(status, "client settings for the servers (TLS, SASL), which are asked for their counts")
    _add_names(status)
    move = add_command(
        commands, "move", "move a group from the brokers to offset servers, or back", MOVE_EXAMPLES, run_move
    )
    add_offsets_servers(move, "the group, or shall have it")
    move.add_argument("group", metavar="GROUP", help="the group's id (group.id)")
    move.add_argument("--back", action="store_true", help="from the offset servers to the brokers")
    add_execute(move)


def _add_servers_config(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(SERVERS_CONFIG, metavar="FILE", help=f"{what}, a line NAME=VALUE each")


def _servers_settings(args: argparse.Namespace) -> dict[str, str] | None:
    """Raises `UsageError`."""
    from keylane.cli.client_settings import read_client_settings

    return read_client_settings(args.servers_config, SERVERS_CONFIG) if args.servers_config else None


def _add_names(parser: argparse.ArgumentParser) -> None:
    from keylane.offset_servers.members import GROUP
    from keylane.offset_servers.topic import TOPIC

    parser.add_argument("--topic", default=TOPIC, help="the topic that is the log (default %(default)s)")
    parser.add_argument("--group", default=GROUP, help="the servers' group in the log's cluster (default %(default)s)")
    parser.add_argument(
        "--allow-unreplicated-log",
        action="store_true",
        help="take a log of one replica: for trials; all that was committed is lost with its disk",
    )


def _add_serve(commands: argparse._SubParsersAction[Any]) -> None:
    what = "serve committed offsets and groups from a replicated log"
    serve = commands.add_parser(
        "serve",
        help=what,
        description=what[0].upper() + what[1:] + ". It prints its address when it is ready.",
        epilog=SERVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = serve.add_argument
    add("--log", required=True, metavar="HOST:PORT,…", help="brokers of the log's cluster")
    add("--command-config", metavar="FILE", help="client settings for them (TLS, SASL), a line NAME=VALUE each")
    _add_servers_config(serve, "client settings for the other servers (TLS, SASL), the same for all")
    add("--listen", metavar="[PROTOCOL://]HOST:PORT", help="where to listen (default 127.0.0.1:9192)")
    add("--advertise", metavar="HOST:PORT", help="what clients are told to connect to (default: as --listen)")
    add("--config", metavar="FILE", help="properties file with options of `keylane broker` under Kafka's names")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="one option, such as offsets.retention.minutes=1440; may be repeated, and wins over --config",
    )
    add(
        "--until-stdin-ends",
        action="store_true",
        help="stop when standard input ends: for a program that must not leave its server behind",
    )
    add("--metrics-port", type=int, metavar="N", help="serve /metrics for Prometheus there (0: a free port)")
    add("--metrics-host", default="127.0.0.1", metavar="HOST", help="… on this address (127.0.0.1; :: for all)")
    _add_names(serve)
    serve.set_defaults(func=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    """Serve until it is told to stop; returns the exit code."""
    from keylane.broker.run import settings_of
    from keylane.cli.client_settings import read_client_settings
    from keylane.offset_servers.run import Arguments, serve

    log = read_client_settings(args.command_config) if args.command_config else {}
    serve(
        Arguments(
            log | {"bootstrap.servers": args.log},
            _servers_settings(args),
            args.listen,
            args.advertise,
            settings_of(args),
            args.topic,
            args.group,
            not args.allow_unreplicated_log,
            args.until_stdin_ends,
            args.metrics_port,
            args.metrics_host,
        )
    )
    return 0


def run_move(args: argparse.Namespace) -> int:
    """Move a group, or say what would be moved; returns the exit code."""
    from keylane.cli.offsets_move import move_report, print_move

    kafka = settings_of(args, {})
    report = move_report(admin_with(args, kafka), kafka, args.group, back=args.back, execute=args.execute)
    return show(args, report, print_move)


def run_status(args: argparse.Namespace) -> int:
    """Show servers and partitions; returns the exit code."""
    report = status(args)
    show(args, report, print_status)
    return 1 if report["without_leader"] or report["faults"] else 0


def status(args: argparse.Namespace) -> Report:
    """What is there. Raises `UsageError` for a topic that is not."""
    from keylane.errors import UsageError
    from keylane.offset_servers.members import leaders_of, server_of
    from keylane.offset_servers.nodes import node_at
    from keylane.offset_servers.topic import faults

    admin = admin_of(args)
    topic = next((one for one in admin.describe_topics([args.topic]) if one.name == args.topic), None)
    if topic is None:
        raise UsageError(f"topic {args.topic!r} does not exist: `keylane offsets serve` makes it")
    wrong = faults(
        admin.topic_settings(args.topic), topic.replication_factor, is_replicated=not args.allow_unreplicated_log
    )
    found = admin.describe_group(args.group)
    leaders = leaders_of(found)
    servers = sorted({server for one in found.members if (server := server_of(one.client_id)) is not None})
    counts = _counts(servers, _servers_settings(args))
    return {
        "topic": args.topic,
        "partitions": len(topic.partitions),
        "replicas": topic.replication_factor,
        "faults": wrong,
        "group": args.group,
        "state": found.state,
        "servers": [
            {
                "server": f"{server[0]}:{server[1]}",
                "node_id": node_at(server).node_id,
                "leads": sorted(partition for partition, leader in leaders.items() if leader == server),
            }
            | counts[server]
            for server in servers
        ],
        "without_leader": sorted(topic.partitions.keys() - leaders.keys()),
    }


def _counts(servers: Sequence[Address], settings: Mapping[str, str] | None) -> dict[Address, dict[str, int | None]]:
    """What each server has answered and forwarded; None where it does not say. Raises `UsageError`."""
    from concurrent.futures import ThreadPoolExecutor

    from keylane.errors import PeerError
    from keylane.kafka.link import Link
    from keylane.kafka.login import login_of
    from keylane.offset_servers.between import Counts, read_counts
    from keylane.wire.own_apis import REQUEST_COUNTS, VERSION
    from keylane.wire.primitives import FieldError

    login = login_of(settings or {})

    def ask(server: Address) -> dict[str, int | None]:
        try:
            with closing(Link(server, login, COUNTS_S)) as link:
                return read_counts(link.ask(REQUEST_COUNTS, VERSION, b""))._asdict()
        except (OSError, PeerError, FieldError):
            return dict.fromkeys(Counts._fields)

    with ThreadPoolExecutor(max(len(servers), 1)) as threads:
        return dict(zip(servers, threads.map(ask, servers), strict=True))


def print_status(report: Report) -> None:
    rows = [
        (
            one["server"],
            one["node_id"],
            len(one["leads"]),
            _number(one["answered"]),
            _number(one["forwarded"]),
            _numbers(one["leads"]),
        )
        for one in report["servers"]
    ]
    if rows:
        print_table(("SERVER", "NODE", "LEADS", "ANSWERED", "FORWARDED", "PARTITIONS"), rows)
    else:
        say("no servers")
    sizes = f"{report['partitions']} partitions, {report['replicas']} replicas"
    say(f"{report['topic']}: {sizes}; the servers' group is {report['state']}")
    if report["without_leader"]:
        say(f"without a leader: {_numbers(report['without_leader'])}")
    for fault in report["faults"]:
        say(f"not safe: {fault}")


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


def _numbers(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
