"""Failures as they happen: `Failures` counts them by kind, and `FailureReport` tells of them.

The idea: a kind is what was raised, and where. The first of a kind is told at once, with its traceback; of the others,
every ten seconds at most, how many there were. A kind with its count is a value that travels and adds up, so the driver
of many lanes tells of all of them as one consumer does of itself.

What an exception says is not told, unless it is one of keylane's own: it may quote the record.
"""

from __future__ import annotations

import threading
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from keylane.flow.workers import places
from keylane.foreign_errors import logged_text_of, short_class_of, told_of
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keylane.flow.outcomes import Failure
    from keylane.flow.workers.places import Place

logger = logger_of("keylane.failures")
"""A name of its own, so that it can be set apart."""

INTERVAL_S = 10.0
"""Between two lines of a kind."""

MOST_KINDS = 30
"""Kinds that are told apart: their texts travel with each snapshot. What comes after these counts as one kind more."""

OTHERS = "errors of other kinds"
BLOCKED = "BlockedLoop"
"""What a coroutine that blocks its loop is counted as."""

_FRAMES = 12
"""Innermost lines of a traceback."""
_CAUSES = 3


def log_end(what: str, error: BaseException) -> None:
    """The one ERROR line of a run that failed, with the exception for who reports these (Sentry, say). The command line
    leaves it out: its last line says the same."""
    logger.error("%s ended: %s", what, type(error).__name__, exc_info=error, extra={"is_end_of_run": True})


@dataclass(frozen=True, slots=True)
class FailureKind:
    """Failed attempts of one kind."""

    error: str
    """What was raised, by its type's name."""
    where: str
    """From the handler's line to the one that raised it; empty when that is not known."""
    count: int
    first: str
    """What was told of the first."""

    @property
    def name(self) -> str:
        return f"{self.error} in {self.where}" if self.where else self.error


def merged(*many: Iterable[FailureKind]) -> tuple[FailureKind, ...]:
    """All together."""
    kinds: dict[str, FailureKind] = {}
    for one in (kind for kinds_of_one in many for kind in kinds_of_one):
        before = kinds.get(one.name)
        kinds[one.name] = one if before is None else replace(before, count=before.count + one.count)
    return tuple(kinds.values())


class FailureReport:
    """Tells of kinds of failures, from their counts. Thread safety: none."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, float]] = {}
        """By kind, how many were told, and when."""
        self._due: float | None = None

    def tell(self, kinds: Iterable[FailureKind], now: float, *, at_once: bool = False) -> None:
        """Log what is new of these, unless it is too soon; `at_once`: there is no later."""
        self._due = None
        for kind in kinds:
            count, at = self._told.get(kind.name, (0, now))
            if not count:
                logger.warning("%s", kind.first)
                count = 1
                self._told[kind.name] = count, now
            if kind.count <= count:
                continue
            due = at + INTERVAL_S
            if at_once or now >= due:
                logger.warning("%s: %d more in the last %.0f s", kind.name, kind.count - count, max(1.0, now - at))
                self._told[kind.name] = kind.count, now
            else:
                self._due = due if self._due is None else min(self._due, due)

    def next_check(self) -> float | None:
        """When there is something to tell even if nothing happens."""
        return self._due


class Failures:
    """The failed attempts of one consumer, or of all tasks of a process (`outlives`).

    Thread safety: any thread; a failure costs a lock, and all else nothing.
    """

    def __init__(self, *, outlives: bool = False) -> None:
        self._outlives = outlives
        self._lock = threading.Lock()
        self._kinds: dict[str, FailureKind] = {}
        self._report = FailureReport()

    @property
    def kinds(self) -> tuple[FailureKind, ...]:
        """Cumulative."""
        return tuple(self._kinds.values())

    def tell(self, text: str) -> None:
        """A service went down, or is back."""
        logger.warning("%s", text)

    def note(self, failure: Failure, record: str, attempt: int, now: float) -> None:
        """An attempt failed, or its outputs were not delivered; `record` is its name."""
        error = told_of(failure.error)
        at = places.of_traceback(error.__traceback__) or failure.places
        kind = FailureKind(short_class_of(error), places.text_of(at), 1, "")
        self._count(kind, lambda: _first(kind, error, at, record, attempt), now)

    def note_blocked(self, what: str, at: Sequence[Place], blocked_s: float, now: float) -> None:
        """A coroutine has kept its loop from turning for so long; `what` names it."""
        kind = FailureKind(BLOCKED, places.text_of(at), 1, "")
        text = (
            f"{kind.name}: {what} keeps the asyncio loop of all handlers from turning, for {blocked_s:.1f} s by now; "
            "await what blocks, or hand it to asyncio.to_thread"
        )
        self._count(kind, lambda: "\n".join([text, *_indented(at)]), now)

    def _count(self, kind: FailureKind, first: Callable[[], str], now: float) -> None:
        with self._lock:
            if (before := self._kinds.get(kind.name)) is not None:
                self._kinds[kind.name] = replace(before, count=before.count + 1)
            elif len(self._kinds) < MOST_KINDS:
                self._kinds[kind.name] = replace(kind, first=first())
            else:
                before = self._kinds.get(
                    OTHERS, FailureKind(OTHERS, "", 0, f"{OTHERS} are counted together from here on")
                )
                self._kinds[OTHERS] = replace(before, count=before.count + 1)
            self._report.tell(self.kinds, now)

    def check(self, now: float) -> None:
        """`next_check` has come."""
        with self._lock:
            self._report.tell(self.kinds, now)

    def next_check(self) -> float | None:
        return self._report.next_check()

    def end(self, now: float) -> None:
        """A run has ended: tell what was kept back for later."""
        if not self._outlives:
            with self._lock:
                self._report.tell(self.kinds, now, at_once=True)


def _first(kind: FailureKind, error: BaseException, at: Sequence[Place], record: str, attempt: int) -> str:
    lines = [f"{kind.name}: the first one, at {record}, attempt {attempt}{_words_of(error)}"]
    lines += _indented(at)
    for _ in range(_CAUSES):
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None:
            break
        where = places.text_of(places.of_traceback(cause.__traceback__))
        lines.append(f"  because of {short_class_of(cause)}{f' in {where}' if where else ''}{_words_of(cause)}")
        error = cause
    return "\n".join(lines)


def _indented(at: Sequence[Place]) -> list[str]:
    """Lines of code, as a traceback shows them."""
    frames = [traceback.FrameSummary(file, line, name) for file, line, name in at[-_FRAMES:]]
    return [f"  {line}" for one in traceback.StackSummary.from_list(frames).format() for line in one.splitlines()]


def _words_of(error: BaseException) -> str:
    text = logged_text_of(error)
    return f": {text}" if text else ""
