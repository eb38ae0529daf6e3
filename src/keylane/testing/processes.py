"""What a test that kills asks about processes (Linux: read from /proc)."""

from __future__ import annotations

from pathlib import Path


def parent(pid: int) -> int:
    """The process id of its parent. Raises `OSError` when there is no such process."""
    return int(_stat(pid)[1])


def is_alive(pid: int) -> bool:
    """Whether it runs or is stopped; a zombie has ended."""
    try:
        return _stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def words(pid: int) -> list[bytes]:
    """Its command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def _stat(pid: int) -> list[str]:
    """Of /proc/PID/stat what follows the name, which may hold spaces: state, parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
