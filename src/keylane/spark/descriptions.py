"""What Spark's UI says of lanes while they run: their partitions, at once, and how fast and how far they are, at times.

The idea: a description is some ten calls into the JVM, and most are never read. So few lanes a progress have theirs
made anew, in turn, whatever their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.spark.ui import lane_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.consumer.snapshot import Snapshot
    from keylane.spark.lane_record import LaneRecord
    from keylane.spark.plan import LaneJobs

RENEW_S = 5.0
"""The age at which a description is made anew: who looks at Spark's UI reloads it by hand."""
AT_ONCE = 4
"""Lanes of one progress: some milliseconds each."""


class _Said(NamedTuple):
    """The last figures of a lane."""

    at: float
    completed: int
    rate: float
    """Records completed a second, between the two before."""


class Descriptions:
    """Owned by the supervisor's thread."""

    def __init__(self, lanes: Sequence[LaneRecord], jobs: LaneJobs) -> None:
        self._lanes = lanes
        self._jobs = jobs
        self._said: dict[int, _Said] = {}
        """By the lane's number."""

    def renew(self, now: float) -> None:
        """Some of those that are oldest."""
        ages = [(self._said[lane.lane].at, lane) for lane in self._lanes if self._is_due(lane, now)]
        for _, lane in sorted(ages, key=lambda one: one[0])[:AT_ONCE]:
            self.describe(lane, now)

    def describe(self, lane: LaneRecord, now: float) -> None:
        """Its partitions are other ones, or its figures are old."""
        completed = _completed(lane.total)
        before = self._said.get(lane.lane, _Said(now, completed, 0.0))
        rate = before.rate
        if now - before.at >= 1:
            rate = max(0, completed - before.completed) / (now - before.at)
        elif lane.lane in self._said:  # too soon for a rate
            completed, now = before.completed, before.at
        self._said[lane.lane] = _Said(now, completed, rate)
        self._jobs.describe(lane.lane, lane.partitions, lane_figures(lane.total, rate))

    def _is_due(self, lane: LaneRecord, now: float) -> bool:
        said = self._said.get(lane.lane)
        return said is not None and lane.state == "running" and now - said.at >= RENEW_S


def _completed(total: Snapshot) -> int:
    return total.processed + total.dead_lettered + total.skipped
