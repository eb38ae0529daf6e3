"""What a long command tells its user while it works; the command line shows it, tests collect it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Step(Protocol):
    """One step under way."""

    def update(self, done: int, note: str = "", total: int | None = None, *, is_news: bool = False) -> None:
        """How much of the total is done, and what else is worth knowing now. Any thread. `total` when it is not what
        it was; `is_news`: say it at once, also where lines are rare."""

    def end_note(self, note: str) -> None:
        """What to say when the step has ended."""


class Progress(Protocol):
    """Where steps and lines go."""

    def say(self, line: str) -> None:
        """A line of its own. Any thread."""

    def step(self, title: str, total: int | None = None) -> AbstractContextManager[Step]:
        """A step from enter to exit; steps do not nest. `total` is in whatever unit `update` counts."""
