"""Share sessions: whose it is, which request is due, and what it has."""

from __future__ import annotations

import uuid

from keylane.broker.sessions import Session
from keylane.broker.share_sessions import CLOSING, OPENING, Member, ShareSessions
from keylane.wire import codes

A, B = Member("g", "a"), Member("g", "b")
TOPIC = uuid.UUID(int=1)
P0, P1, P2 = (TOPIC, 0), (TOPIC, 1), (TOPIC, 2)


def fetch(
    sessions: ShareSessions,
    member: Member,
    epoch: int,
    named: tuple[tuple[uuid.UUID, int], ...] = (),
    forgotten: tuple[tuple[uuid.UUID, int], ...] = (),
    connection: Session | None = None,
    *,
    acknowledges: bool = False,
) -> int:
    return sessions.fetch(member, epoch, named, forgotten, connection or Session(), acknowledges=acknowledges)


def test_partitions_come_and_are_forgotten_and_each_is_first_once() -> None:
    sessions = ShareSessions(2)
    assert fetch(sessions, A, OPENING, (P0, P1)) == codes.NONE
    assert sessions.partitions(A) == [P1, P0]
    assert fetch(sessions, A, 1, (P2,), (P0,)) == codes.NONE
    assert sessions.partitions(A) == [P1, P2]
    assert fetch(sessions, A, 2) == codes.NONE
    assert sessions.partitions(A) == [P2, P1]


def test_a_request_of_another_epoch_changes_nothing() -> None:
    sessions = ShareSessions(2)
    assert fetch(sessions, A, OPENING, (P0,)) == codes.NONE
    for epoch in (2, 7):
        assert fetch(sessions, A, epoch, (P1,)) == codes.INVALID_SHARE_SESSION_EPOCH
        assert sessions.acknowledge(A, epoch) == codes.INVALID_SHARE_SESSION_EPOCH
    assert sessions.partitions(A) == [P0]
    assert sessions.acknowledge(A, 1) == codes.NONE
    assert fetch(sessions, A, 1) == codes.INVALID_SHARE_SESSION_EPOCH
    assert fetch(sessions, A, 2) == codes.NONE
    assert sessions.acknowledge(A, OPENING) == codes.INVALID_SHARE_SESSION_EPOCH


def test_there_are_so_many_and_no_more() -> None:
    sessions = ShareSessions(1)
    assert fetch(sessions, A, OPENING) == codes.NONE
    assert fetch(sessions, B, OPENING) == codes.SHARE_SESSION_LIMIT_REACHED
    assert fetch(sessions, A, OPENING, (P0,)) == codes.NONE
    assert sessions.close(A)
    assert fetch(sessions, B, OPENING) == codes.NONE
    assert fetch(sessions, A, CLOSING) == codes.SHARE_SESSION_NOT_FOUND


def test_a_connection_that_ends_closes_its_own_session_alone() -> None:
    sessions, first, second = ShareSessions(1), Session(), Session()
    assert fetch(sessions, A, OPENING, connection=first) == codes.NONE
    assert fetch(sessions, A, OPENING, connection=second) == codes.NONE
    assert not sessions.close(A, first)
    assert sessions.close(A, second)
    assert not sessions.close(A, second)


def test_nothing_can_be_said_in_the_first_request() -> None:
    assert fetch(ShareSessions(1), A, OPENING, acknowledges=True) == codes.INVALID_REQUEST
