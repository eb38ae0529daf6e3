"""Which ready records go to the workers next: fair over partitions, within the workers' bound.

The idea: partitions that have something ready stand in a rotation, and each turn of it takes an equal share of the
room. A partition whose ready records are all beyond its dispatch bound leaves the rotation until a completion of its
own lets it back in, so it costs the others nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from keylane.engine.retries import RetrySchedule

if TYPE_CHECKING:
    from keylane.engine.admission import HandOver
    from keylane.engine.assignment import Assignment
    from keylane.engine.work import Work


class Dispatcher:
    """The rotation, the retries that wait, and the count of records with the workers."""

    __slots__ = ("_hand_over", "_rotation", "retries", "with_workers")

    def __init__(self, hand_over: HandOver) -> None:
        self._hand_over = hand_over
        self._rotation: deque[Assignment] = deque()
        self.retries = RetrySchedule()
        self.with_workers = 0
        """Records handed over and not reported back, of closed assignments too: they take room all the same."""

    def offer(self, assignment: Assignment) -> None:
        """`assignment` may have something to run."""
        if not assignment.queued and assignment.may_start and (assignment.ready or assignment.held):
            assignment.queued = True
            self._rotation.append(assignment)

    def reported(self, count: int, now: float) -> None:
        """Workers reported `count` records back."""
        self.with_workers -= count
        assert self.with_workers >= 0, self.with_workers
        self._hand_over.completed(count, now)

    def take(self, now: float) -> list[Work]:
        """What to hand over now."""
        room = self._hand_over.size - self.with_workers
        rotation = self._rotation
        taken: list[Work] = []
        while rotation and len(taken) < room:
            share = max(1, (room - len(taken)) // len(rotation))
            for _ in range(len(rotation)):
                assignment = rotation.popleft()
                works = assignment.take(min(share, room - len(taken)), now)
                if works and (assignment.ready or assignment.held):
                    rotation.append(assignment)
                else:
                    assignment.queued = False
                taken += works
                if len(taken) >= room:
                    break
        self.with_workers += len(taken)
        return taken

    def release_retries(self, now: float) -> list[Work]:
        """Retries that are due: ready again, before newer records of their partition. Dead letters are returned."""
        dead = []
        for work in self.retries.take_due(now):
            if work.dead is not None:
                dead.append(work)
            else:
                work.assignment.ready.appendleft(work)
                self.offer(work.assignment)
        return dead
