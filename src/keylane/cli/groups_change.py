"""`keylane groups reset | delete`: plan first, change with `--execute` only, and never under a live group.

The broker refuses commits and deletes of groups that have members, too; asking first gives the error that helps, and
keeps a request for several groups from being done in half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from keylane.cli.arguments import milliseconds
from keylane.cli.asking import DRY_RUN
from keylane.cli.tables import print_table, say
from keylane.desk.groups import named_in, no_consumer_group, selected
from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.group_descriptions import GroupDescription, Partition


@dataclass(frozen=True, slots=True)
class Target:
    """Where offsets are to go."""

    kind: Literal["earliest", "latest", "time", "offset"]
    value: int = 0
    """A time in milliseconds since the epoch, or an offset."""

    @classmethod
    def of(cls, earliest: bool, latest: bool, time: str | None, offset: int | None) -> Target:
        """The one that was given. Raises `UsageError` for a time or an offset that is none."""
        if earliest or latest:
            return cls("earliest" if earliest else "latest")
        if time is not None:
            return cls("time", milliseconds("--to-datetime", time))
        if offset is None or offset < 0:
            raise UsageError(f"--to-offset {offset}: give an offset from 0 on")
        return cls("offset", offset)


def reset(admin: Admin, group: str, selections: Sequence[str], target: Target, *, execute: bool) -> dict[str, Any]:
    """Set the offsets of a group without members; the report says what was, or would be, changed.

    Raises `UsageError` for a group with members, and for one without offsets where no topic is named.
    """
    description = check_empty(admin, group)
    committed = admin.committed_offsets(group)
    names = selected(selections, admin.topics(named_in(selections))) if selections else list(committed)
    if not names:
        raise UsageError(f"the group {group!r} has no offsets: name what to set with --topic TOPIC[:N,N-N]")
    rows = _planned(admin, names, committed, target)
    if admin.at_brokers is not admin:
        there = admin.at_brokers.committed_offsets(group)
        for row in rows:
            commit = there.get((row["topic"], row["partition"]))
            row["at_brokers"] = None if commit is None else commit.offset
    if execute:
        admin.commit_offsets(group, {(row["topic"], row["partition"]): row["new_offset"] for row in rows})
    return {"group": group, "state": description.state, "executed": execute, "partitions": rows}


def _planned(
    admin: Admin, names: Sequence[Partition], committed: dict[Partition, CommittedOffset], target: Target
) -> list[dict[str, Any]]:
    starts, ends = admin.log_starts(names), admin.log_ends(names, read_committed=False)
    times = admin.offsets_at(dict.fromkeys(names, target.value)) if target.kind == "time" else {}
    rows = []
    for name in sorted(names):
        start, end, commit = starts[name], ends[name], committed.get(name)
        if start is None or end is None:
            raise UsageError(f"{name[0]}-{name[1]} does not exist any more: name others with --topic TOPIC[:N,N-N]")
        at_time = times.get(name)
        found = {
            "earliest": start,
            "latest": end,
            "offset": target.value,
            "time": end if at_time is None else at_time,
        }[target.kind]
        rows.append(
            {
                "topic": name[0],
                "partition": name[1],
                "committed": None if commit is None else commit.offset,
                "drops_metadata": commit is not None and bool(commit.metadata),
                "new_offset": min(max(found, start), end),
                "log_start_offset": start,
                "log_end_offset": end,
            }
        )
    return rows


def print_reset(report: dict[str, Any]) -> None:
    """As a table."""
    headings = ("TOPIC", "PARTITION", "COMMITTED", "NEW OFFSET", "LOG START", "LOG END", "NOTE")
    names = ("topic", "partition", "committed", "new_offset", "log_start_offset", "log_end_offset")
    rows = [(*(one[name] for name in names), _note(one)) for one in report["partitions"]]
    print_table(headings, rows, numbers=range(1, 6))
    count = len(report["partitions"])
    say(f"group {report['group']}: {count} offsets set" if report["executed"] else DRY_RUN)


def _note(row: dict[str, Any]) -> str:
    notes = ["its metadata is dropped"] if row["drops_metadata"] else []
    if row.get("at_brokers") is not None:
        notes.append(f"the brokers have {row['at_brokers']} (`keylane offsets move` takes it over)")
    return "; ".join(notes)


def delete(admin: Admin, groups: Iterable[str], *, execute: bool) -> dict[str, Any]:
    """Delete groups without members; the report says what was, or would be, deleted. Raises `UsageError` before
    anything is deleted when one of them has members or is not there."""
    names = list(dict.fromkeys(groups))
    rows = []
    for group in names:
        description = check_empty(admin, group)
        committed = admin.committed_offsets(group)
        if description.state == "dead" and not committed:
            raise no_consumer_group(admin, group)
        rows.append({"group": group, "state": description.state, "offsets": len(committed)})
    if execute:
        for group in names:
            admin.delete_group(group)
    return {"executed": execute, "groups": rows}


def print_delete(report: dict[str, Any]) -> None:
    """As a table."""
    print_table(("GROUP", "STATE", "OFFSETS"), (one.values() for one in report["groups"]), numbers=[2])
    say(f"{len(report['groups'])} groups deleted" if report["executed"] else DRY_RUN)


def delete_offsets(admin: Admin, groups: Iterable[str], selections: Sequence[str], *, execute: bool) -> dict[str, Any]:
    """Delete the groups' offsets of some partitions; the report says what was, or would be, deleted.

    Raises `UsageError` before anything is deleted when a group has none there.
    """
    names = selected(selections, admin.topics(named_in(selections)))
    rows: list[dict[str, Any]] = []
    for group in dict.fromkeys(groups):
        committed = admin.committed_offsets(group)
        found = [name for name in sorted(names) if name in committed]
        if not found:
            raise UsageError(
                f"the group {group!r} has no offsets in {', '.join(selections)}: see `keylane groups offsets`"
            )
        rows += ({"group": group, "topic": t, "partition": p, "committed": committed[t, p].offset} for t, p in found)
    if execute:
        for group in dict.fromkeys(row["group"] for row in rows):
            admin.delete_offsets(group, [(row["topic"], row["partition"]) for row in rows if row["group"] == group])
    return {"executed": execute, "partitions": rows}


def print_delete_offsets(report: dict[str, Any]) -> None:
    """As a table."""
    headings = ("GROUP", "TOPIC", "PARTITION", "COMMITTED")
    print_table(headings, (one.values() for one in report["partitions"]), numbers=[2, 3])
    say(f"{len(report['partitions'])} offsets deleted" if report["executed"] else DRY_RUN)


def check_empty(admin: Admin, group: str) -> GroupDescription:
    """The group, which has no members. Raises `UsageError` for one that has some."""
    description = admin.describe_group(group)
    members = description.members
    if members or description.state not in ("empty", "dead"):
        clients = ", ".join(sorted({f"{one.client_id} on {one.host}" for one in members})) or "joining now"
        is_static = any(one.group_instance_id is not None for one in members)
        stays = " (a static member that has stopped stays one until its session timeout)" if is_static else ""
        raise UsageError(
            f"the group {group!r} is {description.state} with {len(members)} members ({clients}): stop them "
            f"first{stays}; a live group's offsets are its members' to commit (`keylane operate` tells them what to do)"
        )
    return description
