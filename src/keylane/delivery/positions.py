"""What the group has committed, held against what the store has seen of it: offset maps in, findings out.

The idea: the store is told what a commit will say before that is sent, in a transaction after those of the effects that
it speaks of. A database goes back in time to a state that it once had, so that whoever finds a position in it finds the
effects too. So what the group has committed and the store has not seen may lack its effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.delivery.stores import Position
from keylane.errors import MetadataError
from keylane.offsets import OffsetMap, decode, encode, is_map

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def map_of(position: Position) -> OffsetMap:
    """Metadata of the user's own is no map."""
    if not position.offset_map or not is_map(position.offset_map):
        return OffsetMap(position.base)
    try:
        return decode(position.offset_map, position.base)
    except MetadataError:
        return OffsetMap(position.base)


def position_of(offsets: OffsetMap) -> Position:
    return Position(offsets.base, encode(offsets))


def unseen(committed: OffsetMap, seen: OffsetMap) -> list[range]:
    """What is complete in `committed`, and not in `seen`."""
    found = []
    for start, stop in _incomplete(seen, committed.highest_completed + 1):
        begin = start
        for hole_start, hole_stop in committed.incomplete_within(start, stop):
            if begin < hole_start:
                found.append(range(begin, hole_start))
            begin = hole_stop
        if begin < stop:
            found.append(range(begin, stop))
    return found


def joined(one: OffsetMap, other: OffsetMap) -> OffsetMap:
    """What is complete in either."""
    if not unseen(other, one):
        return one
    if not unseen(one, other):
        return other
    end = max(one.highest_completed, other.highest_completed) + 1
    incomplete = [
        range(max(start, other_start), min(stop, other_stop))
        for start, stop in _incomplete(one, end)
        for other_start, other_stop in _incomplete(other, end)
        if max(start, other_start) < min(stop, other_stop)
    ]
    base = incomplete[0].start if incomplete else end
    return OffsetMap(base, incomplete, end - 1)


def _incomplete(offsets: OffsetMap, end: int) -> list[tuple[int, int]]:
    """The runs below `end` that are not complete."""
    highest = max(offsets.highest_completed + 1, offsets.base)
    runs = [(start, min(stop, end)) for start, stop in offsets.incomplete_within(offsets.base, highest) if start < end]
    return [*runs, (highest, end)] if highest < end else runs


def runs_of(offsets: Iterable[int]) -> Sequence[tuple[int, int]]:
    """Offsets, each once, as runs (begin, end)."""
    runs: list[tuple[int, int]] = []
    begin = end = -1
    for offset in sorted(offsets):
        if offset != end:
            if end > begin:
                runs.append((begin, end))
            begin = offset
        end = offset + 1
    if end > begin:
        runs.append((begin, end))
    return runs
