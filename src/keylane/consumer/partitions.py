"""`Partitions`: what is assigned, how much is polled of it, and whether there is anything to commit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from keylane.consumer.ending import Ending
from keylane.consumer.partition import Partition
from keylane.consumer.polling import PollBound, PollPlan

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.consumer.partition import Keeper, Start
    from keylane.consumer.ports import TopicPartition
    from keylane.offsets import DispatchBound
    from keylane.pipeline import Pipeline
    from keylane.records import Message
    from keylane.telling import Log

FIRST_CREDIT = 500
"""Records to poll before the size of any is known."""


class Partitions:
    """Those that are assigned, by topic and partition; one leaves for good when it is closed."""

    def __init__(
        self,
        pipeline: Pipeline,
        keeper: Keeper,
        counters: Counter[str],
        ending_offsets: Mapping[TopicPartition, int] | None,
        log: Log,
    ) -> None:
        self._pipeline = pipeline
        self._keeper = keeper
        self._max_records = pipeline.max_buffered_records
        self._max_bytes = pipeline.max_buffered_bytes
        self._mean_bytes: float | None = None
        """Bytes a buffered record; of the last ones, while there are none. None before the first."""
        self._on_hold: set[TopicPartition] = set()
        self._all_on_hold = False
        self._counters = counters
        self._log = log
        self._bound = PollBound(pipeline.max_buffered_records)
        self.ending = None if ending_offsets is None else Ending(ending_offsets)
        self.open: dict[TopicPartition, Partition] = {}
        self.buffered = 0
        """Records polled and not complete, over all of them."""
        self.buffered_bytes = 0
        """Of their values."""
        self.uncommitted = False
        """Whether a commit could have something new to say."""

    def add(self, start: Start, bound: DispatchBound, *, may_take: bool, may_begin: bool) -> Partition:
        """A newly assigned one. Without `may_take` nothing of it starts; `may_begin` as in `Source.stop`."""
        name = (start.topic, start.partition)
        assert name not in self.open, f"{name} was assigned twice"
        end = None if self.ending is None else self.ending.of(*name)
        partition = self.open[name] = Partition(start, self._pipeline, self._keeper, bound, end)
        if not may_take:
            partition.source.stop(may_begin=may_begin)
        partition.source.pause(is_paused=self._all_on_hold or name in self._on_hold)
        if self.ending is not None:
            self.ending.assigned()
        self._changed()
        self.lose(partition, start.log_start)
        return partition

    def close(self, partitions: Iterable[Partition]) -> None:
        """Revoked, lost, or given up: nothing of them counts any more."""
        for partition in partitions:
            partition.source.close()
            self.buffered -= partition.tracker.pending + partition.claimed
            self.buffered_bytes -= partition.buffered_bytes
            self._bound.forget(partition)
            del self.open[partition.name]
        self._changed()

    def get(self, name: TopicPartition, epoch: int) -> Partition | None:
        """The partition of that epoch, while it is open."""
        partition = self.open.get(name)
        return partition if partition is not None and partition.epoch == epoch else None

    def named(self, names: Iterable[TopicPartition]) -> list[Partition]:
        """Those of `names` that are open."""
        return [self.open[name] for name in names if name in self.open]

    # --- how far they got ---

    def observe(self, partition: Partition, messages: Sequence[Message]) -> None:
        """A polled batch."""
        before, before_bytes = partition.tracker.pending, partition.buffered_bytes
        self._counters["already_complete"] += partition.observe(messages)
        self.buffered += partition.tracker.pending - before
        self.buffered_bytes += partition.buffered_bytes - before_bytes
        self._follow_size()
        self._moved(partition)

    def observe_end(self, partition: Partition, log_end: int) -> None:
        partition.observe_end(log_end)
        self._moved(partition)

    def lose(self, partition: Partition, log_start: int) -> None:
        """The log starts at `log_start` now: what was not polled below it is lost."""
        lost = partition.tracker.drop_below(log_start)
        self.uncommitted = True
        if lost:
            self._counters["lost_to_retention"] += lost
            self._log.warning(
                "%s-%d: up to %d records below the log's start at %d were lost to retention before they were complete",
                *partition.name,
                lost,
                log_start,
            )

    def complete(self, partition: Partition, offsets: Sequence[int]) -> None:
        """Commits count these as complete from now on, and so does the buffer."""
        self.buffered -= partition.complete(offsets)
        self.uncommitted = True

    def claim(self, partition: Partition, offsets: Sequence[int]) -> None:
        """Under at-most-once: commits count these as complete from now on, before they start."""
        partition.claim(offsets)
        self.uncommitted = True

    def unclaim(self, partition: Partition, count: int) -> None:
        """So many that were claimed are through."""
        partition.unclaim(count)
        self.buffered -= count

    def released(self, partition: Partition, messages: Sequence[Message]) -> None:
        """These are through: the buffer has room for as many bytes."""
        size = sum(map(len, messages))
        partition.forget_bytes(size)
        self.buffered_bytes -= size

    def commit_is_planned(self) -> None:
        """A commit says all that there is to say."""
        self.uncommitted = False

    def doubt_commits(self) -> None:
        """What was planned to be committed may not have been."""
        self.uncommitted = True

    # --- what the user pauses ---

    def pause(self, names: Iterable[TopicPartition] | None) -> None:
        """Start nothing of these partitions (None: of any), until `resume`; those to come are meant, too."""
        if names is None:
            self._all_on_hold = True
        else:
            self._on_hold.update(names)
        self._hold(self.open.values())

    def resume(self, names: Iterable[TopicPartition] | None) -> list[Partition]:
        """Go on with these partitions (None: with all); returns those that had been on hold."""
        before = [one for one in self.open.values() if one.source.is_paused]
        if names is None:
            self._all_on_hold = False
            self._on_hold.clear()
        else:
            self._on_hold.difference_update(names)
        self._hold(before)
        return [one for one in before if not one.source.is_paused]

    def _hold(self, partitions: Iterable[Partition]) -> None:
        for one in partitions:
            one.source.pause(is_paused=self._all_on_hold or one.name in self._on_hold)

    def log_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """High watermarks as last seen."""
        for partition in self.named(ends):
            partition.see_log_end(ends[partition.name])

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
            self._bound.resize(max(1, min(self._max_records, int(self._max_bytes / max(mean, 1e-9)))))

    def next_check(self) -> float | None:
        return self._bound.next_check()

    def end_is_reached(self) -> bool:
        return self.ending is not None and self.ending.is_reached(self.open)

    def ask_committed(self, now: float) -> list[TopicPartition]:
        """Partitions of others whose committed offsets to ask the broker for."""
        return [] if self.ending is None else self.ending.ask(self.open, now)

    def _moved(self, partition: Partition) -> None:
        self.uncommitted = True  # gaps, and records that were complete already, move the base
        self._bound.polled(partition, self.buffered)

    def _changed(self) -> None:
        self._bound.share_among(len(self.open))
        if self.ending is not None:
            self.ending.changed()
