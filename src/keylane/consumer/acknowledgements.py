"""`on_commit` and `on_committed`: telling user code what became of commits.

The idea: a completion is in an acknowledged commit when the commit's snapshot was taken after it. The tracker counts
its changes, and a commit carries that count, so completions wait here in order of it and leave together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.consumer.commits import CommitEntry, CommitProblem
    from keylane.consumer.partition import Partition
    from keylane.consumer.ports import TopicPartition
    from keylane.pipeline import Pipeline
    from keylane.records import Message


@dataclass(frozen=True, slots=True)
class Told:
    """What user code is to hear of one answer."""

    taken: dict[TopicPartition, int]
    refused: dict[TopicPartition, int]
    problem: str
    """Why, of the first that was refused."""
    records: Sequence[Message]
    """Whose completion is in an acknowledged commit now."""


class Acknowledgements:
    """What is complete and not in an acknowledged commit yet. Thread safety: the loop's."""

    def __init__(self, pipeline: Pipeline, *, keeps_records: bool = False) -> None:
        self._tells_commits = pipeline.on_commit is not None
        self._tells_records = pipeline.on_committed is not None
        self._keeps_records = self._tells_records or keeps_records
        self._waiting: dict[Partition, deque[tuple[int, Sequence[Message]]]] = {}
        """By the tracker's changes right after their completion."""
        self.waiting = 0
        """Records in it."""

    def completed(self, partition: Partition, messages: Sequence[Message]) -> None:
        if self._keeps_records:
            queue = self._waiting.setdefault(partition, deque())
            queue.append((partition.tracker.changes, messages))
            self.waiting += len(messages)

    def answered(self, entries: Sequence[CommitEntry], problems: Mapping[TopicPartition, CommitProblem]) -> Told | None:
        """The broker answered a commit; what there is to tell."""
        if not (self._tells_commits or self._keeps_records):
            return None
        taken, refused = {}, {}
        records: list[Message] = []
        for entry in entries:
            if entry.name in problems:
                refused[entry.name] = entry.offset
            else:
                taken[entry.name] = entry.offset
                records += self._in(entry)
            if not entry.partition.wanted:  # revoked: the last one
                self.forget((entry.partition,))
        problem = next((one.text for one in problems.values()), "")
        if not (self._tells_commits or self._tells_records):
            return None
        return Told(taken, refused, problem, records)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """No commit of these follows."""
        for partition in partitions:
            self.waiting -= sum(len(messages) for _, messages in self._waiting.pop(partition, ()))

    def _in(self, entry: CommitEntry) -> list[Message]:
        """What this commit has complete. Without a map it speaks of what lies below its offset alone."""
        queue = self._waiting.get(entry.partition)
        found: list[Message] = []
        kept: list[tuple[int, Sequence[Message]]] = []
        while queue and queue[0][0] <= entry.changes:
            changes, messages = queue.popleft()
            below = messages if entry.metadata else [one for one in messages if one.offset() < entry.offset]
            found += below
            if len(below) < len(messages):
                kept.append((changes, [one for one in messages if one.offset() >= entry.offset]))
        if queue is not None:
            queue.extendleft(reversed(kept))
        self.waiting -= len(found)
        return found
