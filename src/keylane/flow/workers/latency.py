"""`Histogram`: how long things took, as a value that adds up; `Meter`: how one thread fills one at next to no cost.

The idea: buckets are powers of two, so that finding one is a shift and `bit_length`. What is quick is sampled: after a
duration below `QUICK_NS` only every sixteenth is measured, and stands for those before it, so that a record that takes
a microsecond does not spend a tenth of it on being measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

BUCKETS = 34
"""Of 1 µs, 2 µs, 4 µs, … 2.4 hours, and one for all that is longer."""

_SHIFT = 10
QUICK_NS = 100_000
"""Measuring costs a fifth of a microsecond: a five-hundredth of this."""
LEFT_OUT = 15


def upper_bound_s(bucket: int) -> float:
    """The longest duration in a bucket, in seconds; infinite for the last."""
    return float("inf") if bucket == BUCKETS - 1 else (1 << bucket << _SHIFT) / 1e9


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations by bucket. Counts of quick ones are estimates from samples."""

    counts: tuple[int, ...] = (0,) * BUCKETS
    """By bucket; `upper_bound_s` says which durations are in it."""
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def merge(self, other: Histogram) -> Histogram:
        """Both together."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(counts, self.sum_s + other.sum_s)

    def quantile_s(self, share: float) -> float | None:
        """The upper bound of the bucket that the quantile is in, in seconds; None while nothing was measured."""
        rank, seen = share * self.count, 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return upper_bound_s(bucket)
        return None

    def to_dict(self) -> dict[str, float | None]:
        """The short form, for people and for JSON; durations in seconds."""
        half, most = self.quantile_s(0.5), self.quantile_s(0.99)
        return {"count": self.count, "sum_s": round(self.sum_s, 6), "p50_s": half, "p99_s": most}


class Meter:
    """Fills a histogram. Thread safety: one thread writes, any may read."""

    __slots__ = ("_counts", "_sum_ns")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self._sum_ns = 0

    def add(self, took_ns: int, left_out: int = 0) -> int:
        """One took so long, and stands for as many before it that were left out; how many to leave out next."""
        bucket = (took_ns - 1 >> _SHIFT).bit_length() if took_ns > 0 else 0
        self._counts[bucket if bucket < BUCKETS else -1] += 1 + left_out
        self._sum_ns += took_ns * (1 + left_out)
        return LEFT_OUT if took_ns < QUICK_NS else 0

    def histogram(self) -> Histogram:
        return Histogram(tuple(self._counts), self._sum_ns / 1e9)


def merged(meters: Iterable[Meter]) -> Histogram:
    """The histograms of all of them together."""
    return reduce(Histogram.merge, (meter.histogram() for meter in meters), Histogram())
