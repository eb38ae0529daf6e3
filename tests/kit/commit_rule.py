"""An oracle: the commit rule over in-flight and completed offsets, as pure functions.

Source: the notes on Hermes' `OffsetCommitter`. The idea: commit the highest completed offset + 1, but never past the
lowest offset in flight; what is completed and could not be committed is carried over to the next round. In flight runs
from the poll to the completion: buffered, waiting for a retry and waiting for a dead letter's acknowledgement included.

Offsets are Kafka's: a committed offset is the first one to read after a restart, so *completed + 1* is committed.
keylane commits `PartitionTracker.base`, which is this rule kept incrementally, a partition's records in one array; the
property test of the tracker holds it to this. Written apart from the tracker, as the source says it: two queues, sets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Mapping, Set


_NONE: frozenset[int] = frozenset()


class PartitionKey(NamedTuple):
    """One partition as one subscription reads it: two subscriptions of a topic commit apart."""

    subscription: str
    topic: str
    partition: int


class PartitionOffset(NamedTuple):
    """One record, as the two queues report it."""

    key: PartitionKey
    offset: int


@dataclass(frozen=True, slots=True)
class CommitState:
    """What one round leaves to the next."""

    in_flight: Mapping[PartitionKey, Set[int]] = field(default_factory=dict)
    """Offsets polled and not completed; no empty sets."""
    completed: Mapping[PartitionKey, int] = field(default_factory=dict)
    """The highest completed offset that an offset in flight kept from being committed."""


class Drained(NamedTuple):
    """What the two queues held, taken in the one order that is safe."""

    completed: list[PartitionOffset]
    in_flight: list[PartitionOffset]


def drain(completed: deque[PartitionOffset], in_flight: deque[PartitionOffset]) -> Drained:
    """Empty both queues, completed before in-flight, while other threads may append to them.

    A record enters `in_flight` when polled and `completed` later. Drained in this order, each completed record's
    in-flight entry is in this round or an earlier one; in the other order it could be left for the next round, where
    nothing would ever match it, and its partition would never be committed past it.
    """
    drained_completed = [completed.popleft() for _ in range(len(completed))]
    return Drained(drained_completed, [in_flight.popleft() for _ in range(len(in_flight))])


def plan_commits(state: CommitState, drained: Drained) -> tuple[dict[PartitionKey, int], CommitState]:
    """One round: the offset to commit for each partition with news, and the state for the next round.

    A partition's offset is `min(highest completed + 1, lowest in flight)`, over whichever of the two exist.
    """
    done = _by_partition(drained.completed)
    started = _by_partition(drained.in_flight)
    in_flight = {}
    for key in state.in_flight.keys() | started.keys():
        left = (state.in_flight.get(key, _NONE) | started.get(key, _NONE)) - done.get(key, _NONE)
        if left:
            in_flight[key] = left
    completed = dict(state.completed)
    for key, offsets in done.items():
        completed[key] = max(max(offsets), completed.get(key, -1))
    commits = {
        key: commit_offset(completed.get(key), in_flight.get(key, ())) for key in completed.keys() | in_flight.keys()
    }
    carried = {key: offset for key, offset in completed.items() if commits[key] <= offset}
    return commits, CommitState(in_flight, carried)


def commit_offset(highest_completed: int | None, in_flight: Iterable[int]) -> int:
    """`min(highest completed + 1, lowest in flight)`; raises `ValueError` when there is neither."""
    candidates = [*in_flight] if highest_completed is None else [highest_completed + 1, *in_flight]
    if not candidates:
        raise ValueError("nothing is completed and nothing is in flight: there is no offset to commit")
    return min(candidates)


def _by_partition(records: Iterable[PartitionOffset]) -> dict[PartitionKey, set[int]]:
    offsets: dict[PartitionKey, set[int]] = {}
    for key, offset in records:
        offsets.setdefault(key, set()).add(offset)
    return offsets
