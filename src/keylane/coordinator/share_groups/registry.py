"""All share groups of a coordinator, purely: which group a heartbeat is for, and when one is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.deadlines import Deadlines
from keylane.coordinator.formats import fits
from keylane.coordinator.share_groups.group import ShareGroup
from keylane.coordinator.share_groups.protocol import (
    JOIN,
    LEAVE,
    HeartbeatAnswer,
    RefusedError,
    ShareGroupDescription,
)
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keylane.coordinator.consumer_groups.protocol import Topics
    from keylane.coordinator.share_groups.protocol import HeartbeatRequest, ShareSettings
    from keylane.coordinator.share_groups.records import Record


class ShareGroups:
    """Every group by its id."""

    def __init__(self, topics: Topics, settings_of: Callable[[str], ShareSettings]) -> None:
        """`settings_of(group)` may change while it runs."""
        self.topics = topics
        self.settings_of = settings_of
        self.by_id: dict[str, ShareGroup] = {}
        """To be looked at; changed here only."""
        self._deadlines: Deadlines[str] = Deadlines()

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> tuple[HeartbeatAnswer, list[Record]]:
        """ShareGroupHeartbeat, and what it changes. One that is refused changes nothing."""
        try:
            check_request(request)
            group = self.by_id.get(request.group)
            if group is None:
                if request.epoch != JOIN:
                    what = "Group" if request.epoch == LEAVE else "Share group"
                    raise RefusedError(codes.GROUP_ID_NOT_FOUND, f"{what} {request.group} not found.")
                group = ShareGroup(request.group)
            if request.epoch == LEAVE:
                return group.leave(request, self.topics)
            found = group.heartbeat(request, self.topics, self.settings_of(request.group), now_ms)
        except RefusedError as error:
            return HeartbeatAnswer(error.code, str(error)), []
        self.by_id[request.group] = group
        self._deadlines.note(request.group, group.next_deadline_ms)
        return found

    def tick(self, now_ms: int) -> list[tuple[str, list[Record]]]:
        """Act on every deadline that has come: what changes, by group."""
        changes = []
        for name in self._deadlines.due(now_ms):
            group = self.by_id[name]
            changes.append((name, group.tick(self.topics, now_ms)))
            self._deadlines.note(name, group.next_deadline_ms)
        return changes

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; it may find that there is nothing to do yet."""
        return self._deadlines.next_ms

    def made(self, group_id: str) -> ShareGroup:
        """The group, which is begun where it is not there yet."""
        return self.by_id.setdefault(group_id, ShareGroup(group_id))

    def restore(self, records: Iterable[tuple[str, Record]], now_ms: int) -> None:
        """Become what the journal says."""
        found = set()
        for group_id, record in records:
            self.made(group_id).apply(record)
            found.add(group_id)
        for group_id in found:
            group = self.by_id[group_id]
            group.begin(self.settings_of(group_id), now_ms)
            self._deadlines.note(group_id, group.next_deadline_ms)

    def forget(self, group_id: str) -> None:
        """It ended, or is to be restored."""
        self.by_id.pop(group_id, None)
        self._deadlines.forget(group_id)

    def describe(self, group_id: str) -> ShareGroupDescription:
        group = self.by_id.get(group_id)
        if group is None:
            return ShareGroupDescription(group_id, codes.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group.describe(self.topics)


def check_request(request: HeartbeatRequest) -> None:
    """Raise `RefusedError` for what no group could take."""
    for name, value in (("MemberId", request.member_id), ("GroupId", request.group), ("RackId", request.rack_id)):
        if value == "":
            raise RefusedError(codes.INVALID_REQUEST, f"{name} can't be empty.")
        if value is not None and not fits(value):
            raise RefusedError(codes.INVALID_REQUEST, f"{name} is too long.")
    if request.epoch == JOIN and not request.topics:
        raise RefusedError(codes.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    if request.epoch < LEAVE:
        raise RefusedError(codes.INVALID_REQUEST, "MemberEpoch is invalid.")
