"""`Slots`: how many calls each member may have at once, as a part of the fold over a budget's log.

The idea: a member says how many it wants, and how many it keeps at most. Nobody takes away what it keeps, and what is
free goes to those that have less than their share. Shares are equal, but nobody has a share of more than it wants; what
cannot be divided goes round. What a member has is its own until its lease ends, and it renews that before.

Pure: time is passed in, as the log's. Thread safety: none; its owner is a `Line`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from keylane.budgets.entries import MOST_SLOT_MEMBERS, SlotsState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.budgets.entries import Hold

MS = 1_000_000
"""A millisecond in nanoseconds."""


class Share(NamedTuple):
    """What a member has, and what is its part of all."""

    has: int
    part: int
    is_short: bool = False
    """Whether all want more than there is."""

    @property
    def usable(self) -> int:
        """What more than its part it has is given to others, as its calls end."""
        return min(self.has, self.part)


@dataclass(slots=True)
class _Member:
    wants: int
    has: int
    until_ns: int


class Slots:
    """Of one budget."""

    def __init__(self) -> None:
        self.count = 0
        """Of all; 0: nobody has asked for any."""
        self._members: dict[str, _Member] = {}
        """In turn: what cannot be divided goes to the first."""

    # --- folding ---

    def forget_ended(self, now_ns: int) -> None:
        """Leases that are over have nothing any more."""
        ended = [name for name, one in self._members.items() if one.until_ns < now_ns]
        for name in ended:
            del self._members[name]
        if ended:
            self._divide()

    def hold(self, asked: Hold, now_ns: int) -> None:
        """A member says what it wants and keeps."""
        self.count = asked.count
        one = self._members.get(asked.member)
        if one is None:
            if len(self._members) >= MOST_SLOT_MEMBERS:
                return
            one = self._members[asked.member] = _Member(0, 0, 0)
        one.wants = asked.wants
        one.has = min(one.has, asked.keeps)
        one.until_ns = now_ns + asked.lease_ms * MS
        if one.has > self._level()[0]:  # it had its turn; who waits for one keeps its place
            self._members[asked.member] = self._members.pop(asked.member)
        if not one.has and not one.wants:
            del self._members[asked.member]
        self._divide()

    def _divide(self) -> None:
        """What is free goes to those that have less than their part."""
        free = self.count - self.taken
        for name, part in self._parts().items():
            one = self._members[name]
            more = max(0, min(part - one.has, free))
            one.has += more
            free -= more

    def _level(self) -> tuple[int, int]:
        """What each may have that wants so many, and how many of those may have one more."""
        wants = sorted(one.wants for one in self._members.values())
        left, level = self.count, 0
        for place, most in enumerate(wants):
            if left < (most - level) * (len(wants) - place):
                break
            left -= (most - level) * (len(wants) - place)
            level = most
        lacking = sum(one > level for one in wants)
        return (level + left // lacking, left % lacking) if lacking else (level, 0)

    def _parts(self) -> Mapping[str, int]:
        """Of each in turn."""
        level, left = self._level()
        parts = {}
        for name, one in self._members.items():
            gets_more = one.wants > level and left > 0
            left -= gets_more
            parts[name] = min(one.wants, level) + gets_more
        return parts

    # --- what is seen ---

    @property
    def taken(self) -> int:
        return sum(one.has for one in self._members.values())

    @property
    def members(self) -> Mapping[str, int]:
        """Those that have some, and how many."""
        return {name: one.has for name, one in self._members.items() if one.has}

    def share_of(self, member: str) -> Share:
        one = self._members.get(member)
        is_short = sum(each.wants for each in self._members.values()) > self.count
        return Share(0, 0, is_short) if one is None else Share(one.has, self._parts()[member], is_short)

    # --- the state that travels ---

    def state(self, now_ns: int) -> SlotsState | None:
        if not self.count:
            return None
        members = tuple((name, one.wants, one.has, one.until_ns - now_ns) for name, one in self._members.items())
        return SlotsState(self.count, members)

    def adopt(self, state: SlotsState, now_ns: int, *, is_first: bool) -> None:
        """A state that a record carries, of this place: the first one counts, and of others what leaves less free."""
        if is_first:
            self._members.clear()
        self.count = state.count
        for name, wants, has, left_ns in state.members:
            if name not in self._members and len(self._members) >= MOST_SLOT_MEMBERS:
                continue
            one = self._members.setdefault(name, _Member(wants, 0, now_ns))
            one.has = max(one.has, has)
            one.until_ns = max(one.until_ns, now_ns + left_ns)
