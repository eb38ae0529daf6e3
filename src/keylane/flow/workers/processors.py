"""How many processors this process may use, which may be fewer than its machine has."""

from __future__ import annotations

import os
from contextlib import suppress
from math import ceil
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def usable_processors() -> int:
    """By its affinity (`taskset`, cpusets) and by the quota of its control groups (a container's limit), rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *map(ceil, _quotas())]))


def _quotas() -> list[float]:
    """Processors that the control groups of this process allow, of version 2 and 1; empty without a limit."""
    found = []
    for folder in _folders():
        with suppress(OSError, ValueError):  # no such file, or no limit: "max"
            quota, period = (folder / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                found.append(quota_us / int((folder / "cpu.cfs_period_us").read_text()))
    return found


def _folders() -> list[Path]:
    """Of the control groups that this process is in, and of those around them."""
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        root = CGROUPS if not controllers else CGROUPS / controllers
        own = root / path.lstrip("/")
        folders += [own, *(one for one in own.parents if one.is_relative_to(root))]
    return folders
