"""`Transactional`: results and offsets are committed together, in Kafka transactions (docs/adr/0051).

The idea: three things. Results are put into the open transaction, and wait while there is none. A commit is the end of
a transaction: first it is closed, then all of it is acknowledged, then one snapshot is taken. And an abort closes every
partition, and asks for the committed maps once it is through; a record whose output was the reason is judged when its
turn comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.consumer.closing import Phase
from keylane.consumer.modes.at_least_once import AtLeastOnce, RevokeAnswer
from keylane.consumer.modes.transaction import State, Transaction
from keylane.consumer.partitions import partition_of
from keylane.errors import PeerError
from keylane.flow.outcomes import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keylane.consumer.deliveries import DeadLetterState
    from keylane.consumer.events import TransactionAnswered
    from keylane.consumer.modes.at_least_once import Parts, Plan
    from keylane.consumer.outputs import Delivery
    from keylane.consumer.partitions import Partition
    from keylane.consumer.start import TopicPartition
    from keylane.flow.items import Item, Unit

REVOKE_COMMIT_S = 10.0
"""How long partitions that are revoked wait for the transaction that has their last results, before it is aborted."""


class UndoneFailure:
    """A failed attempt whose output ended a transaction: it is judged in the next epoch."""

    __slots__ = ("attempt", "dead", "failure", "first_s")

    def __init__(self, item: Item, error: BaseException, dead: DeadLetterState | None) -> None:
        self.failure = Failure(error)
        self.attempt = item.attempt
        self.first_s = item.first_s
        self.dead = dead


class Transactional(AtLeastOnce):
    """One consumer's mode. Thread safety: none; its owner is the loop."""

    may_put_off = False
    revoke_commit_s = REVOKE_COMMIT_S

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._transaction = Transaction()
        self._epochs: dict[TopicPartition, int] = {}
        """Undone partitions that have to begin anew, and the epoch that was undone."""
        self._begin_at: float | None = None
        """When to ask for their committed maps; None while the abort is not through."""
        self._failures: dict[TopicPartition, dict[int, UndoneFailure]] = {}
        """What is to be judged in a new epoch, until something of it is committed."""
        self._due: dict[Partition, dict[int, UndoneFailure]] = {}
        """The same, of what is not judged yet."""
        self._abort: bool | None = None
        """For the next plan: abort; True: with another producer."""
        self._has_ended = False
        """Whether the producer can do nothing any more, and no other one could."""

    # --- the group ---

    def begin(self, partition: Partition, plan: Plan) -> None:
        """What failed before is judged in it."""
        super().begin(partition, plan)
        name = partition.name
        self._epochs.pop(name, None)
        is_complete = partition.tracker.is_complete
        kept = {offset: one for offset, one in self._failures.get(name, {}).items() if not is_complete(offset)}
        self._failures[name] = kept  # until it is committed what followed: that may be undone as well
        if kept:
            self._due[partition] = dict(kept)
            partition.source.turn_over(kept)
        plan.resume_poll(partition)  # a pause of its epoch before may come late

    def given_up(self, names: Iterable[TopicPartition]) -> None:
        """These do not begin anew."""
        for name in names:
            self._epochs.pop(name, None)
            self._failures.pop(name, None)

    def lost(self, names: Sequence[TopicPartition], partitions: Sequence[Partition]) -> None:
        self.given_up(names)
        if self._has_results_of(partitions):
            self._undo(f"partitions that have results in it were lost: {list(names)}")

    def closed(self) -> None:
        self._due = {partition: due for partition, due in self._due.items() if partition.wanted}

    # --- the work ---

    def hand_over(self, units: Sequence[Unit], now: float, *, may_start: bool) -> Sequence[Unit]:  # noqa: ARG002 - the protocol's
        parts = self._parts
        for item in parts.flow.pop_turned_over():
            undone = self._due[partition_of(item.source)].pop(item.number)
            item.restore(undone.attempt, undone.first_s)
            item.begin(now)
            parts.deliveries.failed_before(item, undone.failure, undone.dead, now)
        return units

    # --- outputs ---

    def outputs(self) -> list[Delivery]:
        """What goes into the open transaction; without one it waits. What nobody wants any more must not be seen."""
        if not self._parts.deliveries.has_outputs or not self._is_open:
            return []
        wanted = self._parts.deliveries.drop_outputs()
        self._transaction.put(wanted)
        return wanted

    def is_undone_by(self, delivery: Delivery) -> bool:
        """Whether the transaction has to be aborted, and was."""
        self._transaction.answered(delivery)
        if delivery.error is None:
            return False
        item, partition = delivery.item, partition_of(delivery.item.source)
        if not partition.wanted:
            if not delivery.blameless and self._epochs.get(partition.name) == partition.epoch:
                self._remember(delivery)
                self._transaction.forgive()
            return False
        if not delivery.entered and (item.chain is None or item.chain.on_their_way <= 1):
            return False  # nothing of it is in the transaction
        if not delivery.blameless:
            self._remember(delivery)
            self._transaction.forgive()
        self._undo(f"{item.name}: {delivery.error}")
        return True

    def _remember(self, delivery: Delivery) -> None:
        assert delivery.error is not None, delivery
        item = delivery.item
        undone = UndoneFailure(item, delivery.error, self._parts.deliveries.dead_state(item))
        self._failures.setdefault(partition_of(item.source).name, {})[item.number] = undone

    # --- the transaction ---

    @property
    def _is_open(self) -> bool:
        return self._transaction.state is State.OPEN

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to commit, and nothing to abort."""
        state = self._transaction.state
        return state is State.STARTING or (state is State.OPEN and self._transaction.is_empty)

    def _has_results_of(self, partitions: Sequence[Partition]) -> bool:
        """Whether outputs of these may be in a transaction that can still be aborted."""
        return self._transaction.state in (State.OPEN, State.CLOSING) and self._transaction.may_hold(partitions)

    def transaction_answered(self, event: TransactionAnswered, now: float) -> None:
        """The producer did what it was asked for, or could not."""
        problem, parts = event.problem, self._parts
        if problem is None:
            wait_s = self._transaction.wait_s
            if self._transaction.opened():
                self._begin_at = now + wait_s
            return
        fenced = problem.fenced or event.step != "commit"  # what cannot be aborted has to be given up
        if problem.fatal or (fenced and self._transaction.is_fenced_for_good):
            self._has_ended = True  # what still runs would have no transaction to go into
            text = f"transactions of group {parts.pipeline.group_id!r} cannot go on: {problem.text}"
            parts.fail_at_once(PeerError(text), now)
        else:
            self._undo(problem.text, fenced=fenced)

    def _undo(self, reason: str, *, fenced: bool = False) -> None:
        """Abort the transaction: every partition begins anew, from what is committed."""
        parts = self._parts
        undone = list(parts.partitions.open.values())
        parts.counters["transactions_aborted"] += 1
        parts.forget(undone)
        parts.acknowledgements.forget(undone)
        log = parts.log.debug if self._transaction.is_undone else parts.log.warning
        log("a transaction is aborted, and what was in it runs again: %s", reason)
        self._transaction.abort(fenced=fenced)
        self._abort = bool(fenced or self._abort)
        self._begin_at = None
        self._epochs |= {one.name: one.epoch for one in undone}
        parts.withdraw()

    # --- commits ---

    @property
    def may_commit(self) -> bool:
        return self._is_open

    @property
    def is_committed(self) -> bool:
        return self._has_ended or (super().is_committed and self._is_idle)

    def answer_revokes(self, plan: Plan, now: float) -> None:
        """Answer the revokes whose last results are in a transaction that has ended, or have had their time."""
        parts = self._parts
        for revoke in parts.revokes.ready(now, at_once=parts.closing.waits_for_last_commit):
            late = now >= revoke.deadline + REVOKE_COMMIT_S or parts.closing.phase is Phase.FINISHED
            has_results = self._has_results_of(revoke.partitions)
            if not late and (has_results or parts.commits.wait_for(revoke.partitions)):
                continue
            if has_results:
                self._undo(f"partitions in it are revoked, and it was not committed in {REVOKE_COMMIT_S:g} s")
            parts.revokes.give_up(revoke)
            plan.revoked.append(RevokeAnswer(revoke.token, []))
            left = [one for one in revoke.partitions if one.wanted]
            parts.forget(left)
            parts.acknowledgements.forget(left)

    def commit(self, plan: Plan, now: float, *, is_due: bool) -> None:
        """Close the transaction when it is time; take its snapshot once all that is in it is acknowledged."""
        parts, transaction = self._parts, self._transaction
        leaving = parts.revokes.ready(now, at_once=parts.closing.waits_for_last_commit)
        if self._is_open and (is_due or (leaving and self._has_something_to_commit)):
            transaction.close()
        if transaction.is_flushed:
            entries = parts.commits.plan(parts.partitions.open.values(), now)
            parts.partitions.commit_is_planned()
            left = transaction.touched.difference(entry.partition for entry in entries or ())
            assert not left, f"outputs of {left} are in a transaction, and their offsets are not"
            if entries is None:
                transaction.reopen()
            else:
                transaction.commit()
                plan.commit_these(entries)
                for revoke in leaving:  # what is in handlers of these no longer counts
                    revoke.warn(parts.log)
                    parts.forget(revoke.busy)
        plan.abort_it(renew=self._abort)
        self._abort = None
        may_begin = parts.closing.phase is Phase.RUNNING
        if self._begin_at is not None and (now >= self._begin_at or not may_begin):
            self._begin_at = None
            plan.begin_anew(list(self._epochs.items()) if may_begin else [])
            self._epochs = {}

    @property
    def _has_something_to_commit(self) -> bool:
        parts = self._parts
        return (
            parts.partitions.uncommitted
            and parts.commits.on_its_way is None
            and parts.closing.phase is not Phase.FINISHED
        )

    def next_check(self) -> float | None:
        return self._begin_at
