"""`keylane groups describe GROUP`: members, committed offsets, what their offset maps say, lag, and what remains.

The idea: one plain report (what `--json` prints) is gathered first; the tables show the same report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.cli.tables import print_table, runs_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.group_descriptions import Partition


def gather(admin: Admin, group: str) -> dict[str, Any]:
    """Everything about a group, as `--json` prints it (docs: `keylane groups describe --help`).

    `offset_map` is null without metadata, and for metadata that is not an offset map, which `metadata_error` then
    names. `remaining` is what is really left: `lag` less what the offset map has complete, and less what retention has
    dropped. What is not known (an offset without a commit, the end of a topic that is gone) is null.
    """
    from keylane.errors import UsageError

    description = admin.describe_group(group)
    committed = admin.committed_offsets(group)
    if description.state == "dead" and not committed:
        raise UsageError(f"the group {group!r} does not exist: `keylane groups list` shows those that do")
    owners = {partition: member.member_id for member in description.members for partition in member.assignment}
    names = sorted({*committed, *owners})
    starts, ends = admin.log_starts(names), admin.log_ends(names)
    partitions = [
        _partition_report(name, committed.get(name), starts[name], ends[name], owners.get(name)) for name in names
    ]
    return {
        "group": group,
        "state": description.state,
        "protocol": description.protocol,
        "assignor": description.assignor or None,
        "coordinator": description.coordinator or None,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "group_instance_id": member.group_instance_id,
                "assignment": _by_topic(member.assignment),
            }
            for member in description.members
        ],
        "partitions": partitions,
        "lag": _total(partitions, "lag"),
        "remaining": _total(partitions, "remaining"),
    }


def _total(partitions: list[dict[str, Any]], name: str) -> int | None:
    known = [one[name] for one in partitions if one[name] is not None]
    return sum(known) if known else None


def _partition_report(
    partition: Partition,
    committed: CommittedOffset | None,
    log_start: int | None,
    log_end: int | None,
    member_id: str | None,
) -> dict[str, Any]:
    from keylane.kafka.group_standing import offset_map_of

    offset_map, metadata_error, lag, remaining = None, None, None, None
    if committed is not None:
        decoded, metadata_error = offset_map_of(committed)
        if committed.metadata and metadata_error is None:
            offset_map = {
                "incomplete": decoded.incomplete_count,
                "highest_completed": decoded.highest_completed,
            }
        if log_start is not None and log_end is not None:
            lag, remaining = max(0, log_end - committed.offset), decoded.remaining(log_start, log_end)
    return {
        "topic": partition[0],
        "partition": partition[1],
        "committed": committed.offset if committed is not None else None,
        "metadata": committed.metadata if committed is not None else None,
        "offset_map": offset_map,
        "metadata_error": metadata_error,
        "log_start_offset": log_start,
        "log_end_offset": log_end,
        "lag": lag,
        "remaining": remaining,
        "member_id": member_id,
    }


def _by_topic(assignment: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in assignment:
        topics.setdefault(topic, []).append(partition)
    return topics


def print_report(report: dict[str, Any]) -> None:
    """The tables."""
    parts = [report["state"], f"protocol {report['protocol']}"]
    parts += [f"assignor {report['assignor']}"] if report["assignor"] else []
    parts += [f"coordinator {report['coordinator']}"] if report["coordinator"] else []
    parts += [f"{name} {report[name]:,}" for name in ("lag", "remaining") if report[name] is not None]
    print(f"group {report['group']}: {', '.join(parts)}\n")
    if report["members"]:
        rows = (
            (one["member_id"], one["client_id"], one["host"], _assignment_text(one["assignment"]))
            for one in report["members"]
        )
        print_table(("MEMBER", "CLIENT ID", "HOST", "ASSIGNMENT"), rows)
    else:
        print("no members")
    print()
    if report["partitions"]:
        headings = (
            "TOPIC",
            "PARTITION",
            "COMMITTED",
            "INCOMPLETE",
            "HIGHEST COMPLETED",
            "LOG END",
            "LAG",
            "REMAINING",
            "OFFSET MAP",
        )
        print_table(headings, map(_partition_row, report["partitions"]), numbers=range(1, 8))
    else:
        print("nothing committed")
    for one in report["partitions"]:
        if one["metadata_error"]:
            print(f"{one['topic']}-{one['partition']}: {one['metadata_error']}")


def _partition_row(one: dict[str, Any]) -> tuple[Any, ...]:
    offset_map = one["offset_map"] or {"incomplete": None, "highest_completed": None}
    if one["committed"] is None:
        says = "nothing committed"
    elif one["metadata_error"]:
        says = "metadata is not an offset map"
    else:
        says = "yes" if one["offset_map"] else "none: nothing complete above"
    return (
        one["topic"],
        one["partition"],
        one["committed"],
        offset_map["incomplete"],
        offset_map["highest_completed"],
        one["log_end_offset"],
        one["lag"],
        one["remaining"],
        says,
    )


def _assignment_text(assignment: dict[str, list[int]]) -> str:
    """`flights 0–3, 7; weather 0`: runs, since a member may have hundreds of partitions."""
    return "; ".join(f"{topic} {runs_text(partitions)}" for topic, partitions in assignment.items()) or "–"
