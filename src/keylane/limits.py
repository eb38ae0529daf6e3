"""What a budget allows: `Budget` and its limits, `Per`, `Cap` and `AtOnce`.

The idea: all amounts are whole millionths of their unit. So every process that reads a budget's log comes to the same
numbers, on whatever machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.foreign_errors import short_class_of
from keylane.telling import kind_of, with_named_options

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = 1_000_000
"""Of a unit, in millionths: amounts are counted in them."""

MOST_AMOUNT = 10**15
"""Millionths: a thousand million of a unit. More is a slip of the pen, and would not fit beside others in a record."""

MOST_AT_ONCE = 1_000_000
"""Calls."""

MOST_LIMITS = 16
"""Of one budget: all of them stand in each of its records."""

DAY_MS = 24 * 3_600_000
HOUR_MS = 3_600_000
MINUTE_MS = 60_000

TOPIC = "keylane-budget-"
"""How the names of budgets' topics begin."""

MAX_NAME = 100
"""Characters of a budget's name: it is part of a topic's."""

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_UNIT = re.compile(r"[a-zA-Z0-9._-]{1,40}")
_DAY = re.compile(r"UTC(?:([+-])(\d{2}):(\d{2}))?")


def millionths(name: str, value: object, *, least: int = 0) -> int:
    """An amount as it is counted, rounded up. Raises `UsageError` for what is no amount of at least so many
    millionths."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{name}={value!r}: give a number")
    amount = math.ceil(round(value * ONE, 3))
    if not least <= amount <= MOST_AMOUNT:
        raise UsageError(f"{name}={value!r}: give a number from {least / ONE:g} to {MOST_AMOUNT / ONE:g}")
    return amount


@with_named_options()
@dataclass(frozen=True, slots=True)
class Per:
    """So many of a unit in each `per_ms`, over all members. In any time W they spend at most `count * W / per_ms` and
    `burst` on top."""

    count: float
    unit: str
    per_ms: int
    burst: float | None = None
    """What may be spent at once after a pause. No cost may be larger. None: a tenth of `count`, and at least 1."""

    def __post_init__(self) -> None:
        _check_unit("Per", self.unit)
        millionths("Per.count", self.count, least=1)
        if isinstance(self.per_ms, bool) or not isinstance(self.per_ms, int) or not 1 <= self.per_ms <= 31 * DAY_MS:
            raise UsageError(f"Per.per_ms={self.per_ms!r}: give whole milliseconds, from 1 to {31 * DAY_MS}")
        if self.burst is not None:
            millionths("Per.burst", self.burst, least=1)

    @property
    def most_at_once(self) -> float:
        """`burst`, or what stands for it."""
        return max(1, self.count / 10) if self.burst is None else self.burst


@with_named_options()
@dataclass(frozen=True, slots=True)
class Cap:
    """So many of a unit a day, over all members: what is used up holds all until the next day begins."""

    count: float
    unit: str
    day: str = "UTC"
    """When a day begins: "UTC", or "UTC+02:00" and the like. It is no name of a zone: tables of zones differ between
    machines, and all have to agree."""

    def __post_init__(self) -> None:
        _check_unit("Cap", self.unit)
        millionths("Cap.count", self.count, least=1)
        found = _DAY.fullmatch(self.day) if isinstance(self.day, str) else None
        if found is None or int(found[2] or 0) > 14 or int(found[3] or 0) > 59:
            raise UsageError(f"Cap.day={self.day!r}: give 'UTC', or an offset from it as 'UTC+02:00'")

    @property
    def ahead_ms(self) -> int:
        """Of UTC."""
        found = _DAY.fullmatch(self.day)
        assert found is not None, "checked when it was made"
        ahead = int(found[2] or 0) * HOUR_MS + int(found[3] or 0) * MINUTE_MS
        return -ahead if found[1] == "-" else ahead


@with_named_options()
@dataclass(frozen=True, slots=True)
class AtOnce:
    """At most so many calls at once, over all members: attempts of records that run. What each of them may have is
    divided equally among those that want more than there is."""

    count: int
    lease_ms: int = 10_000
    """How long a member's calls count that is gone. One that reaches no broker for so long starts nothing."""

    def __post_init__(self) -> None:
        for name, least, most in (("count", 1, MOST_AT_ONCE), ("lease_ms", 1_000, 60_000)):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"AtOnce.{name}={value!r}: give a whole number from {least} to {most}")


def _check_unit(where: str, unit: object) -> None:
    if not isinstance(unit, str) or not _UNIT.fullmatch(unit):
        raise UsageError(f"{where}.unit={unit!r}: give a word of letters, digits, '.', '_' and '-', as 'requests'")


class Budget:
    """What all who name it may spend together, in any group and process: `Budget("openai", Per(500, "requests",
    per_ms=60_000), Cap(50, "usd"))`.

    Its topic, `keylane-budget-NAME`, is made where it is missing. Frozen and picklable.
    """

    __slots__ = ("at_once", "lease_ms", "limits", "name")

    name: str
    limits: tuple[Per | Cap, ...]
    at_once: AtOnce | None
    lease_ms: int

    def __init__(self, name: str, *limits: Per | Cap | AtOnce, lease_ms: int = 2_000) -> None:
        """`lease_ms`: how long what was granted may be spent, and given back."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"Budget.name={name!r}: give up to {MAX_NAME} letters, digits, '.', '_' and '-': it is part of a "
                "topic's name"
            )
        if not 1 <= len(limits) <= MOST_LIMITS:
            raise UsageError(f"Budget {name!r} has {len(limits)} limits: give 1 to {MOST_LIMITS}")
        for one in limits:
            if not isinstance(one, Per | Cap | AtOnce):
                raise UsageError(
                    f"Budget {name!r}: {one!r} is no limit: give keylane.Per(...), keylane.Cap(...) or "
                    "keylane.AtOnce(...)"
                )
        at_once = [one for one in limits if isinstance(one, AtOnce)]
        if len(at_once) > 1:
            raise UsageError(f"Budget {name!r}: AtOnce twice: leave one out")
        of_units = tuple(one for one in limits if not isinstance(one, AtOnce))
        names = [limit_name(one) for one in of_units]
        if len(set(names)) < len(names):
            raise UsageError(f"Budget {name!r}: two limits of one unit and one time: leave one out")
        if isinstance(lease_ms, bool) or not isinstance(lease_ms, int) or not 100 <= lease_ms <= 60_000:
            raise UsageError(f"Budget.lease_ms={lease_ms!r}: give whole milliseconds, from 100 to 60000")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "limits", of_units)
        object.__setattr__(self, "at_once", at_once[0] if at_once else None)
        object.__setattr__(self, "lease_ms", lease_ms)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Budget.{name} cannot be changed: make another Budget")

    def __repr__(self) -> str:
        return f"Budget({', '.join(map(repr, (self.name, *self._all_limits)))}, lease_ms={self.lease_ms})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Budget) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self.name, self._all_limits, self.lease_ms)

    @property
    def _all_limits(self) -> tuple[Per | Cap | AtOnce, ...]:
        return self.limits if self.at_once is None else (*self.limits, self.at_once)

    @property
    def topic(self) -> str:
        return f"{TOPIC}{self.name}"

    def cost(self, of: Callable[[Any], Mapping[str, float]] | Mapping[str, float] | None = None) -> Cost:
        """What a record costs, for `Pipeline(budget=...)`: amounts by unit, or a function of the record that returns
        them; nothing, where `AtOnce` is the only limit. It runs in the loop, so it has to be quick. Raises `UsageError`
        for a cost that is never let through."""
        return Cost(self, {} if of is None else of)

    @property
    def units(self) -> frozenset[str]:
        return frozenset(one.unit for one in self.limits)

    def amounts(self, cost: Mapping[str, float]) -> dict[str, int]:
        """A cost as it is counted. Raises `UsageError` for one that the budget never lets through, or cannot read."""
        amounts = self.counted(cost)
        for one in self.limits:
            most = one.most_at_once if isinstance(one, Per) else one.count
            if amounts.get(one.unit, 0) > millionths("", most):
                word = "burst" if isinstance(one, Per) else "count"
                raise UsageError(
                    f"budget {self.name!r}: a cost of {amounts[one.unit] / ONE:g} {one.unit}, and {one!r} never has "
                    f"more than {most:g} at once: give it a {word} of at least the largest cost"
                )
        return amounts

    def counted(self, cost: Mapping[str, float]) -> dict[str, int]:
        """Amounts of any size in millionths. Raises `UsageError` for units that the budget does not have."""
        amounts: dict[str, int] = {}
        for unit, value in cost.items():
            if unit not in self.units:
                raise UsageError(
                    f"budget {self.name!r}: a cost in {unit!r}, of which it has no limit; it has "
                    f"{', '.join(map(repr, sorted(self.units)))}"
                )
            amounts[unit] = millionths(f"the cost of {unit!r}", value)
        return amounts


@dataclass(frozen=True, slots=True)
class Cost:
    """Of each call, in a budget: what `Budget.cost` returns."""

    budget: Budget
    of: Callable[[Any], Mapping[str, float]] | Mapping[str, float]

    def __post_init__(self) -> None:
        if not callable(self.of):
            if not isinstance(self.of, Mapping) or not (self.of or self.budget.at_once):
                raise UsageError(f"Budget.cost({self.of!r}): give amounts by unit, or a function of the record")
            self.budget.amounts(self.of)

    def amounts(self, record: Any) -> dict[str, int]:
        """As it is counted. Raises `UsageError` for what the function raises, or returns."""
        if not callable(self.of):
            return self.budget.amounts(self.of)
        try:
            cost: object = self.of(record)
        except Exception as raised:
            raise UsageError(
                f"the function of {self.budget.name!r}.cost(...) raised {short_class_of(raised)}; mend it"
            ) from raised
        if not isinstance(cost, Mapping) or not all(isinstance(unit, str) for unit in cost):
            raise UsageError(f"the function of Budget.cost(...) returned {kind_of(cost)}: return amounts by unit")
        return self.budget.amounts(cost)


def _made_again(name: str, limits: tuple[Per | Cap | AtOnce, ...], lease_ms: int) -> Budget:
    return Budget(name, *limits, lease_ms=lease_ms)


def limit_name(limit: Per | Cap) -> str:
    """What its state is kept under."""
    return f"{limit.unit}/{limit.per_ms}" if isinstance(limit, Per) else f"{limit.unit}/day"
