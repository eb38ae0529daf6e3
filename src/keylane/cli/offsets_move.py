"""`keylane offsets move`: a group's commits go from the brokers to offset servers, or back: the plan first, and with
`--execute` the move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.asking import DRY_RUN
from keylane.cli.groups_change import check_empty
from keylane.cli.tables import print_table, say
from keylane.errors import UsageError
from keylane.kafka.moving import move, places_of, planned

if TYPE_CHECKING:
    from keylane.cli.asking import Report, Settings
    from keylane.kafka.admin import Admin
    from keylane.kafka.moving import Place


def move_report(admin: Admin, kafka: Settings, group: str, *, back: bool, execute: bool) -> Report:
    """Move the group's commits, or say what would be moved. Raises `UsageError` for a group with members, for one
    without commits, and for servers that are no offset servers; and what `planned` and `move` do."""
    brokers, servers = places_of(admin, kafka)
    source, target = (servers, brokers) if back else (brokers, servers)
    for place in (source, target):
        _check_empty_at(place, group)
    committed, there = source.admin.committed_offsets(group), target.admin.committed_offsets(group)
    if not committed and not there:
        raise UsageError(f"group {group!r} has committed nothing, neither at {source.name} nor at {target.name}")
    plan = planned(group, committed, there)
    if execute and committed:
        move(group, source, target, plan)
    return {
        "group": group,
        "from": source.name,
        "to": target.name,
        "executed": execute,
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "committed": one.offset,
                "metadata": one.metadata,
                "leader_epoch": None if one.leader_epoch < 0 else one.leader_epoch,
                "is_copied": (topic, partition) in plan.is_there,
            }
            for (topic, partition), one in committed.items()
        ],
    }


def _check_empty_at(place: Place, group: str) -> None:
    try:
        check_empty(place.admin, group)
    except UsageError as error:
        raise UsageError(f"at {place.name}: {error}") from None


def print_move(report: Report) -> None:
    """As a table."""
    rows = report["partitions"]
    if not rows:
        say(f"group {report['group']}: nothing to move; its commits are at {report['to']}")
        return
    headings = ("TOPIC", "PARTITION", "COMMITTED", "LEADER EPOCH", "METADATA", "NOTE")
    print_table(headings, map(_row, rows), numbers=range(1, 4))
    say(f"from {report['from']} to {report['to']}")
    say(f"group {report['group']}: {len(rows)} commits moved" if report["executed"] else DRY_RUN)


def _row(one: Report) -> tuple[object, ...]:
    metadata = f"{len(one['metadata'])} characters" if one["metadata"] else None
    note = "copied before: only deleted at the source" if one["is_copied"] else ""
    return (one["topic"], one["partition"], one["committed"], one["leader_epoch"], metadata, note)
