"""Outputs and dead letters: what is produced for a record before it is complete.

The idea: a `Delivery` is all that one attempt of one record produces. The record is complete when each of it is
acknowledged (docs/adr/0004); one failure makes the whole delivery a failed attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.records import Output, Produced, Record, Result, Returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.engine.events import Answer
    from keylane.engine.work import Failure, Work

MAX_ERROR_TEXT = 4_096
"""Characters of an error's text that a dead letter's header carries: enough to see, never too large to produce."""


class Delivery:
    """The outputs of one attempt, where the broker has put them, and how many of them it has not answered yet."""

    __slots__ = ("_places", "_record", "blameless", "entered", "error", "outputs", "pending", "value", "void", "work")

    def __init__(self, work: Work, outputs: Sequence[Output] | Returned) -> None:
        self.work = work
        self.value: Any = outputs
        """What the handler returned; only `Returned` brings it."""
        self._record: Record | None = None
        if isinstance(outputs, Returned):
            self._record = outputs.record
            self.value, outputs = outputs.value, outputs.outputs
        self.outputs = outputs
        self.pending = len(outputs)
        self.error: BaseException | None = None
        self._places: list[tuple[int, int]] = [(-1, -1)] * self.pending
        self.blameless = False
        """Whether `error` came of something else than these outputs: their transaction was aborted."""
        self.entered = False
        """Whether the client took any of them: they may be in Kafka."""
        self.void = False
        """True once what becomes of it changes nothing: the record runs again after an earlier one of its shard."""

    def answered(self, answer: Answer) -> bool:
        """One output was delivered, or failed; returns whether it was the last."""
        assert self.pending > 0, "more answers than outputs"
        self.pending -= 1
        self._places[answer.number] = (answer.partition, answer.offset)
        self.entered |= not answer.refused
        if answer.error is not None and (self.error is None or self.blameless):
            self.error, self.blameless = answer.error, answer.blameless
        return self.pending == 0

    def produced(self) -> tuple[Produced, ...]:
        """The outputs and where they are, once all are acknowledged."""
        record = Record(self.work.message)
        placed = zip(self.outputs, self._places, strict=True)
        return tuple(Produced(record, output, output.topic, *place) for output, place in placed)

    def result(self) -> Result:
        """What a stream yields of it."""
        return Result(self._record or Record(self.work.message), self.value, self.produced())


class DeadLetterState:
    """A record on its way to the dead-letter topic."""

    __slots__ = ("attempts", "failure", "tries")

    def __init__(self, failure: Failure, attempts: int) -> None:
        self.failure = failure
        self.attempts = attempts
        """Attempts of the handler."""
        self.tries = 1
        """Attempts to deliver the dead letter."""


def dead_letter(work: Work, topic: str, failure: Failure, attempts: int) -> Output:
    """The record as it was, with headers that say where it came from and what failed."""
    message = work.message
    place = (message.topic(), message.partition(), message.offset())
    headers = [*(message.headers() or ()), *said_of(place, message.timestamp()[1], failure.error, attempts)]
    return Output(topic, key=message.key(), value=message.value(), headers=headers)


def said_of(
    place: tuple[str, int, int], timestamp_ms: int, error: BaseException, attempts: int
) -> list[tuple[str, bytes]]:
    """What a dead letter's headers say of a record, by its topic, partition and offset."""
    topic, partition, offset = place
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    said = {
        "keylane.topic": topic,
        "keylane.partition": partition,
        "keylane.offset": offset,
        "keylane.timestamp": timestamp_ms,
        "keylane.error.class": name,
        "keylane.error.text": str(error)[:MAX_ERROR_TEXT],
        "keylane.attempts": attempts,
    }
    return [(key, str(value).encode()) for key, value in said.items()]
