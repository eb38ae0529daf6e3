"""All consumer groups of KIP-848 of a coordinator, purely: which group a heartbeat is for, and when one is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.consumer_groups.assignors import ASSIGNORS
from keylane.coordinator.consumer_groups.group import ConsumerGroup
from keylane.coordinator.consumer_groups.protocol import (
    JOIN,
    LEAVE,
    LEAVE_FOR_A_WHILE,
    ConsumerGroupDescription,
    HeartbeatAnswer,
    HeartbeatRequest,
    RefusedError,
)
from keylane.coordinator.consumer_groups.records import CLASSIC_GROUP
from keylane.coordinator.deadlines import Deadlines
from keylane.coordinator.formats import fits
from keylane.coordinator.groups.protocol import JoinAnswer, SyncAnswer
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keylane.coordinator.consumer_groups.protocol import GroupSettings, Topics
    from keylane.coordinator.consumer_groups.records import Record
    from keylane.coordinator.groups.protocol import JoinRequest, Leaver, Left, SyncRequest


class ConsumerGroups:
    """Every group by its id."""

    def __init__(
        self, topics: Topics, settings_of: Callable[[str], GroupSettings], make_member_id: Callable[[], str]
    ) -> None:
        """`settings_of(group)` may change while it runs; `make_member_id()` is for members that have none (version
        0)."""
        self._topics = topics
        self.settings_of = settings_of
        self._make_member_id = make_member_id
        self.by_id: dict[str, ConsumerGroup] = {}
        """To be looked at; changed here only."""
        self._deadlines: Deadlines[str] = Deadlines()

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> tuple[HeartbeatAnswer, list[Record]]:
        """ConsumerGroupHeartbeat, and what it changes. One that is refused changes nothing."""
        try:
            _check_request(request)
            return self._heartbeat(request, now_ms)
        except RefusedError as error:
            return error.answer, []

    def _heartbeat(self, request: HeartbeatRequest, now_ms: int) -> tuple[HeartbeatAnswer, list[Record]]:
        group = self.by_id.get(request.group)
        is_leaving = request.epoch in (LEAVE, LEAVE_FOR_A_WHILE)
        if group is None:
            if request.epoch != JOIN:
                what = "Group" if is_leaving else "Consumer group"
                raise RefusedError(codes.GROUP_ID_NOT_FOUND, f"{what} {request.group} not found.")
            group = ConsumerGroup(request.group)
        settings = self.settings_of(request.group)
        if is_leaving:
            answer, records = group.leave(request, self._topics, settings, now_ms)
        else:
            if not request.member_id:
                request = request._replace(member_id=self._make_member_id())
            answer, records = group.heartbeat(request, self._topics, settings, now_ms)
        self.by_id[request.group] = group
        return answer, self._after(group, records)

    def join(self, group_id: str, request: JoinRequest, now_ms: int) -> tuple[JoinAnswer, list[Record]]:
        """JoinGroup of a member of the classic protocol to a group that there is, and what it changes."""
        group = self.by_id[group_id]
        try:
            answer, records = group.join(
                request, self._topics, self.settings_of(group_id), self._make_member_id, now_ms
            )
        except RefusedError as error:
            return JoinAnswer(error.code, request.member_id), []
        return answer, self._after(group, records)

    def sync(self, group_id: str, request: SyncRequest, now_ms: int) -> SyncAnswer:
        """SyncGroup of such a member."""
        group = self.by_id[group_id]
        try:
            answer = group.sync(request, self._topics, now_ms)
        except RefusedError as error:
            answer = SyncAnswer(error.code)
        self._schedule(group)
        return answer

    def heartbeat_of_classic(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> int:
        """Heartbeat of such a member: an error code."""
        group = self.by_id[group_id]
        try:
            error = group.heartbeat_of_classic(member_id, instance_id, generation, now_ms)
        except RefusedError as refused:
            return refused.code
        self._schedule(group)
        return error

    def leave_by_classic(
        self, group_id: str, leavers: Sequence[Leaver], now_ms: int
    ) -> tuple[list[Left], list[Record]]:
        """LeaveGroup, and what it changes."""
        group = self.by_id[group_id]
        results, records = group.leave_by_classic(leavers, self._topics, self.settings_of(group_id), now_ms)
        return results, self._after(group, records)

    def tick(self, now_ms: int) -> list[tuple[str, list[Record]]]:
        """Act on every deadline that has come: what changes, by group."""
        changes = []
        for group_id in self._deadlines.due(now_ms):
            group = self.by_id[group_id]
            records = group.tick(self._topics, self.settings_of(group_id), now_ms)
            if records:
                changes.append((group_id, records))
            self._after(group, records)
        return changes

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; it may find that there is nothing to do yet."""
        return self._deadlines.next_ms

    def restore(self, records: Iterable[tuple[str, Record]], now_ms: int) -> None:
        """Become what the journal says."""
        found: dict[str, ConsumerGroup] = {}
        for group_id, record in records:
            group = found.get(group_id)
            if group is None:
                group = found[group_id] = self.by_id[group_id] = ConsumerGroup(group_id)
            group.apply(record)
        for group_id, group in found.items():
            group.begin(self.settings_of(group_id), now_ms)
            self._schedule(group)

    def forget(self, group_id: str) -> None:
        """It ended, or is to be restored."""
        self.by_id.pop(group_id, None)
        self._deadlines.forget(group_id)

    def check_delete(self, group_id: str) -> int:
        return codes.NONE if self.by_id[group_id].is_empty else codes.NON_EMPTY_GROUP

    def describe(self, group_id: str) -> ConsumerGroupDescription:
        if not group_id:
            return ConsumerGroupDescription(group_id, codes.INVALID_GROUP_ID)
        group = self.by_id.get(group_id)
        if group is None:
            return ConsumerGroupDescription(group_id, codes.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group.describe()

    def _after(self, group: ConsumerGroup, records: list[Record]) -> list[Record]:
        """A group that has become one of the classic protocol is none of these any more."""
        if records and records[-1].kind == CLASSIC_GROUP:
            self.forget(group.group_id)
        else:
            self._schedule(group)
        return records

    def _schedule(self, group: ConsumerGroup) -> None:
        self._deadlines.note(group.group_id, group.next_deadline_ms)


def _check_request(request: HeartbeatRequest) -> None:
    """Raise `RefusedError` for what no group could take."""
    for name, value in (
        ("GroupId", request.group),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
        # Version 0 has ids made for members that join.
        ("MemberId", request.member_id or (None if request.epoch == JOIN and not request.makes_own_id else "")),
    ):
        if value == "" or (name == "GroupId" and not request.group.strip()):
            raise RefusedError(codes.INVALID_REQUEST, f"{name} can't be empty.")
        if value is not None and not fits(value):
            raise RefusedError(codes.INVALID_REQUEST, f"{name} is too long.")
    if request.pattern is not None and not fits(request.pattern):
        raise RefusedError(codes.INVALID_REQUEST, "SubscribedTopicRegex is too long.")
    _check_epoch(request)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise RefusedError(
            codes.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: {', '.join(ASSIGNORS)}.",
        )


def _check_epoch(request: HeartbeatRequest) -> None:
    """Raise `RefusedError` unless it says what a request of its epoch has to say."""
    if request.epoch == JOIN:
        if request.rebalance_timeout_ms == -1:
            raise RefusedError(codes.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise RefusedError(codes.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
        if request.topics is None and request.pattern is None:
            raise RefusedError(
                codes.INVALID_REQUEST,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            )
    elif request.epoch == LEAVE_FOR_A_WHILE:
        if request.instance_id is None:
            raise RefusedError(codes.INVALID_REQUEST, "InstanceId can't be null.")
    elif request.epoch < LEAVE_FOR_A_WHILE:
        raise RefusedError(codes.INVALID_REQUEST, "MemberEpoch is invalid.")
