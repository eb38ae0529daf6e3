"""What a budget's log says of it, for somebody who asks: `budgets_of`, `report_of`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.budgets.client import TAIL, placed
from keylane.budgets.entries import Ask, Hold
from keylane.budgets.line import MS, Granted, Line
from keylane.errors import UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.keyed_topic import KeyedReader
from keylane.limits import ONE, TOPIC

if TYPE_CHECKING:
    from keylane.budgets.line import Answer, Level, Placed
    from keylane.kafka.redriving import Settings

Report = dict[str, Any]


def budgets_of(kafka: Settings) -> list[str]:
    """The names of all budgets of a cluster."""
    return sorted(name.removeprefix(TOPIC) for name in Admin(kafka).topics() if name.startswith(TOPIC))


def report_of(kafka: Settings, name: str) -> Report:
    """How a budget stands at the last record of its log, and who asked for what in the records that were read. Raises
    `UsageError` for one that is not there."""
    topic = f"{TOPIC}{name}"
    if topic not in Admin(kafka).topics([topic]):
        raise UsageError(f"there is no budget {name!r}: its topic would be {topic!r}; see `keylane budgets list`")
    reader = KeyedReader(kafka, topic)
    try:
        tail = placed(reader.to_end(TAIL), lambda _, __: None)
    finally:
        reader.close()
    granted: dict[str, dict[str, int]] = {}
    members: dict[str, set[str]] = {}

    def hear(record: Placed, answer: Answer | None) -> None:
        ask = record.entry
        if isinstance(ask, Ask) and isinstance(answer, Granted):
            members.setdefault(ask.group, set()).add(ask.member)
            of_group = granted.setdefault(ask.group, {})
            for unit, amount in ask.amounts.items():
                of_group[unit] = of_group.get(unit, 0) + amount
        elif isinstance(ask, Hold) and ask.wants:
            members.setdefault(ask.group, set()).add(ask.member)
            granted.setdefault(ask.group, {})

    line = Line.begin(tail, hear)
    return {
        "budget": name,
        "as_of_ms": tail[-1].time_ms if tail else None,
        "limits": [_limit(one) for one in line.levels()],
        "at_once": {"count": line.slots.count, "taken": line.slots.taken} if line.slots.count else None,
        "groups": [
            {
                "group": group,
                "members": len(members[group]),
                "granted": {unit: amount / ONE for unit, amount in sorted(of_group.items())},
            }
            for group, of_group in sorted(granted.items())
        ],
    }


def _limit(level: Level) -> Report:
    limit = level.limit
    return {
        "unit": limit.unit,
        "count": limit.count / ONE,
        "per_ms": limit.per_ms or None,
        "burst": limit.burst / ONE if limit.per_ms else None,
        "available": level.available / ONE,
        "free_in_ms": level.free_in_ns // MS,
    }
