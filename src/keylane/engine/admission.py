"""How much is polled, and how much is handed to workers: two bounds, each a small pure planner.

`HandOver`: workers that can queue get a few milliseconds' worth of work beyond what runs, so that a thread that ends
a record finds the next one without a turn of the loop; slow handlers leave the queue all but empty, so nothing gets
old in it.

`PollBound`: the bound on polled records is shared by all partitions, and one stuck partition must not take it all. Each
may hold at most a share of what is free (the dynamic thresholds of Choudhury and Hahne, 1998), so a newcomer always
finds room, however many are stuck. A partition over its threshold stops the poll for a moment; only if it is still over
after that is it paused, because librdkafka throws away what it has prefetched of a paused partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keylane.engine.assignment import Assignment
    from keylane.engine.ports import Capacity
    from keylane.options import Pipeline

OBSERVED_S = 0.010
FIRST_OBSERVED_S = 0.001
"""How long completions are counted before their rate is believed: the first time this long, then twice as long each
time. Until a rate is known nothing waits in the workers' queue, and each completion is worth a turn of the loop."""

AHEAD_S = 0.05
"""How much work, in time, may wait in the workers' queue. Handlers that began together end together: the next ones then
begin without a turn of the loop."""

BELIEVED = 3
"""A rate is believed for so many times as long as it was counted."""

WANTED_S = 0.02
LEAST_WANTED = 256
MOST_WANTED = 10_000
"""How many records one poll brings: what the workers get through in this time, within these limits. Each poll waits for
the interpreter's lock, and one of thousands keeps it for milliseconds, in which no thread begins or ends a record."""

MAX_AHEAD = 5_000
"""Records that may wait in the workers' queue, however fast they are: more gains nothing (measured)."""

CHAIN_S = 0.002
"""How long a chain of records of one shard may keep a worker. It pays where a handler is quicker than the turn of the
loop that would bring the shard's next record; with slower ones there are no chains."""

ALONE = 25
"""So many times as long where workers are left over: a key's records then go one after another without a turn of the
loop between them, and no other key waits for it."""

PAUSE_AFTER_S = 0.2
"""How long the poll may stand still before partitions are paused. Rebalances wait as long."""

FREE_SHARE = 0.5
"""How much of what is free one partition may hold: alone among idle ones a third of the bound; of k stuck ones, each
leaves some three fifths of what it found (polls overshoot). A partition that is the only one assigned may hold the
whole bound."""

RELAXED = 0.5
"""A partition that was over its threshold is let in again at this share of it: pausing is not cheap."""

POLL_SHARE = 8
"""One poll takes at most one in so many of the free records, so that it cannot carry a partition far over its
threshold."""


class HandOver:
    """How much may be with the workers at once.

    `capacity` is what they run at once; `limit`, where it is less, is the most that they are given. The other arguments
    say what the workers can do (`keylane.engine.ports.Capacity`), and what the pipeline leaves of that.
    """

    def __init__(
        self,
        capacity: int,
        *,
        may_queue: bool,
        elastic: bool = False,
        chain_s: float = CHAIN_S,
    ) -> None:
        self.capacity = capacity
        self.limit = capacity
        self.withheld = 0
        """Places that records keep whose handlers are through."""
        self._elastic = elastic
        self._may_queue = may_queue
        self._chain_s = chain_s
        self._ahead = 0
        self._calls_per_s = self._records_per_s = 0.0
        self._calls = 0
        self._records = 0
        self._since = 0.0
        self._observed_s = FIRST_OBSERVED_S
        self._believed_s = 0.0

    @classmethod
    def to(cls, pipeline: Pipeline, workers: Capacity, *, chain_s: float = CHAIN_S) -> HandOver:
        """What the pipeline hands over to these workers. A record that takes a place until its commit is acknowledged
        does not queue with them. The automatic limit does what elastic workers are told."""
        return cls(
            workers.concurrency,
            may_queue=workers.may_queue and pipeline.delivery != "almost_once",
            elastic=workers.elastic and pipeline.max_concurrency != "auto",
            chain_s=chain_s,
        )

    def resize(self, limit: int) -> None:
        """From now on give at most so much."""
        self.limit = limit
        if self._elastic:
            self.capacity = limit

    def completed(self, records: int, calls: int) -> None:
        self._records += records
        self._calls += calls

    def observe(self, now: float, calls: int) -> None:
        """All completions of a turn are counted, and so many calls are out still: see how fast the workers are."""
        elapsed = now - self._since
        if not self._calls:
            if not calls:  # idle
                self._since = now
        elif elapsed >= self._observed_s:
            self._calls_per_s = self._calls / elapsed
            self._ahead = min(MAX_AHEAD, int(self._calls_per_s * AHEAD_S))
            self._records_per_s = self._records / elapsed
            self._believed_s = elapsed * BELIEVED
            self._records = self._calls = 0
            self._since = now
            self._observed_s = min(OBSERVED_S, 2 * self._observed_s)

    @property
    def at_once(self) -> int:
        """Calls of the handler (a chain is one) that may run at once."""
        return min(self.limit, self.capacity)

    @property
    def size(self) -> int:
        """Calls that may be with the workers. Below their capacity nothing queues there, because it would run."""
        if self.limit < self.capacity or not self._may_queue:
            return self.at_once - self.withheld
        return self.capacity + self._ahead

    @property
    def wanted(self) -> int:
        """Records that the next poll may bring, as far as the workers are concerned."""
        return max(LEAST_WANTED, min(MOST_WANTED, int(self._records_per_s * WANTED_S)))

    def stocked_s(self, calls: int) -> float:
        """How long what waits of so many calls keeps the workers busy, in seconds, at their pace, as far as that can be
        told."""
        if not self._calls_per_s:
            return 0.0
        return max(0.0, min(self._believed_s, (calls - self.at_once) / self._calls_per_s))

    def longest_chain(self, calls: int, *, alone: bool = False) -> int:
        """Records that one of so many calls gets through in the time of a chain; `alone`: nobody waits for a worker."""
        chain_s = self._chain_s * ALONE if alone else self._chain_s
        return max(1, int(self._records_per_s * chain_s) // max(1, min(calls, self.at_once)))


@dataclass(frozen=True, slots=True)
class PollPlan:
    """What the intake may do next."""

    credit: int
    """Records that it may poll now."""
    pause: tuple[Assignment, ...] = ()
    resume: tuple[Assignment, ...] = ()


class PollBound:
    """Decides the poll's credit, and which partitions are paused, from what is buffered."""

    __slots__ = ("_over", "_paused", "_still_since", "limit", "partitions")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Records; it moves with their size."""
        self.partitions = 0
        """How many are assigned."""
        self._over: set[Assignment] = set()
        self._paused: set[Assignment] = set()
        self._still_since: float | None = None
        """Since when a partition over its threshold has kept the poll from running."""

    def polled(self, assignment: Assignment, buffered: int) -> None:
        """A batch of `assignment` was taken in; `buffered` is the total after it."""
        pending = assignment.tracker.pending
        if not assignment.paused and (assignment.reached_end or (pending and pending >= self._threshold(buffered))):
            self._over.add(assignment)

    def forget(self, assignment: Assignment) -> None:
        self._over.discard(assignment)
        self._paused.discard(assignment)

    def plan(self, buffered: int, now: float) -> PollPlan:
        credit = max(1, (self.limit - buffered) // POLL_SHARE)
        if not self._over and not self._paused:
            return PollPlan(credit)
        relaxed = self._threshold(buffered) * RELAXED
        self._over = {one for one in self._over if one.reached_end or one.tracker.pending > relaxed}
        resume = tuple(one for one in self._paused if not one.reached_end and one.tracker.pending <= relaxed)
        pause = tuple(one for one in self._over if one.reached_end)
        if len(pause) == len(self._over):
            self._still_since = None
        else:
            if self._still_since is None:
                self._still_since = now
            if now < self._still_since + PAUSE_AFTER_S:
                credit = 0
            else:
                self._still_since = None
                pause = tuple(self._over)
        self._move(pause, resume)
        return PollPlan(credit, pause, resume)

    def _threshold(self, buffered: int) -> float:
        """How much one partition may hold."""
        return self.limit if self.partitions == 1 else max(0, self.limit - buffered) * FREE_SHARE

    def _move(self, pause: tuple[Assignment, ...], resume: tuple[Assignment, ...]) -> None:
        for one in pause:
            one.paused = True
        for one in resume:
            one.paused = False
        self._paused.update(pause)
        self._paused.difference_update(resume)
        self._over.difference_update(pause)

    def next_check(self) -> float | None:
        """When `plan` has something new to decide even if nothing happens."""
        return None if self._still_since is None else self._still_since + PAUSE_AFTER_S
