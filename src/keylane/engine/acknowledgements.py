"""`on_commit` and `on_committed`: telling user code what became of commits.

The idea: a completion is in an acknowledged commit when the commit's snapshot was taken after it. The tracker counts
its changes, and a commit carries that count, so completions wait here in order of it and leave together.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from keylane.errors import HandlerError, PeerError
from keylane.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.engine.assignment import Assignment
    from keylane.engine.commits import CommitEntry, CommitProblem
    from keylane.engine.ports import TopicPartition
    from keylane.options import Pipeline
    from keylane.records import Message

logger = logging.getLogger("keylane.engine")


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

    def __init__(self, pipeline: Pipeline) -> None:
        self._tells_commits = pipeline.on_commit is not None
        self._tells_records = pipeline.on_committed is not None
        self._keeps_records = self._tells_records or pipeline.delivery == "almost_once"
        self._waiting: dict[Assignment, deque[tuple[int, Sequence[Message]]]] = {}
        """By the tracker's changes right after their completion."""
        self.waiting = 0
        """Records in it."""

    def completed(self, assignment: Assignment, messages: Sequence[Message]) -> None:
        if self._keeps_records:
            queue = self._waiting.setdefault(assignment, deque())
            queue.append((assignment.tracker.changes, messages))
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
            if not entry.assignment.wanted:  # revoked: the last one
                self.forget((entry.assignment,))
        problem = next((one.text for one in problems.values()), "")
        if not (self._tells_commits or self._tells_records):
            return None
        return Told(taken, refused, problem, records)

    def forget(self, assignments: Iterable[Assignment]) -> None:
        """No commit of these follows."""
        for assignment in assignments:
            self.waiting -= sum(len(messages) for _, messages in self._waiting.pop(assignment, ()))

    def _in(self, entry: CommitEntry) -> list[Message]:
        """What this commit has complete. Without a map it speaks of what lies below its offset alone."""
        queue = self._waiting.get(entry.assignment)
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


class CommitCallbacks:
    """Calls `on_commit` and `on_committed` on a thread of its own, in the order of the answers.

    What they raise ends the consumer. Thread safety: `put` and `close` are the loop's.
    """

    def __init__(self, pipeline: Pipeline, failed: Callable[[HandlerError], None], name: str) -> None:
        self._on_commit = pipeline.on_commit
        self._on_committed = pipeline.on_committed
        self._failed = failed
        self._queue: SimpleQueue[Told | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"{name}-commits", daemon=True)

    def put(self, told: Told) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._queue.put(told)

    def close(self, timeout_s: float) -> None:
        """Tell what is left, for at most `timeout_s`."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("closed while on_commit or on_committed still ran; its thread is left behind")

    def _serve(self) -> None:
        while (told := self._queue.get()) is not None:
            if self._on_commit is not None:
                if told.taken:
                    self._call(self._on_commit, told.taken, None)
                if told.refused:
                    self._call(self._on_commit, told.refused, PeerError(f"not committed: {told.problem}"))
            if self._on_committed is not None:
                for message in told.records:
                    self._call(self._on_committed, Record(message))

    def _call(self, callback: Callable[..., Any], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # reported: the consumer stops with it
            which = "on_commit" if callback is self._on_commit else "on_committed"
            made = HandlerError(f"{which} raised {type(error).__name__}: {error}")
            made.__cause__ = error
            self._failed(made)
