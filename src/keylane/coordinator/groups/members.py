"""The members of one group, and what follows from who they are: leader, common protocol, timeouts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.coordinator.formats import MemberValue
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keylane.coordinator.groups.protocol import JoinRequest, Protocols, Token


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

    def wait_to_join(self, request: JoinRequest, token: Token) -> None:
        """It waits with `token` for the next generation, with what it says of itself today."""
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms
        self.join_token = token
        if not self.is_new:
            self.deadline_ms = None

    def wait_for_assignment(self, token: Token) -> None:
        self.sync_token = token
        self.deadline_ms = None

    def take_join_token(self) -> Token | None:
        """Of the JoinGroup that waits; it is to be answered, and waits no more."""
        token, self.join_token = self.join_token, None
        return token

    def take_sync_token(self) -> Token | None:
        """The same of the SyncGroup."""
        token, self.sync_token = self.sync_token, None
        return token

    def now_knows_its_id(self) -> None:
        self.is_new = False

    def come_back(self, new_id: str) -> None:
        """A static member that started again."""
        self.member_id = new_id
        self.is_new = False

    def assign(self, assignment: bytes) -> None:
        self.assignment = assignment

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


class Roster:
    """Members by id, in the order in which they came; static ones also by instance id; and those still on their way."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        """Member id by instance id."""
        self.pending: dict[str, int] = {}
        """Members that were told their id and have not joined with it: id and deadline."""
        self.leader: str | None = None

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    def check(self, member_id: str, instance_id: str | None) -> int:
        """Whether this is a member, and not one whose instance id another has taken over: an error code."""
        if instance_id is not None:
            owner = self.static_ids.get(instance_id)
            if owner is None:
                return codes.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return codes.FENCED_INSTANCE_ID
        return codes.NONE if member_id in self.members else codes.UNKNOWN_MEMBER_ID

    def add(self, member: Member) -> None:
        self.pending.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def restore(self, members: Iterable[Member], leader: str | None) -> None:
        """As the journal knew them."""
        for member in members:
            self.add(member)
        self.leader = leader

    def remove(self, member_id: str) -> Member:
        """The first of the others leads when the leader goes."""
        member = self.members.pop(member_id)
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, member: Member, new_id: str) -> None:
        """A static member came back: the same place, and the lead if it had it, under a new id."""
        assert member.instance_id is not None
        old_id = member.member_id
        del self.members[old_id]
        member.come_back(new_id)
        self.members[new_id] = member
        self.static_ids[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id

    @property
    def all_joined(self) -> bool:
        """Whether nobody is waited for: every member waits for the next generation, and none is on its way."""
        return not self.pending and all(member.join_token is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def can_choose_one_of(self, protocols: Iterable[str]) -> bool:
        """Whether all members support one of these."""
        return any(all(member.supports(name) for member in self.members.values()) for name in protocols)

    def select_protocol(self) -> str:
        return choose_protocol([member.protocols for member in self.members.values()])

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it joined, else take the first that did; False when none did."""
        joined = [member.member_id for member in self.members.values() if member.join_token is not None]
        if joined and self.leader not in joined:
            self.leader = joined[0]
        return bool(joined)

    def overdue(self, now_ms: int) -> tuple[list[str], list[str]]:
        """Members whose session is over, and pending ones that did not join in time."""
        silent = [m.member_id for m in self.members.values() if m.deadline_ms is not None and m.deadline_ms <= now_ms]
        return silent, [member_id for member_id, deadline in self.pending.items() if deadline <= now_ms]

    def deadlines(self) -> Iterable[int | None]:
        yield from self.pending.values()
        for member in self.members.values():
            yield member.deadline_ms


def choose_protocol(members: Sequence[Protocols]) -> str:
    """Each member votes for the first of its protocols that all support; ties go to the first member's order. There
    has to be one."""
    supported = [{name for name, _ in protocols} for protocols in members]
    common = supported[0].intersection(*supported[1:])
    votes = Counter(next(name for name, _ in protocols if name in common) for protocols in members)
    return votes.most_common(1)[0][0]
