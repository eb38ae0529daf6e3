"""What the loop's queue carries, beside finished `Work` itself: plain values, handed over and never shared."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keylane.engine.assignment import Start
    from keylane.engine.closing import CloseMode
    from keylane.engine.commits import CommitEntry, CommitProblem
    from keylane.engine.deliveries import Delivery
    from keylane.engine.ports import Polled, TopicPartition
    from keylane.engine.snapshot import Snapshot
    from keylane.engine.work import Failure, NotRun
    from keylane.options import Rates


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


class Inbox:
    """What the loop waits on: a list, and a bell that rings once for all that is put until the loop looks. A queue
    that locks and unlocks for each event takes 0.1 µs more a record.

    Thread safety: `put` is for any thread, and for a signal handler; `take` is the loop's. Each of their steps is
    atomic, and between none of them an event can come without a bell.
    """

    __slots__ = ("_bell", "_events", "_has_rung")

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._bell = threading.Lock()
        """Held while it has not rung."""
        self._bell.acquire()
        self._has_rung = False
        """Whether the loop will hear of what is put now. It forgets that before it looks."""

    def put(self, event: object) -> None:
        self._events.append(event)
        if not self._has_rung:
            self._has_rung = True
            with suppress(RuntimeError):  # another thread has rung, too
                self._bell.release()

    def size(self) -> int:
        return len(self._events)

    def take(self, timeout_s: float | None) -> list[Any]:
        """Everything that is there; waits up to `timeout_s` (None: for ever) for the first."""
        if not self._bell.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            return []
        self._has_rung = False
        events = self._events[:]
        del self._events[: len(events)]
        return events


@dataclass(frozen=True, slots=True)
class Assigned:
    starts: list[Start]


@dataclass(frozen=True, slots=True)
class PolledRecords:
    polled: Polled
    total: int
    """Records that the intake has polled since it began."""


@dataclass(frozen=True, slots=True)
class LogEnds:
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Revoking:
    """Whoever gives these partitions back waits for `answer`: their last commit."""

    names: list[TopicPartition]
    answer: SimpleQueue[list[CommitEntry]] = field(default_factory=SimpleQueue)

    @property
    def is_answered(self) -> bool:
        """Whether their records are through, or have had their time."""
        return not self.answer.empty()


@dataclass(frozen=True, slots=True)
class Lost:
    """Whoever learnt of it waits for `answer`: that nothing of these partitions starts any more."""

    names: list[TopicPartition]
    answer: SimpleQueue[None] = field(default_factory=SimpleQueue)


@dataclass(frozen=True, slots=True)
class Deleted:
    """This topic is no more."""

    topic: str


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """Handlers may start again."""


@dataclass(frozen=True, slots=True)
class CommitAnswered:
    entries: list[CommitEntry]
    problems: dict[TopicPartition, CommitProblem]
    sent: list[CommitEntry] | None = None
    """None: all of them."""


@dataclass(frozen=True, slots=True)
class TransactionAnswered:
    """The producer has its epoch, or a transaction has ended; the next one is open unless there is a problem."""

    step: Literal["start", "commit", "abort"]
    problem: CommitProblem | None = None


@dataclass(frozen=True, slots=True)
class GroupCommitted:
    offsets: dict[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class Delivered:
    answers: Answers


@dataclass(frozen=True, slots=True)
class ResultsMoved:
    """Callbacks or the reader of a stream got on."""

    settled: Sequence[tuple[Delivery, Failure | NotRun | None]] = ()
    """None: its record is complete; a failure: its attempt failed after all; not run: nobody will look at it."""
    passed: int = 0
    """How many fewer wait."""


@dataclass(frozen=True, slots=True)
class ConsumerFailed:
    """The consumer cannot go on, but can still commit and leave."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class IntakeFailed:
    """The intake thread ended: nothing can be committed any more."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class IntakeClosed:
    """The client has left its group, and its thread ends."""


@dataclass(frozen=True, slots=True)
class Stop:
    mode: CloseMode = "in_flight"
    timeout_s: float | None = None
    """None: what the pipeline says."""


@dataclass(frozen=True, slots=True)
class Adjust:
    max_concurrency: int | None = None
    rates: Rates | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    names: tuple[TopicPartition, ...] | None
    """None: all."""


@dataclass(frozen=True, slots=True)
class Resume:
    names: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    answer: SimpleQueue[Snapshot] = field(default_factory=SimpleQueue)
