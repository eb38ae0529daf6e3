"""`Plan`: what the core asks the loop to do, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.consumer.commits import CommitEntry, Told
    from keylane.consumer.outputs import Delivery
    from keylane.consumer.partitions import Partition
    from keylane.consumer.start import TopicPartition
    from keylane.flow.items import Unit


@dataclass(frozen=True, slots=True)
class RevokeAnswer:
    """The last commit of revoked partitions: commit these, then they are forgotten."""

    token: Any
    """What `revoking` was given."""
    entries: list[CommitEntry]


@dataclass(slots=True)
class Plan:
    """What to do now. Nothing in it may be left out, or done twice."""

    dispatch: Sequence[Unit] = ()
    produce: list[Delivery] = field(default_factory=list)
    results: list[Delivery] = field(default_factory=list)
    """Succeeded, and to be shown to user code before they are complete."""
    commit: list[CommitEntry] | None = None
    """With transactions, the end of the one that is under way."""
    abort: bool | None = None
    """Abort the transaction; True: by giving up its producer."""
    reload: list[tuple[TopicPartition, int]] = field(default_factory=list)
    """Partitions that begin anew from their committed maps, if they still have this epoch."""
    told: list[Told] = field(default_factory=list)
    """What user code is to hear of commits."""
    revoked: list[RevokeAnswer] = field(default_factory=list)
    credit: int = 0
    """Records that may be polled now."""
    pause: Sequence[Partition] = ()
    resume: Sequence[Partition] = ()
    ask_committed: Sequence[TopicPartition] = ()
    withdraw: bool = False
    """Take back from the workers what may not start any more."""
    cancel: bool = False
    """Tell the workers that some results can no longer count."""

    def hand_over(self, units: Sequence[Unit]) -> None:
        self.dispatch = units

    def send(self, deliveries: list[Delivery], results: list[Delivery]) -> None:
        self.produce, self.results = deliveries, results

    def poll(self, credit: int, pause: Sequence[Partition], resume: Sequence[Partition]) -> None:
        """So many records, and of fewer or more partitions; `resume` beside those that are to resume already."""
        self.credit, self.pause = credit, pause
        self.resume = (*(one for one in self.resume if not one.is_poll_paused), *resume)

    def resume_poll(self, partition: Partition) -> None:
        self.resume = (*self.resume, partition)

    def ask(self, names: Sequence[TopicPartition]) -> None:
        self.ask_committed = names

    def commit_these(self, entries: list[CommitEntry] | None) -> None:
        self.commit = entries

    def abort_it(self, *, renew: bool | None) -> None:
        """None: there is nothing to abort."""
        self.abort = renew

    def begin_anew(self, epochs: list[tuple[TopicPartition, int]]) -> None:
        self.reload = epochs

    def end_calls(self) -> None:
        """What runs cannot count any more."""
        self.cancel = True

    def take_back(self, *, cancel: bool = False) -> None:
        """Have the workers give back what may not start any more; `cancel`: and end what cannot count."""
        self.withdraw = True
        self.cancel = self.cancel or cancel
