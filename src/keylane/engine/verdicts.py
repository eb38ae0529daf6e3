"""What follows a failed attempt: another one, a dead letter, a skip, or the end of the run.

The idea: a pure decision from the pipeline's options and the record's own history; the core carries it out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from keylane.engine.deliveries import DeadLetterState, Delivery, dead_letter
from keylane.engine.work import Failure
from keylane.errors import HandlerError
from keylane.options import DeadLetter, Skip

if TYPE_CHECKING:
    from keylane.engine.work import Work
    from keylane.options import Pipeline

logger = logging.getLogger("keylane.engine")


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt, after the delay that follows this one (the first is 1)."""

    attempt: int
    delay_ms: int | None = None
    """The delay that the error asks for (`keylane.RetryAfter`); None leaves it to `Retries`."""


class GivenUp(Enum):
    """The record counts as complete without having succeeded."""

    SKIPPED = "skipped"


SKIPPED = GivenUp.SKIPPED

Verdict: TypeAlias = "Again | Delivery | GivenUp | HandlerError"
"""A delivery is the dead letter; an error is what the run ends with."""


class Verdicts:
    """Applies the pipeline's `retries` and `on_exhausted`."""

    __slots__ = ("_most", "_rule")

    def __init__(self, pipeline: Pipeline) -> None:
        self._most = pipeline.retries.max_attempts
        self._rule = pipeline.on_exhausted

    def failed(self, work: Work, failure: Failure) -> Verdict:
        """An attempt of the handler failed, or its outputs were not delivered."""
        if not failure.final and work.attempt < self._most:
            work.attempt += 1
            return Again(work.attempt - 1, _asked_delay_ms(failure.error))
        reason = f"{work.name}: {_text(failure.error)}; failed {_attempts(work.attempt)}"
        if isinstance(self._rule, Skip):
            logger.warning("skipped %s", reason)
            return SKIPPED
        if isinstance(self._rule, DeadLetter):
            logger.warning("to the dead-letter topic %r: %s", self._rule.topic, reason)
            work.dead = DeadLetterState(failure, work.attempt)
            return self.dead_letter(work)
        return _error(f"{reason}; mend the handler and start again, or set on_exhausted to DeadLetter or Skip", failure)

    def undelivered(self, work: Work, error: BaseException) -> Verdict:
        """An output was not acknowledged: a failed attempt. A dead letter has as many attempts of its own."""
        dead = work.dead
        if dead is None:
            return self.failed(work, Failure(error))
        if dead.tries < self._most:
            dead.tries += 1
            return Again(dead.tries - 1)
        assert isinstance(self._rule, DeadLetter), self._rule
        return _error(
            f"{work.name}: {_text(dead.failure.error)}; failed {_attempts(dead.attempts)}, and its dead letter could "
            f"not be produced to {self._rule.topic!r}: {_text(error)}; check that topic and start again",
            dead.failure,
        )

    def dead_letter(self, work: Work) -> Delivery:
        """The delivery of a record that has its `dead` state."""
        assert isinstance(self._rule, DeadLetter), self._rule
        assert work.dead is not None, work
        return Delivery(work, (dead_letter(work, self._rule.topic, work.dead.failure, work.dead.attempts),))


def _error(text: str, failure: Failure) -> HandlerError:
    error = HandlerError(text)
    error.__cause__ = failure.error
    return error


def _asked_delay_ms(error: BaseException) -> int | None:
    asked = getattr(error, "retry_after_ms", None)
    return max(0, asked) if isinstance(asked, int) else None


def _text(error: BaseException) -> str:
    """An error in one line: its class and its text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _attempts(count: int) -> str:
    return f"{count} attempt{'s' if count != 1 else ''}"
