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
    from collections.abc import Sequence

    from keylane.engine.admission import HandOver
    from keylane.engine.assignment import Assignment
    from keylane.engine.work import Unit, Work
    from keylane.options import Pipeline


class Dispatcher:
    """The rotation, the retries that wait, and the count of what is with the workers."""

    def __init__(self, hand_over: HandOver, pipeline: Pipeline) -> None:
        self._hand_over = hand_over
        self._rotation: deque[Assignment] = deque()
        self._batch_size = pipeline.batch_size
        self._batch_min_size = pipeline.batch_min_size
        self._linger_s = pipeline.batch_linger_ms / 1000
        self._lingers_since: float | None = None
        """Since when there is something for a batch, and too little."""
        self.may_chain = pipeline.ordering != "unordered"
        """Whether quick records of a shard may be handed over together."""
        self.retries = RetrySchedule()
        self.calls = 0
        """Records, chains and batches handed over and not reported back, of closed assignments too: they take room
        all the same."""
        self.with_workers = 0
        """The records in them."""

    def offer(self, assignment: Assignment) -> None:
        """`assignment` may have something to run."""
        if not assignment.queued and assignment.may_start and (assignment.ready or assignment.held):
            assignment.queued = True
            self._rotation.append(assignment)

    def reported(self, records: int, calls: int, now: float) -> None:
        """Workers reported so many calls back, with so many records."""
        self.with_workers -= records
        self.calls -= calls
        assert self.with_workers >= self.calls >= 0, (self.with_workers, self.calls)
        self._hand_over.completed(records, calls, now)

    def take(self, now: float) -> Sequence[Unit]:
        """What to hand over now."""
        return self._take_records(now) if self._batch_size == 1 else self._take_batches(now)

    def _take_records(self, now: float) -> list[Work]:
        room = self._hand_over.size - self.calls
        longest = self._hand_over.longest_chain(self.calls) if self.may_chain else 1
        rotation = self._rotation
        taken: list[Work] = []
        records = 0
        while rotation and len(taken) < room:
            share = max(1, (room - len(taken)) // len(rotation))
            for _ in range(len(rotation)):
                assignment = rotation.popleft()
                before = len(assignment.in_flight)
                works = assignment.take(min(share, room - len(taken)), now, longest)
                records += len(assignment.in_flight) - before
                self._keep_in_rotation(assignment, works)
                taken += works
                if len(taken) >= room:
                    break
        self.calls += len(taken)
        self.with_workers += records
        return taken

    def _keep_in_rotation(self, assignment: Assignment, taken: Sequence[Work]) -> None:
        if taken and (assignment.ready or assignment.held):
            self._rotation.append(assignment)
        else:
            assignment.queued = False

    # --- batches ---

    def _take_batches(self, now: float) -> list[list[Work]]:
        batches: list[list[Work]] = []
        while self.calls < self._hand_over.size and self._rotation and self._batch_is_due(now):
            filled = self._fill(now)
            batches += filled
            self.calls += len(filled)
            self.with_workers += sum(map(len, filled))
        return batches

    def _batch_is_due(self, now: float) -> bool:
        """Whether there is enough for a batch, or has been something for long enough, or something is tried again."""
        least = self._batch_min_size
        if least > 1:
            found = 0
            for assignment in self._rotation:
                found += assignment.startable(least - found)
                if found >= least or (assignment.ready and assignment.ready[0].attempt > 1):
                    break
            else:
                if self._lingers_since is None:
                    self._lingers_since = now
                if now < self._lingers_since + self._linger_s:
                    return False
        self._lingers_since = None
        return True

    def _fill(self, now: float) -> list[list[Work]]:
        """One batch from as many partitions as it takes, and those that go alone which were found on the way."""
        batch: list[Work] = []
        alone: list[list[Work]] = []
        while self._rotation and len(batch) < self._batch_size:
            assignment = self._rotation.popleft()
            works = assignment.take_batch(self._batch_size - len(batch), now)
            self._keep_in_rotation(assignment, works)
            if works and works[0].attempt > 1:
                alone.append(works)
            else:
                batch += works
        return [*alone, batch] if batch else alone

    def next_check(self) -> float | None:
        """When a batch is due even if nothing happens."""
        if self._lingers_since is None or not self._rotation or self.calls >= self._hand_over.size:
            return None
        return self._lingers_since + self._linger_s

    # --- retries ---

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
