"""`OffsetMap`: which offsets above a committed offset are complete, held as runs.

The idea: a map is a base, the highest completed offset, and the runs of incomplete offsets between the two. A run
costs two integers however long it is, so a map that claims 2^31 incompletes costs as much as one that claims one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Set
from itertools import chain
from typing import Any

from keylane.errors import UsageError

MAX_OFFSET = 2**63 - 1
"""The largest offset Kafka knows (int64)."""

_SHOWN_RUNS = 6
"""Runs that a repr shows: enough to recognise a map, few enough for one line."""


class IncompleteOffsets(Set[int]):
    """The incomplete offsets of a map, in ascending order: a set that is a view of runs."""

    __slots__ = ("_count", "_starts", "_stops")

    def __init__(self, starts: array[int], stops: array[int]) -> None:
        self._starts = starts
        self._stops = stops
        self._count = sum(stops) - sum(starts)

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> Any:  # what `&` and `|` build
        return frozenset(it)

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._stops[index]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(map(range, self._starts, self._stops))

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"{{{_shown(self._starts, self._stops)}}}"


class OffsetMap:
    """What is complete of a partition: everything below `base`, and up to `highest_completed` all but `incomplete`.

    Immutable, hashable, picklable. Offsets above `highest_completed` are incomplete by definition; those among
    `incomplete` are therefore not kept. `highest_completed` is `base - 1` when nothing from base on is complete.

    Raises `UsageError` for a base outside 0 … 2^63 - 1, an incomplete offset below the base, and a `highest_completed`
    below `base - 1`.
    """

    __slots__ = ("_starts", "_stops", "base", "highest_completed", "incomplete")

    base: int
    """The committed offset: the next one to read."""
    highest_completed: int
    incomplete: Set[int]
    """The incomplete offsets from base up to `highest_completed`, ascending."""
    _starts: array[int]
    _stops: array[int]

    def __init__(self, base: int, incomplete: Iterable[int | range] = (), highest_completed: int | None = None) -> None:
        highest = base - 1 if highest_completed is None else highest_completed
        if not 0 <= base <= MAX_OFFSET:
            raise UsageError(f"base={base}: give an offset from 0 to 2^63 - 1")
        if not base - 1 <= highest <= MAX_OFFSET:
            raise UsageError(f"highest_completed={highest}: give an offset from base - 1 = {base - 1} to 2^63 - 1")
        pairs = _sorted_pairs(incomplete)
        if pairs and pairs[0][0] < base:
            raise UsageError(
                f"incomplete offset {pairs[0][0]} is below base={base}, and below the base all is complete"
            )
        self._fill(base, *_merged_runs(pairs, highest + 1), highest)

    @classmethod
    def from_runs(cls, base: int, starts: array[int], stops: array[int], highest_completed: int) -> OffsetMap:
        """A map from runs that are already sorted, disjoint, not adjacent, and within base … `highest_completed`."""
        made = cls.__new__(cls)
        made._fill(base, starts, stops, highest_completed)  # noqa: SLF001 - its own
        return made

    def _fill(self, base: int, starts: array[int], stops: array[int], highest: int) -> None:
        assert len(starts) == len(stops)
        assert not starts or (base <= starts[0] and stops[-1] <= highest + 1)
        for name, value in (
            ("base", base),
            ("highest_completed", highest),
            ("_starts", starts),
            ("_stops", stops),
            ("incomplete", IncompleteOffsets(starts, stops)),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"OffsetMap is immutable; {name} cannot be set")

    @property
    def runs(self) -> tuple[range, ...]:
        """The runs of incomplete offsets: ascending, disjoint, not adjacent."""
        return tuple(map(range, self._starts, self._stops))

    @property
    def run_count(self) -> int:
        return len(self._starts)

    @property
    def incomplete_count(self) -> int:
        return len(self.incomplete)

    @property
    def span(self) -> int:
        """Offsets that the map speaks of: `highest_completed - base + 1`; 0 when nothing from base on is complete."""
        return self.highest_completed - self.base + 1

    def is_complete(self, offset: int) -> bool:
        """Whether the record at `offset` need not run (again)."""
        return offset < self.base or (offset <= self.highest_completed and offset not in self.incomplete)

    def first_incomplete(self, offset: int) -> int:
        """The lowest incomplete offset at or above `offset`; `highest_completed + 1` and up are all incomplete."""
        offset = max(offset, self.base)
        index = bisect_right(self._starts, offset) - 1
        if index >= 0 and offset < self._stops[index]:
            return offset
        if index + 1 < len(self._starts):
            return self._starts[index + 1]
        return max(offset, self.highest_completed + 1)

    def remaining(self, log_start_offset: int, log_end_offset: int) -> int:
        """Offsets of a log with these bounds that are not complete: what is left to do. What the log has dropped is not
        among them."""
        first = max(self.base, log_start_offset)
        if log_end_offset <= first:
            return 0
        known = min(max(first, self.highest_completed + 1), log_end_offset)
        return sum(stop - start for start, stop in self.incomplete_within(first, known)) + log_end_offset - known

    def trimmed(self) -> OffsetMap:
        """The same state without incompletes at the top, so that `highest_completed` is complete (or `base - 1`)."""
        if not self._stops or self._stops[-1] <= self.highest_completed:
            return self
        return OffsetMap.from_runs(self.base, self._starts[:-1], self._stops[:-1], self._starts[-1] - 1)

    def incomplete_within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of the runs that lie in start … stop - 1, as (start, stop) pairs."""
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        return [(max(self._starts[i], start), min(self._stops[i], stop)) for i in range(first, last)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetMap):
            return NotImplemented
        return (self.base, self.highest_completed, self._starts, self._stops) == (
            other.base,
            other.highest_completed,
            other._starts,
            other._stops,
        )

    def __hash__(self) -> int:
        return hash((self.base, self.highest_completed, self._starts.tobytes(), self._stops.tobytes()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (OffsetMap.from_runs, (self.base, self._starts, self._stops, self.highest_completed))

    def __repr__(self) -> str:
        shown = _shown(self._starts, self._stops)
        return f"OffsetMap(base={self.base}, incomplete={{{shown}}}, highest_completed={self.highest_completed})"


def _sorted_pairs(parts: Iterable[int | range]) -> list[tuple[int, int]]:
    """Each part as (start, stop), without the empty ones, ascending."""
    pairs = []
    for part in (parts,) if isinstance(parts, range) else parts:
        if not isinstance(part, range):
            pairs.append((part, part + 1))
        elif part.step != 1:
            raise UsageError(f"incomplete={part!r}: give ranges with step 1")
        elif part:
            pairs.append((part.start, part.stop))
    return sorted(pairs)


def _merged_runs(pairs: list[tuple[int, int]], limit: int) -> tuple[array[int], array[int]]:
    """Sorted, disjoint runs of what lies below `limit`, as starts and stops (exclusive)."""
    starts, stops = array("q"), array("q")
    for start, end in pairs:
        stop = min(end, limit)
        if start >= stop:
            continue
        if stops and start <= stops[-1]:
            stops[-1] = max(stops[-1], stop)
        else:
            starts.append(start)
            stops.append(stop)
    return starts, stops


def _shown(starts: array[int], stops: array[int]) -> str:
    shown = [
        f"{start}" if stop == start + 1 else f"{start}–{stop - 1}"
        for start, stop in zip(starts[:_SHOWN_RUNS], stops[:_SHOWN_RUNS], strict=True)
    ]
    if len(starts) > _SHOWN_RUNS:
        shown.append(f"… {len(starts) - _SHOWN_RUNS} more runs")
    return ", ".join(shown)
