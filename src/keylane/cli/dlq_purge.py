"""`keylane dlq purge`: letters deleted up to an offset, a time, or the first that did not come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.cli.arguments import milliseconds
from keylane.cli.asking import DRY_RUN
from keylane.cli.tables import print_table
from keylane.desk.groups import selected
from keylane.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from keylane.cli.asking import Report
    from keylane.desk.letters import Queue

    Partition = tuple[str, int]


def purge(queue: Queue, args: argparse.Namespace) -> Report:
    """Delete records, or say which would be deleted; returns the report. Raises `UsageError`."""
    counts = {queue.topic: queue.admin.topics()[queue.topic]}
    names = selected(args.topic or [queue.topic], counts)
    starts, ends = queue.admin.log_starts(names), queue.admin.log_ends(names)
    targets = _targets(queue, args, names)
    rows: list[Report] = []
    for name in names:
        start, end = starts[name], ends[name]
        if start is None or end is None:
            raise UsageError(f"{name[0]}-{name[1]} does not exist any more: name others with --topic")
        found = targets[name]
        before = min(max(end if found is None else found, start), end)
        rows.append(
            {
                "topic": name[0],
                "partition": name[1],
                "log_start_offset": start,
                "log_end_offset": end,
                "new_start_offset": before,
                "records": before - start,
            }
        )
    if args.execute:
        queue.admin.delete_records(
            {(one["topic"], one["partition"]): one["new_start_offset"] for one in rows if one["records"]}
        )
    return {"executed": args.execute, "partitions": rows}


def _targets(queue: Queue, args: argparse.Namespace, names: list[Partition]) -> dict[Partition, int | None]:
    """Below which offset each partition is deleted; None: all of it."""
    if args.to_redriven:
        redriven = queue.redriven()
        return {name: redriven[name[1]].base if name[1] in redriven else 0 for name in names}
    if args.to_datetime is not None:
        return queue.admin.offsets_at(dict.fromkeys(names, milliseconds("--to-datetime", args.to_datetime)))
    if args.to_offset is not None and args.to_offset < 0:
        raise UsageError(f"--to-offset {args.to_offset}: give an offset from 0 on")
    return dict.fromkeys(names, args.to_offset)


def print_purge(report: Report) -> None:
    """As a table."""
    headings = ("TOPIC", "PARTITION", "LOG START", "LOG END", "NEW START", "OFFSETS")
    print_table(headings, (one.values() for one in report["partitions"]), numbers=range(1, 6))
    count = sum(one["records"] for one in report["partitions"])
    print(f"{count} offsets deleted" if report["executed"] else DRY_RUN)
