"""What members tell of themselves, and what they answered to commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from keylane.errors import UsageError
from keylane.flow.breakers import OpenBreaker, longest
from keylane.kafka.admin import RefusedError
from keylane.operations.clock import now_ms
from keylane.operations.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.desk import Report
    from keylane.kafka.admin import Admin
    from keylane.kafka.redriving import Settings
    from keylane.operations.reports import Members


DONE_WITH = {"hold": "held", "skip": "skipped, unprocessed"}
"""What a rule does with its records, in words."""


def members_report(members: Members, now_ms: int) -> Report:
    """The last report of each member that has not ended."""
    seen = [one for _, one in sorted(members.reports.items())]
    told = [dict(one.report) | {"age_ms": one.age_ms(now_ms), "silent": one.is_silent(now_ms)} for one in seen]
    return {"group": members.group, "members": told}


def keys_report(members: Members, now_ms: int, limit: int) -> Report:
    """The heads of the longest queues of all members that are heard."""
    present = members.present(now_ms)
    queues: list[Report] = [
        dict(one) | {"member": name} for name, seen in present.items() for one in seen.report["queues"]
    ]
    by_length = sorted(queues, key=lambda one: (-one["behind"], one["topic"], one["partition"], one["offset"]))
    return {
        "group": members.group,
        "members": len(present),
        "queues": by_length[:limit],
        "breakers": breakers_report(seen.report["snapshot"] for seen in present.values()),
    }


def breakers_report(snapshots: Iterable[Report]) -> list[Report]:
    """Which services are down: each once."""
    told = (one for snapshot in snapshots for one in snapshot["breakers"])
    found = longest(OpenBreaker(one["target"], one["open_ms"], one.get("probe_in_ms")) for one in told)
    return [one._asdict() for one in found]


def down_lines(breakers: Iterable[Report]) -> list[str]:
    """Of `breakers_report`, in words."""
    return [str(OpenBreaker(**one)) for one in breakers]


def breakers_of_group(kafka: Settings, admin: Admin, group: str) -> list[Report]:
    """Which services are down, by what members tell that are heard; none of a group that tells nothing, or that may not
    be read."""
    try:
        with Operator(kafka, group, None, admin) as operator:
            present = operator.members.present(now_ms())
    except (UsageError, RefusedError):
        return []
    return breakers_report(seen.report["snapshot"] for seen in present.values())


def log_report(members: Members) -> Report:
    """The commands that members have answered, in their order."""
    commands = []
    for answers in members.results.values():
        first = next(iter(answers.values()))
        commands.append(
            {
                "command": first.command,
                "number": first.number,
                "sent": _time(first.sent_ms),
                "by": first.by,
                "do": first.verb,
                "about": first.about,
                "members": [
                    {
                        "member": one.member,
                        "accepted": None
                        if (at := members.accepted_ms.get((one.command, one.member))) is None
                        else _time(at),
                        "state": one.state,
                        "at": _time(one.at_ms),
                        "text": one.text or None,
                    }
                    for one in answers.values()
                ],
            }
        )
    return {"group": members.group, "commands": sorted(commands, key=lambda one: (one["sent"], one["number"]))}


def _time(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a member may write any number
        return f"{at_ms} ms"


def held_lines(holding: Report) -> list[str]:
    """What commands have made of the group."""
    lines = ["all partitions are paused"] if holding["all_paused"] else []
    if holding["paused"]:
        lines.append(f"paused: {', '.join(f'{topic}-{partition}' for topic, partition in holding['paused'])}")
    if holding["max_concurrency"] is not None:
        lines.append(f"max_concurrency={holding['max_concurrency']}")
    lines += [f"{name}={'unlimited' if rate is None else rate}" for name, rate in holding["rates"].items()]
    return lines + [_rule_line(one) for one in holding.get("keys", ())]  # members of an older keylane have none


def _rule_line(rule: Report) -> str:
    limit = None if rule["per_s"] is None else f"at most {rule['per_s']:g} records a second"
    return f"records with {rule['where']}: {limit or DONE_WITH.get(rule['do'], rule['do'])}"
