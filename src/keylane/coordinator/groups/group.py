"""One consumer group (classic protocol) as a state machine: events and the time in, actions out.

There is no clock, socket, thread or log here. A caller passes `now_ms` with each event and gets back what to do:
answers to send (each names the waiting request that it is for) and group metadata to make durable. Timeouts are
deadlines: call `tick` when `next_deadline_ms` has come. Every waiting request is answered exactly once, whatever
happens to its member.

Sources: KIP-62, KIP-134 (initial delay), KIP-345 (static members), KIP-394 (required member id), KIP-814; Apache
Kafka's `GroupMetadataManager` and `ClassicGroup`. Assignor metadata is opaque, so every assignor works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.formats import RecordFormatError, read_topics
from keylane.coordinator.groups.members import Member, Roster
from keylane.coordinator.groups.protocol import (
    UNKNOWN_MEMBER_ID,
    Action,
    GroupDescription,
    JoinAnswer,
    JoinRequest,
    Leaver,
    Left,
    MemberDescription,
    SyncAnswer,
    SyncRequest,
    Token,
)
from keylane.coordinator.groups.rebalance import Outbox, Rebalance
from keylane.coordinator.groups.states import State
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keylane.coordinator.formats import GroupValue

CONSUMER_PROTOCOL_TYPE = "consumer"
"""Members' metadata are subscriptions then; of any other type they are not looked into."""
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a member that does not know its id yet may wait in a rebalance (Kafka's figure). Its client may be gone, and
neither heartbeats nor a session timeout can tell; one that is still there asks again."""


class Group:
    """A group's members, generation and timers. `make_member_id(prefix)` returns an id that was never used before."""

    def __init__(
        self, group_id: str, *, now_ms: int, initial_delay_ms: int, max_size: int, make_member_id: Callable[[str], str]
    ) -> None:
        self.group_id = group_id
        self.roster = Roster()
        self._max_size = max_size
        self._outbox = Outbox(group_id)
        self._make_member_id = make_member_id
        self._rebalance = Rebalance(
            group_id, self.roster, self._outbox, initial_delay_ms=initial_delay_ms, now_ms=now_ms
        )

    @property
    def state(self) -> State:
        return self._rebalance.state

    @property
    def generation(self) -> int:
        return self._rebalance.generation

    @property
    def protocol_type(self) -> str:
        return self._rebalance.protocol_type or ""

    @property
    def protocol(self) -> str | None:
        """The assignor in use; None before the first generation."""
        return self._rebalance.protocol

    @property
    def state_timestamp_ms(self) -> int:
        """When the group came into its state."""
        return self._rebalance.state_timestamp_ms

    @property
    def is_empty(self) -> bool:
        """No members, and none on its way."""
        return self.state is State.EMPTY and not self.roster.pending

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """What the consumers of the current generation subscribe to; None when that cannot be known: other software's
        protocol, nothing decided yet, or metadata in another format."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or (len(self.roster) and self._rebalance.protocol is None):
            return None
        try:
            topics = [read_topics(member.metadata(self._rebalance.protocol)) for member in self.roster]
        except RecordFormatError:
            return None
        return frozenset().union(*topics)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a live consumer may need its offsets in this topic."""
        topics = self.subscribed_topics
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE if topics is None else topic in topics

    # Events

    def join(self, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        """JoinGroup. The answer to `token` comes now, or when the next generation is decided."""
        error = self._check_join(request)
        if error != codes.NONE:
            self._outbox.answer(token, JoinAnswer(error, request.member_id))
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(request, token, now_ms)
        elif request.member_id in self.roster.pending:
            self._add(request, request.member_id, token, now_ms)
        else:
            self._rejoin(request, self.roster.members[request.member_id], token, now_ms)
        return self._outbox.take()

    def sync(self, request: SyncRequest, token: Token, now_ms: int) -> list[Action]:
        """SyncGroup. The answer comes now, or when the leader's assignment is durable."""
        error = self._check_sync(request)
        if error != codes.NONE:
            self._outbox.answer(token, SyncAnswer(error))
            return self._outbox.take()
        member = self.roster.members[request.member_id]
        self._rebalance.member_synced(member)
        if self.state is State.STABLE:
            member.touch(now_ms)
            self._outbox.answer(token, self._rebalance.assigned(member))
        else:
            self._outbox.answer_sync(member, SyncAnswer(codes.REBALANCE_IN_PROGRESS))  # an older one that still waits
            member.wait_for_assignment(token)
            if member.member_id == self.roster.leader:
                self._rebalance.store_assignment(request.assignments)
        return self._outbox.take()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        """Heartbeat: an error code; the member's session begins anew."""
        error = self._check_generation(member_id, instance_id, generation)
        if error != codes.NONE:
            return error
        self.roster.members[member_id].touch(now_ms)
        return codes.REBALANCE_IN_PROGRESS if self.state is State.PREPARING_REBALANCE else codes.NONE

    def leave(self, leavers: Iterable[Leaver], now_ms: int) -> tuple[list[Left], list[Action]]:
        """LeaveGroup of several members, each by its id, or a static one by its instance id alone."""
        before = len(self.roster)
        results = [self._leave(leaver) for leaver in leavers]
        if len(self.roster) < before:
            self._rebalance.member_removed(now_ms)
        else:
            self._rebalance.end_join_if_all_joined(now_ms)
        return results, self._outbox.take()

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        """Whether this member may commit now: an error code. A commit counts as a heartbeat."""
        if generation < 0 and self.state is State.EMPTY:
            return codes.NONE  # an administrator, or a consumer without group membership
        error = self._check_generation(member_id, instance_id, generation)
        if error != codes.NONE:
            return error
        if self.state is State.COMPLETING_REBALANCE:
            return codes.REBALANCE_IN_PROGRESS
        self.roster.members[member_id].touch(now_ms)
        return codes.NONE

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> int:
        """The same for offsets in a transaction, which may be committed while the group rebalances."""
        if generation < 0 and self.state is State.EMPTY:
            return codes.NONE
        return self._check_generation(member_id, instance_id, generation)

    def stored(self, ticket: int, error: int, now_ms: int) -> list[Action]:
        """The metadata of a `Persist` is durable, or (with an error code) never will be."""
        self._rebalance.stored(ticket, error, now_ms)
        return self._outbox.take()

    def tick(self, now_ms: int) -> list[Action]:
        """Act on every deadline that has come."""
        silent, unjoined = self.roster.overdue(now_ms)
        for member_id in silent:
            self._remove(member_id)
        for member_id in unjoined:
            del self.roster.pending[member_id]
        if silent:
            self._rebalance.member_removed(now_ms)
        elif unjoined:
            self._rebalance.end_join_if_all_joined(now_ms)
        self._rebalance.tick(now_ms)
        return self._outbox.take()

    def end(self) -> None:
        """The group is deleted. It must be empty."""
        assert self.is_empty, self.group_id
        self._rebalance.die(self.state_timestamp_ms)

    def give_way(self, now_ms: int) -> list[Action]:
        """A consumer group of KIP-848 has taken its place, with its members: who waits is to join again there."""
        for member in self.roster:
            token = member.take_join_token()
            if token is not None:
                self._outbox.answer(token, JoinAnswer(codes.REBALANCE_IN_PROGRESS, member.member_id))
            self._outbox.answer_sync(member, SyncAnswer(codes.REBALANCE_IN_PROGRESS))
        self.roster.members.clear()
        self.roster.pending.clear()
        self._rebalance.die(now_ms)
        return self._outbox.take()

    def rebalance(self, now_ms: int) -> list[Action]:
        """Members that are not here have gone: the others are to join the next generation."""
        self._rebalance.member_removed(now_ms)
        return self._outbox.take()

    def unload(self, now_ms: int) -> list[Action]:
        """The coordinator gives this group up: waiting requests are told to look for another one."""
        for member in self.roster:
            self._outbox.dismiss(member, codes.NOT_COORDINATOR)
        self.roster.members.clear()
        self.roster.pending.clear()
        self._rebalance.die(now_ms)
        return self._outbox.take()

    def restore(self, value: GroupValue, now_ms: int) -> None:
        """Become what the journal says: the last stable generation with its members, or an empty group."""
        assert not len(self.roster), self.group_id
        if value.members and value.protocol is None:
            raise RecordFormatError(f"the metadata of group {self.group_id!r} has members and no protocol")
        self.roster.restore((Member.restored(row, value.protocol, now_ms) for row in value.members), value.leader)
        self._rebalance.restore(value)

    # What is asked

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next, if nothing else happens."""
        deadlines = [*self._rebalance.deadlines(), *self.roster.deadlines()]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def describe(self) -> GroupDescription:
        """As DescribeGroups shows it: protocol, metadata and assignments only while stable."""
        protocol = self._rebalance.protocol if self.state is State.STABLE else None
        members = tuple(
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                b"" if protocol is None else member.metadata(protocol),
                b"" if protocol is None else member.assignment,
            )
            for member in self.roster
        )
        return GroupDescription(self.group_id, self.state.value, self.protocol_type, protocol or "", members)

    # Checks

    def _check_generation(self, member_id: str, instance_id: str | None, generation: int) -> int:
        if self.state is State.DEAD:
            return codes.COORDINATOR_NOT_AVAILABLE
        error = self.roster.check(member_id, instance_id)
        if error == codes.NONE and generation != self.generation:
            return codes.ILLEGAL_GENERATION
        return error

    def _check_join(self, request: JoinRequest) -> int:
        if self.state is State.DEAD:
            return codes.COORDINATOR_NOT_AVAILABLE
        if not self._shares_a_protocol(request):
            return codes.INCONSISTENT_GROUP_PROTOCOL
        if len(self.roster) >= self._max_size and self._is_additional(request):
            return codes.GROUP_MAX_SIZE_REACHED
        if request.member_id == UNKNOWN_MEMBER_ID:
            return codes.NONE
        if request.member_id in self.roster.pending:
            # Only dynamic members are told an id first; one that now claims to be static is not that member.
            return codes.NONE if request.instance_id is None else codes.UNKNOWN_MEMBER_ID
        return self.roster.check(request.member_id, request.instance_id)

    def _is_additional(self, request: JoinRequest) -> bool:
        is_back = request.instance_id is not None and request.instance_id in self.roster.static_ids
        return not is_back and request.member_id not in self.roster.members

    def _shares_a_protocol(self, request: JoinRequest) -> bool:
        """Whether the group still has a protocol that all support, with this member."""
        if self.state is State.EMPTY:
            return bool(request.protocol_type and request.protocols)
        is_same_type = request.protocol_type == self.protocol_type
        return is_same_type and self.roster.can_choose_one_of(name for name, _ in request.protocols)

    def _check_sync(self, request: SyncRequest) -> int:
        error = self._check_generation(request.member_id, request.instance_id, request.generation)
        if error != codes.NONE:
            return error
        ours = (self._rebalance.protocol_type, self._rebalance.protocol)
        if any(None not in pair and pair[0] != pair[1] for pair in zip(request[3:5], ours, strict=True)):
            return codes.INCONSISTENT_GROUP_PROTOCOL
        return codes.REBALANCE_IN_PROGRESS if self.state is State.PREPARING_REBALANCE else codes.NONE

    # Members

    def _join_new(self, request: JoinRequest, token: Token, now_ms: int) -> None:
        new_id = self._make_member_id(request.instance_id or request.client_id)
        if request.instance_id is not None:
            old_id = self.roster.static_ids.get(request.instance_id)
            if old_id is None:
                self._add(request, new_id, token, now_ms)
            else:
                self._replace(request, self.roster.members[old_id], new_id, token, now_ms)
        elif request.requires_known_member_id:
            self.roster.pending[new_id] = now_ms + request.session_timeout_ms
            self._outbox.answer(token, JoinAnswer(codes.MEMBER_ID_REQUIRED, new_id))
        else:
            self._add(request, new_id, token, now_ms)

    def _add(self, request: JoinRequest, member_id: str, token: Token, now_ms: int) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            join_token=token,
            is_new=True,
            deadline_ms=now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
        )
        if not len(self.roster):
            self._rebalance.begin_with(request.protocol_type)
        self.roster.add(member)
        self._rebalance.member_joined(now_ms)

    def _update(self, member: Member, request: JoinRequest, token: Token) -> None:
        """The member now waits with `token` for the next generation, with what it says of itself today."""
        older = member.take_join_token()
        if older is not None:
            self._outbox.answer(older, JoinAnswer(codes.REBALANCE_IN_PROGRESS, member.member_id))
        self._outbox.answer_sync(member, SyncAnswer(codes.REBALANCE_IN_PROGRESS))
        member.wait_to_join(request, token)

    def _rejoin(self, request: JoinRequest, member: Member, token: Token, now_ms: int) -> None:
        is_same = member.protocols == request.protocols
        is_leader = member.member_id == self.roster.leader
        # A leader that joins a stable group wants to assign anew (topics may have changed); a follower that has nothing
        # new to say, or a member that missed the answer to its join, is told about the current generation.
        if is_same and (self.state is State.COMPLETING_REBALANCE or (self.state is State.STABLE and not is_leader)):
            member.touch(now_ms)
            self._outbox.answer(token, self._rebalance.joined(member))
            return
        self._update(member, request, token)
        self._rebalance.member_joined(now_ms)

    def _replace(self, request: JoinRequest, member: Member, new_id: str, token: Token, now_ms: int) -> None:
        """A static member that started again: the same place in the group under a new id; the old id is fenced."""
        self._outbox.dismiss(member, codes.FENCED_INSTANCE_ID)
        old_leader = self.roster.leader
        self.roster.rename(member, new_id)
        self._update(member, request, token)
        is_stable = self.state is State.STABLE
        if is_stable and self.roster.select_protocol() == self._rebalance.protocol:
            self._rebalance.store_replacement(member, old_leader, can_skip_assignment=request.can_skip_assignment)
        else:
            # In CompletingRebalance the leader may be assigning to the old id already: begin again.
            self._rebalance.member_joined(now_ms)

    def _remove(self, member_id: str) -> None:
        self._outbox.dismiss(self.roster.remove(member_id), codes.UNKNOWN_MEMBER_ID)

    def _leave(self, leaver: Leaver) -> Left:
        member_id, instance_id = leaver
        if member_id == UNKNOWN_MEMBER_ID:  # an administrator removes a static member
            owner = None if instance_id is None else self.roster.static_ids.get(instance_id)
            if owner is None:
                return Left(member_id, instance_id, codes.UNKNOWN_MEMBER_ID)
            self._remove(owner)
        elif self.roster.pending.pop(member_id, None) is None:
            error = self.roster.check(member_id, instance_id)
            if error != codes.NONE:
                return Left(member_id, instance_id, error)
            self._remove(member_id)
        return Left(member_id, instance_id)
