"""`keylane topics`: list, describe, create, delete: topics of Apache Kafka and of the embedded broker.

The idea: what Kafka's own `kafka-topics.sh` is asked most, in its words, for machines without Java. `delete` shows what
it would do, and does it with `--execute` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.cli.arguments import assignment
from keylane.cli.asking import DRY_RUN, add_command, add_execute, admin_of, show
from keylane.cli.tables import print_table, say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from keylane.kafka.admin import Admin
    from keylane.kafka.topics import TopicDescription

    Offsets = dict[tuple[str, int], int | None]

DESCRIPTION = "Topics: make them before records come, look at them, delete them."

LIST_EXAMPLES = """\
examples:
  keylane topics list
  keylane topics list --bootstrap-server kafka.example:9092 --command-config client.properties --json
"""

DESCRIBE_EXAMPLES = """\
examples:
  keylane topics describe orders
  keylane topics describe orders orders.dlq --json

columns:
  RECORDS   log end - log start: offsets; compaction and transactions leave fewer records
  ISR       replicas that have everything that is acknowledged
"""

CREATE_EXAMPLES = """\
examples:
  keylane topics create orders --partitions 12 --replication-factor 3
  keylane topics create orders orders.dlq --partitions 4 --config retention.ms=86400000 --config cleanup.policy=delete
  keylane topics create orders --if-not-exists

When one of several exists already, none is made. The number of partitions can be raised later, never lowered, and then
the keys' partitions change.
"""

DELETE_EXAMPLES = """\
examples:
  keylane topics delete orders.dlq                    what it would delete, and nothing else
  keylane topics delete orders.dlq orders --execute

The records, and what groups have committed for them, are gone for good. When one of several topics does not exist,
none is deleted.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keylane topics`, with its own subcommands."""
    topics = subparsers.add_parser("topics", description=DESCRIPTION)
    commands = topics.add_subparsers(metavar="COMMAND", dest="topics_command", required=True)
    add_command(commands, "list", "list the topics", LIST_EXAMPLES, run_list)
    describe = add_command(commands, "describe", "partitions and configs of topics", DESCRIBE_EXAMPLES, run_describe)
    create = add_command(commands, "create", "create topics", CREATE_EXAMPLES, run_create)
    delete = add_command(commands, "delete", "delete topics and all that is in them", DELETE_EXAMPLES, run_delete)
    for command in (describe, create, delete):
        command.add_argument("topics", metavar="TOPIC", nargs="+", help="the topics' names")
    add = create.add_argument
    add("--partitions", type=int, metavar="N", help="of each (default: the broker's num.partitions)")
    add("--replication-factor", type=int, metavar="N", help="replicas of each (default: the broker's)")
    add(
        "--config", type=assignment, action="append", default=[], metavar="NAME=VALUE", help="a config; may be repeated"
    )
    add("--if-not-exists", action="store_true", help="leave those that exist as they are, without an error")
    add_execute(delete)


# --- commands ---


def run_list(args: argparse.Namespace) -> int:
    """Show every topic; returns the exit code."""
    rows = [
        {"topic": one.name, "partitions": len(one.partitions), "replication_factor": one.replication_factor}
        for one in admin_of(args).describe_topics()
    ]
    return show(args, {"topics": rows}, _print_list)


def run_describe(args: argparse.Namespace) -> int:
    """Show some topics; returns the exit code. Raises `UsageError` for one that does not exist."""
    admin = admin_of(args)
    found = _existing(admin, args.topics)
    starts, ends = _bounds(admin, found)
    reports = []
    for one in found:
        partitions = [
            {
                "partition": number,
                "leader": partition.leader,
                "replicas": partition.replicas,
                "isr": partition.isr,
                "log_start_offset": starts[one.name, number],
                "log_end_offset": ends[one.name, number],
            }
            for number, partition in one.partitions.items()
        ]
        configs = admin.topic_configs(one.name)
        reports.append({"topic": one.name, "configs": configs, "partitions": partitions})
    return show(args, {"topics": reports}, _print_describe)


def run_create(args: argparse.Namespace) -> int:
    """Create topics; returns the exit code. Raises `UsageError` before any is made when one exists."""
    from keylane.errors import UsageError

    for option, number in (("--partitions", args.partitions), ("--replication-factor", args.replication_factor)):
        if number is not None and number < 1:
            raise UsageError(f"{option} {number}: give a whole number of at least 1")
    admin, wanted = admin_of(args), list(dict.fromkeys(args.topics))
    known = {} if args.if_not_exists else admin.topics()
    if there := [name for name in wanted if name in known]:
        count = known[there[0]]
        raise UsageError(f"topic {there[0]!r} exists already, with {count} partitions: see --if-not-exists")
    created = admin.create_topics(
        dict.fromkeys(wanted, args.partitions or BROKERS_DEFAULT),
        replication_factor=args.replication_factor or BROKERS_DEFAULT,
        config=dict(args.config),
    )
    rows = [{"topic": name, "created": name in created} for name in wanted]
    return show(args, {"topics": rows}, _print_create)


def run_delete(args: argparse.Namespace) -> int:
    """Delete topics, or say which would be deleted; returns the exit code."""
    admin = admin_of(args)
    found = _existing(admin, args.topics)
    starts, ends = _bounds(admin, found)
    rows = []
    for one in found:
        spans = [(starts[one.name, number], ends[one.name, number]) for number in one.partitions]
        records = sum(end - start for start, end in spans if start is not None and end is not None)
        rows.append({"topic": one.name, "partitions": len(one.partitions), "records": records})
    if args.execute:
        admin.delete_topics(one.name for one in found)
    return show(args, {"executed": args.execute, "topics": rows}, _print_delete)


BROKERS_DEFAULT = -1
"""Kafka's number for what the broker is configured with."""


def _existing(admin: Admin, topics: Iterable[str]) -> list[TopicDescription]:
    """Those that are named. Raises `UsageError` for one that does not exist."""
    from keylane.errors import UsageError
    from keylane.telling import did_you_mean

    names = list(dict.fromkeys(topics))
    known = {one.name: one for one in admin.describe_topics(names)}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or "`keylane topics list` shows those that do"
            raise UsageError(f"the topic {name!r} does not exist: {hint}")
    return [known[name] for name in names]


def _bounds(admin: Admin, topics: Iterable[TopicDescription]) -> tuple[Offsets, Offsets]:
    """Where the logs of all partitions start, and where they end."""
    names = [(one.name, number) for one in topics for number in one.partitions]
    return admin.log_starts(names), admin.log_ends(names, read_committed=False)


# --- tables ---


def _print_list(report: dict[str, Any]) -> None:
    if report["topics"]:
        print_table(("TOPIC", "PARTITIONS", "REPLICATION"), (one.values() for one in report["topics"]), numbers=[1, 2])
    else:
        say("no topics")


def _print_describe(report: dict[str, Any]) -> None:
    for number, topic in enumerate(report["topics"]):
        if number:
            say()
        configs = ", ".join(f"{name}={value}" for name, value in topic["configs"].items())
        say(f"topic {topic['topic']}: {len(topic['partitions'])} partitions, configs: {configs or 'the defaults'}")
        rows = [
            (
                one["partition"],
                one["leader"],
                _joined(one["replicas"]),
                _joined(one["isr"]),
                one["log_start_offset"],
                one["log_end_offset"],
                None if None in (start := one["log_start_offset"], end := one["log_end_offset"]) else end - start,
            )
            for one in topic["partitions"]
        ]
        print_table(
            ("PARTITION", "LEADER", "REPLICAS", "ISR", "LOG START", "LOG END", "RECORDS"), rows, numbers=(0, 1, 4, 5, 6)
        )


def _joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _print_create(report: dict[str, Any]) -> None:
    for one in report["topics"]:
        say(f"topic {one['topic']}: {'created' if one['created'] else 'exists already, left as it is'}")


def _print_delete(report: dict[str, Any]) -> None:
    print_table(("TOPIC", "PARTITIONS", "RECORDS"), (one.values() for one in report["topics"]), numbers=[1, 2])
    say(f"{len(report['topics'])} topics deleted" if report["executed"] else DRY_RUN)
