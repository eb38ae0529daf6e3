"""`PollBound`: how much is polled.

The bound on polled records is shared by all partitions, and one stuck partition must not take it all.

The idea: each may hold at most a share of what is free (the dynamic thresholds of Choudhury and Hahne, 1998), so a
newcomer always finds room, however many are stuck. A partition over its threshold stops the poll for a moment; only if
it is still over after that is it paused, because librdkafka throws away what it has prefetched of a paused partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keylane.consumer.partition import Partition

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


@dataclass(frozen=True, slots=True)
class PollPlan:
    """What the intake may do next."""

    credit: int
    """Records that it may poll now."""
    pause: tuple[Partition, ...] = ()
    resume: tuple[Partition, ...] = ()


class PollBound:
    """Decides the poll's credit, and which partitions are paused, from what is buffered."""

    __slots__ = ("_limit", "_over", "_partitions", "_paused", "_still_since")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """Records; it moves with their size."""
        self._partitions = 0
        """How many are assigned."""
        self._over: set[Partition] = set()
        self._paused: set[Partition] = set()
        self._still_since: float | None = None
        """Since when a partition over its threshold has kept the poll from running."""

    def resize(self, limit: int) -> None:
        """So many records may be buffered from now on."""
        self._limit = limit

    def share_among(self, partitions: int) -> None:
        """So many are assigned."""
        self._partitions = partitions

    def polled(self, partition: Partition, buffered: int) -> None:
        """A batch of `partition` was taken in; `buffered` is the total after it."""
        pending = partition.tracker.pending
        if not partition.is_poll_paused and (
            partition.reached_end or (pending and pending >= self._threshold(buffered))
        ):
            self._over.add(partition)

    def forget(self, partition: Partition) -> None:
        self._over.discard(partition)
        self._paused.discard(partition)

    def plan(self, buffered: int, now: float) -> PollPlan:
        credit = max(1, (self._limit - buffered) // POLL_SHARE)
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
        return self._limit if self._partitions == 1 else max(0, self._limit - buffered) * FREE_SHARE

    def _move(self, pause: tuple[Partition, ...], resume: tuple[Partition, ...]) -> None:
        for one in pause:
            one.pause_poll(is_paused=True)
        for one in resume:
            one.pause_poll(is_paused=False)
        self._paused.update(pause)
        self._paused.difference_update(resume)
        self._over.difference_update(pause)

    def next_check(self) -> float | None:
        """When `plan` has something new to decide even if nothing happens."""
        return None if self._still_since is None else self._still_since + PAUSE_AFTER_S
