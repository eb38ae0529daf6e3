"""`Stall`: finds out that calls run, and none of them ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.flow.items import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.flow.items import Unit
    from keylane.flow.workers import Running


class Stall:
    """S3: an application that hangs must not look like a healthy member of its group."""

    __slots__ = ("_since", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: float | None = None
        """Since when handlers run without an end of any of them; None while none runs, or without a limit."""

    def moved(self, now: float, *, runs: bool) -> None:
        """A handler began where none ran, or ended; `runs` says whether one runs now."""
        self._since = now if runs and self._timeout_s else None

    def begun(self, now: float) -> None:
        """Handlers were started."""
        if self._since is None:
            self.moved(now, runs=True)

    def is_stalled(self, now: float) -> bool:
        return self._since is not None and now >= self._since + self._timeout_s

    def next_check(self) -> float | None:
        return None if self._since is None else self._since + self._timeout_s

    def text(self, running: Sequence[Running], handed_over: Unit, now: float) -> str:
        """What to tell, of the calls that run, and of what was handed over first and is wanted still."""
        end = "; mend the handler, or raise stall_timeout_ms (0: no limit)"
        if not running:
            items = [handed_over.item_at(handed_over.first)] if isinstance(handed_over, Call) else handed_over.items
            first = next(item for item in items if item.source.wanted)
            return (
                f"{first.name}: no handler has ended for {self._timeout_s:g} s, and none has begun on this record, "
                f"which was handed over {now - handed_over.since:.0f} s ago: the workers still make their resource, or "
                f"cannot begin{end}"
            )
        call = min(running, key=lambda one: one.since)
        others = f", and {len(running) - 1} more run" if len(running) > 1 else ""
        return (
            f"{call.name}: no handler has ended for {self._timeout_s:g} s, and this record has been in its handler for "
            f"longest ({now - call.since:.0f} s), at {call.where()}{others}{end}"
        )
