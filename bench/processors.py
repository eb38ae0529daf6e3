"""Whose the processors' time was while something was measured.

The idea: what runs beside a measurement makes it slower, and so does the host of a virtual machine that gives its
processors to others ("steal", proc(5)). The mean load tells neither in time. On Linux the kernel's counters do, before
and after: what was used in all, less what this process and its descendants used.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
IDLE = (3, 4)
"""Of the times of a processor: idle, and idle while it waits for a disk."""


class Times(NamedTuple):
    """In ticks, since the machine and the processes began."""

    total: int
    idle: int
    own: int


def times() -> Times | None:
    """None where Linux's counters are not there."""
    if not (PROC / "stat").exists():
        return None
    all_of_them = [int(word) for word in (PROC / "stat").read_text().split(maxsplit=9)[1:9]]  # guests' are in users'
    return Times(sum(all_of_them), sum(all_of_them[one] for one in IDLE), _own())


def taken_by_others(before: Times | None, after: Times | None) -> float | None:
    """The share of all processors' time that neither was idle nor went to this process and its descendants."""
    if before is None or after is None or after.total == before.total:
        return None
    busy = (after.total - before.total) - (after.idle - before.idle)
    return max(0, busy - (after.own - before.own)) / (after.total - before.total)


def _own() -> int:
    """What this process and its descendants have used, those that have ended included."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for file in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = file.read_text().rpartition(")")[2].split()
            pid = int(file.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            used[pid] = sum(map(int, fields[11:15]))
    own, found = 0, [os.getpid()]
    while found:
        pid = found.pop()
        own += used.get(pid, 0)
        found += children.get(pid, [])
    return own
