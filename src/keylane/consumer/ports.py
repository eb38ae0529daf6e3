"""What a consumer needs of the world: a client of a group, a producer. Narrow, so that fakes are small.

Each protocol says whose thread calls it. `keylane.kafka` implements the first two on confluent-kafka, `keylane.testing`
in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, TypeVar

from keylane.consumer.outputs import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.consumer.commits import CommitEntry, CommitProblem, Told
    from keylane.consumer.outputs import ResultsMoved, ResultsRule, Shown
    from keylane.consumer.start import Start, TopicPartition
    from keylane.records import Message

SomeShown = TypeVar("SomeShown", bound="Shown", contravariant=True)


class Offset(Protocol):
    """One partition of a commit, as the consumer port needs it."""

    @property
    def name(self) -> TopicPartition: ...
    @property
    def offset(self) -> int: ...
    @property
    def metadata(self) -> str: ...
    @property
    def leader_epoch(self) -> int:
        """Of the newest record that it speaks of; -1: not known."""


@dataclass(slots=True)
class Polled:
    """What one poll brought, by partition; each with the epoch of the assignment that it belongs to."""

    batches: list[tuple[TopicPartition, int, list[Message]]] = field(default_factory=list)
    ends: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    """Partitions whose log ends at this offset for now."""
    log_starts: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    """Partitions whose log now starts at this offset, above the position."""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Revoking:
    """Whoever gives these partitions back waits for `answer`: their last commit."""

    names: list[TopicPartition]
    answer: SimpleQueue[list[CommitEntry]] = field(default_factory=SimpleQueue)

    @property
    def is_answered(self) -> bool:
        """Whether their records are through, or have had their time."""
        return not self.answer.empty()


class ConsumerListener(Protocol):
    """Who is told of rebalances and commit answers. For rebalances the consumer may call it on a thread of its own."""

    def on_assigned(self, starts: list[Start]) -> None: ...

    def on_revoking(self, names: list[TopicPartition]) -> Revoking:
        """Nothing more of these partitions may start; `on_revoked` follows, or `on_lost`."""

    def on_revoked(self, revoking: Revoking) -> None:
        """Returns once the partitions are committed and forgotten."""

    def on_reloaded(self, starts: list[Start]) -> None:
        """What `reload` has read."""

    def on_lost(self, names: list[TopicPartition]) -> None:
        """Returns once nothing of these partitions starts any more."""

    def on_deleted(self, topic: str, names: list[TopicPartition]) -> None:
        """A topic is no more, and so are these partitions of it, which were assigned."""

    def on_heard(self, heard_at: float) -> None:
        """The group's coordinator answered this member at `heard_at` (`time.monotonic()`)."""

    def on_session(self, session_s: float) -> None:
        """The broker has decided on this session timeout (KIP-848)."""

    def on_committed(self, problems: dict[TopicPartition, CommitProblem]) -> None:
        """The answer to the last `commit`. Called inside `commit` and `poll`."""


class ConsumerPort(Protocol):
    """A member of a consumer group. All calls come from one thread, the intake's, but for `commit_now`."""

    def subscribe(self, listener: ConsumerListener) -> None: ...

    def poll(self, max_records: int, timeout_s: float) -> Polled | None:
        """At most `max_records` records (0: none); None when there was nothing within `timeout_s`. Serves commits."""

    def pause(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Of these partitions, those whose assignment is still of that epoch: a request may come late, and the
        partition was given back and given anew meanwhile."""

    def resume(self, epochs: Mapping[TopicPartition, int]) -> None:
        """The same."""

    def commit(self, offsets: Sequence[Offset]) -> None:
        """Start a commit; `on_committed` has its answer. One at a time."""

    def commit_now(
        self, offsets: Sequence[Offset], timeout_s: float | None = None
    ) -> dict[TopicPartition, CommitProblem]:
        """Commit once what was committed before has its answer, and wait for the answer: after `timeout_s` without one
        (None: never) that is a problem of each, and the commit may still be made. Called by the listener on the
        consumer's thread, or from any other one."""

    def group_committed(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """What the group has committed; empty when no answer came in time."""

    def log_ends(self) -> Mapping[TopicPartition, int]:
        """The assigned partitions' high watermarks as last seen."""

    def interrupt(self) -> None:
        """Any thread: the consumer will be closed; end what waits inside `poll` for a broker."""

    def close(self) -> None:
        """Leave the group."""


class ProducerPort(Protocol):
    """Produces outputs. Calls come from the loop's thread; answers may come on another one."""

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """Produce each output; never blocks."""

    def close(self, timeout_s: float) -> None: ...


class TransactionsPort(ProducerPort, Protocol):
    """A producer with transactions, one after the other. What became of its start, of each commit and each abort is
    reported (`keylane.consumer.events.TransactionAnswered`) from another thread; nothing blocks."""

    def commit(self, entries: Sequence[CommitEntry]) -> None:
        """Send these offsets, commit, and open the next transaction."""

    def abort(self, *, renew: bool) -> None:
        """Abort, and open the next transaction; `renew`: of another producer, because this one can do nothing more."""

    def reload(self, partitions: Sequence[tuple[TopicPartition, int]]) -> None:
        """Begin anew with these, from what is committed, if the consumer has them in this epoch still; its listener's
        `on_reloaded` follows."""


class ResultsPort(Protocol[SomeShown]):
    """Shows deliveries to user code before their records are complete. Calls come from the loop's thread; what became
    of them is reported (`keylane.consumer.outputs.ResultsMoved`) from others."""

    def start(self) -> None: ...
    def put(self, deliveries: Sequence[SomeShown]) -> None:
        """Never blocks."""

    def close(self, timeout_s: float) -> None: ...


class CommitsPort(Protocol):
    """Hears of commits, in the order of their answers. What it has heard of is reported
    (`keylane.consumer.events.Heard`)."""

    def put(self, told: Told) -> None:
        """Never blocks."""

    def close(self, timeout_s: float) -> None: ...


class LastStage(ResultsPort[Delivery], Protocol):
    """The last that sees results: the queue of a stream, or what passes them on to another process."""

    @property
    def rule(self) -> ResultsRule:
        """Which results it wants, and how many may wait."""

    def commits(self, heard: Callable[[Told], None]) -> CommitsPort | None:
        """Who hears of commits for it, if anybody, and where to tell what was heard of."""

    def report_to(self, report: Callable[[ResultsMoved[Delivery]], None]) -> None:
        """Where to tell what became of results; before the loop starts."""
