"""What the loop's queue carries, beside what workers report: plain values, handed over and never shared."""

from __future__ import annotations

from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keylane.consumer.closing import CloseMode
    from keylane.consumer.commits import CommitEntry, CommitProblem
    from keylane.consumer.outputs import Answers
    from keylane.consumer.passing import Passing, Told
    from keylane.consumer.ports import Polled
    from keylane.consumer.snapshot import Snapshot
    from keylane.consumer.start import Start, TopicPartition
    from keylane.consumer.work import Work
    from keylane.flow.keys import KeyRule
    from keylane.options import Rates


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
class Heard:
    """User code has heard of so many commits and committed records."""

    count: int


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
class RuleKeys:
    rules: tuple[KeyRule, ...]
    """All that hold from now on."""


@dataclass(frozen=True, slots=True)
class PassOver:
    asked: Passing
    answer: Callable[[Told], None]


@dataclass(frozen=True, slots=True)
class WorkRequest:
    answer: SimpleQueue[Work] = field(default_factory=SimpleQueue)


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    answer: SimpleQueue[Snapshot] = field(default_factory=SimpleQueue)
