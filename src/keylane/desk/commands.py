"""Pause, resume, drain, adjust, seek, rules by key, single records: one command to the members of a group, and their
answers.

The idea: a member that is heard is expected to answer; what it does not say is said here. A seek is looked at by
partition as well: each is done by the member that has it, or by nobody.
"""

from __future__ import annotations

import getpass
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from keylane.consumer.passing import Passing
from keylane.desk import TOKEN_VARIABLE
from keylane.errors import UsageError
from keylane.kafka.membership import Replay, Seek, Target
from keylane.operations.clock import now_ms
from keylane.operations.commands import adjusting, named
from keylane.operations.operator import Operator
from keylane.pipeline import Operations

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from keylane.desk import Report
    from keylane.kafka.admin import Admin
    from keylane.kafka.redriving import Settings
    from keylane.operations.commands import Adjusting, Asked, Command, Name
    from keylane.operations.reports import Members, Seen

NOT_DONE = {
    "accepted": "it began, and did not say how that ended: look at where the group stands",
    "no answer": "it did not answer in time, and may do it still",
    "silent": "nothing was heard of it any more: it has ended, or hangs",
    "refused": "it takes no commands: it has no token, or may not read them; its log says which",
    "busy": "it is paused, and records are still in handlers, or are not committed yet",
}
"""Why a member has not done it, where it does not say so itself."""


MAX_OFFSET = 2**63 - 1
"""The end of any log."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a group is to do, and whether it is sent, or only said who would get it."""

    group: str
    do: str
    """Its name; a `drain` waits until nothing is in handlers, and is a pause for the rest."""
    asked: Asked
    execute: bool
    wait_ms: int = 30_000
    """How long the members' answers are waited for."""


def seeking(names: Iterable[Name], kind: Literal["earliest", "latest", "time", "offset"], value: int) -> Seek:
    """To one place in each; a time is in milliseconds since the epoch."""
    offset = {"earliest": 0, "latest": MAX_OFFSET}.get(kind, value)
    return Seek(dict.fromkeys(names, Target(time_ms=value) if kind == "time" else Target(offset=offset)))


def adjustment(most: int | None, rates: Mapping[str, float | None], *, as_in_pipeline: bool) -> Adjusting:
    """Raises `UsageError` for what cannot be, and for nothing."""
    if as_in_pipeline == (bool(rates) or most is not None):
        raise UsageError("adjust: give --max-concurrency, a rate, or --as-in-pipeline alone")
    return adjusting(most, rates, as_in_pipeline=as_in_pipeline)


def send(kafka: Settings, admin: Admin, token: str | None, order: Order) -> tuple[Report, bool]:
    """Send it, or say who would get it; returns the report, and whether every member has done it. Raises `UsageError`,
    and what `Operator` does."""
    if token is not None:
        Operations(token=token)  # refused here as it is there
    with Operator(kafka, order.group, token, admin) as operator:
        members = _expected(operator, order.group, order.asked)
        operator.check(order.asked)
        if not order.execute:
            return _report(order, None, [_row(one, "", "") for one in members.values()], [], []), True
        if token is None:
            raise UsageError(
                f"a command needs the members' token: give it in {TOKEN_VARIABLE}, or name a file with --token-file"
            )
        until = time.monotonic() + order.wait_ms / 1000
        command = operator.send(order.asked, f"{getpass.getuser()}@{socket.gethostname()}")
        return _answers(order, operator, command, members, until)


def _expected(operator: Operator, group: str, asked: Asked) -> dict[str, Seen]:
    """The members that are to do it. Raises `UsageError` when none could."""
    present = operator.members.present(now_ms())
    if present and not any(one.report["takes_commands"] for one in present.values()):
        raise UsageError(
            f"the members of the group {group!r} only report: give their pipeline operations=Operations(token=...)"
        )
    if not present and isinstance(asked, Seek):
        raise UsageError(f"no member of the group {group!r} is heard: `keylane groups reset {group}` moves its offsets")
    if not present and isinstance(asked, Passing | Replay):
        raise UsageError(f"no member of the group {group!r} is heard: `keylane records skip|park|replay` needs none")
    return present


def _answers(
    order: Order, operator: Operator, command: Command, members: dict[str, Seen], until: float
) -> tuple[Report, bool]:
    """What became of a command that was sent."""

    def pending() -> list[str]:
        results = operator.results_of(command)
        return [
            name
            for name in members
            if members[name].report["takes_commands"]
            and (name not in results or results[name].state == "accepted")
            and name in operator.members.reports
            and not operator.members.reports[name].is_silent(now_ms())
        ]

    operator.wait(lambda: not pending(), until)
    done = [name for name, one in operator.results_of(command).items() if one.state == "done"]
    working: Collection[str] = ()
    if order.do == "drain":
        operator.wait(lambda: not busy(operator.members, command, done), until)
        working = busy(operator.members, command, done)
    results = operator.results_of(command)
    waiting = pending()
    rows = []
    for name, seen in members.items():
        result = results.get(name)
        if not seen.report["takes_commands"]:
            rows.append(_row(seen, "refused", NOT_DONE["refused"]))
        elif result is not None and result.state != "accepted":
            state = "busy" if name in working else str(result.state)
            rows.append(_row(seen, state, result.text or NOT_DONE.get(state, "")))
        else:
            began = result is not None
            state = ("accepted" if began else "no answer") if name in waiting else "silent"
            rows.append(_row(seen, state, NOT_DONE["accepted" if began else state]))
    partitions, records = _partitions(operator, command), _records(operator, command)
    is_done = all(one["member"] for one in (*partitions, *records))
    if not records:  # else it is told by record: a member may have one, and not another one
        is_done = is_done and all(row["state"] == "done" for row in rows)
    return _report(order, command, rows, partitions, records), is_done


def busy(told: Members, command: Command, members: Collection[str]) -> list[str]:
    """Those that still have something in handlers, or to commit; they may have ended meanwhile."""
    return [
        name
        for name in members
        if (seen := told.reports.get(name)) is not None
        and (seen.report["command"] < command.number or not is_drained(seen, command.partitions))
    ]


def is_drained(seen: Seen, names: Collection[Name] | None) -> bool:
    """Whether of these partitions (None: of all that it has) nothing is in handlers, and all that is complete is
    committed."""
    return not any(
        one["in_handlers"] or one["uncommitted"]
        for one in seen.report["snapshot"]["partitions"]
        if names is None or (one["topic"], one["partition"]) in names
    )


def _partitions(operator: Operator, command: Command) -> list[Report]:
    """Of a seek: who did it in which partition."""
    if not isinstance(command.asked, Seek):
        return []
    by = {name: one.member for one in operator.results_of(command).values() for name in one.partitions or ()}
    return [{"topic": name[0], "partition": name[1], "member": by.get(name)} for name in command.partitions or ()]


def _records(operator: Operator, command: Command) -> list[Report]:
    """Of single records: who has done which."""
    if not isinstance(command.asked, Passing | Replay):
        return []
    by = {name: one.member for one in operator.results_of(command).values() for name in one.records or ()}
    return [{"record": name, "member": by.get(name)} for name in map(named, command.asked.records)]


def _row(seen: Seen, state: str, text: str) -> Report:
    report = seen.report
    return {
        "member": report["member"],
        "runs": report["runs"],
        "client_id": report["client_id"],
        "partitions": len(report["snapshot"]["partitions"]),
        "state": state or None,
        "text": text or None,
    }


def _report(
    order: Order, command: Command | None, members: list[Report], partitions: list[Report], records: list[Report]
) -> Report:
    return {
        "group": order.group,
        "do": order.do,
        "executed": order.execute,
        "command": None if command is None else command.id,
        "members": members,
        "partitions": partitions,
        "records": records,
    }
