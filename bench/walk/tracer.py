"""Which files a record, a commit or a row passes through: lines that run for it and do not run in an idle while.

The idea: threads that wait, timers, heartbeats, statistics and logs run all the time. So the process is traced first
while nothing is to be done, for longer than its longest timer, and then while one record is. A line counts when it runs
for the record and did not run, called the same way, in the idle while. "Called the same way": the functions of keylane
on the stack are part of what is compared, from where a thread or asyncio begins. So

- a file that only ticks (statistics, a heartbeat, a poll that finds nothing) is left out: all its lines run idle too;
- a file whose loop turns all the time, and which does something with the record, is in: those lines are new;
- the callers of a line that counts are in too, up to the thread's or asyncio's own loop: the record passes them.

A timer that is due in that very moment would still be counted. So it is done several times, and a file is part of the
walk when it is so each time. The first one that warms everything up (imports, caches, connections) is not traced.

Lines are traced, and not only calls, because a poll that finds a record calls what a poll that finds none calls.
"""

from __future__ import annotations

import sys
import threading
from asyncio.events import Handle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import CodeType, FrameType

Chain = tuple["CodeType", ...]
"""Functions that call each other, the outermost first."""
Line = tuple[Chain, int]
Lines = dict[Line, None]
"""In the order in which they first ran."""


class Tracer:
    """Traces what runs of the files below a folder, in all threads that begin after `install`.

    Thread safety: `start` and `stop` are one thread's, which is not traced itself unless it calls `trace_me`.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._lines: Lines | None = None

    def install(self) -> None:
        """Before the threads begin: Python 3.11 cannot trace a thread that runs already."""
        threading.settrace(self._called)

    def trace_me(self) -> None:
        """This thread too, in what it calls from now on."""
        sys.settrace(self._called)

    def remove(self) -> None:
        """New threads, and this one, are no longer traced."""
        threading.settrace(None)
        sys.settrace(None)

    def start(self) -> None:
        self._lines = {}

    def stop(self) -> Lines:
        """What has run since `start`."""
        lines, self._lines = self._lines, None
        assert lines is not None, "stop() without start()"
        return lines

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002 - Python's signature
        if not frame.f_code.co_filename.startswith(self._root):
            return None
        chain = self._chain(frame)

        def ran(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
            if event == "line" and (lines := self._lines) is not None:
                lines.setdefault((chain, frame.f_lineno))
            return ran

        return ran

    def _chain(self, frame: FrameType) -> Chain:
        codes = []
        caller: FrameType | None = frame
        while caller is not None and caller.f_code is not Handle._run.__code__:  # noqa: SLF001 - it begins a callback
            if caller.f_code.co_filename.startswith(self._root):
                codes.append(caller.f_code)
            caller = caller.f_back
        return tuple(reversed(codes))


def entered(idle: Iterable[Line], busy: Iterable[Line]) -> list[str]:
    """The files of what ran only when busy, and of its callers, in order of entry."""
    known = set(idle)
    return list(dict.fromkeys(code.co_filename for line in busy if line not in known for code in line[0]))


def each_time(walks: Sequence[list[str]]) -> list[str]:
    """What is part of all of them, in the last one's order."""
    always = set(walks[0]).intersection(*walks)
    return [file for file in walks[-1] if file in always]
