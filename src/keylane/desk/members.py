"""What members tell of themselves, and what they answered to commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keylane.desk import Report
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
    longest = sorted(queues, key=lambda one: (-one["behind"], one["topic"], one["partition"], one["offset"]))
    return {"group": members.group, "members": len(present), "queues": longest[:limit]}


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
