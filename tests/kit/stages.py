"""`Stages`: programs in sessions of their own, which a test kills and which are started again, as a supervisor does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING

from kit.processes import of_session
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

PATIENCE_S = 240.0
"""A JVM's start on a busy machine, and what a broker that was killed makes its clients wait for."""
LOOK_S = 0.04
LOG_CHARACTERS = 1_500


class Stages:
    """By name. One that ends with 0 has done its work; any other one that ends is started again."""

    def __init__(self, folder: Path) -> None:
        self.failed: Counter[str] = Counter()
        """Those that ended by themselves, and were started again."""
        self._folder = folder
        self._running: dict[str, tuple[subprocess.Popen[bytes], tuple[str, ...]]] = {}
        self._sessions: list[int] = []

    def start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True)
        self._running[name] = process, command
        self._sessions.append(process.pid)

    def is_running(self, name: str) -> bool:
        return name in self._running

    def pid(self, name: str) -> int:
        """Of its first process, which is its session's."""
        return self._running[name][0].pid

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Starts again what ends meanwhile. Raises `AssertionError` with the ends of the logs."""

        def tended() -> bool:
            time.sleep(LOOK_S)
            self._tend()
            return condition()

        try:
            until(tended, what, PATIENCE_S)
        except AssertionError as error:
            logs = {
                path.name: path.read_text(errors="replace")[-LOG_CHARACTERS:] for path in self._folder.glob("*.log")
            }
            raise AssertionError(f"{error}; {self.failed}, {logs}") from None

    def kill(self, name: str, *, alone: bool = False) -> None:
        """SIGKILL to all that a stage has started, or to its first process alone; then it is started again."""
        process, command = self._running[name]
        kill([process.pid] if alone else of_session(process.pid))
        process.wait()
        self.start(name, *command)

    def close(self) -> None:
        for session in self._sessions:
            kill(of_session(session))
        for process, _ in self._running.values():
            process.wait()
        self._running = {}

    def _tend(self) -> None:
        for name, (process, command) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                if code != 0:
                    self.failed[name] += 1
                    self.start(name, *command)


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it went with another one
            os.kill(pid, signal.SIGKILL)
