"""`Running`: which calls of a member run, how many may, and what it asks for next.

The idea: a member wants about twice as many slots as it uses while something lacks one, and else what it uses. It
starts nothing beyond its part, so that others get what is theirs as its calls end. What it has is good while its lease
runs, which counts from the sending; behind it what runs goes on, and nothing starts.

Pure: time is passed in, in seconds of a monotonic clock. Thread safety: none; its owner is a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.budgets.purse import AWAY_S, LOOK_S, LOST_S
from keylane.budgets.slots import Share

if TYPE_CHECKING:
    from collections.abc import Hashable

    from keylane.limits import AtOnce

RENEW_AT = 1 / 3
"""Of a lease: then it is renewed, so that two records may be lost."""

RECENT_S = 1.0
"""How long what ran at once, or lacked a slot, says what is wanted."""

AGAIN_S = 0.05
"""The least time between two records that ask for more, or let others have some."""


class Wish(NamedTuple):
    """What a record says."""

    wants: int
    keeps: int


class _Out(NamedTuple):
    """A record that has not been read again."""

    seq: int
    sent_s: float
    wish: Wish


class Running:
    """Of one member and one budget."""

    def __init__(self, limit: AtOnce) -> None:
        self._count = limit.count
        self._lease_s = limit.lease_ms / 1000
        self._calls: set[Hashable] = set()
        self._share = Share(0, 0)
        self._until_s = 0.0
        """When its lease ends."""
        self._paused_to = 0.0
        self._out: _Out | None = None
        self._sent_s = float("-inf")
        self._gained_s = float("-inf")
        """When it was given more last: its turn begins then."""
        self._said = Wish(0, 0)
        """What its last record said."""
        self._lacked_s = float("-inf")
        """When something lacked a slot last."""
        self._peaks = (0, 0)
        """How many ran at once, in the last `RECENT_S` and before."""
        self._peaks_s = 0.0

    # --- calls ---

    def room(self, now: float) -> int:
        """How many may start."""
        if now < self._paused_to or now >= self._until_s:
            return 0
        most = self._share.usable
        if self._out is not None:
            most = min(most, self._out.wish.keeps)
        return max(0, most - len(self._calls))

    def lack(self, now: float) -> float:
        """Something waits for a slot. Returns when to look again."""
        self._lacked_s = now
        return max(self._paused_to, now + LOOK_S)

    def begin(self, call: Hashable, now: float) -> None:
        self._calls.add(call)
        self._pass_time(now)
        self._peaks = (max(self._peaks[0], len(self._calls)), self._peaks[1])

    def end(self, call: Hashable) -> None:
        self._calls.discard(call)

    def pause(self, until_s: float) -> None:
        """Nothing starts until then: the service wants to be left alone."""
        self._paused_to = max(self._paused_to, until_s)

    def _pass_time(self, now: float) -> None:
        if now >= self._peaks_s + RECENT_S:
            latest = self._peaks[0] if now < self._peaks_s + 2 * RECENT_S else len(self._calls)
            self._peaks, self._peaks_s = (len(self._calls), latest), now

    # --- what is asked for ---

    @property
    def is_busy(self) -> bool:
        """Whether there is something to see to before long."""
        return bool(self._calls or self._said.wants or self._share.has or self._out is not None)

    def is_away(self, now: float) -> bool:
        """Whether its last record has not been read again for long."""
        return self._out is not None and now >= self._out.sent_s + AWAY_S

    def _wanted(self, now: float) -> int:
        self._pass_time(now)
        used = max(self._peaks)
        return min(self._count, 2 * (used + 1) if now < self._lacked_s + RECENT_S else used)

    def ask(self, seq: int, now: float) -> Wish | None:
        """What to say now, in a record of this sequence."""
        if self._out is not None and now >= self._out.sent_s + LOST_S:
            self._out = None
        wish = Wish(self._wanted(now), max(len(self._calls), self._share.usable))
        if self._out is not None or not self._is_due(wish, now):
            return None
        self._out, self._sent_s, self._said = _Out(seq, now, wish), now, wish
        return wish

    def _is_due(self, wish: Wish, now: float) -> bool:
        renew_s = min(max(self._sent_s, self._gained_s), self._sent_s + RENEW_AT * self._lease_s)
        if now >= renew_s + RENEW_AT * self._lease_s:
            return bool(wish.wants or self._said.wants or self._share.has)
        has_less = wish.wants < self._said.wants and (self._share.is_short or not wish.wants)
        gives = has_less or (self._share.is_short and wish.keeps < self._share.has)
        gets_more = wish.wants > self._said.wants <= self._share.part  # else its part is no larger for that
        return (gets_more or gives) and now >= self._sent_s + AGAIN_S

    def last(self) -> Wish | None:
        """What to say at the end."""
        return Wish(0, len(self._calls)) if self._said.wants or self._share.has else None

    def read(self, share: Share, now: float, seq: int | None = None) -> None:
        """What the log gives it; `seq`: by this record of its own."""
        if share.has > self._share.has:
            self._gained_s = now
        self._share = share
        if self._out is not None and self._out.seq == seq:
            self._until_s = self._out.sent_s + self._lease_s
            self._out = None

    def lose_ask(self) -> None:
        """The log that it was asked in is no more."""
        self._out = None
        self._share = Share(0, 0)
