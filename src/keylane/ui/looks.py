"""What a watch looks at: one group, or the list of groups. Each look asks the brokers, and gives a view."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keylane.desk.groups import gather
from keylane.errors import KeylaneError, UsageError
from keylane.operations.clock import now_ms
from keylane.operations.operator import Operator
from keylane.pipeline import topics_of_operations
from keylane.ui.history import History
from keylane.ui.views import head, joined_rows, member_rows, partition_rows, work

if TYPE_CHECKING:
    from threading import Event

    from keylane.desk import Report
    from keylane.kafka.admin import Admin, CommittedOffset
    from keylane.kafka.group_descriptions import Partition
    from keylane.kafka.redriving import Settings
    from keylane.ui.history import Point

LOOK_S = 1.0
"""Between two views."""
STANDS_S = 2.0
"""Between two questions where a group stands, which cost the brokers more than reading reports."""
LIST_S = 2.0
SUMMARY_S = 6.0
"""How old the summary of a group may be in the list."""
BUDGET_S = 1.0
"""How long a view of the list asks for summaries: the rest is asked for the next time."""


class GroupLook:
    """Of one group. Thread safety: one thread."""

    def __init__(self, kafka: Settings, admin: Admin, group: str) -> None:
        self.history = History()
        self._kafka, self._admin, self._group = kafka, admin, group
        self._operator: Operator | None = None
        self._stood = 0.0
        """When it was last asked where the group stands, in monotonic seconds."""
        self._standing: Report = {}
        self._maps: dict[Partition, CommittedOffset] = {}

    def next(self, closing: Event) -> Report:
        """The view of now, after a wait for what members tell; what a broker refuses is in it as `error`."""
        error: str | None = None
        try:
            if time.monotonic() >= self._stood + STANDS_S:
                self._ask()
            self._listen(closing)
        except KeylaneError as raised:
            error = " ".join(str(raised).split())
            closing.wait(LOOK_S)
        return self._view() | {"error": error}

    def add_point(self) -> Point | None:
        """The next point of the history, when it is time for one."""
        at_ms = now_ms()
        members = {} if self._operator is None else self._operator.members.present(at_ms)
        return self.history.add(members, at_ms, self._standing.get("remaining"))

    def close(self) -> None:
        if self._operator is not None:
            self._operator.close()

    def _ask(self) -> None:
        if self._operator is None and _reports(self._group) in self._admin.topics():
            self._operator = Operator(self._kafka, self._group, None, self._admin)
        self._maps = self._admin.committed_offsets(self._group)
        heard = {} if self._operator is None else self._operator.members.present(now_ms())
        self._standing = gather(self._admin, self._group, self._maps, is_heard=bool(heard))
        self._stood = time.monotonic()
        self.history.stands(self._standing["partitions"], now_ms())

    def _listen(self, closing: Event) -> None:
        if self._operator is None:
            closing.wait(LOOK_S)
        else:
            self._operator.wait(closing.is_set, time.monotonic() + LOOK_S)

    def _view(self) -> Report:
        if not self._standing:
            return {}
        at_ms = now_ms()
        told = {} if self._operator is None else self._operator.members.present(at_ms)
        view: Report = {"head": head(self._standing, reports=self._operator is not None)}
        view["partitions"] = partition_rows(self._standing, self._maps, told)
        if self._operator is None:
            return view | {"members": joined_rows(self._standing)}
        members = self._operator.members
        return view | {"members": member_rows(members, at_ms)} | work(members, at_ms)


class GroupsLook:
    """Of the list of groups. Thread safety: one thread."""

    history = None

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._rows: dict[str, Report] = {}
        self._asked: dict[str, float] = {}
        """When each group was last summed up, in monotonic seconds."""

    def next(self, closing: Event) -> Report:
        """As `GroupLook.next`."""
        error: str | None = None
        try:
            self._list()
            self._sum_up(closing)
        except KeylaneError as raised:
            error = " ".join(str(raised).split())
        closing.wait(LIST_S if self._rows else LOOK_S)
        return {"groups": dict(self._rows), "error": error}

    def add_point(self) -> None:
        return None

    def close(self) -> None:
        pass

    def _list(self) -> None:
        topics = self._admin.topics()
        rows: dict[str, Report] = {}
        for one in self._admin.groups():
            known = self._rows.get(one.group, {"members": None, "lag": None, "remaining": None})
            told = {"group": one.group, "state": one.state, "protocol": one.protocol}
            rows[one.group] = known | told | {"reports": _reports(one.group) in topics}
        self._rows = rows

    def _sum_up(self, closing: Event) -> None:
        until = time.monotonic() + BUDGET_S
        for group in sorted(self._rows, key=lambda name: self._asked.get(name, 0.0)):
            now = time.monotonic()
            if now > until or now < self._asked.get(group, -SUMMARY_S) + SUMMARY_S or closing.is_set():
                return
            self._asked[group] = now
            try:
                report = gather(self._admin, group)
            except UsageError:  # it is gone meanwhile
                continue
            told = {"members": len(report["members"]), "lag": report["lag"], "remaining": report["remaining"]}
            self._rows[group] = self._rows[group] | told


def _reports(group: str) -> str | None:
    """The topic of reports; None for a group whose name is too long to have one."""
    try:
        return topics_of_operations(group)[1]
    except UsageError:
        return None
