"""Dead letters deleted: up to an offset, a time, or the first that did not come back.

The idea: what is deleted is gone, so nothing is that nobody could have read. A transaction that is open holds letters
which are not there yet for anybody: they stay, and what is behind them. The ends are asked for before the times, so
that a letter that comes meanwhile is above them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from keylane.desk.groups import selected
from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.desk import Report
    from keylane.desk.letters import Queue

    Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Below:
    """Which letters are deleted, of each partition: those below the first that did not come back, below the first of a
    time (milliseconds since the epoch) on, below an offset, or all."""

    kind: Literal["redriven", "time", "offset", "latest"]
    value: int = 0


def purge(queue: Queue, selections: Sequence[str], below: Below, *, execute: bool) -> Report:
    """Delete letters of what is selected (or all), or say which would be; returns the report. Raises `UsageError`."""
    counts = {queue.topic: queue.admin.topics()[queue.topic]}
    names = selected(selections or [queue.topic], counts)
    starts, ends = queue.admin.log_starts(names), queue.admin.log_ends(names, read_committed=False)
    stable_ends = queue.admin.log_ends(names, read_committed=True)
    targets = _targets(queue, below, names)
    rows: list[Report] = []
    for name in names:
        start, end = starts[name], ends[name]
        if start is None or end is None:
            raise UsageError(f"{name[0]}-{name[1]} does not exist any more: name others with --topic")
        stable_end = stable_ends[name]
        found = targets[name]
        before = min(max(end if found is None else found, start), end)
        kept_open = stable_end is not None and stable_end < before
        if kept_open:
            before = max(start, stable_end or 0)
        rows.append(
            {
                "topic": name[0],
                "partition": name[1],
                "log_start_offset": start,
                "log_end_offset": end,
                "new_start_offset": before,
                "records": before - start,
                "open_transaction": kept_open,
            }
        )
    if execute:
        queue.admin.delete_records(
            {(one["topic"], one["partition"]): one["new_start_offset"] for one in rows if one["records"]}
        )
    return {"executed": execute, "partitions": rows}


def _targets(queue: Queue, below: Below, names: list[Partition]) -> dict[Partition, int | None]:
    """Below which offset each partition is deleted; None: all of it."""
    if below.kind == "redriven":
        positions = queue.positions()
        for name in names:
            if name[1] in positions and not positions[name[1]].is_own:
                raise UsageError(
                    f"{name[0]}-{name[1]}: the position {positions[name[1]].map.base} of the group {queue.group!r} was "
                    "copied by a mirror, or is of an earlier keylane: which letters here came back is not known: "
                    "look at them (`keylane dlq list --waiting`), and give --to-offset"
                )
        return {name: positions[name[1]].map.base if name[1] in positions else 0 for name in names}
    if below.kind == "time":
        return queue.admin.offsets_at(dict.fromkeys(names, below.value))
    if below.kind == "offset" and below.value < 0:
        raise UsageError(f"--to-offset {below.value}: give an offset from 0 on")
    return dict.fromkeys(names, None if below.kind == "latest" else below.value)
