"""Members of a budget with calls at once, who die and stand still. Time is simulated; each reads the log some time
behind the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from keylane.budgets.running import Running
from keylane.limits import AtOnce
from kit.simulated_budget import SimulatedBudget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from keylane.budgets.slots import Share

TURN_MS = 20


class _Member:
    def __init__(self, limit: AtOnce, demand: int, lag_ms: int) -> None:
        self.running = Running(limit)
        self.demand = demand
        self.lag_ms = lag_ms
        self.read_to = 0
        self.calls: dict[int, int] = {}
        """When each ends."""
        self.is_alive = True
        self.frozen_to_ms = 0
        self.lease_until = 0.0
        self.sent_s: dict[int, float] = {}
        """When each record of its own was sent."""


class Members:
    """Who wants as many calls as `demands` says; all that there are, by default."""

    def __init__(
        self,
        count: int,
        number: int,
        random: Random,
        *,
        call_ms: int = 300,
        skews_ms: Sequence[int] = (0,),
        demands: Mapping[str, int] | None = None,
    ) -> None:
        self.limit = AtOnce(count)
        self.world = SimulatedBudget((), skews_ms=skews_ms)
        self.random = random
        self.call_ms = call_ms
        self.names = [f"m{number}" for number in range(number)]
        demands = demands or {}
        self._members = {
            name: _Member(self.limit, demands.get(name, count), random.randint(0, 80)) for name in self.names
        }
        self._appended: list[tuple[int, str, int, dict[str, Share]]] = []
        """By record: when, whose, its sequence, and the shares behind it."""
        self._number = 0
        self.begun: Counter[str] = Counter()

    @property
    def now(self) -> float:
        return self.world.now_ms / 1_000

    def at_once(self) -> int:
        """Calls that run, but for those whose member has no lease any more."""
        return sum(len(one.calls) for one in self._members.values() if self.now < one.lease_until)

    def running(self) -> dict[str, int]:
        return {name: len(one.calls) for name, one in self._members.items()}

    def kill(self, name: str) -> None:
        self._members[name].is_alive = False

    def disturb(self) -> None:
        """One dies, and another one comes; one stands still; the leader changes."""
        name = self.random.choice([name for name, one in self._members.items() if one.is_alive])
        what = self.random.choice(["kill", "freeze", "leader"])
        if what == "kill":
            self.kill(name)
            newcomer = f"n{self._number}"
            self._members[newcomer] = _Member(self.limit, self.limit.count, self.random.randint(0, 80))
            self._members[newcomer].read_to = len(self._appended)
        elif what == "freeze":
            self._members[name].frozen_to_ms = self.world.now_ms + self.random.randint(100, 20_000)
        else:
            self.world.change_leader()

    def turn(self) -> None:
        self.world.pass_time(TURN_MS)
        self._number += 1
        for name, one in self._members.items():
            if one.is_alive and self.world.now_ms >= one.frozen_to_ms:
                self._turn_of(name, one)

    def _turn_of(self, name: str, one: _Member) -> None:
        now, now_ms = self.now, self.world.now_ms
        for call in [call for call, end_ms in one.calls.items() if end_ms <= now_ms]:
            del one.calls[call]
            one.running.end(call)
        self._read(name, one)
        while len(one.calls) < one.demand:
            if not one.running.room(now):
                one.running.lack(now)
                break
            self._number += 1
            one.running.begin(self._number, now)
            one.calls[self._number] = now_ms + self.random.randint(self.call_ms // 2, self.call_ms * 3 // 2)
            self.begun[name] += 1
        seq = self.world.next_seq(name)
        if (wish := one.running.ask(seq, now)) is not None:
            one.sent_s[seq] = now
            self.world.hold(name, wish.wants, wish.keeps, self.limit.count, self.limit.lease_ms, seq)
            shares = {member: self.world.line.slots.share_of(member) for member in self._members}
            self._appended.append((now_ms, name, seq, shares))

    def _read(self, name: str, one: _Member) -> None:
        while one.read_to < len(self._appended):
            at_ms, whose, seq, shares = self._appended[one.read_to]
            if at_ms + one.lag_ms > self.world.now_ms:
                return
            one.read_to += 1
            one.running.read(shares[name], self.now, seq if whose == name else None)
            if whose == name:
                one.lease_until = one.sent_s[seq] + self.limit.lease_ms / 1_000
