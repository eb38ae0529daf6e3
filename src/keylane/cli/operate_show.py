"""`keylane operate show | keys | log`: the tables of what members tell of themselves, and of what they answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.asking import admin_with, settings_of
from keylane.cli.tables import print_table, say
from keylane.desk.members import breakers_report, down_lines, held_lines
from keylane.operations.operator import Operator

if TYPE_CHECKING:
    import argparse

    from keylane.cli.asking import Report
    from keylane.operations.reports import Members


SHOWN = 10
OLD_MS = 10_000
"""Records that run are shown from this age on, so many of a member; `--json` has 50."""


def members_of(args: argparse.Namespace) -> Members:
    """What the topic of reports says now. Raises `UsageError` for a group that never reported."""
    kafka = settings_of(args, {})
    with Operator(kafka, args.group, None, admin_with(args, kafka)) as operator:
        return operator.members


def print_members(report: Report) -> None:
    """The tables: members, lanes, partitions, and what holds."""
    members = report["members"]
    if not members:
        say(f"group {report['group']}: no member reports now")
        return
    headings = ("MEMBER", "RUNS", "HEARD", "IN FLIGHT", "BUFFERED", "PROCESSED", "FAILED", "OLDEST", "COMMANDS")
    print_table(headings, map(_member_row, members), numbers=range(3, 7))
    for one in members:
        _print_lanes(one)
    _print_partitions([one for one in members if not one["silent"]])
    for one in members:
        _print_oldest(one)
        _print_troubles(one)
    newest = max(members, key=lambda one: int(one["command"]))
    for line in held_lines(newest["holding"]):
        say(f"holds: {line}")


def _print_lanes(member: Report) -> None:
    if member["lanes"]:
        say()
        say(f"lanes of {member['member']}")
        headings = ("LANE", "STATE", "HOST", "PROCESS", "EXECUTOR", "LAUNCHES", "FAILURES", "PARTITIONS")
        names = ("lane", "state", "host", "pid", "executorId", "launches", "failures")
        rows = [[*(lane[name] for name in names), ", ".join(lane["partitions"])] for lane in member["lanes"]]
        print_table(headings, rows, numbers=[0, 3, 5, 6])


def _print_partitions(members: list[Report]) -> None:
    parts = [(part["topic"], part["partition"], part, one) for one in members for part in one["snapshot"]["partitions"]]
    if parts:
        say()
        names = ("topic", "partition", "committed", "incomplete", "in_handlers", "lag", "remaining")
        rows = [
            [*(part[name] for name in names), "yes" if part["on_hold"] else "", one["member"]]
            for _, _, part, one in sorted(parts, key=lambda row: row[:2])
        ]
        headings = ("TOPIC", "PARTITION", "COMMITTED", "INCOMPLETE", "IN HANDLERS", "LAG", "REMAINING", "PAUSED")
        print_table([*headings, "MEMBER"], rows, numbers=range(1, 7))


def _print_oldest(member: Report) -> None:
    for record in member["in_hand"][:SHOWN]:
        if record["why"] == "running" and (record["age_ms"] or 0) >= OLD_MS:
            lane = "" if record["lane"] is None else f", lane {record['lane']}"
            at = f"{record['topic']}-{record['partition']}@{record['offset']}"
            age_s, attempt = record["age_ms"] / 1000, record["attempt"]
            say(f"{member['member']}{lane}: {at} runs, attempt {attempt}, for {age_s:.0f} s")
    if waiting := [one for one in member["waiting"] if one["why"] == "retry"]:
        say(
            f"{member['member']}: {len(waiting)} records wait for another attempt, the next in "
            f"{(waiting[0]['due_in_ms'] or 0) / 1000:.1f} s"
        )


def _print_troubles(member: Report) -> None:
    name, snapshot = member["member"], member["snapshot"]
    for failure in snapshot["failures"]:
        say(f"{name}: {failure['error']} {failure['count']} times, at {failure['where']}")
    for line in down_lines(breakers_report([snapshot])):
        say(f"{name}: {line}")


def _member_row(one: Report) -> tuple[object, ...]:
    snapshot = one["snapshot"]
    oldest = snapshot["oldest"]
    at = None if oldest is None else f"{oldest['topic']}-{oldest['partition']}@{oldest['offset']}"
    return (
        one["member"],
        one["runs"] if not one["lanes"] else f"{len(one['lanes'])} lanes",
        f"{one['age_ms'] / 1000:.0f} s ago{': silent' if one['silent'] else ''}",
        *(snapshot[name] for name in ("in_flight", "buffered", "processed", "failed")),
        None if oldest is None else f"{at} for {oldest['age_ms'] / 1000:.0f} s",
        "yes" if one["takes_commands"] else "no",
    )


def print_keys(report: Report) -> None:
    """As a table."""
    for line in down_lines(report["breakers"]):
        say(line)
    if not report["queues"]:
        say(f"group {report['group']}: no record waits for another one, of {report['members']} members")
        return
    print_table(
        ("HEAD", "KEY", "BEHIND", "WHY", "ATTEMPT", "FOR", "UNTIL", "MEMBER"), map(_queue_row, report["queues"])
    )


def _queue_row(one: Report) -> tuple[object, ...]:
    lane = "" if one["lane"] is None else f", lane {one['lane']}"
    return (
        f"{one['topic']}-{one['partition']}@{one['offset']}",
        one["key"] or one.get("where"),  # bytes that are no text, as --where takes them
        *(one[name] for name in ("behind", "why", "attempt")),
        None if one["age_ms"] is None else f"{one['age_ms'] / 1000:.1f} s",
        None if one["due_in_ms"] is None else f"in {one['due_in_ms'] / 1000:.1f} s",
        f"{one['member']}{lane}",
    )


def print_log(report: Report) -> None:
    """As a table, a line an answer."""
    if not report["commands"]:
        say(f"group {report['group']}: no member has answered a command in the last seven days")
        return
    rows = (
        (
            one["number"] or None,
            one["sent"],
            one["by"],
            f"{one['do']} {one['about']}",
            each["member"],
            each["accepted"],
            each["state"],
            each["text"],
        )
        for one in report["commands"]
        for each in one["members"]
    )
    print_table(("NUMBER", "SENT", "BY", "COMMAND", "MEMBER", "ACCEPTED", "RESULT", "WHY"), rows, numbers=[0])
