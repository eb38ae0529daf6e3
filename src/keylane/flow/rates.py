"""What may run in a time: `Bucket`, one rate; `Buckets`, those of a flow.

The idea: a bucket is one number, the time up to which what was spent has used its rate up (the generic cell rate
algorithm); what lies within the burst before it may start now.

Pure: time is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from keylane.options import Rates

UNLIMITED = 1 << 62
"""Items: no limit."""

FORGET_AT = 10_000
"""Keys from which on those that are at rest are forgotten: their buckets are full."""

_ROUNDING_S = 1e-9
"""A token that is due within this is there: times are floats."""


class Rated(Protocol):
    """Whose rate it is: a source."""

    @property
    def wanted(self) -> bool:
        """False once nothing of it counts any more."""


class Bucket:
    """One token bucket."""

    __slots__ = ("_burst_s", "_interval_s", "_used_to")

    def __init__(self, per_s: float, burst_ms: int) -> None:
        self._interval_s = 1 / per_s
        self._burst_s = max(0.0, burst_ms / 1000 - self._interval_s)
        self._used_to = float("-inf")

    def room(self, now: float) -> int:
        """Items that may start now."""
        spare_s = now + self._burst_s + _ROUNDING_S - max(self._used_to, now)
        return 0 if spare_s < 0 else int(spare_s / self._interval_s) + 1

    def spend(self, count: int, now: float) -> None:
        self._used_to = max(self._used_to, now) + count * self._interval_s

    def due(self) -> float:
        """When the next item may start."""
        return self._used_to - self._burst_s

    def is_full(self, now: float) -> bool:
        return self._used_to <= now


class Buckets:
    """The buckets of `keylane.Rates`."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._all = self._made(rates.records_per_s)
        self._sources: dict[Rated, Bucket] = {}
        self._keys: dict[tuple[Rated, bytes], Bucket] = {}
        self._forget_at = FORGET_AT
        self.limited = self._all is not None or rates.per_partition is not None or rates.per_key is not None
        """Whether there is any limit."""
        self.by_key = rates.per_key is not None

    def _made(self, per_s: float | None) -> Bucket | None:
        return None if per_s is None else Bucket(per_s, self._rates.burst_ms)

    def room(self, now: float) -> int:
        """Items that may start now, over all."""
        return UNLIMITED if self._all is None else self._all.room(now)

    def due(self) -> float | None:
        """When the next item may start, over all."""
        return None if self._all is None else self._all.due()

    def of(self, source: Rated) -> Bucket | None:
        if self._rates.per_partition is None:
            return None
        if source not in self._sources:
            self._sources = {one: bucket for one, bucket in self._sources.items() if one.wanted}
            self._sources[source] = Bucket(self._rates.per_partition, self._rates.burst_ms)
        return self._sources[source]

    def spend(self, source: Rated, count: int, now: float) -> None:
        """So many items of `source` start."""
        if self._all is not None:
            self._all.spend(count, now)
        if (bucket := self.of(source)) is not None:
            bucket.spend(count, now)

    def give_back(self, source: Rated, key: bytes | None, now: float) -> None:
        """One that has started did not run: what it has spent is others'."""
        if not self.limited:
            return
        self.spend(source, -1, now)
        if key is not None and (bucket := self._keys.get((source, key))) is not None:
            bucket.spend(-1, now)

    def spend_key(self, source: Rated, key: bytes | None, now: float) -> float | None:
        """Spend a token of the key: None; or when there will be one."""
        if self._rates.per_key is None or key is None:
            return None
        name = (source, key)
        bucket = self._keys.get(name)
        if bucket is None:
            self._forget_resting(now)
            bucket = self._keys[name] = Bucket(self._rates.per_key, self._rates.burst_ms)
        if bucket.room(now) < 1:
            return bucket.due()
        bucket.spend(1, now)
        return None

    def _forget_resting(self, now: float) -> None:
        if len(self._keys) >= self._forget_at:
            self._keys = {name: one for name, one in self._keys.items() if not one.is_full(now) and name[0].wanted}
            self._forget_at = max(FORGET_AT, 2 * len(self._keys))
