"""The last minutes of a group: rates, latencies and what is left, from what its members tell and what it commits. Pure.

The idea: members tell totals since they started, each at its own time. A rate is the difference of a member's last two
reports by their distance, and holds until the next one. Where no member reports, what the group has completed shows in
its commits: as much as the logs grew by, less what remains more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from keylane.flow.workers import BUCKETS, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keylane.desk import Report
    from keylane.operations.reports import Seen

KEPT_MS = 10 * 60_000
"""How far back points go."""
EVERY_MS = 2_000
"""Between two points."""


class Point(NamedTuple):
    """A moment. None is what is not known."""

    at_ms: int
    processed_per_s: float | None
    failed_per_s: float | None
    p50_ms: float | None
    p99_ms: float | None
    in_flight: int | None
    remaining: int | None


@dataclass(slots=True)
class _Member:
    """The last two reports of one."""

    last: Report
    reported_ms: int
    processed_per_s: float = 0.0
    failed_per_s: float = 0.0
    took: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    """Handlers by how long they took, between the two."""

    def take(self, reported_ms: int, snapshot: Report) -> None:
        if reported_ms <= self.reported_ms:
            return
        seconds = (reported_ms - self.reported_ms) / 1000
        before, self.last, self.reported_ms = self.last, snapshot, reported_ms
        self.processed_per_s = max(0, snapshot["processed"] - before["processed"]) / seconds
        self.failed_per_s = max(0, snapshot["failed"] - before["failed"]) / seconds
        had = _counts(before)
        self.took = [max(0, now - then) for now, then in zip(_counts(snapshot), had, strict=True)]


def _counts(snapshot: Report) -> list[int]:
    found: list[int] = snapshot["handler_latency"].get("counts", [])  # older members do not tell
    return [*found, *(0 for _ in range(BUCKETS - len(found)))]


class History:
    """Of one group. Thread safety: one thread."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque()
        self._members: dict[str, _Member] = {}
        self._standing: dict[str, tuple[int, int]] = {}
        """Log end and what remains, of each partition where both are known."""
        self._stood_ms = 0
        self._completed_per_s: float | None = None

    def stands(self, partitions: Iterable[Report], now_ms: int) -> None:
        """What the group has committed now, as `groups describe` says it."""
        known = {
            f"{one['topic']}-{one['partition']}": (one["log_end_offset"], one["remaining"])
            for one in partitions
            if one["remaining"] is not None
        }
        both = known.keys() & self._standing.keys()
        if both and now_ms > self._stood_ms:
            grown = sum(known[name][0] - self._standing[name][0] for name in both)
            more = sum(known[name][1] - self._standing[name][1] for name in both)
            self._completed_per_s = max(0, grown - more) / ((now_ms - self._stood_ms) / 1000)
        self._standing, self._stood_ms = known, now_ms

    def add(self, members: Mapping[str, Seen], now_ms: int, remaining: int | None) -> Point | None:
        """The next point, of the members that are heard; None when it is not yet time for one."""
        for name, seen in members.items():
            told = seen.report["reported_ms"]
            if name not in self._members:
                self._members[name] = _Member(seen.report["snapshot"], told)
            self._members[name].take(told, seen.report["snapshot"])
        self._members = {name: one for name, one in self._members.items() if name in members}
        if self.points and now_ms - self.points[-1].at_ms < EVERY_MS:
            return None
        point = self._point(now_ms, remaining)
        self.points.append(point)
        while self.points[0].at_ms < now_ms - KEPT_MS:
            self.points.popleft()
        return point

    def _point(self, now_ms: int, remaining: int | None) -> Point:
        if not self._members:
            return Point(now_ms, self._completed_per_s, None, None, None, None, remaining)
        heard = self._members.values()
        took = Histogram(tuple(map(sum, zip(*(one.took for one in heard), strict=True))))
        return Point(
            now_ms,
            round(sum(one.processed_per_s for one in heard), 1),
            round(sum(one.failed_per_s for one in heard), 1),
            _ms(took.quantile_s(0.5)),
            _ms(took.quantile_s(0.99)),
            sum(one.last["in_flight"] for one in heard),
            remaining,
        )


def _ms(seconds: float | None) -> float | None:
    """None for what is longer than a histogram says."""
    return None if seconds is None or seconds == float("inf") else round(seconds * 1000, 3)
