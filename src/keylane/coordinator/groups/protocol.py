"""What the group protocol exchanges: requests, answers, and the actions that a group asks for. Plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.coordinator.formats import GroupValue

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
    absent: str | None = None
    """Of one that is Dead, since it is not there: why."""
