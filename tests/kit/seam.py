"""The seam between the engine and what proves it: events go in, a plan comes out, and records are known by their place.

The idea: the simulation and the properties know topics, partitions, epochs, offsets, calls of the handler and what is
sent for them; `Engine` is all that they may ask. What stands behind it is named in one file (`kit.engines`), so that
the engine can be rebuilt while its proofs stay as they are.

Times are seconds; `now` is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.consumer.snapshot import Snapshot
    from keylane.flow.keys import KeyRule
    from keylane.flow.spending import Spends
    from keylane.offsets import OffsetMap
    from keylane.options import Rates
    from keylane.records import Output, PlainMessage, Returned

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Raised:
    """A failed attempt."""

    error: BaseException
    final: bool = False
    """Whether another attempt cannot help."""
    halts: bool = False
    """Whether it ends the run."""


@dataclass(frozen=True, slots=True)
class Later:
    """The record is scheduled for later: no attempt was made."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class NotRun:
    """The handler never began."""


Outcome: TypeAlias = "Sequence[Output] | Returned | Raised | Later | NotRun | None"
"""What one attempt came to. None: done, without outputs."""


class Start(NamedTuple):
    """Where an assigned partition starts."""

    name: TopicPartition
    epoch: int
    """Another one for each assignment."""
    offsets: OffsetMap
    log_start: int
    log_end: int
    leader_epoch: int = -1
    is_unchecked: bool = False


@dataclass(slots=True, eq=False)
class Item:
    """A record that was handed over, for one attempt."""

    name: TopicPartition
    epoch: int
    message: PlainMessage
    attempt: int
    inside: Any
    """The engine's own; nobody else looks."""

    @property
    def offset(self) -> int:
        return self.message.offset()

    def __str__(self) -> str:
        return f"{self.name[0]}-{self.name[1]}@{self.offset}"


@dataclass(slots=True, eq=False)
class Call:
    """What a worker gets at once: a record, several to run one after another, or a batch for one call."""

    items: Sequence[Item]
    is_batch: bool = False
    is_ordered: bool = False
    """Whether a call that is no batch ends with the first that is not simply through."""


@dataclass(slots=True, eq=False)
class Sending:
    """What is produced, or shown as a result, for one attempt of one record."""

    item: Item
    outputs: Sequence[Output]
    is_dead_letter: bool
    inside: Any


class Entry(NamedTuple):
    """One partition of a commit."""

    name: TopicPartition
    epoch: int
    offset: int
    metadata: str
    leader_epoch: int = -1


class Committed(NamedTuple):
    """What a group has committed for a partition."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(slots=True, eq=False)
class Commit:
    entries: Sequence[Entry]
    inside: Any


class Problem(NamedTuple):
    """Why a commit, or the end of a transaction, was refused."""

    text: str
    metadata_too_large: bool = False
    fenced: bool = False


class Revoked(NamedTuple):
    """The last commit of partitions that were being revoked."""

    token: Any
    commit: Commit


@dataclass(slots=True)
class Plan:
    """What the engine asks its world to do now."""

    calls: Sequence[Call] = ()
    recalled: Sequence[Item] = ()
    """Taken back from calls in which an earlier one takes long: these have not begun."""
    produce: Sequence[Sending] = ()
    results: Sequence[Sending] = ()
    """To be shown to user code before their records are complete."""
    commit: Commit | None = None
    """With transactions, the end of the one that is under way."""
    abort: bool | None = None
    """True: by giving up the producer."""
    reload: Sequence[tuple[TopicPartition, int]] = ()
    """Partitions that begin anew from what is committed, if they still have this epoch."""
    revoked: Sequence[Revoked] = ()
    credit: int = 0
    """Records that may be polled."""
    pause: Sequence[TopicPartition] = ()
    resume: Sequence[TopicPartition] = ()
    withdraw: bool = False
    """Take back from the workers what may not start any more."""


@dataclass(frozen=True, slots=True)
class Workers:
    """What an engine is told of its workers."""

    concurrency: int
    may_queue: bool = False
    elastic: bool = False


@dataclass(frozen=True, slots=True)
class Make:
    """What an engine is made with, beside its pipeline."""

    workers: Workers
    lease_s: float | None = None
    """The group's session timeout; None: handlers start at any time."""
    every_result: bool = False
    """Whether somebody sees each result before its record is complete."""
    max_unseen: int = 4
    call_s: float = 0.0
    """How long a call of several records may keep a worker."""
    ending_offsets: Mapping[TopicPartition, int] | None = field(default=None)
    budget: Spends | None = None
    """Who has what a pipeline with `budget=...` spends."""


class Engine(Protocol):
    """One consumer's engine: no thread, clock or client in it."""

    # --- the group and the log ---

    def resolve(
        self,
        name: TopicPartition,
        committed: Committed | None,
        log_start: int,
        log_end: int,
        changed_from: int | None = None,
    ) -> tuple[OffsetMap, bool]:
        """The map to start from, and whether it has to be committed before anything else; `changed_from`: from where on
        the log has other records than when that was committed, where its leader has said so."""

    def assigned(self, starts: Iterable[Start], now: float) -> None: ...
    def polled(self, name: TopicPartition, epoch: int, messages: Sequence[PlainMessage]) -> None: ...
    def partition_ended(self, name: TopicPartition, epoch: int, log_end: int) -> None: ...
    def log_start_moved(self, name: TopicPartition, epoch: int, log_start: int) -> None: ...
    def revoking(self, names: Sequence[TopicPartition], token: Any, now: float) -> None: ...
    def lost(self, names: Sequence[TopicPartition]) -> None: ...
    def heard(self, at: float) -> None:
        """The coordinator answered, which renews the lease."""

    # --- the work ---

    def begins(self, item: Item, now: float) -> bool:
        """A worker takes the next record of a call; False when that was taken back."""

    def ended(self, reports: Sequence[tuple[Item, Outcome]], now: float) -> None:
        """Records of calls ended: of an ordered one, all up to the first whose outcome is not None."""

    def batches_ended(self, reports: Sequence[Sequence[tuple[Item, Outcome]]], now: float) -> None: ...
    def withdrawn(self, calls: Sequence[Sequence[Item]]) -> None:
        """Workers gave back what had not begun."""

    def answered(
        self,
        sending: Sending,
        number: int,
        error: BaseException | None,
        now: float,
        *,
        refused: bool = False,
        blameless: bool = False,
    ) -> None:
        """What became of one output. `refused`: the client did not take it; `blameless`: it failed of another's."""

    def shown(self, sending: Sending, failure: Raised | None, now: float) -> None:
        """Somebody has seen a result, or failed on it."""

    def counts(self, item: Item) -> bool:
        """Whether what becomes of it still changes anything."""

    def may_start(self, item: Item) -> bool: ...

    # --- commits, and the end ---

    def commit_answered(self, commit: Commit, problems: Mapping[TopicPartition, Problem], now: float) -> None: ...
    def transaction_answered(
        self, step: Literal["start", "commit", "abort"], problem: Problem | None, now: float
    ) -> None: ...
    def stop(self, now: float) -> None: ...

    # --- the user's hand ---

    def adjust(self, max_concurrency: int | None, rates: Rates | None) -> None: ...
    def pause(self, names: Iterable[TopicPartition] | None) -> None: ...
    def resume(self, names: Iterable[TopicPartition] | None) -> None: ...
    def rule_keys(self, rules: Sequence[KeyRule]) -> None: ...
    def skip(self, name: TopicPartition, offset: int, now: float) -> bool:
        """Have one record that waits complete without having run; whether it is."""

    # --- what to do ---

    def plan(self, now: float) -> Plan: ...
    def next_check(self, now: float) -> float | None: ...
    def snapshot(self, now: float) -> Snapshot: ...

    @property
    def is_running(self) -> bool: ...
    @property
    def is_finished(self) -> bool: ...
    @property
    def failure(self) -> BaseException | None: ...
    @property
    def lease_until(self) -> float: ...
    def is_complete(self, name: TopicPartition, offset: int) -> bool:
        """Whether commits of this assignment will say so."""

    @property
    def holds_back(self) -> bool:
        """Whether ready records wait because a map with them might not fit."""

    @property
    def left_maps_out(self) -> bool:
        """Whether a commit went without its map, or waited until its map fits."""
