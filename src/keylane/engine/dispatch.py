"""Which ready records go to the workers next: fair over partitions, within the workers' bound and the rates.

The idea: partitions that have something ready stand in a rotation, and each turn of it takes an equal share of the
room. A partition whose ready records are all beyond its dispatch bound leaves the rotation until a completion of its
own lets it back in, so it costs the others nothing; one that has used up its rate comes back when that has recovered.
Depth first, the rotation is an order: the first partition in it takes all the room that it can use.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING

from keylane.engine.autoscale import AutoLimit
from keylane.engine.rates import UNLIMITED, Buckets
from keylane.engine.retries import Waiting
from keylane.engine.work import Failure, Later, NotRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keylane.engine.admission import HandOver
    from keylane.engine.assignment import Assignment
    from keylane.engine.work import Unit, Work
    from keylane.options import Pipeline, Rates


class Dispatcher:
    """The rotation, the records that wait for a time, and the count of what is with the workers."""

    def __init__(self, hand_over: HandOver, pipeline: Pipeline) -> None:
        self.hand_over = hand_over
        self._rotation: deque[Assignment] = deque()
        self._depth_first = pipeline.traversal == "depth_first"
        self._batch_size = pipeline.batch_size
        self._batch_min_size = pipeline.batch_min_size
        self._linger_s = pipeline.batch_linger_ms / 1000
        self._lingers_since: float | None = None
        """Since when there is something for a batch, and too little."""
        self.may_chain = pipeline.ordering != "unordered" and pipeline.delivery not in ("at_most_once", "almost_once")
        """Whether quick records of a shard may be handed over together. Those that one commit each is for are not: a
        chain comes apart when a record of it fails."""
        self._one_a_key = pipeline.delivery == "at_most_once"
        """Whether a batch holds one record of a shard: records behind one that failed would run again."""
        self._buckets = Buckets(pipeline.rates)
        self._resting: list[tuple[float, int, Assignment]] = []
        """Partitions that have used up their rate, and until when: a heap."""
        self._at_rest: set[Assignment] = set()
        """The same partitions."""
        self._order = count()
        self.auto = AutoLimit(hand_over.capacity) if pipeline.max_concurrency == "auto" else None
        """Moves the limit of the hand-over, under `max_concurrency="auto"`."""
        if self.auto is not None:
            self.may_chain = False
        self.waiting = Waiting()
        self._failed_before: list[Work] = []
        self.calls = 0
        """Records, chains and batches handed over and not reported back, of closed assignments too: they take room
        all the same."""
        self.with_workers = 0
        """The records in them."""

    def change_rates(self, rates: Rates) -> None:
        """From now on, with full buckets."""
        self._buckets = Buckets(rates)
        rested = list(self._at_rest)
        self._resting.clear()
        self._at_rest.clear()
        for assignment in rested:
            self.offer(assignment)

    def offer(self, assignment: Assignment) -> None:
        """`assignment` may have something to run."""
        if not assignment.queued and assignment.has_turn and assignment not in self._at_rest:
            assignment.queued = True
            if self._depth_first:
                insort(self._rotation, assignment, key=attrgetter("name"))
            else:
                self._rotation.append(assignment)

    def reported(self, records: int, calls: int) -> None:
        """Workers reported so many calls back, with so many records."""
        self.with_workers -= records
        self.calls -= calls
        assert self.with_workers >= self.calls >= 0, (self.with_workers, self.calls)
        self.hand_over.completed(records, calls)

    def came_back(self, works: Iterable[Work], now: float) -> None:
        """Calls ended, each known by one of its records; the automatic limit learns from that."""
        if self.auto is None:
            return
        for work in works:
            began = work.assignment.in_flight.get(work.offset)
            if began is not None and not isinstance(work.outcome, NotRun | Later):
                self.auto.observe(began, now, failed=isinstance(work.outcome, Failure))

    def take(self, now: float) -> Sequence[Unit]:
        """What to hand over now."""
        self.hand_over.observe(now, self.calls)
        if self.auto is not None:
            self.hand_over.resize(self.auto.turn(now))
        while self._resting and self._resting[0][0] <= now:
            assignment = heapq.heappop(self._resting)[2]
            self._at_rest.discard(assignment)
            self.offer(assignment)
        taken = self._take_records(now) if self._batch_size == 1 else self._take_batches(now)
        if self.auto is not None and self._rotation and self.calls >= self.hand_over.size:
            self.auto.full()
        return taken

    def _take_records(self, now: float) -> list[Work]:
        room = min(self.hand_over.size - self.calls, self._buckets.room(now))
        longest = self._longest_chain()
        rotation = self._rotation
        taken: list[Work] = []
        while rotation and room > 0:
            share = room if self._depth_first else max(1, room // len(rotation))
            for _ in range(len(rotation)):
                assignment = rotation.popleft()
                works = self._take_works(
                    assignment, min(share, room, self._partition_room(assignment, now)), now, longest
                )
                taken += works
                room -= len(works)
                self.calls += len(works)
                if room <= 0 or self._depth_first:
                    break
        return taken

    def _take_works(self, assignment: Assignment, most: int, now: float, longest: int) -> list[Work]:
        before = len(assignment.in_flight)
        works = assignment.take(most, now, 1 if assignment.failures else longest) if most else []
        self._keep_in_rotation(assignment, len(works))
        if assignment.failures:
            before += len(works)
            works = self._without_failed(assignment, works)
            before -= len(works)
        works = self._within_rates(assignment, works, now)
        self.with_workers += len(assignment.in_flight) - before
        return works

    def _longest_chain(self) -> int:
        """Records of one shard that may go to a worker together."""
        if not self.may_chain or self._buckets.limited:
            return 1
        left = self.hand_over.at_once - self.calls
        alone = left > 0 and sum(one.waiting for one in self._rotation) <= left
        return self.hand_over.longest_chain(self.calls, alone=alone)

    def _keep_in_rotation(self, assignment: Assignment, taken: int) -> None:
        if not taken or not assignment.has_turn:
            assignment.queued = False
        elif self._depth_first:
            self._rotation.appendleft(assignment)
        else:
            self._rotation.append(assignment)

    # --- after an undone transaction ---

    def _without_failed(self, assignment: Assignment, works: list[Work]) -> list[Work]:
        """Put aside what failed in a transaction that was undone, and is not judged yet."""
        if not assignment.failures:
            return works
        self._failed_before += [work for work in works if work.offset in assignment.failures]
        return [work for work in works if work.offset not in assignment.failures]

    def take_failed(self) -> list[Work]:
        """What was put aside."""
        taken, self._failed_before = self._failed_before, []
        return taken

    # --- rates ---

    def _partition_room(self, assignment: Assignment, now: float) -> int:
        """What the partition's rate lets start; without any, it comes back by itself."""
        bucket = self._buckets.partition(assignment)
        if bucket is None:
            return UNLIMITED
        room = bucket.room(now)
        if not room:
            self._at_rest.add(assignment)
            heapq.heappush(self._resting, (bucket.due(), next(self._order), assignment))
        return room

    def _within_rates(self, assignment: Assignment, works: list[Work], now: float) -> list[Work]:
        """Note that these start, but for those whose key has to wait."""
        if not self._buckets.limited:
            return works
        starting = []
        for work in works:
            due = self._buckets.take_key(work, now)
            if due is None:
                starting.append(work)
            else:
                del assignment.in_flight[work.offset]
                self.waiting.add(work, due)
        self._buckets.take(assignment, len(starting), now)
        return starting

    # --- batches ---

    def _take_batches(self, now: float) -> list[list[Work]]:
        batches: list[list[Work]] = []
        while self.calls < self.hand_over.size and self._rotation and self._batch_is_due(now):
            filled = self._fill(now)
            if not filled:
                break
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
                if found >= least or (assignment.again and assignment.again[0].attempt > 1):
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
        size = self._batch_size
        while self._rotation and (room := min(size - len(batch), self._buckets.room(now))) > 0:
            assignment = self._rotation.popleft()
            room = min(room, self._partition_room(assignment, now))
            one_a_key = self._one_a_key or self._buckets.by_key or bool(assignment.failures)
            works = assignment.take_batch(room, now, one_a_key=one_a_key) if room else []
            self._keep_in_rotation(assignment, len(works))
            works = self._without_failed(assignment, works)
            works = self._within_rates(assignment, works, now)
            if works and works[0].attempt > 1:
                alone.append(works)
            else:
                batch += works
        return [*alone, batch] if batch else alone

    # --- time ---

    def next_check(self, now: float) -> float | None:
        """When there is something to hand over even if nothing happens."""
        times = [self._resting[0][0]] if self._resting else []
        if self._rotation and self.calls < self.hand_over.size:
            if self._buckets.room(now) < 1 and (due := self._buckets.due()) is not None:
                times.append(due)
            elif self._lingers_since is not None:
                times.append(self._lingers_since + self._linger_s)
        return min(times, default=None)

    def release_due(self, now: float) -> list[Work]:
        """What has waited long enough is ready again, before newer records of its partition. Dead letters are
        returned."""
        dead = []
        for work in self.waiting.take_due(now):
            if work.dead is not None:
                dead.append(work)
            else:
                work.assignment.again.appendleft(work)
                self.offer(work.assignment)
        return dead
