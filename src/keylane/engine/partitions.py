"""`Partitions`: what is assigned, how much is polled of it, and whether there is anything to commit."""

from __future__ import annotations

import logging
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING

from keylane.engine.admission import PollBound, PollPlan
from keylane.engine.assignment import Assignment
from keylane.engine.ending import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.engine.assignment import Start
    from keylane.engine.counters import Counters
    from keylane.engine.ports import TopicPartition
    from keylane.engine.work import Work
    from keylane.offsets import DispatchBound
    from keylane.options import Pipeline
    from keylane.records import Message

logger = logging.getLogger("keylane.engine")

BY_OFFSET = methodcaller("offset")

FIRST_CREDIT = 500
"""Records to poll before the size of any is known."""


class Partitions:
    """The open assignments by topic and partition; an assignment leaves for good when it is closed."""

    def __init__(
        self, pipeline: Pipeline, counters: Counters, ending_offsets: Mapping[TopicPartition, int] | None
    ) -> None:
        self._ordering = pipeline.ordering
        self._depth_first = pipeline.traversal == "depth_first"
        self._max_uncommitted = pipeline.max_uncommitted
        self._commits_first = pipeline.delivery == "at_most_once"
        self._max_records = pipeline.max_buffered_records
        self._max_bytes = pipeline.max_buffered_bytes
        self._mean_bytes: float | None = None
        """Bytes a buffered record; of the last ones, while there are none. None before the first."""
        self._on_hold: set[TopicPartition] = set()
        self._all_on_hold = False
        self._counters = counters
        self._bound = PollBound(pipeline.max_buffered_records)
        self.ending = None if ending_offsets is None else Ending(ending_offsets)
        self.open: dict[TopicPartition, Assignment] = {}
        self.buffered = 0
        """Records polled and not complete, over all of them."""
        self.buffered_bytes = 0
        """Of their values."""
        self.on_complete: Callable[[Assignment, Sequence[Message]], None] = lambda _, __: None
        """Told of records that are complete."""
        self.uncommitted = False
        """Whether a commit could have something new to say."""

    def add(self, start: Start, dispatch_bound: DispatchBound, *, may_take: bool) -> Assignment:
        name = (start.topic, start.partition)
        assert name not in self.open, f"{name} was assigned twice"
        end = None if self.ending is None else self.ending.of(*name)
        assignment = self.open[name] = Assignment(start, self._ordering, dispatch_bound, end, self._max_uncommitted)
        assignment.commits_first = self._commits_first
        if not may_take:
            assignment.stop()
        assignment.on_hold = self._all_on_hold or name in self._on_hold
        if self.ending is not None:
            self.ending.assigned()
        self._changed()
        self.lose(assignment, start.log_start)
        return assignment

    def close(self, assignments: Iterable[Assignment]) -> None:
        """Revoked, lost, or given up: nothing of them counts any more."""
        for assignment in assignments:
            assignment.close()
            self.buffered -= assignment.tracker.pending + assignment.claimed
            self.buffered_bytes -= assignment.buffered_bytes
            self._bound.forget(assignment)
            del self.open[assignment.name]
        self._changed()

    def get(self, name: TopicPartition, epoch: int) -> Assignment | None:
        """The assignment of that epoch, while it is open."""
        assignment = self.open.get(name)
        return assignment if assignment is not None and assignment.epoch == epoch else None

    def named(self, names: Iterable[TopicPartition]) -> list[Assignment]:
        """Those of `names` that are open."""
        return [self.open[name] for name in names if name in self.open]

    # --- how far they got ---

    def observe(self, assignment: Assignment, messages: Sequence[Message]) -> None:
        """A polled batch."""
        before, before_bytes = assignment.tracker.pending, assignment.buffered_bytes
        self._counters.already_complete += assignment.observe(messages)
        self.buffered += assignment.tracker.pending - before
        self.buffered_bytes += assignment.buffered_bytes - before_bytes
        self._follow_size()
        self._moved(assignment)

    def observe_end(self, assignment: Assignment, log_end: int) -> None:
        assignment.log_end = max(log_end, assignment.log_end or 0)
        assignment.observe_end(log_end)
        self._moved(assignment)

    def lose(self, assignment: Assignment, log_start: int) -> None:
        """The log starts at `log_start` now: what was not polled below it is lost."""
        lost = assignment.tracker.drop_below(log_start)
        self.uncommitted = True
        if lost:
            self._counters.lost_to_retention += lost
            logger.warning(
                "%s-%d: up to %d records below the log's start at %d were lost to retention before they were complete",
                *assignment.name,
                lost,
                log_start,
            )

    def complete(self, assignment: Assignment, works: Sequence[Work], passed: Sequence[Work] = ()) -> None:
        """Records are complete. After each the next of its shard becomes ready, but for `passed`, which are among them:
        behind these it was handed over with them."""
        offsets, messages = [work.offset for work in works], [work.message for work in works]
        in_flight = assignment.in_flight
        for offset in offsets:
            del in_flight[offset]
        if assignment.retrying:
            for offset in offsets:
                assignment.retrying.pop(offset, None)
        if passed:
            assignment.shards.passed([work.offset for work in passed])
            before = set(passed)
            ends = [work for work in works if work not in before]
            following = assignment.shards.release([work.offset for work in ends], [work.message for work in ends])
        else:
            following = assignment.shards.release(offsets, messages)
        if self._depth_first:
            assignment.ready.extendleft(following)
        else:
            assignment.ready.extend(sorted(following, key=BY_OFFSET))  # the shard that is furthest behind first
        size = sum(map(len, messages))
        assignment.buffered_bytes -= size
        self.buffered_bytes -= size
        if assignment.commits_first:
            assignment.claimed -= len(offsets)
            self.buffered -= len(offsets)
        else:
            self.buffered -= assignment.tracker.complete(offsets)
            self.uncommitted = True
        self.on_complete(assignment, messages)

    def claim(self, assignment: Assignment, works: Sequence[Work]) -> None:
        """Under at-most-once: commits count these as complete from now on, before they start."""
        assignment.claimed += assignment.tracker.complete([work.offset for work in works])
        self.uncommitted = True

    # --- what the user pauses ---

    def pause(self, names: Iterable[TopicPartition] | None) -> None:
        """Start nothing of these partitions (None: of any), until `resume`; those to come are meant, too."""
        if names is None:
            self._all_on_hold = True
        else:
            self._on_hold.update(names)
        for assignment in self.open.values():
            assignment.on_hold = self._all_on_hold or assignment.name in self._on_hold

    def resume(self, names: Iterable[TopicPartition] | None) -> list[Assignment]:
        """Go on with these partitions (None: with all); returns those that had been on hold."""
        before = [one for one in self.open.values() if one.on_hold]
        if names is None:
            self._all_on_hold = False
            self._on_hold.clear()
        else:
            self._on_hold.difference_update(names)
        for assignment in before:
            assignment.on_hold = self._all_on_hold or assignment.name in self._on_hold
        return [one for one in before if not one.on_hold]

    def log_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """High watermarks as last seen."""
        for assignment in self.named(ends):
            assignment.log_end = ends[assignment.name]

    def group_committed(self, offsets: Mapping[TopicPartition, int | None], now: float) -> None:
        """The answer to `Plan.ask_committed`; empty when there was none."""
        assert self.ending is not None
        self.ending.committed(offsets, now)

    # --- what the plan needs ---

    def poll_plan(self, now: float) -> PollPlan:
        plan = self._bound.plan(self.buffered, now)
        return plan if self._mean_bytes is not None else replace(plan, credit=min(plan.credit, FIRST_CREDIT))

    def _follow_size(self) -> None:
        """Both bounds in records: as many of the size of those that are buffered."""
        if self.buffered:
            self._mean_bytes = mean = self.buffered_bytes / self.buffered
            self._bound.limit = max(1, min(self._max_records, int(self._max_bytes / max(mean, 1e-9))))

    def next_check(self) -> float | None:
        return self._bound.next_check()

    def end_is_reached(self) -> bool:
        return self.ending is not None and self.ending.is_reached(self.open)

    def ask_committed(self, now: float) -> list[TopicPartition]:
        """Partitions of others whose committed offsets to ask the broker for."""
        return [] if self.ending is None else self.ending.ask(self.open, now)

    def _moved(self, assignment: Assignment) -> None:
        self.uncommitted = True  # gaps, and records that were complete already, move the base
        self._bound.polled(assignment, self.buffered)

    def _changed(self) -> None:
        self._bound.partitions = len(self.open)
        if self.ending is not None:
            self.ending.changed()
