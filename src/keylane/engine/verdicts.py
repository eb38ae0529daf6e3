"""What follows a failed attempt: another one, a dead letter, a skip, or the end of the run.

The idea: a pure decision from the pipeline's options and the record's own history; the core carries it out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from keylane.engine.deliveries import DeadLetterState, Delivery, dead_letter
from keylane.engine.own_topics import OwnTopicError, OwnTopics
from keylane.engine.retries import backoff_s, delay_s
from keylane.errors import HandlerError, UsageError
from keylane.options import DeadLetter, Skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.engine.work import Failure, Work
    from keylane.options import Pipeline
    from keylane.records import Output, Returned

logger = logging.getLogger("keylane.engine")


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt, after this delay."""

    delay_s: float


class GivenUp(Enum):
    """The record counts as complete without having succeeded."""

    SKIPPED = "skipped"


SKIPPED = GivenUp.SKIPPED

Verdict: TypeAlias = "Again | Delivery | GivenUp | HandlerError"
"""A delivery is the dead letter; an error is what the run ends with."""


class Verdicts:
    """Applies the pipeline's `retries` and `on_exhausted`."""

    __slots__ = ("_own_topics", "_random", "_retries", "_rule")

    def __init__(self, pipeline: Pipeline, random: Callable[[], float]) -> None:
        self._own_topics = OwnTopics(pipeline)
        self._retries = pipeline.retries
        self._rule = pipeline.on_exhausted
        self._random = random

    def refused(self, outcome: Sequence[Output] | Returned) -> Failure | None:
        """Why these outputs may not be produced; None when they may."""
        return self._own_topics.refused(outcome)

    def failed(self, work: Work, failure: Failure, began: float, now: float) -> Verdict:
        """An attempt that was handed over at `began` failed, or its outputs were not delivered."""
        if work.first_s is None:
            work.first_s = began
        if isinstance(failure.error, OwnTopicError):
            return _error(f"{work.name}: {failure.error}", failure)
        if not failure.final and self._retries.allow(work.attempt):
            try:
                wait_s = self._wait_s(work, failure.error)
            except UsageError as error:
                return _error(f"{work.name}: {error}", failure)
            if self._retries.max_age_ms is None or now + wait_s <= work.first_s + self._retries.max_age_ms / 1000:
                work.attempt += 1
                return Again(wait_s)
        reason = f"{work.name}: {_text(failure.error)}; failed {_attempts(work.attempt)}"
        if isinstance(self._rule, Skip):
            logger.info("skipped %s", reason)
            return SKIPPED
        if isinstance(self._rule, DeadLetter):
            logger.info("to the dead-letter topic %r: %s", self._rule.topic, reason)
            work.dead = DeadLetterState(failure, work.attempt)
            return self.dead_letter(work)
        return _error(f"{reason}; mend the handler and start again, or set on_exhausted to DeadLetter or Skip", failure)

    def _wait_s(self, work: Work, error: BaseException) -> float:
        """The wait after this attempt: what the error asks for (`keylane.RetryAfter`), or what `Retries` say."""
        asked = getattr(error, "retry_after_ms", None)
        if isinstance(asked, int):
            return max(0, asked) / 1000
        return delay_s(self._retries, work.attempt, error, work.message, self._random)

    def undelivered(self, work: Work, error: BaseException) -> Verdict:
        """A dead letter was not acknowledged. It has as many attempts as a record."""
        dead = work.dead
        assert dead is not None, work
        if self._retries.allow(dead.tries):
            dead.tries += 1
            return Again(backoff_s(self._retries, dead.tries - 1, self._random))
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


def _text(error: BaseException) -> str:
    """An error in one line: its class and its text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _attempts(count: int) -> str:
    return f"{count} attempt{'s' if count != 1 else ''}"
