"""`keylane groups offsets | map`: what a group has committed, and what the offset maps in it say.

Each report is what `--json` prints; `None` is what is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.tables import print_table, say
from keylane.desk.groups import committed_by, map_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.desk import Report
    from keylane.kafka.admin import Admin

SHOWN_CHARACTERS = 40
"""How much of a commit's metadata a table shows; `--json` has all of it."""
SHOWN_RUNS = 12
"""How many runs of incomplete offsets a table shows; `--json` has all of them."""


def offsets_report(admin: Admin, group: str, selections: Iterable[str]) -> Report:
    """Committed offsets with their metadata, beside the log's bounds. Raises `UsageError`."""
    committed = committed_by(admin, group, selections)
    starts, ends = admin.log_starts(committed), admin.log_ends(committed, read_committed=False)
    rows = []
    for (topic, partition), commit in committed.items():
        start, end = starts[topic, partition], ends[topic, partition]
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "committed": commit.offset,
                "metadata": commit.metadata,
                "leader_epoch": None if commit.leader_epoch < 0 else commit.leader_epoch,
                "log_start_offset": start,
                "log_end_offset": end,
                "lag": None if end is None else max(0, end - commit.offset),
            }
        )
    return {"group": group, "partitions": rows}


def print_offsets(report: Report) -> None:
    """As a table."""
    if not report["partitions"]:
        say("nothing committed")
        return
    headings = ("TOPIC", "PARTITION", "COMMITTED", "LOG START", "LOG END", "LAG", "METADATA")
    names = ("topic", "partition", "committed", "log_start_offset", "log_end_offset", "lag")
    rows = [(*(one[name] for name in names), _cut(one["metadata"])) for one in report["partitions"]]
    print_table(headings, rows, numbers=range(1, 6))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… ({len(text)} characters)"


def map_report(admin: Admin, group: str, selections: Iterable[str]) -> Report:
    """Every commit's metadata, decoded as an offset map; `metadata_error` says why it is none, or not believed. Raises
    `UsageError`."""
    rows = [map_of(name, commit) for name, commit in committed_by(admin, group, selections).items()]
    return {"group": group, "partitions": rows}


def print_maps(report: Report) -> None:
    """As a table, and the reasons for what is no map."""
    if not report["partitions"]:
        say("nothing committed")
        return
    headings = (
        "TOPIC",
        "PARTITION",
        "COMMITTED",
        "EPOCH",
        "HIGHEST COMPLETED",
        "INCOMPLETE OFFSETS",
        "ENCODING",
        "ORIGIN",
        "INCOMPLETE",
    )
    names = ("topic", "partition", "committed", "leader_epoch", "highest_completed", "incomplete_count")
    rows = [
        (
            *(one[name] for name in names),
            one["encoding"] or ("no map" if one["metadata_error"] else "none"),
            one["map_origin"],
            _runs(one),
        )
        for one in report["partitions"]
    ]
    print_table(headings, rows, numbers=range(1, 6))
    for one in report["partitions"]:
        if one["metadata_error"]:
            say(f"{one['topic']}-{one['partition']}: {one['metadata_error']}")


def _runs(one: Report) -> str | None:
    if one["incomplete"] is None:
        return None
    runs = [str(first) if first == last else f"{first}–{last}" for first, last in one["incomplete"][:SHOWN_RUNS]]
    left = len(one["incomplete"]) - len(runs)
    return ", ".join(runs) + (f", … ({left} more)" if left else "")
