"""`Purse`: what one member may spend of a budget now, and what it asks for next.

The idea: a member asks for about a second's work at once, so that a thousand members make a few asks a second. What it
was granted is good while its lease runs, which counts from the sending of the ask; what is left near the lease's end is
given back. The first that lacks something is served first, however large it is, and who comes after it spends only what
is beyond that.

While no broker answers, rates go on with the share that the member had last; money waits.

Pure: time is passed in, in seconds of a monotonic clock. Thread safety: none; its owner is a client.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from keylane.budgets.line import ComeLater, Granted
from keylane.limits import ONE, Cap, Per, millionths

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from keylane.budgets.line import Answer
    from keylane.limits import Budget

BLOCK_S = 1.0
"""A block is what is spent in this time."""

LOOK_S = 0.02
"""How often what lacks something is looked at, while nobody knows when its turn comes."""

GIVEN_BACK_AT = 0.4
"""Of a lease: what is left then is given back, so that it comes in time."""

FORGET_S = 2.0
"""After which one that lacked something, and did not come again, keeps nothing for itself any more."""

AWAY_S = 10.0
"""An ask without an answer for so long: no broker is there."""

LOST_S = 65.0
"""An ask without an answer for so long was given up by its writer, after 60 s: another one is written."""

SHARE_S = 60.0
"""Over which a member's share is counted."""

NO_LIMIT = 1 << 30
"""How many may start where nothing costs anything."""

LONGEST_WAIT_S = 30.0
"""After which it is asked again, whatever was answered."""

Amounts = dict[str, int]


class GiveBack(NamedTuple):
    """What is left of the grant to the ask of this sequence."""

    of: int
    amounts: Amounts


@dataclass(slots=True, eq=False)
class _Grant:
    seq: int
    left: Amounts
    from_s: float
    until_s: float


class _Out(NamedTuple):
    """An ask that has no answer."""

    seq: int
    sent_s: float
    amounts: Amounts


class Purse:
    """Of one member and one budget."""

    def __init__(self, budget: Budget, now: float) -> None:
        self._lease_s = budget.lease_ms / 1000
        self._most: Amounts = {}
        """Of a block, by unit; empty where there are no amounts."""
        for one in budget.limits:
            most = one.count
            if isinstance(one, Per):
                most = min(one.most_at_once, max(one.count * BLOCK_S * 1000 / one.per_ms, 1 / ONE))
            amount = millionths("most", most)
            self._most[one.unit] = min(amount, self._most.get(one.unit, amount))
        self._has_cap = any(isinstance(one, Cap) for one in budget.limits)
        self._grants: deque[_Grant] = deque()
        self._out: _Out | None = None
        self._away = False
        self._first: tuple[Hashable, Amounts, float] | None = None
        """The first that lacks something, and when it is to come again."""
        self._blocked_to = 0.0
        self._ask_at = 0.0
        self._is_modest = False
        """Whether it is asked for the first one alone: more is left of no day."""
        self._paid: dict[Hashable, list[tuple[_Grant, str, int]]] = {}
        """What each that has not ended has spent of which grant."""
        self._windows: deque[tuple[float, Amounts]] = deque()
        """What was spent, by second."""
        self._last_cost: Amounts = {}
        self._owed: Amounts = {}
        self._looked_s = now
        self._share: Amounts = {}
        """What it spent in `SHARE_S` before there was no broker."""
        self.used_up: tuple[str, float] | None = None
        """The unit whose cap is used up, and until when."""

    @property
    def is_busy(self) -> bool:
        """Whether there is something to see to before long."""
        return bool(self._grants) or self._out is not None or self._first is not None or bool(self._owed)

    @property
    def is_away(self) -> bool:
        """Whether its last ask has had no answer for long."""
        return self._away

    # --- spending ---

    def room(self, now: float) -> int:
        """About how many may start."""
        if not self._most:
            return NO_LIMIT
        if now < self._blocked_to:
            return 0
        left = self._left(now)
        counts = [left.get(unit, 0) // amount for unit, amount in self._last_cost.items() if amount]
        return max(1, min(counts, default=1))

    def due(self) -> float:
        """When to look again."""
        return self._blocked_to

    def spend(self, who: Hashable, amounts: Mapping[str, int], now: float) -> float | None:
        """Spend it: None; or when to come again."""
        self._last_cost = dict(amounts)
        self._forget_ended(now)
        first = self._first
        kept = {} if first is None or first[0] == who else first[1]
        left = self._left(now)
        if all(left.get(unit, 0) >= amount + kept.get(unit, 0) for unit, amount in amounts.items() if amount):
            self._paid[who] = self._take(amounts, now)
            if first is not None and first[0] == who:
                self._first = None
            return None
        unknown_s = max(now + LOOK_S, min(self._ask_at, now + 1))
        self._blocked_to = min((one.from_s for one in self._grants if one.from_s > now), default=unknown_s)
        if first is None or first[0] == who:
            self._first = (who, dict(amounts), self._blocked_to)
        return self._blocked_to

    def _left(self, now: float) -> Amounts:
        left: Amounts = {}
        for grant in self._grants:
            if grant.from_s <= now < grant.until_s:
                for unit, amount in grant.left.items():
                    left[unit] = left.get(unit, 0) + amount
        return left

    def _take(self, amounts: Mapping[str, int], now: float) -> list[tuple[_Grant, str, int]]:
        if not self._windows or now >= self._windows[-1][0] + 1:
            self._windows.append((now, {}))
            while self._windows[0][0] < now - SHARE_S:
                self._windows.popleft()
        spent, parts = self._windows[-1][1], []
        for unit, amount in amounts.items():
            spent[unit] = spent.get(unit, 0) + amount
            lacking = amount
            for grant in self._grants:
                if lacking and grant.from_s <= now < grant.until_s:
                    part = min(lacking, grant.left.get(unit, 0))
                    grant.left[unit] = grant.left.get(unit, 0) - part
                    if grant.seq < 0:  # nobody has granted it
                        self.owe({unit: part})
                    elif part:
                        parts.append((grant, unit, part))
                    lacking -= part
        return parts

    def end(self, who: Hashable, *, has_run: bool) -> None:
        """What it spent for has ended. Where it has not run, what it spent may be spent while its lease runs."""
        parts = self._paid.pop(who, ())
        for grant, unit, part in () if has_run else parts:
            grant.left[unit] = grant.left.get(unit, 0) + part
            if grant not in self._grants:
                self._grants.appendleft(grant)
            self._blocked_to = 0.0

    def _forget_ended(self, now: float) -> None:
        self._grants = deque(one for one in self._grants if now < one.until_s and any(one.left.values()))
        if self._first is not None and now > self._first[2] + FORGET_S:
            self._first = None

    def owe(self, amounts: Mapping[str, int]) -> None:
        """More was spent than was granted."""
        for unit, amount in amounts.items():
            if amount:
                self._owed[unit] = self._owed.get(unit, 0) + amount

    def pop_owed(self) -> Amounts:
        """What is to be settled, once a broker is there."""
        if self._away:
            return {}
        owed, self._owed = self._owed, {}
        return owed

    # --- asking ---

    def ask(self, seq: int, now: float) -> Amounts | None:
        """What to ask for now, in a record of this sequence."""
        if self._out is not None and not self._away and now >= self._out.sent_s + AWAY_S:
            self._away = True
            self._looked_s = now
            self._share = self._spent_before(self._out.sent_s)
        if self._away:
            self._grant_share(now)
        if self._out is not None and now >= self._out.sent_s + LOST_S:
            self._out = None
        if self._out is not None or now < self._ask_at:
            return None
        amounts = self._wanted(now)
        if amounts is None:
            return None
        self._out = _Out(seq, now, amounts)
        return amounts

    def _wanted(self, now: float) -> Amounts | None:
        first: Amounts = {} if self._first is None else self._first[1]
        recent = self._recent(now)
        coming: Amounts = {}
        for grant in self._grants:
            for unit, amount in grant.left.items():
                coming[unit] = coming.get(unit, 0) + amount
        lacks = any(coming.get(unit, 0) < amount for unit, amount in first.items())
        if not lacks and not any(coming.get(unit, 0) < amount // 2 for unit, amount in recent.items()):
            return None
        if self._is_modest:
            return dict(first) or None
        block = {unit: max(first.get(unit, 0), min(2 * recent.get(unit, 0), most)) for unit, most in self._most.items()}
        return {unit: amount for unit, amount in block.items() if amount} or None

    def _recent(self, now: float) -> Amounts:
        """What was spent in the last second or two, a second."""
        recent: Amounts = {}
        for begin_s, spent in list(self._windows)[-2:]:
            if now - begin_s < 2 * BLOCK_S:
                for unit, amount in spent.items():
                    recent[unit] = max(recent.get(unit, 0), amount)
        return recent

    def answered(self, seq: int, answer: Answer | None, now: float) -> None:
        """What the log says to an ask; None: it was not written."""
        out = self._out
        if out is None or out.seq != seq:
            return
        self._out = None
        if self._away and answer is not None:
            self._away = False
            self._grants = deque(one for one in self._grants if one.seq >= 0)
        if isinstance(answer, Granted):
            wait_s = answer.wait_ns / 1e9
            self._grants.append(_Grant(seq, out.amounts, now + wait_s, out.sent_s + wait_s + self._lease_s))
            self._blocked_to = min(self._blocked_to, now + wait_s)
            self._is_modest = False
            self.used_up = None
        elif isinstance(answer, ComeLater):
            first: Amounts = {} if self._first is None else self._first[1]
            if answer.used_up is not None and not self._is_modest and out.amounts != first:
                self._is_modest = True
                return
            self._ask_at = now + min(answer.wait_ns / 1e9, LONGEST_WAIT_S)
            self.used_up = None if answer.used_up is None else (answer.used_up, now + answer.wait_ns / 1e9)

    def lose_ask(self) -> None:
        """The log that it was asked in is no more."""
        self._out = None

    # --- what is not spent ---

    def give_back(self, now: float, *, all_of_it: bool = False) -> list[GiveBack]:
        """What is left of leases that are about to end, or of all of them; never behind their end."""
        given, kept = [], deque[_Grant]()
        for grant in self._grants:
            left_s = grant.until_s - now
            if grant.seq < 0 or (left_s > GIVEN_BACK_AT * self._lease_s and not all_of_it):
                kept.append(grant)
            elif left_s > 0 and any(grant.left.values()):
                given.append(GiveBack(grant.seq, {unit: amount for unit, amount in grant.left.items() if amount}))
        self._grants = kept
        return given

    def void(self) -> None:
        """All that was granted is not to be spent: the service wants to be left alone."""
        self._grants.clear()
        self._paid.clear()

    # --- without a broker ---

    def _grant_share(self, now: float) -> None:
        """As much as it spent a second before, since the last look."""
        elapsed_s, self._looked_s = now - self._looked_s, now
        if self._has_cap:
            return
        first: Amounts = {} if self._first is None else self._first[1]
        mine = next((one for one in self._grants if one.seq < 0), None)
        if mine is None:
            mine = _Grant(-1, {}, now, inf)
            self._grants.append(mine)
        for unit, amount in self._share.items():
            most = max(first.get(unit, 0), self._most.get(unit, 0))
            mine.left[unit] = min(most, mine.left.get(unit, 0) + int(amount * elapsed_s / SHARE_S))

    def _spent_before(self, end_s: float) -> Amounts:
        total: Amounts = {}
        for begin_s, spent in self._windows:
            for unit, amount in spent.items() if begin_s >= end_s - SHARE_S else ():
                total[unit] = total.get(unit, 0) + amount
        return total
