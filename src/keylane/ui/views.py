"""What the page shows of a group, of plain values, and what has changed since. Pure.

The idea: a view is a dict of sections. A section with rows (`ROWS`) has them by name, so that a page of a thousand
partitions hears of those that moved; any other section is told as a whole when it is another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.desk.groups import map_of
from keylane.desk.members import down_lines, held_lines, keys_report, log_report
from keylane.ui.strips import strip

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keylane.desk import Report
    from keylane.kafka.admin import CommittedOffset
    from keylane.kafka.group_descriptions import Partition
    from keylane.operations.reports import Members, Seen

ROWS = ("groups", "members", "partitions")
SHOWN_QUEUES = 50
SHOWN_COMMANDS = 50
SHOWN_NAMES = 200
"""Partitions that a member's row names."""


def changes(before: Report, after: Report) -> Report:
    """What a page that shows the one has to be told to show the other; empty for nothing. Of rows, those that are
    others, and None for those that are gone."""
    told: Report = {}
    for section, now in after.items():
        then = before.get(section)
        if then is not None and section in ROWS:
            rows = {name: row for name, row in now.items() if then.get(name) != row}
            rows |= dict.fromkeys(then.keys() - now.keys())
            if rows:
                told[section] = rows
        elif then != now or section not in before:
            told[section] = now
    return told


# --- one group ---


def head(report: Report, *, reports: bool) -> Report:
    """Of a group, as `groups describe` says it; `reports`: whether its members ever did."""
    names = ("group", "state", "protocol", "assignor", "coordinator", "lag", "remaining", "unassigned")
    return {name: report[name] for name in names} | {"reports": reports}


def partition_rows(report: Report, maps: Mapping[Partition, CommittedOffset], members: Mapping[str, Seen]) -> Report:
    """Each partition: where it stands, its strip, and what the member that has it tells."""
    clients = {one["member_id"]: one["client_id"] for one in report["members"]}
    told = {
        (part["topic"], part["partition"]): (part, name)
        for name, seen in members.items()
        for part in seen.report["snapshot"]["partitions"]
    }
    rows: Report = {}
    for one in report["partitions"]:
        name = (one["topic"], one["partition"])
        drawn: Report = map_of(name, maps[name]) if name in maps else {"incomplete": None}
        part, member = told.get(name, (None, None))
        rows[f"{one['topic']}-{one['partition']}"] = {
            "topic": one["topic"],
            "partition": one["partition"],
            "committed": one["committed"],
            "highest": drawn.get("highest_completed"),
            "incomplete": drawn.get("incomplete_count"),
            "encoding": drawn.get("encoding"),
            "strip": ""
            if drawn["incomplete"] is None
            else strip(drawn["committed"], drawn["highest_completed"], drawn["incomplete"]),
            "end": one["log_end_offset"],
            "lag": one["lag"],
            "remaining": one["remaining"],
            "note": one["metadata_error"],
            "in_handlers": None if part is None else part["in_handlers"],
            "paused": part is not None and part["on_hold"],
            "member": member or clients.get(one["member_id"]),
        }
    return rows


def joined_rows(report: Report) -> Report:
    """Members as the group's coordinator has them, where none reports."""
    return {
        one["member_id"]: {
            "member": one["member_id"],
            "runs": "consumer",
            "client": one["client_id"],
            "host": one["host"],
            "names": _names(f"{topic}-{number}" for topic, numbers in one["assignment"].items() for number in numbers),
            "partitions": sum(map(len, one["assignment"].values())),
        }
        for one in report["members"]
    }


def member_rows(members: Members, now_ms: int) -> Report:
    """Members that report, with their lanes."""
    return {name: _member(seen, now_ms) for name, seen in sorted(members.reports.items())}


def _member(seen: Seen, now_ms: int) -> Report:
    report, snapshot = seen.report, seen.report["snapshot"]
    counts = ("in_flight", "concurrency", "buffered", "processed", "failed", "retried", "dead_lettered", "skipped")
    return {
        "member": report["member"],
        "runs": report["runs"],
        "client": report["client_id"],
        "host": report["host"],
        "pid": report["pid"],
        "keylane": report["keylane"],
        "started_ms": report["started_ms"],
        "heard_ms": seen.written_ms,
        "silent": seen.is_silent(now_ms),
        "obeys": report["takes_commands"],
        "command": report["command"],
        "oldest": snapshot["oldest"],
        "partitions": len(snapshot["partitions"]),
        "names": _names(f"{one['topic']}-{one['partition']}" for one in snapshot["partitions"]),
        "lanes": report["lanes"],
        "spark_ui": _address(report.get("spark_ui")),
        **{name: snapshot[name] for name in counts},
    }


def _names(found: Iterable[str]) -> list[str]:
    return list(found)[:SHOWN_NAMES]


def _address(text: str | None) -> str | None:
    """That of a page: nothing else becomes a link."""
    return text if text is not None and text.startswith(("http://", "https://")) else None


def work(members: Members, now_ms: int) -> Report:
    """Records in hand, those that have a time, keys that wait, and what fails, of all members that are heard."""
    present = members.present(now_ms)
    lists: dict[str, list[Report]] = {
        kind: [
            dict(one) | {"member": name}
            for name, seen in present.items()
            for one in (seen.report["in_hand"] if kind == "in_hand" else seen.report["waiting"])
        ]
        for kind in ("in_hand", "waiting")
    }
    lists["in_hand"].sort(key=lambda one: -(one["age_ms"] or 0))
    lists["waiting"].sort(key=lambda one: one["due_in_ms"] or 0)
    keys = keys_report(members, now_ms, SHOWN_QUEUES)
    snapshots = [(name, seen.report["snapshot"]) for name, seen in present.items()]
    return {
        "in_hand": lists["in_hand"][:SHOWN_QUEUES],
        "waiting": lists["waiting"][:SHOWN_QUEUES],
        "queues": keys["queues"],
        "down": down_lines(keys["breakers"]),
        "failures": [dict(one) | {"member": name} for name, snapshot in snapshots for one in snapshot["failures"]],
        "breakers": [dict(one) | {"member": name} for name, snapshot in snapshots for one in snapshot["breakers"]],
        "holds": _holds(present),
        "log": log_report(members)["commands"][-SHOWN_COMMANDS:][::-1],
        "dead_letter_topics": sorted(
            {topic for seen in present.values() if (topic := seen.report.get("dead_letter_topic")) is not None}
        ),
    }


def _holds(present: Mapping[str, Seen]) -> list[str]:
    """Of the member that has seen most."""
    newest = max(present.values(), key=lambda seen: seen.report["command"], default=None)
    return [] if newest is None else held_lines(dict(newest.report["holding"]))
