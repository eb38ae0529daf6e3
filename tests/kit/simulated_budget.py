"""A budget's log in the large: leaders whose clocks differ, members that write with states of their own, and the true
time of everything, for an independent count."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from keylane.budgets.entries import Ask, Cooldown, Hold, Return, Settlement, decode, encode
from keylane.budgets.line import Answer, Granted, Line, Placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.budgets.entries import AnyEntry, Limit

BEGIN_MS = 1_800_000_000_000
"""Of the true time, on the epoch's clock."""


@dataclass
class SimulatedBudget:
    """One log, and who reads all of it from its start."""

    limits: Sequence[Limit]
    lease_ms: int = 2_000
    skews_ms: Sequence[int] = (0,)
    """What each leader's clock is ahead."""
    log: list[Placed] = field(default_factory=list)
    now_ms: int = 0
    """The true time since the beginning."""

    def __post_init__(self) -> None:
        self.line = Line()
        self._epoch = 0
        self._seqs: dict[str, int] = {}
        self.granted: list[tuple[int, int, str, dict[str, int]]] = []
        """True time in ns, place in the log, member and amounts."""

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    def change_leader(self) -> None:
        self._epoch += 1

    def next_seq(self, member: str) -> int:
        self._seqs[member] = self._seqs.get(member, -1) + 1
        return self._seqs[member]

    def append(self, entry: AnyEntry | None) -> Answer | None:
        """As bytes, which are read again."""
        entry = None if entry is None else decode(encode(entry))
        skew_ms = self.skews_ms[self._epoch % len(self.skews_ms)]
        placed = Placed(len(self.log), self._epoch, BEGIN_MS + self.now_ms + skew_ms, entry)
        self.log.append(placed)
        answer = self.line.fold(placed)
        if isinstance(entry, Ask) and isinstance(answer, Granted):
            start_ns = self.now_ms * 1_000_000 + answer.wait_ns
            self.granted.append((start_ns, placed.offset, entry.member, dict(entry.amounts)))
        return answer

    def ask(self, member: str, amounts: dict[str, int], seq: int | None = None) -> Answer | None:
        seq = self.next_seq(member) if seq is None else seq
        return self.append(
            Ask(
                member=member,
                seq=seq,
                state=self.line.state(),
                group="g",
                limits=self.limits,
                amounts=amounts,
                lease_ms=self.lease_ms,
            )
        )

    def give_back(self, member: str, of: int, amounts: dict[str, int]) -> None:
        seq = self.next_seq(member)
        self.append(Return(member=member, seq=seq, state=self.line.state(), of=of, amounts=amounts))

    def settle(self, member: str, amounts: dict[str, int]) -> None:
        seq = self.next_seq(member)
        self.append(Settlement(member=member, seq=seq, state=self.line.state(), limits=self.limits, amounts=amounts))

    def cool(self, member: str, wait_ms: int, began: int) -> None:
        self.append(Cooldown(member=member, seq=self.next_seq(member), wait_ms=wait_ms, began=began))

    def hold(
        self, member: str, wants: int, keeps: int, count: int, lease_ms: int = 10_000, seq: int | None = None
    ) -> None:
        self.append(
            Hold(
                member=member,
                seq=self.next_seq(member) if seq is None else seq,
                state=self.line.state(),
                count=count,
                wants=wants,
                keeps=keeps,
                lease_ms=lease_ms,
            )
        )

    def repeat(self, offset: int) -> Answer | None:
        """The same record once more, as a producer's retry writes it."""
        return self.append(self.log[offset].entry)


def most_in_any(window_ns: int, spent: Sequence[tuple[int, int]]) -> int:
    """The most that any window of this length has, of (time, amount): an independent count."""
    events = sorted(spent)
    most = total = first = 0
    for time_ns, amount in events:
        total += amount
        while events[first][0] < time_ns - window_ns:
            total -= events[first][1]
            first += 1
        most = max(most, total)
    return most


def without_states(placed: Placed) -> Placed:
    """The same record, of a writer that carries no state."""
    return placed if placed.entry is None else placed._replace(entry=replace(placed.entry, state=None))
