"""A commit that a revoke overtakes on its way to the client is not sent: the revoke has committed more already."""

from __future__ import annotations

from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from keylane.consumer.commits import CommitEntry
from keylane.consumer.events import CommitAnswered, IntakeClosed
from keylane.consumer.intake import Intake
from keylane.consumer.ports import Revoking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.consumer.commits import CommitProblem
    from keylane.consumer.ports import ConsumerListener, Offset, Polled
    from keylane.consumer.start import TopicPartition

T0, T1 = ("t", 0), ("t", 1)


@dataclass
class Assigned:
    """What a commit entry needs of its assignment."""

    name: TopicPartition
    wanted: bool = True


@dataclass
class RevokesInItsFirstPoll:
    """A consumer that loses t-0 in its first poll and records what it is asked to commit."""

    sent: list[list[tuple[TopicPartition, int]]] = field(default_factory=list)
    polls: int = 0
    listener: ConsumerListener | None = None

    def subscribe(self, listener: ConsumerListener) -> None:
        self.listener = listener

    def poll(self, max_records: int, timeout_s: float) -> Polled | None:
        assert self.listener is not None
        self.polls += 1
        if self.polls == 1:
            self.listener.on_revoked(self.listener.on_revoking([T0]))
        return None

    def commit(self, offsets: Sequence[Offset]) -> None:
        assert self.listener is not None
        self.sent.append([(one.name, one.offset) for one in offsets])
        self.listener.on_committed({})

    def commit_now(
        self,
        offsets: Sequence[Offset],
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, CommitProblem]:
        self.sent.append([(one.name, one.offset) for one in offsets])
        return {}

    def interrupt(self) -> None:
        pass

    def log_ends(self) -> dict[TopicPartition, int]:
        return {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("with_kept", "expected"), [(False, []), (True, [[(T1, 7)]])])
def test_only_what_is_still_assigned_is_sent(with_kept: bool, expected: list[Any]) -> None:
    revoked, kept = Assigned(T0), Assigned(T1)
    older = [CommitEntry(revoked, 753, "", 1)]  # type: ignore[arg-type]
    if with_kept:
        older.append(CommitEntry(kept, 7, "", 1))  # type: ignore[arg-type]
    events: SimpleQueue[Any] = SimpleQueue()
    consumer = RevokesInItsFirstPoll()
    intake = Intake(consumer, events.put, revoke_timeout_s=10, name="test")  # type: ignore[arg-type]
    intake.allow(1)
    intake.start()
    revoking = events.get(timeout=10)
    assert isinstance(revoking, Revoking)
    intake.commit(older)  # planned before the loop saw the revoke, so it lies in the intake's queue
    revoked.wanted = False
    revoking.answer.put([CommitEntry(revoked, 766, "", 2)])  # type: ignore[arg-type]
    answered: list[CommitAnswered] = []
    while len(answered) < 2:
        event = events.get(timeout=10)
        if isinstance(event, CommitAnswered):
            answered.append(event)
    intake.close()
    while not isinstance(events.get(timeout=10), IntakeClosed):
        pass
    intake.join()
    assert consumer.sent == [[(T0, 766)], *expected]
    assert answered[1].entries is older, "the loop waits for the answer to this very commit"
