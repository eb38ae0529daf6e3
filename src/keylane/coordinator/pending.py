"""What is appended to the journal and not durable yet, in order: the state that the next decision has to reckon with.

Fetches see what is durable (`OffsetStore`). Whether a conditional commit holds, and whether an offset is stale, is
decided on what will be there once everything before it is durable: the store, and over it these changes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from keylane.coordinator.commits import TopicCommit
from keylane.coordinator.offsets import NO_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class PendingChanges:
    """One entry an append, first in first out, as the journal reports them. An offset of -1 is a tombstone."""

    def __init__(self) -> None:
        self._changes: deque[tuple[str, Sequence[TopicCommit]]] = deque()

    def add(self, group: str, topics: Sequence[TopicCommit]) -> None:
        """This was appended."""
        self._changes.append((group, topics))

    def settle(self) -> None:
        """The oldest one is durable, or never will be."""
        self._changes.popleft()

    def groups(self) -> set[str]:
        """Groups that something waits for."""
        return {group for group, _ in self._changes}

    def commits_of(self, group: str) -> Iterator[TopicCommit]:
        """What waits for this group, the oldest first."""
        for owner, topics in self._changes:
            if owner == group:
                yield from topics

    def offset_of(self, group: str, topic: str, partition: int) -> int | None:
        """The offset that this partition will have; None when nothing of it waits."""
        for owner, topics in reversed(self._changes):
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
