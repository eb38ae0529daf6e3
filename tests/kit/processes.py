"""What a test that kills asks about processes (Linux: read from /proc)."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from pathlib import Path
from typing import Any


class Started(subprocess.Popen[Any]):
    """A process of a `with`: when the test fails in there it is killed, which would wait for its end for ever."""

    def __exit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *raised)


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
    """Its command line; empty once it has ended."""
    return _read(Path(f"/proc/{pid}/cmdline")).split(b"\0")


def children() -> set[int]:
    """This process's children; zombies that nobody waited for count too."""
    return {int(pid) for task in Path("/proc/self/task").glob("*/children") for pid in _read(task).split()}


def of_session(leader: int) -> set[int]:
    """What runs of the session that a process began (`start_new_session=True`), whether it still runs itself or not."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, session = _stat(int(folder.name))[:4]
            if int(session) == leader and state != "Z":
                found.add(int(folder.name))
    return found


def thread_names() -> list[str]:
    """Of this process's threads, as the system has them."""
    return [_read(path).decode(errors="replace").strip() for path in Path("/proc/self/task").glob("*/comm")]


def starved_s() -> float:
    """How long, since this machine's start, something that could run has waited for a processor (pressure stalls)."""
    found = re.search(rb"some .*total=(\d+)", _read(Path("/proc/pressure/cpu")))  # of a kernel that keeps no account: 0
    return int(found[1]) / 1_000_000 if found else 0.0


class Stopwatch:
    """How long something takes, without the time in which something waited for a processor: tests that hold a bound run
    beside others."""

    def __init__(self) -> None:
        self._began, self._starved_s = time.monotonic(), starved_s()

    def took_s(self) -> float:
        return time.monotonic() - self._began - (starved_s() - self._starved_s)


def _read(path: Path) -> bytes:
    """A file of /proc; nothing of a thread or process that has ended meanwhile."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def _stat(pid: int) -> list[str]:
    """Of /proc/PID/stat what follows the name, which may hold spaces: state, parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def peak_mb(pid: int) -> int:
    """The most memory that it ever had, of what is in the machine's."""
    return _status_mb(pid, "VmHWM")


def memory_mb(pid: int) -> int:
    """What it has now."""
    return _status_mb(pid, "VmRSS")


def _status_mb(pid: int, name: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) // 1_024 for line in status.splitlines() if line.startswith(name))
