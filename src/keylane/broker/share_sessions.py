"""Share sessions (KIP-932): which partitions a member of a share group reads, and that none of its requests is lost.

A member has one session, which it opens with epoch 0; its next requests have epochs 1, 2 and so on, and name only what
is another. A request with another epoch than is due changes nothing. With epoch -1 the member closes it, and so does
the end of its connection: what it has of records is free for others then. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.wire import codes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable

    from keylane.broker.sessions import Session

OPENING, CLOSING = 0, -1
"""Epochs that say what a request is for."""
LAST_EPOCH = 2**31 - 1

Partition = tuple["uuid.UUID", int]


class Member(NamedTuple):
    """Whose session it is."""

    group: str
    member_id: str


class _Open:
    """One session."""

    def __init__(self, connection: Session, partitions: Iterable[Partition]) -> None:
        self.connection = connection
        self.epoch = OPENING + 1
        """That of the next request."""
        self.partitions = dict.fromkeys(partitions)

    def count(self) -> None:
        self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1


class ShareSessions:
    """Of all members."""

    def __init__(self, most: int) -> None:
        """`most` at a time."""
        self._most = most
        self._open: dict[Member, _Open] = {}

    def fetch(
        self,
        member: Member,
        epoch: int,
        named: Iterable[Partition],
        forgotten: Iterable[Partition],
        connection: Session,
        *,
        acknowledges: bool,
    ) -> int:
        """ShareFetch: an error code. The session, if it goes on, has `partitions` now."""
        if epoch == OPENING:
            if acknowledges:
                return codes.INVALID_REQUEST
            self._open.pop(member, None)
            if len(self._open) >= self._most:
                return codes.SHARE_SESSION_LIMIT_REACHED
            self._open[member] = _Open(connection, named)
            return codes.NONE
        error = self._check(member, epoch)
        if error == codes.NONE and epoch != CLOSING:
            session = self._open[member]
            session.partitions |= dict.fromkeys(named)
            for one in forgotten:
                session.partitions.pop(one, None)
            session.count()
        return error

    def acknowledge(self, member: Member, epoch: int) -> int:
        """ShareAcknowledge: an error code."""
        if epoch == OPENING:
            return codes.INVALID_SHARE_SESSION_EPOCH
        error = self._check(member, epoch)
        if error == codes.NONE and epoch != CLOSING:
            self._open[member].count()
        return error

    def partitions(self, member: Member) -> list[Partition]:
        """What the member reads, in the order of this request's turn: each is the first once."""
        session = self._open[member]
        found = [*session.partitions]
        turn = session.epoch % len(found) if found else 0
        return found[turn:] + found[:turn]

    def close(self, member: Member, connection: Session | None = None) -> bool:
        """The member's session is over, or that of this connection: whether there was one."""
        session = self._open.get(member)
        if session is None or connection not in (None, session.connection):
            return False
        del self._open[member]
        return True

    def _check(self, member: Member, epoch: int) -> int:
        session = self._open.get(member)
        if session is None:
            return codes.SHARE_SESSION_NOT_FOUND
        return codes.NONE if epoch in (CLOSING, session.epoch) else codes.INVALID_SHARE_SESSION_EPOCH
