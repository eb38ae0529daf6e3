"""All consumer groups of a coordinator, purely: which group an event is for, and when the next one is due.

Groups are made when someone joins. A group that only commits (a simple consumer, an administrator) needs none: what it
has is in the offset store, and its commits are checked here against the fact that it has no members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.deadlines import Deadlines
from keylane.coordinator.formats import fits
from keylane.coordinator.groups.group import CONSUMER_PROTOCOL_TYPE, Group
from keylane.coordinator.groups.protocol import (
    UNKNOWN_MEMBER_ID,
    Action,
    Answer,
    GroupDescription,
    JoinAnswer,
    JoinRequest,
    Leaver,
    Left,
    SyncAnswer,
    SyncRequest,
    Token,
)
from keylane.coordinator.groups.states import State
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.coordinator.formats import GroupValue
    from keylane.coordinator.options import CoordinatorOptions


class GroupRegistry:
    """Every group by its id."""

    def __init__(self, options: CoordinatorOptions, make_member_id: Callable[[str], str]) -> None:
        self._options = options
        self._make_member_id = make_member_id
        self.by_id: dict[str, Group] = {}
        """To be looked at; changed here only."""
        self._deadlines: Deadlines[str] = Deadlines()

    def join(self, group_id: str, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        """JoinGroup; a group that is not known is made for a member that has no id yet."""
        error = self.check_join(group_id, request)
        if error != codes.NONE:
            return [Answer(token, JoinAnswer(error, request.member_id))]
        group = self.by_id.get(group_id)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER_ID:
                return [Answer(token, JoinAnswer(codes.UNKNOWN_MEMBER_ID, request.member_id))]
            group = self._add(group_id, now_ms)
        return self._after(group, group.join(request, token, now_ms))

    def sync(self, group_id: str, request: SyncRequest, token: Token, now_ms: int) -> list[Action]:
        group = self.by_id.get(group_id)
        if group is None:
            return [Answer(token, SyncAnswer(codes.UNKNOWN_MEMBER_ID if group_id else codes.INVALID_GROUP_ID))]
        return self._after(group, group.sync(request, token, now_ms))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        group = self.by_id.get(group_id)
        if group is None:
            return codes.UNKNOWN_MEMBER_ID if group_id else codes.INVALID_GROUP_ID
        return group.heartbeat(member_id, instance_id, generation, now_ms)

    def leave(self, group_id: str, leavers: Sequence[Leaver], now_ms: int) -> tuple[list[Left], list[Action]]:
        group = self.by_id.get(group_id)
        if group is None:
            return [Left(*leaver, codes.UNKNOWN_MEMBER_ID) for leaver in leavers], []
        results, actions = group.leave(leavers, now_ms)
        return results, self._after(group, actions)

    def check_transactional_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, *, has_offsets: bool
    ) -> int:
        """Whether offsets of this member may become part of a transaction now: an error code (KIP-447). A producer that
        names no member commits for any group, as before that KIP."""
        if not group_id or not fits(group_id):
            return codes.INVALID_GROUP_ID
        if generation < 0 and not member_id and instance_id is None:
            return codes.NONE
        group = self.by_id.get(group_id)
        if group is None:
            unknown = codes.UNKNOWN_MEMBER_ID if has_offsets else codes.ILLEGAL_GENERATION
            return codes.NONE if generation < 0 else unknown
        return group.check_transactional_commit(member_id, instance_id, generation)

    def check_delete(self, group_id: str, *, has_offsets: bool) -> int:
        """Whether this group may be deleted: an error code."""
        group = self.by_id.get(group_id)
        if group is None:
            return codes.NONE if has_offsets else codes.GROUP_ID_NOT_FOUND
        return codes.NONE if group.is_empty else codes.NON_EMPTY_GROUP

    def check_delete_offsets(self, group_id: str, *, has_offsets: bool) -> int:
        """Whether offsets of this group may be deleted at all: an error code. Those of topics that live consumers
        subscribe to are refused one by one."""
        if not group_id:
            return codes.INVALID_GROUP_ID
        group = self.by_id.get(group_id)
        if group is not None and not group.is_empty and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
            return codes.NONE
        return self.check_delete(group_id, has_offsets=has_offsets)

    def generation_of(self, group_id: str) -> int:
        """0 for a group that had no members yet."""
        group = self.by_id.get(group_id)
        return 0 if group is None else group.generation

    def forget(self, group_id: str, generation: int) -> None:
        """The end of this group, as it was in that generation, is durable. One that was joined meanwhile goes on."""
        group = self.by_id.get(group_id)
        if group is not None and group.is_empty and group.generation == generation:
            group.end()
            del self.by_id[group_id]
            self._deadlines.forget(group_id)

    def give_way(self, group_id: str, now_ms: int) -> list[Action]:
        """A consumer group of KIP-848 has taken the group's place, with its members."""
        self._deadlines.forget(group_id)
        return self.by_id.pop(group_id).give_way(now_ms)

    def adopt(self, group_id: str, value: GroupValue, now_ms: int, *, is_rebalancing: bool) -> list[Action]:
        """A consumer group of KIP-848 has become this one; with `is_rebalancing` its members are to join anew."""
        self.restore(group_id, value, now_ms)
        group = self.by_id[group_id]
        return self._after(group, group.rebalance(now_ms)) if is_rebalancing else []

    def stored(self, group_id: str, ticket: int, error: int, now_ms: int) -> list[Action]:
        """The metadata of a `Persist` is durable, or (with an error code) never will be."""
        group = self.by_id.get(group_id)
        return [] if group is None else self._after(group, group.stored(ticket, error, now_ms))

    def tick(self, now_ms: int) -> list[Action]:
        """Act on every deadline that has come."""
        actions: list[Action] = []
        for group_id in self._deadlines.due(now_ms):
            group = self.by_id[group_id]
            actions += self._after(group, group.tick(now_ms))
        return actions

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; it may find that there is nothing to do yet."""
        return self._deadlines.next_ms

    def unload(self, now_ms: int) -> list[Action]:
        """Give all groups up; whoever waits is answered."""
        actions = [action for group in self.by_id.values() for action in group.unload(now_ms)]
        self.by_id.clear()
        self._deadlines = Deadlines()
        return actions

    def restore(self, group_id: str, value: GroupValue, now_ms: int) -> None:
        """A group as the journal knew it last."""
        group = self._add(group_id, now_ms)
        group.restore(value, now_ms)
        self._after(group, [])

    def describe(self, group_id: str, *, has_offsets: bool) -> GroupDescription:
        """A group that is not known is Dead, as Kafka says it; one with nothing but offsets is Empty."""
        group = self.by_id.get(group_id)
        if group is not None:
            return group.describe()
        state = State.EMPTY if has_offsets else State.DEAD
        return GroupDescription(group_id, state.value, "", "", ())

    def check_join(self, group_id: str, request: JoinRequest) -> int:
        """What is wrong with a request, whatever the group: an error code."""
        if not group_id or not fits(group_id):
            return codes.INVALID_GROUP_ID
        least, most = self._options.group_min_session_timeout_ms, self._options.group_max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            return codes.INVALID_SESSION_TIMEOUT
        names = (request.instance_id or "", request.protocol_type, *(name for name, _ in request.protocols))
        if not all(map(fits, names)):
            return codes.INVALID_REQUEST
        return codes.NONE

    def _add(self, group_id: str, now_ms: int) -> Group:
        group = self.by_id[group_id] = Group(
            group_id,
            now_ms=now_ms,
            initial_delay_ms=self._options.group_initial_rebalance_delay_ms,
            max_size=self._options.group_max_size,
            make_member_id=self._make_member_id,
        )
        return group

    def _after(self, group: Group, actions: list[Action]) -> list[Action]:
        """Note the group's next deadline."""
        self._deadlines.note(group.group_id, group.next_deadline_ms)
        return actions


def check_commit_without_group(group_id: str, generation: int) -> int:
    """Whether a simple consumer or an administrator may commit for a group that is not known: an error code."""
    if generation >= 0:
        return codes.GROUP_ID_NOT_FOUND
    # An id that no record can hold is refused before it is used; the empty one is taken, as by Apache Kafka.
    return codes.NONE if fits(group_id) else codes.INVALID_GROUP_ID
