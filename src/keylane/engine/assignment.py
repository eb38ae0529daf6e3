"""`Assignment`: one partition, from the moment it is assigned until it is revoked or lost.

The object itself is the epoch: a partition that comes back gets a new one, and work that names the old one changes
nothing. It holds what the partition has ready, and hands it out within the dispatch bound (docs/adr/0002).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from itertools import chain, repeat, starmap
from typing import TYPE_CHECKING

from keylane.engine.ordering import Shards, shards_for
from keylane.engine.snapshot import OldestRecord, PartitionSnapshot
from keylane.engine.work import Chain, works_of
from keylane.offsets import DispatchBound, OffsetMap, PartitionTracker, encoding_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.engine.transacting import UndoneFailure
    from keylane.engine.work import Work
    from keylane.options import Ordering
    from keylane.records import Message

ENOUGH = 100
"""Records in one hand-over that keep workers busy for a turn of the loop: from here on chains gain nothing."""

NO_FAILURES: dict[int, UndoneFailure] = {}
"""Of assignments that are not in transactions; never written to."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a newly assigned partition starts (`keylane.engine.start` decides it)."""

    topic: str
    partition: int
    epoch: int
    """Grows with every assignment that the consumer takes; polled batches carry it."""
    offsets: OffsetMap
    """What the group has committed, or the resolved start with nothing complete above it."""
    log_start: int
    log_end: int


class Assignment:
    """One partition's tracker, shards, and ready work.

    Thread safety: the loop's, but for `may_start` and `wanted`, which workers read.
    """

    __slots__ = (
        "_max_span",
        "again",
        "bound",
        "buffered_bytes",
        "claimed",
        "commits_first",
        "committed",
        "committed_changes",
        "end",
        "epoch",
        "failures",
        "held",
        "in_flight",
        "log_end",
        "may_start",
        "may_take",
        "metadata",
        "on_hold",
        "partition",
        "paused",
        "queued",
        "ready",
        "retrying",
        "shards",
        "topic",
        "tracker",
        "wanted",
        "without_map",
    )

    def __init__(
        self,
        start: Start,
        ordering: Ordering,
        bound: DispatchBound,
        end: int | None = None,
        max_uncommitted: int | None = None,
    ) -> None:
        self.topic = start.topic
        self.partition = start.partition
        self.epoch = start.epoch
        self.bound = bound
        self._max_span = max_uncommitted
        self.end = end
        """The ending offset: records from here on are not run. None without one."""
        self.tracker = PartitionTracker(start.offsets)
        self.shards: Shards = shards_for(ordering)
        self.committed: int | None = start.offsets.base
        self.committed_changes = self.tracker.changes
        """`tracker.changes` as of the last acknowledged commit: while equal, there is nothing to commit."""
        self.metadata = ""
        """Of the last commit that was acknowledged in this assignment."""
        self.log_end: int | None = start.log_end
        self.ready: deque[Message] = deque()
        """What may run, and has not been handed over before."""
        self.again: deque[Work] = deque()
        """What was handed over and did not run, or is to run once more: before everything else."""
        self.held: list[Work] = []
        """Ready, but beyond the dispatch bound: a heap by offset."""
        self.in_flight: dict[int, float] = {}
        """Offset and time of dispatch of works that are with the workers or wait for their outputs, oldest dispatch
        first."""
        self.retrying: dict[int, float] = {}
        """Offsets of records whose attempt failed and that are not through, and when their first attempt began."""
        self.commits_first = False
        """Whether what is handed over was committed before (at most once): that may then begin until it is given up."""
        self.may_take = True
        """False once nothing more of it is handed over: it is being revoked, or the consumer is stopping."""
        self.may_start = True
        """False once nothing that was handed over may begin."""
        self.failures: dict[int, UndoneFailure] = NO_FAILURES
        """By offset, failed attempts of an undone transaction, to be judged when their turn comes."""
        self.on_hold = False
        """Whether the user has paused it."""
        self.buffered_bytes = 0
        """Of the values of what is polled and not complete."""
        self.claimed = 0
        """Records that commits count as complete, and that are not through yet (at most once)."""
        self.wanted = True
        """False once no result counts any more: it was given up."""
        self.queued = False
        """Whether the dispatcher has it in its rotation."""
        self.paused = False
        self.without_map = False
        """The next commit must go without a map: the broker refused this one."""

    @property
    def name(self) -> tuple[str, int]:
        return (self.topic, self.partition)

    @property
    def reached_end(self) -> bool:
        """Whether there is nothing left to poll before the ending offset."""
        return self.end is not None and self.tracker.position >= self.end

    @property
    def uncommitted(self) -> bool:
        return self.tracker.changes != self.committed_changes

    # --- what was polled ---

    def observe(self, messages: Sequence[Message]) -> int:
        """Take in a polled batch; returns how many of its records were complete already.

        Records below the position (polled twice after a seek or a rebalance) and from the ending offset on are left
        out.
        """
        offsets = [message.offset() for message in messages]
        position = self.tracker.position
        if offsets[0] < position:
            fresh = [message for message in messages if message.offset() >= position]
            return self.observe(fresh) if fresh else 0
        if self.end is not None and offsets[-1] >= self.end:
            due = [message for message in messages if message.offset() < self.end]
            done = self.observe(due) if due else 0
            self.observe_end(self.end)
            return done
        done = self.tracker.observe(offsets)
        if done:
            is_complete = self.tracker.is_complete
            messages = [message for message in messages if not is_complete(message.offset())]
            offsets = [message.offset() for message in messages]
        self.buffered_bytes += sum(map(len, messages))
        self.ready.extend(self.shards.admit(offsets, messages))
        return done

    def observe_end(self, log_end: int) -> None:
        """The log has no more records below `log_end` for now."""
        self.tracker.observe_end(log_end if self.end is None else min(log_end, self.end))

    # --- what may run ---

    @property
    def has_turn(self) -> bool:
        """Whether something of it may run, as far as the partition goes."""
        return self.may_take and not self.on_hold and bool(self.ready or self.again or self.held)

    def _limit(self) -> int:
        """The highest offset that may run now."""
        if not self.may_take or self.on_hold:
            return -1
        limit = self.tracker.dispatch_limit(self.bound)
        return limit if self._max_span is None else min(limit, self.tracker.base + self._max_span - 1)

    def take(self, room: int, now: float, longest: int = 1) -> list[Work]:
        """Up to `room` records that may run at once, and are within the dispatch bound.

        With `longest` above 1 each may lead a chain of up to so many records of its shard, where few may run at once.
        """
        limit = self._limit()
        if limit < 0:
            return []
        is_all = not self.held and limit >= self.tracker.position - 1
        works = self._first(room) if is_all else self._take_within(limit, room)
        if works:
            chains = longest > 1 and len(works) < ENOUGH
            self._out(self._with_followers(works, longest, limit) if chains else works, now)
        return works

    def take_batch(self, room: int, now: float, *, one_a_key: bool = False) -> list[Work]:
        """Up to `room` records for one batch: of each shard in turn as many as there are, in order.

        A record that is tried again comes alone, so that it cannot fail the others with it once more.
        """
        limit = self._limit()
        if limit < 0:
            return []
        batch: list[Work] = []
        while len(batch) < room and (works := self._take_within(limit, 1)):
            if works[0].attempt > 1:
                if batch:
                    self.again.appendleft(works[0])
                else:
                    batch = works
                break
            batch += self._with_followers(works, 1 if one_a_key else room - len(batch), limit)
        if batch:
            self._out(batch, now)
        return batch

    @property
    def waiting(self) -> int:
        """Shards that have a record ready."""
        return len(self.held) + len(self.again) + len(self.ready)

    def startable(self, most: int) -> int:
        """How many records a batch could hold now, counted up to `most`."""
        count = len(self.held)
        for message in chain([work.message for work in self.again], self.ready):
            if count >= most:
                break
            count += 1 + len(self.shards.behind(message, most - count - 1, self.tracker.position))
        return count

    def _with_followers(self, works: list[Work], longest: int, limit: int) -> list[Work]:
        """Each work and those of its shard that go with it, as chains."""
        every: list[Work] = []
        for work in works:
            every.append(work)
            if longest > 1 and (behind := self.shards.behind(work.message, longest - 1, limit)):
                following = works_of(self, [message.offset() for message in behind], behind)
                every += following
                Chain([work, *following])
        return every

    def _out(self, works: Sequence[Work], now: float) -> None:
        offsets = [work.offset for work in works]
        self.tracker.mark_dispatched(max(offsets))
        self.in_flight.update(zip(offsets, repeat(now)))

    def _take_within(self, limit: int, room: int) -> list[Work]:
        works: list[Work] = []
        held = self.held
        while held and len(works) < room and held[0].offset <= limit:
            works.append(heapq.heappop(held))
        while (self.again or self.ready) and len(works) < room:
            for work in self._first(room - len(works)):
                if work.offset <= limit:
                    works.append(work)
                else:
                    heapq.heappush(held, work)
        return works

    def _first(self, count: int) -> list[Work]:
        """Up to `count` that are ready, those that were handed over before first; they are no longer ready."""
        if self.again:
            return list(starmap(self.again.popleft, repeat((), min(count, len(self.again)))))
        ready = self.ready
        if len(ready) <= count:
            messages = list(ready)
            ready.clear()
        else:
            messages = list(starmap(ready.popleft, repeat((), count)))
        return works_of(self, [message.offset() for message in messages], messages)

    def put_back(self, works: Sequence[Work]) -> None:
        """Records that followed in a chain, and have not run: they still wait in their places."""
        for work in works:
            del self.in_flight[work.offset]

    # --- what was given up ---

    def stop(self) -> None:
        """Hand over nothing more of it."""
        self.may_take = False
        self.may_start = self.commits_first

    def close(self) -> None:
        """Revoked or lost: nothing of it starts, and nothing of it counts, any more."""
        self.may_take = self.may_start = self.wanted = False
        self.ready.clear()
        self.again.clear()
        self.held.clear()

    # --- what is seen from outside ---

    @property
    def in_handlers(self) -> int:
        """Records that are with the workers, or wait for their outputs."""
        return len(self.in_flight)

    def oldest_handed_over(self, now: float) -> OldestRecord | None:
        """Of those that are with the workers, begun or not."""
        if not self.in_flight:
            return None
        offset, since = next(iter(self.in_flight.items()))
        return OldestRecord(self.topic, self.partition, offset, round((now - since) * 1000))

    def snapshot(self) -> PartitionSnapshot:
        tracker = self.tracker
        return PartitionSnapshot(
            self.topic,
            self.partition,
            base=tracker.base,
            committed=self.committed,
            highest_completed=tracker.highest_completed,
            incomplete=tracker.pending,
            position=tracker.position,
            log_end_offset=self.log_end,
            remaining=None if self.log_end is None else tracker.remaining(self.log_end),
            shards=self.shards.count,
            paused=self.paused,
            metadata_characters=len(self.metadata),
            metadata_encoding=encoding_of(self.metadata),
        )

    def __repr__(self) -> str:
        return f"Assignment({self.topic}-{self.partition}, epoch {self.epoch}, base {self.tracker.base})"
