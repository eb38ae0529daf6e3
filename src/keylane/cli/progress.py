"""Progress in a terminal (bars that stay up to date) and elsewhere (plain lines, one each interval and at a change).

A line of progress is not the work: where the output is full, closed, or read by nobody any more, the work goes on.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from keylane.cli.streams import send_nowhere
from keylane.telling import logger_of, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID

    from keylane.demo.progress import Progress, Step

logger = logger_of("keylane.cli")

PLAIN_INTERVAL_S = 1.0
"""Between two plain lines of one step: enough to see life of what ends soon."""


def progress_on(stream: TextIO, interval_s: float = PLAIN_INTERVAL_S, *, has_times: bool = False) -> Progress:
    """Bars when the stream is a terminal that can show them, else plain lines, with their times if these are wanted."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console

        return BarProgress(Console(file=stream))
    return PlainProgress(stream, interval_s, has_times=has_times)


class PatientStream:
    """Writes whole lines to a stream until that fails; from then on they go nowhere. Thread safety: any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._has_failed = False

    def write_line(self, line: str) -> None:
        with self._lock:
            if self._has_failed:
                return
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError) as error:  # full, no reader any more; closed
                self._has_failed = True
                send_nowhere(self._stream)
                logger.warning("nothing more is written to standard output, the work goes on: %s", error)


class PlainProgress:
    """Lines without control characters, each flushed: for logs, pipes and CI."""

    def __init__(self, stream: TextIO, interval_s: float = PLAIN_INTERVAL_S, *, has_times: bool = False) -> None:
        self._stream = PatientStream(stream)
        self._has_times = has_times
        self.interval_s = interval_s

    def say(self, line: str) -> None:
        at = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S} " if self._has_times else ""
        self._stream.write_line(at + visible(line))

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Step]:
        self.say(f"{title} …")
        step = _PlainStep(self, title, total)
        yield step
        self.say(f"{title}: {step.ending()}")


class _PlainStep:
    def __init__(self, progress: PlainProgress, title: str, total: int | None) -> None:
        self._progress, self._title, self._total = progress, title, total
        self._started = self._last = monotonic()
        self._end_note = ""

    def update(self, done: int, note: str = "", total: int | None = None, *, is_news: bool = False) -> None:
        self._total = total if total is not None else self._total
        now = monotonic()
        if now - self._last < self._progress.interval_s and not is_news:
            return
        self._last = now
        count = f"{done:,} of {self._total:,}" if self._total is not None else (f"{done:,}" if done else "")
        self._progress.say(f"{self._title}: {', '.join(filter(None, [count, note]))}")

    def end_note(self, note: str) -> None:
        self._end_note = note

    def ending(self) -> str:
        return ", ".join(filter(None, [f"{monotonic() - self._started:.1f} s", self._end_note]))


class BarProgress:
    """A line for each finished step and a live bar for the one under way."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, line: str) -> None:
        self._console.print(visible(line), highlight=False, markup=False)

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Step]:
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        count = (
            [] if total is None else [BarColumn(bar_width=16), TextColumn("{task.completed:,.0f}/{task.total:,.0f}")]
        )
        columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), *count]
        note = TextColumn("{task.fields[note]}", style="dim", markup=False)
        with Progress(*columns, note, TimeElapsedColumn(), console=self._console, transient=True) as bars:
            step = _BarStep(bars, bars.add_task(visible(title), total=total, note=""))
            yield step
        self._console.print(
            f"[green]✓[/] {escape(visible(title))} [dim]{escape(visible(step.ending()))}[/]", highlight=False
        )


class _BarStep:
    def __init__(self, bars: RichBars, task: TaskID) -> None:
        self._bars, self._task = bars, task
        self._started = monotonic()
        self._end_note = ""

    def update(self, done: int, note: str = "", total: int | None = None, *, is_news: bool = False) -> None:  # noqa: ARG002 - a bar is always up to date
        self._bars.update(self._task, total=total, completed=done, note=visible(note))

    def end_note(self, note: str) -> None:
        self._end_note = note

    def ending(self) -> str:
        return ", ".join(filter(None, [f"{monotonic() - self._started:.1f} s", self._end_note]))
