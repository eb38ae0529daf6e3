"""`Delivery`: all that one attempt of one record produces, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from keylane.records import Output, Produced, Record, Result, Returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.flow.items import Item
    from keylane.flow.outcomes import Failure, NotRun

MAX_UNSEEN = 1_000
"""Results that may wait for their callback before nothing new is started."""


class Shown(Protocol):
    """What user code is to see of one record: a delivery, or one of another process."""

    @property
    def wanted(self) -> bool:
        """Whether what becomes of it changes anything."""

    def produced(self) -> tuple[Produced, ...]: ...
    def result(self) -> Result: ...


AnyShown = TypeVar("AnyShown", bound=Shown)


class Delivery:
    """The outputs of one attempt, where the broker has put them, and how many of them it has not answered yet."""

    __slots__ = (
        "_places",
        "_record",
        "blameless",
        "entered",
        "error",
        "is_dead_letter",
        "item",
        "outputs",
        "pending",
        "value",
    )

    def __init__(self, item: Item, outputs: Sequence[Output] | Returned, *, is_dead_letter: bool = False) -> None:
        self.item = item
        self.is_dead_letter = is_dead_letter
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

    def answered(self, answer: Answer) -> bool:
        """One output was delivered, or failed; returns whether it was the last."""
        assert self.pending > 0, "more answers than outputs"
        self.pending -= 1
        self._places[answer.number] = (answer.partition, answer.offset)
        self.entered |= not answer.refused
        if answer.error is not None and (self.error is None or self.blameless):
            self.error, self.blameless = answer.error, answer.blameless
        return self.pending == 0

    @property
    def wanted(self) -> bool:
        """Whether what becomes of it changes anything: not once its partition was given up, or it runs again."""
        return self.item.source.wanted and not self.item.void

    def produced(self) -> tuple[Produced, ...]:
        """The outputs and where they are, once all are acknowledged."""
        record = Record(self.item.payload)
        placed = zip(self.outputs, self._places, strict=True)
        return tuple(Produced(record, output, output.topic, *place) for output, place in placed)

    def result(self) -> Result:
        """What a stream yields of it."""
        return Result(self._record or Record(self.item.payload), self.value, self.produced())


class Answer(NamedTuple):
    """What became of one output."""

    delivery: Delivery
    number: int
    """Which of the delivery's outputs."""
    error: BaseException | None = None
    partition: int = -1
    offset: int = -1
    refused: bool = False
    """Whether the client did not take it."""
    blameless: bool = False
    """Whether the error came of something else than the output: its transaction was aborted."""


Answers = list[Answer]


@dataclass(frozen=True, slots=True)
class ResultsMoved(Generic[AnyShown]):
    """Callbacks or the reader of a stream got on."""

    settled: Sequence[tuple[AnyShown, Failure | NotRun | None]] = ()
    """None: its record is complete; a failure: its attempt failed after all; not run: nobody will look at it."""
    passed: Sequence[object] = ()
    """Those that wait no more. It counts how many there are."""


@dataclass(frozen=True, slots=True)
class ResultsRule:
    """Which results user code is to see before their records are complete; and what it hears of commits elsewhere than
    by the pipeline's own callbacks."""

    produced: bool = False
    """Those with outputs."""
    every: bool = False
    max_unseen: int = MAX_UNSEEN
    waiting: int = 0
    """Results of a process before this one that wait still: they count as this one's."""
    commits: bool = False
    """What the broker answers to each."""
    committed: bool = False
    """Records whose completion is committed."""

    def wants(self, delivery: Delivery) -> bool:
        return self.every or (self.produced and bool(delivery.outputs))


NO_RESULTS = ResultsRule()
