"""What a suite found: one outcome a test."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_S = 0.05
"""Between two looks at what others bring about."""

Verdict = Literal["passed", "failed", "excluded"]
"""Excluded: what it tests is not there, and docs/supported-apis.md says so."""


class Outcome(NamedTuple):
    """One test."""

    name: str
    verdict: Verdict
    note: str = ""
    """Why it failed, or what excludes it."""


class Suite(NamedTuple):
    """A set of tests by others, or through others' clients."""

    name: str
    version: str
    """Of what others made."""
    missing: Callable[[], str | None]
    """What this machine lacks for it, in one line; None when it lacks nothing."""
    run: Callable[[str, str], list[Outcome]]
    """(bootstrap, a folder of its own) -> outcomes."""
    settings: dict[str, str] = {}  # noqa: RUF012 - of a tuple: nobody changes it
    """The broker's options, of either broker."""


def nothing_missing() -> None:
    return None


def check(name: str, test: Callable[[], None]) -> Outcome:
    """Run one test; whatever it raises is its failure."""
    try:
        test()
    except Exception as error:
        words = f"{type(error).__name__}: {error}".split()
        return Outcome(name, "failed", " ".join(words)[:300])
    return Outcome(name, "passed")


def until(step: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    """Raise `TimeoutError` unless `step` says True in time."""
    deadline = time.monotonic() + timeout_s
    while not step():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(PAUSE_S)
