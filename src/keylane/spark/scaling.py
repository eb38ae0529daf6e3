"""How many lanes a query should have: pure, with the time passed in.

The idea: what waits should be worked off within a target time. Every change costs the group a rebalance, so lanes are
added only when they have been too few for a while, and taken away one by one when one less has been enough for longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from keylane.errors import UsageError

GROW_AFTER_S = 5.0
"""How long lanes must have been too few: longer than a rebalance and a commit interval, in which rates mean little."""
SHRINK_AFTER_S = 30.0
"""How long one less must have been enough: adding a lane again costs more than keeping one."""
BUSY_ENOUGH = 0.75
"""The share of their concurrency that lanes may use after one is taken away, so that it is not soon added again."""
MOST_GROWTH = 2
"""Lanes at most double at a time: the rate of the next look says whether that was enough."""


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """`lanes=(least, most)`, and in which time what waits should be worked off."""

    least: int
    most: int
    target_ms: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UsageError(f"lanes=({self.least}, {self.most}): give (least, most) with 1 <= least <= most")
        if isinstance(self.target_ms, bool) or not isinstance(self.target_ms, int) or self.target_ms < 1:
            raise UsageError(f"catch_up_ms={self.target_ms!r}: give a whole number of at least 1")


@dataclass(slots=True)
class Scaler:
    """Looks at lag and rate, and remembers since when lanes have been too few or too many."""

    bounds: LaneBounds
    _too_few_since: float | None = None
    _too_many_since: float | None = None

    def plan(self, now: float, lanes: int, lag: int | None, rate: float, busy: float) -> int:
        """How many lanes there should be.

        `lanes` run now, `lag` records wait (None while that is not known), `rate` are completed in a second by all
        lanes together, and they use the share `busy` of their concurrency.
        """
        needed = self._needed(lanes, lag, rate)
        one_less_is_enough = needed < lanes and busy * lanes / (lanes - 1) <= BUSY_ENOUGH
        self._too_few_since = self._since(self._too_few_since, now, holds=needed > lanes)
        self._too_many_since = self._since(self._too_many_since, now, holds=one_less_is_enough)
        if self._too_few_since is not None and now - self._too_few_since >= GROW_AFTER_S:
            return self._changed(min(needed, lanes * MOST_GROWTH))
        if self._too_many_since is not None and now - self._too_many_since >= SHRINK_AFTER_S:
            return self._changed(lanes - 1)
        return lanes

    def unsettled(self) -> None:
        """Lanes are starting, moving or failing: what their rate says means nothing."""
        self._too_few_since = self._too_many_since = None

    def _needed(self, lanes: int, lag: int | None, rate: float) -> int:
        if lag is None:
            return lanes
        if lag == 0:
            wanted = self.bounds.least
        elif rate <= 0:
            wanted = lanes  # nothing is completed: no number of lanes mends that
        else:
            wanted = math.ceil(min(self.bounds.most, lanes * (lag / rate) / (self.bounds.target_ms / 1000)))
        return max(self.bounds.least, min(self.bounds.most, wanted))

    def _changed(self, lanes: int) -> int:
        self.unsettled()
        return lanes

    @staticmethod
    def _since(since: float | None, now: float, *, holds: bool) -> float | None:
        if not holds:
            return None
        return now if since is None else since
