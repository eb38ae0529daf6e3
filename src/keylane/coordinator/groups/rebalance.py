"""A group's cycle of generations: the states, their timers, and what must be durable before anyone is told.

    join → (all joined, or timeout) → the next generation is told → sync → assignments durable → told: stable

`Group` feeds it with what members do; here it is decided when the cycle turns. Only `_enter` changes the state, and
only along the table in `states`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from keylane.coordinator.formats import GroupValue
from keylane.coordinator.groups.protocol import (
    UNKNOWN_MEMBER_ID,
    Answer,
    JoinAnswer,
    JoinedMember,
    Persist,
    SyncAnswer,
)
from keylane.coordinator.groups.states import ALLOWED, State
from keylane.errors import InternalError
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keylane.coordinator.groups.members import Member, Roster
    from keylane.coordinator.groups.protocol import Action, Token

MAX_GENERATION = (1 << 31) - 1
_TICKETS = itertools.count(1)
"""Of all groups: one may take the place of another of its name whose metadata is on its way to the disk."""


class Rebalance:
    """State, generation and protocol of one group."""

    def __init__(self, group_id: str, roster: Roster, outbox: Outbox, *, initial_delay_ms: int, now_ms: int) -> None:
        self.state = State.EMPTY
        self.state_timestamp_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self._group_id = group_id
        self._roster = roster
        self._outbox = outbox
        self._initial_delay_ms = initial_delay_ms
        self._is_initial = False
        """In PreparingRebalance: this rebalance began with an empty group, and waits out the initial delay."""
        self._was_joined = False
        """A member joined since the initial delay was last set."""
        self._initial_left_ms = 0
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._pending_sync: set[str] = set()
        """Members of the generation that have not asked for their assignment yet."""
        self._storing: dict[int, Callable[[int, int], None]] = {}
        """What to do once a ticket's metadata is durable or failed: (error, now_ms)."""

    # What happened to members

    def begin_with(self, protocol_type: str) -> None:
        """Of the first member: all others have to share it."""
        self.protocol_type = protocol_type

    def member_joined(self, now_ms: int) -> None:
        """Someone waits for the next generation, whose coming or whose news make one necessary."""
        self._was_joined = True
        if (self.state, State.PREPARING_REBALANCE) in ALLOWED:
            self._prepare(now_ms)
        else:
            self.end_join_if_all_joined(now_ms)

    def member_removed(self, now_ms: int) -> None:
        """Members are gone, and have been answered."""
        if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self._prepare(now_ms)
        else:
            self.end_join_if_all_joined(now_ms)

    def member_synced(self, member: Member) -> None:
        """It has asked for its assignment."""
        self._pending_sync.discard(member.member_id)
        self._forget_pending_sync()

    def end_join_if_all_joined(self, now_ms: int) -> None:
        if self.state is State.PREPARING_REBALANCE and not self._is_initial and self._roster.all_joined:
            self._end_join(now_ms)

    def tick(self, now_ms: int) -> None:
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._join_timed_out(now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._sync_timed_out(now_ms)

    def deadlines(self) -> Iterable[int | None]:
        return self._join_deadline_ms, self._sync_deadline_ms

    def stored(self, ticket: int, error: int, now_ms: int) -> None:
        then = self._storing.pop(ticket, None)
        if then is not None:  # else it is of a group that had this name before
            then(error, now_ms)

    def die(self, now_ms: int) -> None:
        self._enter(State.DEAD, now_ms)
        self._join_deadline_ms = self._sync_deadline_ms = None

    def restore(self, value: GroupValue) -> None:
        """What the journal says: stable with the roster's members, or empty."""
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.state_timestamp_ms = value.state_timestamp_ms
        # Not a transition: the group was in this state when it was written.
        self.state = State.STABLE if len(self._roster) else State.EMPTY

    # Joining

    def _prepare(self, now_ms: int) -> None:
        is_half_done = self.state is State.COMPLETING_REBALANCE
        for member in self._roster:
            self._outbox.answer_sync(member, SyncAnswer(codes.REBALANCE_IN_PROGRESS))
            member.touch(now_ms)
            if is_half_done:
                member.assign(b"")
        self._pending_sync.clear()
        self._sync_deadline_ms = None
        timeout_ms = self._roster.rebalance_timeout_ms
        self._is_initial = self.state is State.EMPTY
        self._enter(State.PREPARING_REBALANCE, now_ms)
        if self._is_initial:
            self._was_joined = False
            self._initial_left_ms = max(timeout_ms - self._initial_delay_ms, 0)
            self._join_deadline_ms = now_ms + self._initial_delay_ms
        else:
            self._join_deadline_ms = now_ms + timeout_ms
            self.end_join_if_all_joined(now_ms)

    def _join_timed_out(self, now_ms: int) -> None:
        if self._is_initial and self._was_joined and self._initial_left_ms > 0:
            # Others are still arriving: wait for more of them, within the rebalance timeout.
            self._was_joined = False
            self._join_deadline_ms = now_ms + min(self._initial_delay_ms, self._initial_left_ms)
            self._initial_left_ms = max(self._initial_left_ms - self._initial_delay_ms, 0)
            return
        self._end_join(now_ms)

    def _end_join(self, now_ms: int) -> None:
        """The joining is over: who did not rejoin is out (static members keep their place); the next generation."""
        roster = self._roster
        for member in [m for m in roster if m.join_token is None and m.instance_id is None]:
            self._outbox.dismiss(roster.remove(member.member_id), codes.UNKNOWN_MEMBER_ID)
        if len(roster) and not roster.elect_joined_leader():
            # Only static members are left, and none rejoined: wait until they do or their sessions end.
            self._join_deadline_ms = now_ms + roster.rebalance_timeout_ms
            return
        self._join_deadline_ms = None
        self._is_initial = False
        self.generation = self.generation % MAX_GENERATION + 1
        if not len(roster):
            self.protocol = None
            self._enter(State.EMPTY, now_ms)
            self._persist({}, lambda _error, _now_ms: None)
            return
        self.protocol = roster.select_protocol()
        self._enter(State.COMPLETING_REBALANCE, now_ms)
        self._pending_sync = set(roster.members)
        self._sync_deadline_ms = now_ms + roster.rebalance_timeout_ms
        for member in roster:
            self._outbox.answer_join(member, self.joined(member), now_ms)

    def joined(self, member: Member) -> JoinAnswer:
        """What a member of the current generation is told of it; the leader also gets every member's metadata."""
        leader = self._roster.leader or UNKNOWN_MEMBER_ID
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == leader:
            members = tuple(
                JoinedMember(other.member_id, other.instance_id, other.metadata(self.protocol))
                for other in self._roster
            )
        return JoinAnswer(
            codes.NONE,
            member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader,
            members=members,
        )

    # Assigning

    def store_assignment(self, assignments: Mapping[str, bytes]) -> None:
        """The leader has assigned: the group is stable as soon as that is durable."""
        generation = self.generation

        def then(error: int, now_ms: int) -> None:
            if self.state is not State.COMPLETING_REBALANCE or self.generation != generation:
                return  # a rebalance began meanwhile, and has answered who waited
            if error != codes.NONE:
                for member in self._roster:
                    self._outbox.answer_sync(member, SyncAnswer(error))
                self._prepare(now_ms)
                return
            self._enter(State.STABLE, now_ms)
            for member in self._roster:
                member.assign(assignments.get(member.member_id, b""))
                if self._outbox.answer_sync(member, self.assigned(member)):
                    member.touch(now_ms)

        self._persist(assignments, then)

    def assigned(self, member: Member) -> SyncAnswer:
        return SyncAnswer(codes.NONE, self.protocol_type, self.protocol, member.assignment)

    def store_replacement(self, member: Member, old_leader: str | None, *, can_skip_assignment: bool) -> None:
        """A static member came back into a stable group: no new generation, but its new id must be durable first."""
        token = member.join_token
        self._forget_pending_sync()  # the old id will never ask

        def then(error: int, now_ms: int) -> None:
            if member.join_token is not token or (error == codes.NONE and self.state is not State.STABLE):
                return  # answered, or waiting for the rebalance that began meanwhile
            answer = self.joined(member)
            if error != codes.NONE:
                answer = JoinAnswer(error, UNKNOWN_MEMBER_ID)
            elif can_skip_assignment:
                answer = answer._replace(skip_assignment=member.member_id == self._roster.leader)
            else:
                # Before version 9 a leader cannot be told to skip the assignment: it must not know that it leads.
                answer = answer._replace(leader=old_leader or UNKNOWN_MEMBER_ID, members=())
            self._outbox.answer_join(member, answer, now_ms)

        self._persist({other.member_id: other.assignment for other in self._roster}, then)

    def _sync_timed_out(self, now_ms: int) -> None:
        """Members that never asked for their assignment are out."""
        self._sync_deadline_ms = None
        for member_id in self._pending_sync & self._roster.members.keys():
            self._outbox.dismiss(self._roster.remove(member_id), codes.UNKNOWN_MEMBER_ID)
        self.member_removed(now_ms)

    def _forget_pending_sync(self) -> None:
        self._pending_sync &= self._roster.members.keys()
        if not self._pending_sync:
            self._sync_deadline_ms = None

    def _persist(self, assignments: Mapping[str, bytes], then: Callable[[int, int], None]) -> None:
        roster = self._roster
        members = tuple(member.value(self.protocol, assignments.get(member.member_id, b"")) for member in roster)
        protocol_type = self.protocol_type or ""
        value = GroupValue(
            protocol_type, self.generation, self.protocol, roster.leader, self.state_timestamp_ms, members
        )
        self._storing[self._outbox.persist(value)] = then

    def _enter(self, state: State, now_ms: int) -> None:
        if (self.state, state) not in ALLOWED:
            raise InternalError(f"group {self._group_id!r}: no transition from {self.state.value} to {state.value}")
        self.state = state
        self.state_timestamp_ms = now_ms


class Outbox:
    """Collects the actions of one event. Each waiting request is answered through it, and is then forgotten."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._actions: list[Action] = []

    def take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def persist(self, value: GroupValue) -> int:
        """The ticket under which its outcome will be told."""
        ticket = next(_TICKETS)
        self._actions.append(Persist(self._group, ticket, value))
        return ticket

    def answer(self, token: Token, response: JoinAnswer | SyncAnswer) -> None:
        self._actions.append(Answer(token, response))

    def answer_join(self, member: Member, answer: JoinAnswer, now_ms: int) -> None:
        """The member is part of a generation now, whether it waited for it or (a static one) kept its place."""
        token = member.take_join_token()
        member.now_knows_its_id()
        if token is not None:
            self.answer(token, answer)
        member.touch(now_ms)

    def answer_sync(self, member: Member, answer: SyncAnswer) -> bool:
        """Whether it waited for an assignment."""
        token = member.take_sync_token()
        if token is not None:
            self.answer(token, answer)
        return token is not None

    def dismiss(self, member: Member, error: int) -> None:
        """Answer what a member waits for here, with an error: it is no longer what it was."""
        token = member.take_join_token()
        if token is not None:
            # A fenced member is told which one it was; any other is to begin anew, without an id.
            member_id = member.member_id if error == codes.FENCED_INSTANCE_ID else UNKNOWN_MEMBER_ID
            self.answer(token, JoinAnswer(error, member_id))
        self.answer_sync(member, SyncAnswer(error))
