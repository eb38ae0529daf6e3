"""`keylane groups describe GROUP`: members, committed offsets, what their offset maps say, and lag.

The idea: one plain report (what `--json` prints) is gathered first; the tables show the same report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.cli.tables import print_table, runs_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.members import Partition


def gather(admin: Admin, group: str) -> dict[str, Any]:
    """Everything about a group, as `--json` prints it (docs: `keylane groups describe --help`).

    `offset_map` is null without metadata, and for metadata that is not an offset map, which `metadata_error` then
    names. What is not known (an offset without a commit, the end of a topic that is gone) is null.
    """
    from keylane.errors import UsageError

    description = admin.describe_group(group)
    committed = admin.committed_offsets(group)
    if description.state == "dead" and not committed:
        raise UsageError(f"the group {group!r} does not exist: `keylane groups list` shows those that do")
    owners = {partition: member.member_id for member in description.members for partition in member.assignment}
    ends = admin.log_ends(sorted({*committed, *owners}))
    partitions = [
        _partition_report(partition, committed.get(partition), end, owners.get(partition))
        for partition, end in sorted(ends.items())
    ]
    lags = [one["lag"] for one in partitions if one["lag"] is not None]
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
        "lag": sum(lags) if lags else None,
    }


def _partition_report(
    partition: Partition, committed: CommittedOffset | None, log_end: int | None, member_id: str | None
) -> dict[str, Any]:
    from keylane.errors import MetadataError
    from keylane.offsets import decode

    offset_map, metadata_error = None, None
    if committed is not None and committed.metadata:
        try:
            decoded = decode(committed.metadata, committed.offset)
        except MetadataError as error:
            metadata_error = str(error)
        else:
            offset_map = {
                "incomplete": decoded.incomplete_count,
                "highest_completed": decoded.highest_completed,
            }
    lag = max(0, log_end - committed.offset) if committed is not None and log_end is not None else None
    return {
        "topic": partition[0],
        "partition": partition[1],
        "committed": committed.offset if committed is not None else None,
        "metadata": committed.metadata if committed is not None else None,
        "offset_map": offset_map,
        "metadata_error": metadata_error,
        "log_end_offset": log_end,
        "lag": lag,
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
    parts += [f"lag {report['lag']:,}"] if report["lag"] is not None else []
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
            "OFFSET MAP",
        )
        print_table(headings, map(_partition_row, report["partitions"]), numbers=range(1, 7))
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
        says,
    )


def _assignment_text(assignment: dict[str, list[int]]) -> str:
    """`flights 0–3, 7; weather 0`: runs, since a member may have hundreds of partitions."""
    return "; ".join(f"{topic} {runs_text(partitions)}" for topic, partitions in assignment.items()) or "–"
