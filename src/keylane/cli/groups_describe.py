"""`keylane groups describe GROUP`: members, committed offsets, what their offset maps say, lag, and what remains.

The idea: one plain report (what `--json` prints) is gathered by the desk; the tables show the same report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.tables import print_table, runs_text, say
from keylane.consumer.snapshot import some_of
from keylane.desk.members import down_lines

if TYPE_CHECKING:
    from keylane.desk import Report


def print_report(report: Report) -> None:
    """The tables."""
    parts = [report["state"], f"protocol {report['protocol']}"]
    parts += [f"assignor {report['assignor']}"] if report["assignor"] else []
    parts += [f"coordinator {report['coordinator']}"] if report["coordinator"] else []
    parts += [f"{name} {report[name]:,}" for name in ("lag", "remaining") if report[name] is not None]
    say(f"group {report['group']}: {', '.join(parts)}")
    for line in down_lines(report["breakers"]):
        say(line)
    say()
    if report["unassigned"]:
        say(f"no member has {some_of(report['unassigned'])}: nothing of these is read")
        say()
    if report["members"]:
        rows = (
            (one["member_id"], one["client_id"], one["host"], _assignment_text(one["assignment"]))
            for one in report["members"]
        )
        print_table(("MEMBER", "CLIENT ID", "HOST", "ASSIGNMENT"), rows)
    else:
        say("no members")
    say()
    if report["partitions"]:
        headings = (
            "TOPIC",
            "PARTITION",
            "COMMITTED",
            "EPOCH",
            "INCOMPLETE",
            "HIGHEST COMPLETED",
            "LOG END",
            "LAG",
            "REMAINING",
            "OFFSET MAP",
        )
        print_table(headings, map(_partition_row, report["partitions"]), numbers=range(1, 9))
    else:
        say("nothing committed")
    for one in report["partitions"]:
        if one["metadata_error"]:
            say(f"{one['topic']}-{one['partition']}: {one['metadata_error']}")


def _partition_row(one: Report) -> tuple[object, ...]:
    offset_map = one["offset_map"] or {"incomplete": None, "highest_completed": None}
    if one["committed"] is None:
        says = "nothing committed"
    elif one["map_origin"] == "copied":
        says = "copied"
    elif one["metadata_error"]:
        says = "metadata is not an offset map"
    elif one["map_origin"] == "unmarked":
        says = "yes, unmarked"
    else:
        says = "yes" if one["offset_map"] else "none: nothing complete above"
    return (
        one["topic"],
        one["partition"],
        one["committed"],
        one["leader_epoch"],
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
