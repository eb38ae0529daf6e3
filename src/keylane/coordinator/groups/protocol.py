"""What the group protocol exchanges and keeps: requests, answers, actions, members. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats.consumer_offsets import MemberValue
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.coordinator.formats.consumer_offsets import GroupValue

Protocols = tuple[tuple[str, bytes], ...]
"""What a member supports, by preference: name and opaque metadata (a subscription, for consumers)."""

Token = object
"""Names a waiting request; given with it, and handed back in its `Answer`."""

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1


class JoinRequest(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool = True
    """JoinGroup 4+ (KIP-394): a new dynamic member is first told its id, and joins with it."""
    can_skip_assignment: bool = True
    """JoinGroup 9+ (KIP-814): a static leader that comes back into a stable group is told not to assign anew."""


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    error: int
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = UNKNOWN_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """For the leader only."""


class SyncRequest(NamedTuple):
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]
    """By member id; from the leader only."""


class SyncAnswer(NamedTuple):
    error: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Leaver(NamedTuple):
    member_id: str
    instance_id: str | None


class Left(NamedTuple):
    member_id: str
    instance_id: str | None
    error: int = codes.NONE


class Answer(NamedTuple):
    """Send this to the request that `token` names."""

    token: Token
    response: JoinAnswer | SyncAnswer


class Persist(NamedTuple):
    """Make this group's metadata durable, then call `GroupRegistry.stored(group, ticket, error, now_ms)`."""

    group: str
    ticket: int
    value: GroupValue


Action = Answer | Persist


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]


@dataclass(slots=True)
class Member:
    """One member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_token: Token | None = None
    """The JoinGroup that waits for the next generation."""
    sync_token: Token | None = None
    """The SyncGroup that waits for the leader's assignment."""
    is_new: bool = False
    """Has not had an answer to its first JoinGroup: it does not know its id, and cannot send heartbeats."""
    deadline_ms: int | None = None
    """When it is given up, unless it is heard of before; None while a request of its own waits here."""

    def supports(self, protocol: str) -> bool:
        return any(name == protocol for name, _ in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def touch(self, now_ms: int) -> None:
        """It was heard of: its session begins anew (but not while it waits here, where it cannot expire)."""
        if self.join_token is None and self.sync_token is None:
            self.deadline_ms = now_ms + self.session_timeout_ms

    def value(self, protocol: str | None, assignment: bytes) -> MemberValue:
        """What is kept of it in the journal."""
        return MemberValue(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )

    @classmethod
    def restored(cls, value: MemberValue, protocol: str | None, now_ms: int) -> Member:
        """A member as the journal knew it; it has one session timeout from now to be heard of."""
        return cls(
            value.member_id,
            value.group_instance_id,
            value.client_id,
            value.client_host,
            value.rebalance_timeout_ms,
            value.session_timeout_ms,
            () if protocol is None else ((protocol, value.subscription),),
            value.assignment,
            deadline_ms=now_ms + value.session_timeout_ms,
        )


class Outbox:
    """Collects the actions of one event. Each waiting request is answered through it, and is then forgotten."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._actions: list[Action] = []
        self._last_ticket = 0

    def take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def persist(self, value: GroupValue) -> int:
        """The ticket under which its outcome will be told."""
        self._last_ticket += 1
        self._actions.append(Persist(self._group, self._last_ticket, value))
        return self._last_ticket

    def answer(self, token: Token, response: JoinAnswer | SyncAnswer) -> None:
        self._actions.append(Answer(token, response))

    def answer_join(self, member: Member, answer: JoinAnswer, now_ms: int) -> None:
        """The member is part of a generation now, whether it waited for it or (a static one) kept its place."""
        token, member.join_token = member.join_token, None
        member.is_new = False
        if token is not None:
            self.answer(token, answer)
        member.touch(now_ms)

    def answer_sync(self, member: Member, answer: SyncAnswer) -> bool:
        """Whether it waited for an assignment."""
        token, member.sync_token = member.sync_token, None
        if token is not None:
            self.answer(token, answer)
        return token is not None

    def dismiss(self, member: Member, error: int) -> None:
        """Answer what a member waits for here, with an error: it is no longer what it was."""
        token, member.join_token = member.join_token, None
        if token is not None:
            # A fenced member is told which one it was; any other is to begin anew, without an id.
            member_id = member.member_id if error == codes.FENCED_INSTANCE_ID else UNKNOWN_MEMBER_ID
            self.answer(token, JoinAnswer(error, member_id))
        self.answer_sync(member, SyncAnswer(error))
