"""What `keylane.Rates` promise, checked on its own terms: levels that fill with time and lose one for every start.

The engine keeps times, not levels, so the two have no arithmetic in common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from keylane.flow.keys import KeyRule
    from keylane.options import Rates
    from keylane.records import PlainMessage
    from kit.seam import Item

_ROUNDING = 1e-6


class KeyOracle:
    """The same for what an operator says of keys: which start, and how fast. Sees every start."""

    def __init__(self, rules: Sequence[KeyRule]) -> None:
        self.rules = rules
        self._levels: dict[KeyRule, tuple[float, float]] = {}

    def is_skipped(self, record: PlainMessage) -> bool:
        about = [one.do for one in self.rules if one.where.holds(record)]
        return "skip" in about and "hold" not in about

    def starts(self, record: PlainMessage, now: float) -> str | None:
        """A record's turn has come; which rule that breaks, if one."""
        about = [one for one in self.rules if one.where.holds(record)]
        if stops := [one for one in about if one.do != "limit"]:
            return f"it is {stops[0]}"
        limits = [(one.per_s, one) for one in about if one.per_s is not None]
        if not limits:
            return None
        per_s, rule = min(limits, key=lambda one: one[0])
        most = max(1.0, per_s * BURST_S)
        left, since = self._levels.get(rule, (most, now))
        left = min(most, left + (now - since) * per_s) - 1
        self._levels[rule] = (left, now)
        return f"it is {rule}" if left < -_ROUNDING else None


BURST_S = 0.1


class RateOracle:
    """Sees every start. Times are seconds."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._levels: dict[Hashable, tuple[float, float]] = {}
        """By what is limited: what was left at its last start, and when that was."""

    def starts(self, item: Item, now: float) -> str | None:
        """A record's handler may begin now; which rate that breaks, if one."""
        rates, key = self._rates, item.message.key()
        limits: list[tuple[Hashable, float | None]] = [
            ("all", rates.records_per_s),
            (("partition", item.name, item.epoch), rates.per_partition),
            (("key", item.name, item.epoch, key), None if key is None else rates.per_key),
        ]
        broken = [name for name, per_s in limits if per_s is not None and self._take(name, per_s, now) < -_ROUNDING]
        return f"{item} started beyond the rates of {broken}" if broken else None

    def _take(self, name: Hashable, per_s: float, now: float) -> float:
        most = max(1.0, per_s * self._rates.burst_ms / 1000)
        left, since = self._levels.get(name, (most, now))
        left = min(most, left + (now - since) * per_s) - 1
        self._levels[name] = (left, now)
        return left
