"""`CommitFirst`: at most once. What is handed over is committed, and starts when the broker has acknowledged that.

The idea: a record that is taken for a worker counts as complete from then on, for commits. It is held here until a
commit that says so is acknowledged; one commit carries all that were taken together. A commit whose answer is lost may
have been made, so it is made again, and nothing of it starts before an acknowledgement: after a crash in between, those
records are lost, and none of them runs twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from keylane.engine.work import works_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.engine.assignment import Assignment
    from keylane.engine.commits import CommitEntry
    from keylane.engine.partitions import Partitions
    from keylane.engine.work import Unit, Work


class CommitFirst:
    """What was taken and may not start yet. Thread safety: none; its owner is the loop."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._held: list[Unit] = []
        self._marks: dict[Work, int] = {}
        """Records whose commit is not acknowledged, with their tracker's `changes` that such a commit has to say."""
        self._changed = False
        self.closed = False
        """Whether assignments were closed since `given_up` was asked."""

    def __bool__(self) -> bool:
        """Whether something waits for a commit."""
        return bool(self._marks)

    def hold(self, units: Sequence[Unit]) -> None:
        """These were taken for the workers. What came back from them without having run is committed already."""
        fresh: dict[Assignment, list[Work]] = defaultdict(list)
        for unit in units:
            for work in works_in(unit):
                if not work.assignment.tracker.is_complete(work.offset):
                    fresh[work.assignment].append(work)
        for assignment, works in fresh.items():
            self._partitions.claim(assignment, works)
            self._marks.update(dict.fromkeys(works, assignment.tracker.changes))
        self._held += units
        self._changed = self._changed or bool(units)

    def acknowledged(self, entries: Sequence[CommitEntry]) -> None:
        """The broker took these. A commit without its map says nothing of what lies above its offset."""
        by_assignment = {entry.assignment: entry for entry in entries}
        for work, mark in list(self._marks.items()):
            entry = by_assignment.get(work.assignment)
            if entry is not None and mark <= entry.changes and (entry.metadata or work.offset < entry.offset):
                del self._marks[work]
        self._changed = True
        for assignment in {work.assignment for work in self._marks if work.assignment in by_assignment}:
            assignment.committed_changes = min(assignment.committed_changes, self._marks_of(assignment) - 1)
            self._partitions.uncommitted = True

    def take(self) -> list[Unit]:
        """What may start now."""
        if not self._changed:
            return []
        self._changed = False
        held, self._held = self._held, []
        ready: list[Unit] = []
        for unit in held:
            (self._held if any(work in self._marks for work in works_in(unit)) else ready).append(unit)
        return ready

    def given_up(self) -> list[Unit]:
        """What is held of closed assignments: it does not start. A batch goes back as a whole; those of its records
        that are still wanted stay committed, or about to be."""
        self.closed = False
        self._marks = {work: mark for work, mark in self._marks.items() if work.assignment.wanted}
        gone = [unit for unit in self._held if not all(work.assignment.wanted for work in works_in(unit))]
        self._held = [unit for unit in self._held if unit not in gone]
        return gone

    def _marks_of(self, assignment: Assignment) -> int:
        return min(mark for work, mark in self._marks.items() if work.assignment is assignment)
