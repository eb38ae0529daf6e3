"""`Line`: a budget's state as a fold over its log. Entries go in, in the log's order, and answers come out.

The idea: asks stand in a line and no two race. An ask is answered with the time from which all of it may be spent, so
that a large one waits like a small one. Everybody who reads the log comes to the same answers: there is no leader, and
no clock but that of the log.

    used_to    of a rate: the time up to which it is used up. What lies in the burst before the present may be spent.
    time       flows between two records of one leader epoch alone. Leaders' clocks differ, and with the greatest time
               seen a leader that is a minute behind grants nothing for a minute.
    spent      of a cap: by day, as the records' own times have it.
    slots      calls at once: `keylane.budgets.slots`.

A record that was written twice counts once. Give-backs count while the lease of their ask runs, and no further than it
was granted. The first state of a line is carried by the records themselves (`Line.begin`).

Pure: no clock, no thread, no socket. Thread safety: none; its owner is a client.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from keylane.budgets.entries import MOST_DAYS, MOST_NS, MOST_SPENT, Ask, Cooldown, Hold, Return, Settlement, State
from keylane.budgets.slots import Slots
from keylane.limits import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keylane.budgets.entries import AnyEntry, Limit

K = TypeVar("K")
V = TypeVar("V")

MS = 1_000_000
"""A millisecond in nanoseconds."""

LONGEST_NS = 600 * 1_000 * MS
"""How long the line may be, and how large a debt: behind it an ask is told to come later."""

LONGEST_COOL_NS = 600 * 1_000 * MS
"""Whatever a service asks for."""

SLOW_NS = 10 * 1_000 * MS
"""How long behind a cool-down a cost counts twice, so that all do not come back at once."""

_NEVER = -(1 << 62)

_SLOTS = "at once"
"""Stands for the slots among the names of limits, which have a "/"."""

STATES = 64
"""Of so many last records' states the smallest counts: one writer that is wrong misleads nobody into spending more."""

MOST_MEMBERS = 10_000
MOST_GRANTS = 10_000
MOST_NAMES = 64
"""What is remembered: the oldest is forgotten first, and what is unknown is never given back."""


class Granted(NamedTuple):
    """All of it may be spent, from `wait_ns` behind the ask's own append on."""

    wait_ns: int


class ComeLater(NamedTuple):
    """Nothing was granted: ask again, no sooner than `wait_ns` behind the ask's append."""

    wait_ns: int
    used_up: str | None = None
    """The unit whose cap is used up; None: the line is too long."""


class TooLarge(NamedTuple):
    """It is more than the limit of this unit ever has at once."""

    unit: str


Answer = Granted | ComeLater | TooLarge


class Placed(NamedTuple):
    """A record of the log."""

    offset: int
    epoch: int
    """The leader's."""
    time_ms: int
    """When the leader appended it, by its clock."""
    entry: AnyEntry | None
    """None: it is unreadable, and only its time counts."""


@dataclass(slots=True)
class _Grant:
    left: dict[str, int]
    limits: Sequence[Limit]
    until_ns: int
    day_ms: int


class Level(NamedTuple):
    """How a limit stands."""

    limit: Limit
    available: int
    """Millionths that may be spent now; below 0: a debt, or a line."""
    free_in_ns: int
    """Until something may be spent; 0: now."""


class Line:
    """The fold."""

    def __init__(self) -> None:
        self.offset = -1
        """The last record's that was folded."""
        self._now_ns = 0
        """The time that has flowed."""
        self._epoch: int | None = None
        self._time_ms = 0
        """The last record's."""
        self._used_to_ns: dict[str, int] = {}
        self._spent: dict[str, dict[int, int]] = {}
        self._cool_to_ns = _NEVER
        self._cooled_at = -1
        """The offset of the cool-down that is in force, or was."""
        self._last_seq: dict[str, int] = {}
        self._grants: dict[tuple[str, int], _Grant] = {}
        self._limits: dict[str, Limit] = {}
        """As they were named last."""
        self.slots = Slots()
        """Calls at once."""

    # --- folding ---

    @classmethod
    def begin(
        cls, tail: Sequence[Placed], hear: Callable[[Placed, Answer | None], object] = lambda _, __: None
    ) -> Line:
        """A line that has read the end of a log. Of the last `STATES` states that are carried the smallest counts;
        where there is none, it begins empty. `hear` is told of each record, and of the answer to it."""
        line = cls()
        carried = [(one.offset, one.entry.state) for one in tail[-STATES:] if one.entry is not None]
        states = deque(
            sorted(
                (state for at, state in carried if state is not None and tail[0].offset <= state.as_of < at),
                key=attrgetter("as_of"),
            )
        )
        known: set[str] = set()
        for one in tail:
            while states and states[0].as_of < one.offset:
                line._adopt(states.popleft(), known)
            hear(one, line.fold(one))
        return line

    def fold(self, record: Placed) -> Answer | None:
        """The next record of the log. Returns the answer to an ask; None for anything else, and for what was there
        before."""
        self._flow(record)
        self.offset = record.offset
        entry = record.entry
        if entry is None or self._is_again(entry):
            return None
        self._forget_ended()
        match entry:
            case Ask():
                return self._ask(entry, record.time_ms)
            case Return():
                self._return(entry)
            case Settlement():
                self._settle(entry, record.time_ms)
            case Cooldown():
                self._cool(entry)
            case Hold():
                self.slots.hold(entry, self._now_ns)
        return None

    def _flow(self, record: Placed) -> None:
        if record.epoch == self._epoch:
            self._now_ns += max(0, record.time_ms - self._time_ms) * MS
        self._epoch = record.epoch
        self._time_ms = record.time_ms
        self.slots.forget_ended(self._now_ns)

    def _is_again(self, entry: AnyEntry) -> bool:
        """Whether it was written twice, or an older one comes behind a newer one of its member."""
        last = self._last_seq.pop(entry.member, -1)
        self._last_seq[entry.member] = max(last, entry.seq)
        _keep_newest(self._last_seq, MOST_MEMBERS)
        return entry.seq <= last

    def _forget_ended(self) -> None:
        while self._grants and next(iter(self._grants.values())).until_ns < self._now_ns:
            del self._grants[next(iter(self._grants))]
        _keep_newest(self._grants, MOST_GRANTS)

    # --- entries ---

    def _ask(self, ask: Ask, time_ms: int) -> Answer:
        self._learn(ask.limits)
        for limit in ask.limits:
            if ask.amounts.get(limit.unit, 0) > (limit.burst if limit.per_ms else limit.count):
                return TooLarge(limit.unit)
        later = self._later(ask, time_ms)
        if later is not None:
            return later
        rates = [(limit, ask.amounts.get(limit.unit, 0)) for limit in ask.limits if limit.per_ms]
        is_slow = self._start(rates, 1) < self._cool_to_ns + SLOW_NS
        start_ns = self._spend(rates, 2 if is_slow else 1)
        for limit in ask.limits:
            if not limit.per_ms:
                self._count(limit, time_ms, ask.amounts.get(limit.unit, 0))
        until_ns = start_ns + ask.lease_ms * MS
        self._grants[ask.member, ask.seq] = _Grant(dict(ask.amounts), ask.limits, until_ns, time_ms)
        return Granted(start_ns - self._now_ns)

    def _later(self, ask: Ask, time_ms: int) -> ComeLater | None:
        for limit in ask.limits:
            amount = ask.amounts.get(limit.unit, 0)
            if not limit.per_ms and amount and self._spent_on(limit, time_ms) + amount > limit.count:
                left_ms = DAY_MS - (time_ms + limit.ahead_ms) % DAY_MS
                return ComeLater(left_ms * MS, limit.unit)
        line_ns = max(
            (self._used_to(one) - self._now_ns for one in ask.limits if one.per_ms and ask.amounts.get(one.unit)),
            default=0,
        )
        return ComeLater(line_ns - LONGEST_NS) if line_ns > LONGEST_NS else None

    def _start(self, rates: Iterable[tuple[Limit, int]], times: int) -> int:
        """When all of it may be spent."""
        start_ns = max(self._now_ns, self._cool_to_ns)
        for limit, amount in rates:
            if amount:
                start_ns = max(start_ns, self._used_to(limit) + times * limit.time_ns(amount))
        return start_ns

    def _spend(self, rates: Sequence[tuple[Limit, int]], times: int) -> int:
        """It is spent then, at so many times its cost. Returns when that is."""
        start_ns = self._start(rates, times)
        for limit, amount in rates:
            if amount:
                used_ns = max(self._used_to(limit), start_ns - limit.burst_ns)
                self._used_to_ns[limit.name] = used_ns + times * limit.time_ns(amount)
        return start_ns

    def _return(self, given: Return) -> None:
        grant = self._grants.get((given.member, given.of))
        if grant is None or grant.until_ns < self._now_ns:
            return
        for unit, amount in given.amounts.items():
            back = min(amount, grant.left.get(unit, 0))
            if not back:
                continue
            grant.left[unit] -= back
            for limit in grant.limits:
                if limit.unit != unit:
                    continue
                if limit.per_ms:
                    back_ns = back * limit.per_ms * MS // limit.count
                    self._used_to_ns[limit.name] = self._used_to(limit) - back_ns
                else:
                    self._count(limit, grant.day_ms, -back)

    def _settle(self, settled: Settlement, time_ms: int) -> None:
        self._learn(settled.limits)
        for limit in settled.limits:
            amount = settled.amounts.get(limit.unit, 0)
            if not limit.per_ms:
                self._count(limit, time_ms, amount)
            elif amount:
                used_ns, most_ns = self._used_to(limit), self._now_ns + self._longest_ns
                self._used_to_ns[limit.name] = max(used_ns, min(used_ns + limit.time_ns(amount), most_ns))

    def _cool(self, asked: Cooldown) -> None:
        """What began before the last one was known says nothing new."""
        if asked.began < self._cooled_at:
            return
        self._cooled_at = self.offset
        self._cool_to_ns = max(self._cool_to_ns, self._now_ns + min(asked.wait_ms * MS, LONGEST_COOL_NS))
        for name, used_ns in self._used_to_ns.items():
            self._used_to_ns[name] = max(used_ns, self._cool_to_ns)  # it begins empty

    # --- limits ---

    def _learn(self, limits: Iterable[Limit]) -> None:
        for limit in limits:
            self._limits.pop(limit.name, None)
            self._limits[limit.name] = limit
            if limit.per_ms:
                used_ns = self._used_to_ns.pop(limit.name, max(self._now_ns, self._cool_to_ns))
                self._used_to_ns[limit.name] = used_ns
        _keep_newest(self._limits, MOST_NAMES)
        _keep_newest(self._used_to_ns, MOST_NAMES)
        _keep_newest(self._spent, MOST_NAMES)

    def _used_to(self, limit: Limit) -> int:
        """A bucket that is full stays so."""
        full_ns = self._now_ns - limit.burst_ns
        return max(self._used_to_ns.get(limit.name, self._now_ns), full_ns)

    @property
    def _longest_ns(self) -> int:
        """How far ahead of the present a rate can be used up: by a line, and what the last one in it takes."""
        return LONGEST_NS + 2 * max((limit.burst_ns for limit in self._limits.values()), default=0)

    def _spent_on(self, limit: Limit, time_ms: int) -> int:
        return self._spent.get(limit.name, {}).get((time_ms + limit.ahead_ms) // DAY_MS, 0)

    def _count(self, limit: Limit, time_ms: int, amount: int) -> None:
        day = (time_ms + limit.ahead_ms) // DAY_MS
        days = self._spent.setdefault(limit.name, {})
        days[day] = min(MOST_SPENT, max(0, days.pop(day, 0) + amount))
        _keep_newest(days, MOST_DAYS)

    # --- the state that travels ---

    def state(self) -> State | None:
        """As of the last record; None before the first one."""
        if self.offset < 0:
            return None
        now_ns = self._now_ns
        return State(
            self.offset,
            {name: max(-MOST_NS, min(MOST_NS, used_ns - now_ns)) for name, used_ns in self._used_to_ns.items()},
            {name: tuple(days.items()) for name, days in self._spent.items() if days},
            None if self._cool_to_ns <= now_ns - SLOW_NS else self._cool_to_ns - now_ns,
            self.slots.state(now_ns),
        )

    def _adopt(self, state: State, known: set[str]) -> None:
        """A state that a record carries, of this place: the first one counts, and of others what is smaller."""
        now_ns = self._now_ns
        for name, lead_ns in state.leads_ns.items():
            used_ns = now_ns + min(lead_ns, self._longest_ns)
            self._used_to_ns[name] = max(self._used_to_ns.get(name, used_ns), used_ns) if name in known else used_ns
            known.add(name)
        for name, of_days in state.spent.items():
            days = self._spent.setdefault(name, {})
            for day, spent in of_days:
                days[day] = max(days.pop(day, 0), spent)
            _keep_newest(days, MOST_DAYS)
        if state.cool_ns is not None:
            self._cool_to_ns = max(self._cool_to_ns, now_ns + min(state.cool_ns, LONGEST_COOL_NS))
        if state.slots is not None:
            self.slots.adopt(state.slots, now_ns, is_first=_SLOTS not in known)
            known.add(_SLOTS)

    # --- what is seen from outside ---

    def was_cooled_by(self, record: Placed) -> bool:
        """Whether this one began or extended the cool-down."""
        return self._cooled_at == record.offset

    @property
    def cool_ns(self) -> int:
        """How much longer nothing starts."""
        return max(0, self._cool_to_ns - self._now_ns)

    def levels(self) -> list[Level]:
        """How each limit stands at the last record."""
        return [self._level(limit) for limit in self._limits.values()]

    def _level(self, limit: Limit) -> Level:
        if not limit.per_ms:
            left = limit.count - self._spent_on(limit, self._time_ms)
            free_ms = 0 if left > 0 else DAY_MS - (self._time_ms + limit.ahead_ms) % DAY_MS
            return Level(limit, left, free_ms * MS)
        used_ns = max(self._used_to(limit), self._cool_to_ns)
        available = (self._now_ns - used_ns) * limit.count // (limit.per_ms * MS)
        return Level(limit, available, max(0, used_ns - self._now_ns))


def _keep_newest(entries: dict[K, V], most: int) -> None:
    while len(entries) > most:
        del entries[next(iter(entries))]
