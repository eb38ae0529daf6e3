"""`Transacting`: what the core does in another way when results are committed in transactions (docs/adr/0051).

The idea: three things. Results are put into the open transaction, and wait while there is none. A commit is the end of
a transaction: first it is closed, then all of it is acknowledged, then one snapshot is taken. And an abort closes every
assignment, and asks for the committed maps once it is through; a key whose handler still runs from before waits for it
behind a token that stands for it, and a record whose output was the reason is judged when its turn comes.

Thread safety: none; its owner is the loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from keylane.engine.transactions import State, Transaction
from keylane.engine.work import Failure, works_in, works_of
from keylane.records import PlainMessage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from keylane.engine.assignment import Assignment
    from keylane.engine.commits import CommitEntry
    from keylane.engine.deliveries import DeadLetterState, Delivery
    from keylane.engine.dispatch import Dispatcher
    from keylane.engine.plan import Plan
    from keylane.engine.ports import TopicPartition
    from keylane.engine.work import Unit, Work

logger = logging.getLogger("keylane.engine")

REVOKE_COMMIT_S = 10.0
"""How long partitions that are revoked wait for the transaction that has their last results, before it is aborted."""


class UndoneFailure:
    """A failed attempt whose output ended a transaction: it is judged in the next epoch."""

    __slots__ = ("attempt", "dead", "failure", "first_s")

    def __init__(self, work: Work, error: BaseException) -> None:
        self.failure = Failure(error)
        self.attempt = work.attempt
        self.first_s = work.first_s
        self.dead: DeadLetterState | None = work.dead

    def restore(self, work: Work) -> None:
        """`work` is the same record, polled again."""
        work.attempt, work.first_s, work.dead = self.attempt, self.first_s, self.dead


class Transacting:
    """The transactional part of one core."""

    def __init__(self, ordering: str, dispatcher: Dispatcher) -> None:
        self.transaction = Transaction()
        self._ordering = ordering
        self._dispatcher = dispatcher
        self._epochs: dict[TopicPartition, int] = {}
        """Undone partitions that have to begin anew, and the epoch that was undone."""
        self._begin_at: float | None = None
        """When to ask for their committed maps; None while the abort is not through."""
        self._failures: dict[TopicPartition, dict[int, UndoneFailure]] = {}
        """What is to be judged in a new epoch, until something of it is committed."""
        self._running: set[Work] = set()
        """With the workers, of whatever epoch."""
        self._tokens: dict[Work, Work] = {}
        """What runs on from earlier epochs, and what stands for it, first in its shard of the new one."""
        self._waits: dict[Work, int] = {}
        """How many a token waits for."""
        self._abort: bool | None = None
        """For the next plan: abort; True: with another producer."""
        self.has_ended = False

    # --- results ---

    def put(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Deliveries that may be produced now: all of them are in the open transaction."""
        self.transaction.put(deliveries)
        return list(deliveries)

    @property
    def is_open(self) -> bool:
        return self.transaction.state is State.OPEN

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to commit, and nothing to abort."""
        state = self.transaction.state
        return state is State.STARTING or (state is State.OPEN and self.transaction.is_empty)

    def has_results_of(self, assignments: Collection[Assignment]) -> bool:
        """Whether outputs of these may be in a transaction that can still be aborted."""
        return self.transaction.state in (State.OPEN, State.CLOSING) and self.transaction.may_hold(assignments)

    def end(self) -> None:
        """The producer can do nothing any more, and no other one could."""
        self.has_ended = True

    def delivered(self, delivery: Delivery) -> str | None:
        """All outputs of a delivery were answered; returns why the transaction has to be aborted, if it has to."""
        self.transaction.answered(delivery)
        work = delivery.work
        assignment = work.assignment
        if delivery.error is None:
            return None
        if not assignment.wanted:
            if not delivery.blameless and self._epochs.get(assignment.name) == assignment.epoch:
                self._remember(delivery)
                self.transaction.forgive()
            return None
        if not delivery.entered and (work.chain is None or len(work.chain.deliveries) <= 1):
            return None  # nothing of it is in the transaction
        if not delivery.blameless:
            self._remember(delivery)
            self.transaction.forgive()
        return f"{work.name}: {delivery.error}"

    def _remember(self, delivery: Delivery) -> None:
        assert delivery.error is not None, delivery
        work = delivery.work
        self._failures.setdefault(work.assignment.name, {})[work.offset] = UndoneFailure(work, delivery.error)

    # --- the end of a transaction ---

    def undo(self, reason: str, assignments: Sequence[Assignment], *, fenced: bool = False) -> None:
        """Abort: these assignments, all that are open, have been closed."""
        log = logger.debug if self.transaction.is_undone else logger.warning
        log("a transaction is aborted, and what was in it runs again: %s", reason)
        self.transaction.abort(fenced=fenced)
        self._abort = bool(fenced or self._abort)
        self._begin_at = None
        self._epochs |= {one.name: one.epoch for one in assignments}

    def opened(self, now: float) -> None:
        """The transaction has ended as it should, and the next one is open."""
        wait_s = self.transaction.wait_s
        if self.transaction.opened():
            self._begin_at = now + wait_s

    def commit(self, entries: Sequence[CommitEntry] | None) -> None:
        """This is the snapshot of what is in the transaction; None: nothing is."""
        left = self.transaction.touched.difference(entry.assignment for entry in entries or ())
        assert not left, f"outputs of {left} are in a transaction, and their offsets are not"
        if entries is None:
            self.transaction.reopen()
        else:
            self.transaction.commit()

    def plan(self, plan: Plan, now: float, *, may_begin: bool) -> None:
        """What there is to do beside commits."""
        plan.abort, self._abort = self._abort, None
        if self._begin_at is not None and (now >= self._begin_at or not may_begin):
            self._begin_at = None
            plan.reload = list(self._epochs.items()) if may_begin else []
            self._epochs = {}

    def next_check(self) -> float | None:
        return self._begin_at

    # --- the new epoch ---

    def given_up(self, names: Iterable[TopicPartition]) -> None:
        """These do not begin anew: they were revoked, or lost."""
        for name in names:
            self._epochs.pop(name, None)
            self._failures.pop(name, None)

    def begin(self, assignment: Assignment) -> None:
        """A newly opened assignment: what failed before is judged in it, and what still runs is waited for."""
        name = assignment.name
        self._epochs.pop(name, None)
        is_complete = assignment.tracker.is_complete
        kept = {offset: one for offset, one in self._failures.get(name, {}).items() if not is_complete(offset)}
        self._failures[name] = kept  # until it is committed what followed: that may be undone as well
        assignment.failures = dict(kept)
        if self._ordering == "unordered":
            return
        tokens: dict[bytes | None, Work] = {}
        for work in self._running:
            key = work.message.key() if self._ordering == "key" else None
            if work.assignment.name != name or (key is None and self._ordering == "key"):
                continue
            token = tokens.get(key)
            if token is None:
                stand_in = PlainMessage(*name, offset_=-1 - len(tokens), key_=key)
                (token,) = works_of(assignment, [stand_in.offset_], [stand_in])
                tokens[key] = token
                assignment.shards.admit([stand_in.offset_], [stand_in])
            self._waits[token] = self._waits.get(token, 0) + 1
            if (before := self._tokens.get(work)) is not None:
                self._is_over(before)
            self._tokens[work] = token

    # --- what runs ---

    def handed_over(self, units: Iterable[Unit]) -> None:
        for unit in units:
            self._running.update(works_in(unit))

    def came_back(self, works: Sequence[Work]) -> None:
        """Workers report records back; call it before anything follows from that."""
        ended: list[Work] = list(works)
        for work in works:
            if work.chain is not None and work.outcome is not None:
                ended += work.chain.works  # those behind it have not run
        self._ended(ended)

    def withdrawn(self, units: Iterable[Unit]) -> None:
        for unit in units:
            self._ended(works_in(unit))

    def _ended(self, works: Sequence[Work]) -> None:
        self._running.difference_update(works)
        if not self._tokens:
            return
        for work in works:
            token = self._tokens.pop(work, None)
            if token is None:
                continue
            assignment = token.assignment
            if self._is_over(token) and assignment.wanted:
                assignment.ready.extend(assignment.shards.release((token.offset,), (token.message,)))
                self._dispatcher.offer(assignment)

    def _is_over(self, token: Work) -> bool:
        """One less that it waits for; whether that was the last."""
        self._waits[token] -= 1
        if self._waits[token]:
            return False
        del self._waits[token]
        return True
