"""`Plan`: what the core asks the loop to do, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.engine.acknowledgements import Told
    from keylane.engine.assignment import Assignment
    from keylane.engine.commits import CommitEntry
    from keylane.engine.deliveries import Delivery
    from keylane.engine.ports import TopicPartition
    from keylane.engine.work import Unit


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
    pause: Sequence[Assignment] = ()
    resume: Sequence[Assignment] = ()
    ask_committed: Sequence[TopicPartition] = ()
    withdraw: bool = False
    """Take back from the workers what may not start any more."""
    cancel: bool = False
    """Tell the workers that some results can no longer count."""
