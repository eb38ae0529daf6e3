"""What the group has committed, held against what the store has seen of it: offset maps in, findings out.

The idea: the store is told what a commit will say before that is sent, in a transaction after those of the effects that
it speaks of. A database goes back in time to a state that it once had, so that whoever finds a position in it finds the
effects too. So what the group has committed and the store has not seen may lack its effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.consumer.start import cut_at
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


def position_of(offsets: OffsetMap, leader_epoch: int = -1) -> Position:
    return Position(offsets.base, encode(offsets), leader_epoch)


class Seen(NamedTuple):
    """What a store has seen of the group's commits."""

    offsets: OffsetMap
    leader_epoch: int = -1
    """As of the position."""

    @classmethod
    def of(cls, position: Position | None) -> Seen | None:
        return None if position is None else cls(map_of(position), position.leader_epoch)

    def cut_at(self, offset: int) -> Seen:
        """Of a log that has other records from there on."""
        if offset <= self.offsets.base:
            return self._replace(offsets=OffsetMap(offset))
        return self._replace(offsets=cut_at(self.offsets, min(offset, self.offsets.highest_completed + 1)))

    def has_lost(self, before: Seen) -> bool:
        """Whether this is what a store said before it said `before`. What a later leader has in the log replaces what
        an earlier one had."""
        return self.leader_epoch <= before.leader_epoch and bool(unseen(before.offsets, self.offsets))

    def after(self, committed: OffsetMap, leader_epoch: int) -> Seen:
        """Once this is about to be committed; of a log with a later leader it is all that is known."""
        if leader_epoch > self.leader_epoch >= 0:
            return Seen(committed, leader_epoch)
        return Seen(joined(self.offsets, committed), max(leader_epoch, self.leader_epoch))


def before_all(log_start: int, committed: OffsetMap, leader_epoch: int) -> OffsetMap:
    """What a store that knows nothing of the group may be without: a commit with a leader epoch is of a member that has
    read the log below it; of one without, nobody knows below the log's start, where an operator may have set it."""
    return OffsetMap(0 if leader_epoch >= 0 else min(log_start, committed.base))


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
