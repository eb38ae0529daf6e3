"""How far a partition has got: `PartitionTracker`, what is polled, dispatched and complete; `OffsetMap`, what a commit
says of it; `DispatchBound`, what may start so that it can be said.

The idea of the tracker: a window of one byte an offset (0 = incomplete, 1 = complete, also for gaps in the log) from
the base on; the base moves by `bytearray.find`, which is as fast as memory. When a few stuck records keep the window
from moving, they leave it for a short sorted list, so its size follows what is polled and not how long they have been
stuck. Of the map: a base, the highest completed offset, and the runs of incomplete offsets between the two. A run costs
two integers however long it is, so a map that claims 2^31 incompletes costs as much as one that claims one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

from keylane.errors import InternalError, UsageError

MAX_OFFSET = 2**63 - 1
"""The largest offset Kafka knows (int64)."""

MAX_SPAN = 2**31 - 1
"""Offsets that a map may speak of: what a BitSet v2 or one RunLength v2 run can say (int32)."""

_SHOWN_RUNS = 6
"""Runs that a repr shows: enough to recognise a map, few enough for one line."""

_BITSET_OVERHEAD_BYTES = 1 + 4 + 1
"""BitSet v2: magic byte, int32 length, pad byte."""
_RUN_LENGTH_OVERHEAD_BYTES, _RUN_LENGTH_BYTES_AN_INCOMPLETE = 1, 2 * 4
"""RunLength v2: magic byte; an incomplete run and the complete one after it, int32 each; adjacent ones share it."""

MARK_BYTES = 4
"""The most that it costs to mark a map (`keylane.offsets.codec`)."""

_INCOMPLETE, _COMPLETE = 0, 1
_COMPLETE_BYTE = bytes([_COMPLETE])

COMPACT_AT = 4_096
"""Completed offsets at the window's front that are worth cutting off: rare enough to cost nothing a record."""

THIN_AT = 65_536
"""Window length, in offsets, from which stuck records are moved out; also the longest gap kept as bytes."""

_THIN_SHARE = 64
"""Stuck records move out when they are less than one in this many: a list entry costs some 40 bytes."""


# --- what a commit says ---


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


# --- what may start ---


@dataclass(frozen=True, slots=True)
class DispatchBound:
    """Which records may start, so that every later map fits the metadata cap: two limits, of which one must hold.

    A map is as hard to write as its span (a bit an offset) or as its incompletes (two run lengths each), whichever is
    less. Completing a record and advancing the base lower both and never raise them, so a limit on *dispatch* is an
    invariant of all later maps (docs/adr/0002). One stuck record keeps the incompletes at 1 and never stops its
    partition.

    With 4,096 characters: a span of 24,496 offsets (BitSet v2) or 383 incompletes (RunLength v2), without counting on
    compression. However small the cap, the base's own record may run: alone it needs no map.
    """

    max_span: int
    """Offsets from the base to the highest dispatched one."""
    max_incomplete: int
    """Incomplete offsets up to the highest dispatched one."""

    @classmethod
    def for_cap(cls, metadata_cap: int) -> DispatchBound:
        """The bound for metadata of at most `metadata_cap` characters (Base64: 3 bytes in 4 characters)."""
        size = max(0, max(0, metadata_cap) // 4 * 3 - MARK_BYTES)
        return cls(
            max_span=min(max(1, 8 * (size - _BITSET_OVERHEAD_BYTES)), MAX_SPAN),
            max_incomplete=max(0, (size - _RUN_LENGTH_OVERHEAD_BYTES) // _RUN_LENGTH_BYTES_AN_INCOMPLETE),
        )


# --- what is polled, dispatched and complete ---


class PartitionTracker:
    """Offsets of one partition within one assignment, from poll to commit. Thread safety: none; its owner is a loop.

    Starts from the committed map: what that map has complete is skipped when it is polled, and is carried on in every
    later snapshot until the base passes it.
    """

    def __init__(self, start: OffsetMap | int, *, is_unchecked: bool = False) -> None:
        """`is_unchecked`: the log may turn out to be another one than the committed map's (`cut_committed_map`), so
        that the base passes what that has complete only as it is polled."""
        self._is_unchecked = is_unchecked
        committed = OffsetMap(start) if isinstance(start, int) else start.trimmed()
        self.base = committed.first_incomplete(committed.base)
        """The commit-ready offset: everything below it is complete. It is never complete itself."""
        self.highest_completed = max(committed.highest_completed, self.base - 1)
        """The highest complete record; the base - 1 when there is none above it."""
        self.highest_dispatched = self.highest_completed
        """The highest offset that a later map may have to speak of: dispatched, or in the committed map."""
        self.incomplete = committed.incomplete_count
        """I of the dispatch bound: incomplete offsets up to the highest dispatched."""
        self.pending = 0
        """Records polled and not complete, dispatched or not."""
        self.changes = 0
        """Grows with every change of the base or of what is complete: equal means that a commit would say the same."""
        self._window = bytearray()
        self._start = self.base
        """The offset of the window's first byte."""
        self._head = 0
        """How many bytes at the window's front are known to be complete."""
        self._stuck: list[int] = []
        """Incomplete offsets below the window, ascending."""
        self._thin_at = THIN_AT
        self._ahead = committed if committed.highest_completed >= self.base else None
        """The committed map, while it says something of offsets that are not polled yet."""
        self.position = self._start
        """The next offset expected from the log: where the window ends."""

    @property
    def span(self) -> int:
        """W of the dispatch bound: offsets from the base to the highest dispatched."""
        return max(0, self.highest_dispatched - self.base + 1)

    def is_complete(self, offset: int) -> bool:
        """Whether the record at `offset` need not run; false for what is neither polled nor in the committed map."""
        index = offset - self._start
        if index >= len(self._window):
            return self._ahead is not None and self._ahead.is_complete(offset)
        if index >= 0:
            return self._window[index] == _COMPLETE
        at = bisect_left(self._stuck, offset)
        return not (at < len(self._stuck) and self._stuck[at] == offset)

    def remaining(self, log_end_offset: int) -> int:
        """Offsets of the log that are not complete, polled or not; gaps that were not polled yet count, too."""
        if self._ahead is not None:
            return self.pending + self._ahead.remaining(self.position, log_end_offset)
        return self.pending + max(0, log_end_offset - self.position)

    # --- what the log says ---

    def observe(self, offsets: Sequence[int]) -> int:
        """Take in polled offsets (ascending); returns how many of them are complete already and must not run.

        When that is not 0, `is_complete` tells which. Offsets left out are gaps in the log and count as complete.
        Raises `InternalError` for a record that was polled before and is not yet below the base.
        """
        before = self.pending
        for first, stop in _contiguous(offsets):
            if first < self.base:
                first = self.base  # below it all is complete
            if first >= stop:
                continue
            if first < self.position:
                raise InternalError(f"offset {first} was polled again; the next one expected is {self.position}")
            if first > self.position:
                self._pass_gap(first)
            self._extend(first, stop)
        self._advance()
        self._thin()
        return len(offsets) - (self.pending - before)

    @property
    def committed_until(self) -> int:
        """The highest offset that the committed map has complete, while it is not polled; -1 from then on."""
        return -1 if self._ahead is None else self._ahead.highest_completed

    def cut_committed_map(self, offset: int) -> int:
        """The committed map holds below this offset alone, which was not polled yet: from there on the log has other
        records. Returns how many offsets it had complete there."""
        ahead = self._ahead
        assert ahead is not None, self
        assert self.position <= offset <= ahead.highest_completed, (offset, self.position, ahead)
        stop = ahead.highest_completed + 1
        complete = stop - offset - _length(ahead.incomplete_within(offset, stop))
        kept = [range(start, end) for start, end in ahead.incomplete_within(self.position, offset)]
        cut = OffsetMap(self.position, kept, offset - 1).trimmed()
        self._ahead = cut if cut.span else None
        self.highest_dispatched = cut.highest_completed  # all that is polled counts as dispatched already
        self.incomplete -= _length(ahead.incomplete_within(cut.highest_completed + 1, stop))
        self.highest_completed = cut.highest_completed if cut.span else self._highest_complete_polled()
        self.changes += 1
        return complete

    def observe_end(self, log_end_offset: int) -> None:
        """The log ends here for now (a partition EOF): what was not polled up to it is a gap."""
        if log_end_offset > self.position:
            self._pass_gap(log_end_offset)
            self._advance()

    def drop_below(self, log_start_offset: int) -> int:
        """Retention moved the log's start: give up what was not polled below it.

        Returns how many offsets are lost, that is, were neither polled nor complete (an upper bound: the log may have
        had gaps there). Records that were polled stay: they can still complete.
        """
        first = self.position
        if log_start_offset <= first:
            return 0
        known = self._ahead.highest_completed + 1 if self._ahead is not None else first
        lost = max(0, log_start_offset - known)
        if self._ahead is not None:
            lost += sum(stop - start for start, stop in self._ahead.incomplete_within(first, log_start_offset))
        self._pass_gap(log_start_offset)
        self._advance()
        return lost

    # --- what the engine does ---

    def dispatch_limit(self, bound: DispatchBound) -> int:
        """The highest offset up to which every polled record may start.

        Up to the highest dispatched one always: those are counted already.
        """
        last = self.position - 1
        limit = self.base + bound.max_span - 1
        if limit > last:
            limit = last
        if limit < self.highest_dispatched:
            limit = self.highest_dispatched
        room = bound.max_incomplete - self.incomplete
        if limit >= last or room <= 0:
            return limit
        beyond = self._nth_incomplete(self.highest_dispatched + 1, room + 1)
        return max(limit, min(last if beyond is None else beyond - 1, self.base + MAX_SPAN - 1))

    def mark_dispatched(self, highest: int) -> None:
        """Records were handed to workers; `highest` is the highest offset among them."""
        if highest <= self.highest_dispatched:
            return
        if highest >= self.position:
            raise InternalError(f"offset {highest} was dispatched and never polled; the next one is {self.position}")
        self.incomplete += self._count(self.highest_dispatched + 1, highest + 1)
        self.highest_dispatched = highest

    def complete(self, offsets: Sequence[int]) -> int:
        """Mark polled records complete, in any order; returns how many were not complete before.

        Raises `InternalError` for an offset that was never polled.
        """
        if not offsets:
            return 0
        if not isinstance(offsets, range):
            offsets = sorted(offsets)
        lowest, highest = offsets[0], offsets[-1]
        is_run = len(offsets) == highest - lowest + 1 and (
            isinstance(offsets, range) or offsets == list(range(lowest, highest + 1))
        )
        if highest >= self.position:
            raise InternalError(f"offset {highest} completed and was never polled; the next one is {self.position}")
        if highest > self.highest_dispatched:
            self.mark_dispatched(highest)
        window, start = self._window, self._start
        done = 0
        if lowest < start:
            is_run = False
            done = sum(self._complete_stuck(offset) for offset in offsets if offset < start)
            offsets = [offset for offset in offsets if offset >= start]
            lowest = start
        first, stop = lowest - start, max(highest + 1 - start, 0)
        done += window.count(_INCOMPLETE, first, stop)
        if is_run:  # quick handlers end by the hundred, one after another
            window[first:stop] = _COMPLETE_BYTE * len(offsets)
        else:
            for offset in offsets:
                window[offset - start] = _COMPLETE
            done -= window.count(_INCOMPLETE, first, stop)
        if done:
            self.incomplete -= done
            self.pending -= done
            self.changes += done
            if highest > self.highest_completed:
                self.highest_completed = highest
            self._advance()
        return done

    # --- what is committed ---

    def snapshot(self) -> OffsetMap:
        """Base and map in one piece: what a commit of this moment says."""
        highest = self.highest_completed
        starts, stops = array("q"), array("q")
        for offset in self._stuck[: bisect_left(self._stuck, highest)]:
            _append_run(starts, stops, offset, offset + 1)
        window, first = self._window, self._start
        limit = max(0, min(len(window), highest + 1 - first))
        start = window.find(_INCOMPLETE, self._head, limit)
        while start >= 0:
            stop = window.find(_COMPLETE, start, limit)
            stop = limit if stop < 0 else stop
            _append_run(starts, stops, first + start, first + stop)
            start = window.find(_INCOMPLETE, stop, limit)
        if self._ahead is not None:
            for start, stop in self._ahead.incomplete_within(self.position, highest + 1):
                _append_run(starts, stops, start, stop)
        return OffsetMap.from_runs(self.base, starts, stops, highest)

    # --- the window ---

    def _extend(self, first: int, stop: int) -> None:
        """Polled offsets from `first` (the position) to `stop` - 1: incomplete but for what the committed map has."""
        self.position = stop
        ahead = self._ahead
        if ahead is None:
            self._window.extend(bytes(stop - first))
            self.pending += stop - first
            return
        known = min(stop, ahead.highest_completed + 1)
        index = len(self._window) - first
        self._window.extend(_COMPLETE_BYTE * (known - first) + bytes(stop - known))
        self.pending += stop - known
        for run_start, run_stop in ahead.incomplete_within(first, known):
            self._window[run_start + index : run_stop + index] = bytes(run_stop - run_start)
            self.pending += run_stop - run_start
        self._leave_committed_map()

    def _pass_gap(self, stop: int) -> None:
        """The log has nothing from the position to `stop` - 1: complete, whatever the committed map says."""
        first = self.position
        if self._ahead is not None:
            self.incomplete -= sum(stop - start for start, stop in self._ahead.incomplete_within(first, stop))
        if stop - first <= THIN_AT:
            self._window.extend(_COMPLETE_BYTE * (stop - first))
        else:
            self._cut(len(self._window))
            self._start = stop
        self.position = stop
        self._leave_committed_map()

    def _leave_committed_map(self) -> None:
        if self._ahead is not None and self.position > self._ahead.highest_completed:
            self._ahead = None

    def _advance(self) -> None:
        """Move the base to the lowest incomplete offset and cut off what lies before it, now and then."""
        head = self._window.find(_INCOMPLETE, self._head)
        self._head = len(self._window) if head < 0 else head
        if self._head >= COMPACT_AT:
            self._cut(self._head)
        if head < 0 and not self._stuck and self._ahead is not None and not self._is_unchecked:
            # on through what the committed map has complete
            self._cut(self._head)
            self._start = self.position = self._ahead.first_incomplete(self._start)
            self._leave_committed_map()
        base = self._stuck[0] if self._stuck else self._start + self._head
        if base != self.base:
            assert base > self.base, (base, self.base)
            self.base = base
            if self.highest_completed < base - 1:
                self.highest_completed = base - 1
            self.changes += 1

    def _thin(self) -> None:
        """Halve a long window by moving its few incomplete offsets out; a window with many of them may grow on."""
        while len(self._window) >= self._thin_at:
            half = len(self._window) // 2
            if self._window.count(_INCOMPLETE, self._head, half) * _THIN_SHARE > half:
                self._thin_at = 2 * len(self._window)
                return
            self._cut(half)

    def _cut(self, length: int) -> None:
        """Drop the window's first bytes; incomplete offsets among them are kept in the list."""
        window = self._window
        index = window.find(_INCOMPLETE, self._head, length)
        while index >= 0:
            self._stuck.append(self._start + index)
            index = window.find(_INCOMPLETE, index + 1, length)
        del window[:length]
        self._start += length
        self._head = max(0, self._head - length)
        self._thin_at = THIN_AT

    def _complete_stuck(self, offset: int) -> bool:
        at = bisect_left(self._stuck, offset)
        if at == len(self._stuck) or self._stuck[at] != offset:
            return False
        del self._stuck[at]
        return True

    def _highest_complete_polled(self) -> int:
        """The highest complete offset below the position; the base - 1 when there is none above it."""
        index = self._window.rfind(_COMPLETE)
        offset = self._start + index if index >= 0 else self._start - 1
        at = len(self._stuck)
        while index < 0 and at and self._stuck[at - 1] == offset:
            at, offset = at - 1, offset - 1
        return max(offset, self.base - 1)

    def _count(self, start: int, stop: int) -> int:
        """Incomplete polled offsets from `start` to `stop` - 1."""
        first = self._start
        if start >= first:
            return self._window.count(_INCOMPLETE, start - first, stop - first)
        stuck = bisect_left(self._stuck, stop) - bisect_left(self._stuck, start)
        return stuck + self._window.count(_INCOMPLETE, 0, max(0, stop - first))

    def _nth_incomplete(self, start: int, n: int) -> int | None:
        """The nth (from 1) incomplete polled offset from `start` on; None when there are fewer."""
        at = bisect_left(self._stuck, start) + n - 1
        if at < len(self._stuck):
            return self._stuck[at]
        left = at - len(self._stuck) + 1
        window = self._window
        index = window.find(_INCOMPLETE, max(start - self._start, self._head))
        while index >= 0:  # it is at least `left` bytes away: those are counted at once, at the speed of memory
            stop = index + left
            left -= window.count(_INCOMPLETE, index, stop)
            if not left:
                return self._start + window.rfind(_INCOMPLETE, index, stop)
            index = window.find(_INCOMPLETE, stop)
        return None


def _length(runs: Iterable[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in runs)


def _contiguous(offsets: Sequence[int]) -> Sequence[tuple[int, int]]:
    """Ascending offsets as runs (start, stop)."""
    if isinstance(offsets, range):
        return ((offsets.start, offsets.stop),)
    runs = []
    first = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] != offsets[at - 1] + 1:
            runs.append((offsets[first], offsets[at - 1] + 1))
            first = at
    return runs


def _append_run(starts: array[int], stops: array[int], start: int, stop: int) -> None:
    if stops and stops[-1] == start:
        stops[-1] = stop
    else:
        starts.append(start)
        stops.append(stop)
