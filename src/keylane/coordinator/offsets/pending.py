"""What is appended to the journal and not durable yet, in order: the state that the next decision has to reckon with.

Fetches see what is durable (`OffsetStore`). Whether a conditional commit holds, and whether an offset is stale, is
decided on what will be there once everything before it is durable: the store, and over it these changes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from keylane.coordinator.formats.commit_batch import TopicCommit
from keylane.coordinator.offsets.columns import NO_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keylane.storage.shared_sync import Round


class PendingChanges:
    """One entry an append, first in first out, as the journal reports them. An offset of -1 is a tombstone."""

    def __init__(self) -> None:
        self._changes: deque[tuple[str, Sequence[TopicCommit], Round]] = deque()

    def add(self, group: str, topics: Sequence[TopicCommit], durable: Round) -> None:
        """This was appended, and becomes durable with this round."""
        self._changes.append((group, topics, durable))

    def settle(self) -> None:
        """The oldest one is durable, or never will be."""
        self._changes.popleft()

    def groups(self) -> set[str]:
        """Groups that something waits for."""
        return {group for group, _, _ in self._changes}

    def round_of(self, group: str) -> Round | None:
        """With which all that waits for this group becomes durable; None when nothing does."""
        return next((durable for owner, _, durable in reversed(self._changes) if owner == group), None)

    def commits_of(self, group: str) -> Iterator[TopicCommit]:
        """What waits for this group, the oldest first."""
        for owner, topics, _ in self._changes:
            if owner == group:
                yield from topics

    def offset_of(self, group: str, topic: str, partition: int) -> int | None:
        """The offset that this partition will have; None when nothing of it waits."""
        for owner, topics, _ in reversed(self._changes):
            if owner != group:
                continue
            for commit in reversed(topics):
                if commit.topic == topic and partition in commit.partitions:
                    last = len(commit.partitions) - 1 - list(reversed(commit.partitions)).index(partition)
                    return commit.offsets[last]
        return None


def removal(topic: str, partitions: Sequence[int]) -> TopicCommit:
    """Tombstones as a change."""
    none = [NO_OFFSET] * len(partitions)
    return TopicCommit(topic, partitions, none, none, None)
