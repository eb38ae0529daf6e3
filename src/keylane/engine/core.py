"""`Core`: the engine as a state machine. Events and `now` go in, `plan` says what to do.

The idea: everything that decides is here and in the small planners it is made of; there is no thread, clock or
client, so a seeded simulation drives it through any schedule. A record is polled, stands in its shard, is dispatched,
comes back with an outcome, perhaps waits for a retry or for its outputs, and completes; a commit says how far that
has got.

Guarantees (DESIGN) that live here: a commit never passes an incomplete record (1), is made of one snapshot and counts
when it is acknowledged (2), records of a shard never overlap (4), a completion of a closed assignment changes nothing
(6).

Thread safety: none; its owner is the loop.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from keylane.engine.acknowledgements import Acknowledgements
from keylane.engine.closing import CloseMode, Closing, Phase, Stall
from keylane.engine.commit_first import CommitFirst
from keylane.engine.commits import CommitEntry, CommitProblem, Commits
from keylane.engine.counters import Counters
from keylane.engine.dispatch import Dispatcher
from keylane.engine.failures import Failures
from keylane.engine.lease import Lease
from keylane.engine.outcomes import Outcomes
from keylane.engine.partitions import Partitions
from keylane.engine.plan import Plan, RevokeAnswer
from keylane.engine.results import NO_RESULTS
from keylane.engine.revokes import Revokes
from keylane.engine.snapshot import Snapshot
from keylane.engine.transacting import REVOKE_COMMIT_S, Transacting
from keylane.engine.verdicts import Verdicts
from keylane.errors import HandlerError, PeerError, TopicDeletedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.engine.admission import HandOver
    from keylane.engine.assignment import Assignment, Start
    from keylane.engine.events import Answer, ResultsMoved, TransactionAnswered
    from keylane.engine.ports import Running, TopicPartition
    from keylane.engine.results import ResultsRule
    from keylane.engine.work import Unit, Work
    from keylane.options import Pipeline, Rates
    from keylane.records import Message

logger = logging.getLogger("keylane.engine")


class Core:
    """The engine of one consumer: what is assigned, what runs, what is complete, what is committed."""

    def __init__(
        self,
        pipeline: Pipeline,
        hand_over: HandOver,
        *,
        random: Callable[[], float],
        ending_offsets: Mapping[TopicPartition, int] | None = None,
        results: ResultsRule = NO_RESULTS,
        lease: Lease | None = None,
        running: Callable[[], Sequence[Running]] = tuple,
        failures: Failures | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._running = running
        self._lease = lease or Lease()
        self.counters = Counters()
        self.failures = failures or Failures()
        self.partitions = Partitions(pipeline, self.counters, ending_offsets)
        self._commit_first = CommitFirst(self.partitions) if pipeline.delivery == "at_most_once" else None
        self._commit_each = pipeline.delivery == "almost_once"
        """Whether a record takes its place among those in flight until the commit that has it is acknowledged."""
        self._dispatcher = Dispatcher(hand_over, pipeline)
        self._transacting: Transacting | None = None
        if pipeline.delivery == "transactional":
            self._transacting = Transacting(pipeline.ordering, self._dispatcher)
        self._outcomes = Outcomes(
            self.partitions,
            self._dispatcher,
            Verdicts(pipeline, random),
            results,
            self.counters,
            self.fail,
            self.failures,
            self._transacting,
            self._undo,
        )
        self.commits = Commits(pipeline, self.counters)
        self._acknowledgements = Acknowledgements(pipeline)
        self.partitions.on_complete = self._on_complete
        self._revokes = Revokes(pipeline.revoke_timeout_ms / 1000)
        self._next = Plan()
        """Actions that events brought about, for the next plan."""
        self._closing = Closing(pipeline.drain_timeout_ms / 1000)
        self._stall = Stall(pipeline.stall_timeout_ms / 1000)

    @property
    def phase(self) -> Phase:
        return self._closing.phase

    @property
    def failure(self) -> BaseException | None:
        """Why the consumer stops, when it does not stop because it was asked to, or is through."""
        return self._closing.failure

    # --- events: the group and the log ---

    def assigned(self, starts: Iterable[Start], now: float) -> None:
        """Partitions were assigned, and their starts resolved."""
        if not self.partitions.open:
            self.commits.started(now)
        for start in starts:
            assignment = self.partitions.add(start, self.commits.bound, may_take=self._closing.may_start)
            if self._transacting is not None:
                self._transacting.begin(assignment)
                self._next.resume = (*self._next.resume, assignment)  # a pause of its epoch before may come late

    def polled(self, name: TopicPartition, epoch: int, messages: Sequence[Message]) -> None:
        """Records of one partition, in offset order. Those of an earlier epoch are dropped."""
        assignment = self.partitions.get(name, epoch)
        if assignment is not None and assignment.may_take:
            self.partitions.observe(assignment, messages)
            self._dispatcher.offer(assignment)

    def partition_ended(self, name: TopicPartition, epoch: int, log_end: int) -> None:
        """The log has nothing below `log_end` that was not polled."""
        assignment = self.partitions.get(name, epoch)
        if assignment is not None and assignment.may_take:
            self.partitions.observe_end(assignment, log_end)
            self._dispatcher.offer(assignment)

    def log_start_moved(self, name: TopicPartition, epoch: int, log_start: int) -> None:
        """The log dropped records before they were polled."""
        assignment = self.partitions.get(name, epoch)
        if assignment is not None and assignment.may_take:
            self.partitions.lose(assignment, log_start)

    def revoking(self, names: Iterable[TopicPartition], token: Any, now: float) -> None:
        """Partitions are being revoked: stop dispatch, and answer once their records in handlers are through."""
        names = list(names)
        self._revokes.begin(self.partitions.named(names), token, now)
        if self._transacting is not None:
            self._transacting.given_up(names)
        self._next.withdraw = True

    def lost(self, names: Iterable[TopicPartition]) -> None:
        """Partitions were lost: others may have them already. Forget them, without a commit."""
        names = list(names)
        lost = self.partitions.named(names)
        self._forget(lost)
        self._acknowledgements.forget(lost)
        self._next.withdraw = self._next.cancel = True
        if self._transacting is not None:
            self._transacting.given_up(names)
            if self._transacting.has_results_of(lost):
                self._undo(f"partitions that have results in it were lost: {names}")

    def deleted(self, topic: str) -> None:
        """A topic is no more: nothing of it can be committed, and what was read of it is given up. Others go on."""
        gone = [one for one in self.partitions.open.values() if one.topic == topic]
        text = f"topic {topic!r} was deleted"
        if self.partitions.ending is None:
            unfinished = sum(one.tracker.pending + one.claimed for one in gone)
            logger.error(
                "%s: %d records that were read of it are not processed; made anew, it is read as a new topic",
                text,
                unfinished,
            )
        elif left := self.partitions.ending.delete(topic, self.partitions.open):
            text = f"{text} before all of it was processed; left: {', '.join(left)}"
            logger.error("%s", text)
            self.note(TopicDeletedError(text))
        else:
            logger.warning("%s after all of it was processed", text)
        self.lost([one.name for one in gone])

    # --- events: the work ---

    def completed(self, works: Sequence[Work], now: float) -> None:
        """Workers report records back (`Outcomes.completed`)."""
        if self._transacting is not None:
            self._transacting.came_back(works)
        self._outcomes.completed(works, now)
        self._stall.moved(now, runs=self._dispatcher.with_workers > 0)

    def batches_completed(self, batches: Sequence[list[Work]], now: float) -> None:
        """Workers report batches back, each record with its outcome."""
        if self._transacting is not None:
            for batch in batches:
                self._transacting.came_back(batch)
        self._outcomes.batches_completed(batches, now)
        self._stall.moved(now, runs=self._dispatcher.with_workers > 0)

    def _on_complete(self, assignment: Assignment, messages: Sequence[Message]) -> None:
        """Records are complete."""
        self.commits.completed += len(messages)
        self._acknowledgements.completed(assignment, messages)

    def withdrawn(self, units: Sequence[Unit]) -> None:
        """Workers gave back what no handler had begun."""
        if self._transacting is not None:
            self._transacting.withdrawn(units)
        self._outcomes.withdrawn(units)

    def delivered(self, answers: Iterable[Answer], now: float) -> None:
        """The broker acknowledged outputs, or refused them."""
        self._outcomes.delivered(answers, now)

    def results_moved(self, event: ResultsMoved, now: float) -> None:
        """Callbacks or a reader have seen results, or will not."""
        self._outcomes.results_moved(event, now)

    # --- events: commits, and the end ---

    def commit_answered(
        self,
        entries: list[CommitEntry],
        problems: Mapping[TopicPartition, CommitProblem],
        now: float,
        sent: Sequence[CommitEntry] | None = None,
    ) -> None:
        """The broker answered a commit; `problems` names the partitions that it did not take. Of `entries` only `sent`
        were sent, when that is given: the others had been revoked meanwhile."""
        bound = self.commits.bound
        sent = entries if sent is None else sent
        fatal = self.commits.answered(entries, sent, problems, now)
        if self._commit_first is not None:
            self._commit_first.acknowledged([entry for entry in sent if entry.name not in problems])
        if (told := self._acknowledgements.answered(sent, problems)) is not None:
            self._next.told.append(told)
        self.partitions.uncommitted |= bool(problems)
        if fatal is not None:
            self.fail(PeerError(f"commits of group {self._pipeline.group_id!r} are refused: {fatal.text}"), now)
        if self.commits.bound is not bound:
            for assignment in self.partitions.open.values():
                assignment.bound = self.commits.bound
        if self.partitions.ending is not None:
            self.partitions.ending.changed()

    def transaction_answered(self, event: TransactionAnswered, now: float) -> None:
        """The transactional producer did what it was asked for, or could not."""
        assert self._transacting is not None, event
        problem, entries = event.problem, self.commits.on_its_way
        if event.step == "commit" and entries is not None:
            self.commit_answered(entries, {} if problem is None else problem.of(entries), now)
        if problem is None:
            self._transacting.opened(now)
            return
        fenced = problem.fenced or event.step != "commit"  # what cannot be aborted has to be given up
        if problem.fatal or (fenced and self._transacting.transaction.is_fenced_for_good):
            self._transacting.end()  # what still runs would have no transaction to go into
            text = f"transactions of group {self._pipeline.group_id!r} cannot go on: {problem.text}"
            self.fail(PeerError(text), now, "now")
        else:
            self._undo(problem.text, fenced=fenced)

    def _undo(self, reason: str, *, fenced: bool = False) -> None:
        """Abort the transaction: every partition begins anew, from what is committed."""
        assert self._transacting is not None, reason
        undone = list(self.partitions.open.values())
        self.counters.transactions_aborted += 1
        self._forget(undone)
        self._acknowledgements.forget(undone)
        self._transacting.undo(reason, undone, fenced=fenced)
        self._next.withdraw = self._next.cancel = True

    def stop(self, now: float, mode: CloseMode = "in_flight", timeout_s: float | None = None) -> None:
        """Poll nothing more, finish what `mode` says, commit, and be finished; within `timeout_s`, if it is given,
        instead of `drain_timeout_ms`."""
        if self._closing.begin(mode, now, timeout_s):
            self._stop_starting()

    def _stop_starting(self) -> None:
        self._next.withdraw = True
        for assignment in self.partitions.open.values():
            assignment.stop()

    def fail(self, error: BaseException, now: float, mode: CloseMode = "in_flight") -> None:
        """Stop, because of `error`. The first error is the one that is told."""
        self.note(error)
        self.stop(now, mode)

    def note(self, error: BaseException) -> None:
        """Something to tell in the end, unless there was something before."""
        self._closing.failure = self._closing.failure or error

    def abandon(self, error: BaseException) -> None:
        """Be finished at once, because of `error`: the client is gone, so nothing can be committed any more."""
        self.note(error)
        self._forget(list(self.partitions.open.values()))
        self._next.cancel = True
        self._closing.phase = Phase.FINISHED

    # --- events: the user's hand ---

    def adjust(self, max_concurrency: int | None, rates: Rates | None) -> None:
        """Change what may run at once, and how much may start; None leaves it as it is."""
        if max_concurrency is not None:
            self._dispatcher.auto = None
            self._dispatcher.hand_over.resize(max_concurrency)
        if rates is not None:
            self._dispatcher.change_rates(rates)

    def pause(self, names: Iterable[TopicPartition] | None) -> None:
        """Start nothing of these partitions (None: of any) until `resume`."""
        self.partitions.pause(names)

    def resume(self, names: Iterable[TopicPartition] | None) -> None:
        for assignment in self.partitions.resume(names):
            self._dispatcher.offer(assignment)

    # --- what to do ---

    def plan(self, now: float) -> Plan:
        """What to do now. Call it after each round of events, and when `next_check` has come."""
        if self.phase is Phase.RUNNING and self.partitions.end_is_reached():
            self.stop(now)
        if self._closing.emptied(self.partitions.buffered, now):
            self._stop_starting()
        if self._stall.is_stalled(now):
            self._fail_stalled(now)
        if (due := self.failures.next_check()) is not None and now >= due:
            self.failures.check(now)
        if self._commit_first is not None and self._commit_first.closed:
            self._outcomes.withdrawn(self._commit_first.given_up())
        plan, self._next = self._next, Plan()
        self._outcomes.release(now)
        self._plan_dispatch(plan, now)
        plan.produce, plan.results = self._outcomes.take()
        if self.phase is Phase.RUNNING:
            plan.ask_committed = self.partitions.ask_committed(now)
            polling = self.partitions.poll_plan(now)
            plan.credit = min(polling.credit, self._dispatcher.hand_over.wanted)
            plan.pause = polling.pause
            plan.resume = (*(one for one in plan.resume if not one.paused), *polling.resume)
        if self._transacting is None:
            self._answer_revokes(plan, now)
        else:
            self._answer_revokes_when_committed(plan, now)
        if self.phase is Phase.DRAINING:
            self._drain(plan, now)
        if self._transacting is None:
            self._plan_commit(plan, now)
        else:
            self._end_transaction(self._transacting, plan, now)
        return plan

    def _plan_dispatch(self, plan: Plan, now: float) -> None:
        if self._may_dispatch(now):
            plan.dispatch = self._take(now)
        if self._commit_first is not None:
            self._commit_first.hold(plan.dispatch)
            plan.dispatch = self._commit_first.take() if self._lease.holds(now) else []
        if plan.dispatch:
            self._stall.begun(now)
        if self._transacting is not None:
            self._transacting.handed_over(plan.dispatch)
            self._outcomes.judge(self._dispatcher.take_failed(), now)

    def next_check(self, now: float) -> float | None:
        """When `plan` may have something new even if nothing happens; None when only an event can bring it."""
        more_s = 0.0 if self._transacting is None else REVOKE_COMMIT_S
        times = [self._dispatcher.waiting.next_due, *self._revokes.deadlines(now, more_s)]
        if self._transacting is not None:
            times.append(self._transacting.next_check())
        times += [self._closing.next_check(), self._stall.next_check(), self.failures.next_check()]
        if self._may_dispatch(now):
            times.append(self._dispatcher.next_check(now))
        if self.phase is Phase.RUNNING:
            times.append(self.partitions.next_check())
            if self.partitions.ending is not None:
                times.append(self.partitions.ending.next_check())
        if self._may_commit:
            times.append(self._commit_due())
        return min((time for time in times if time is not None), default=None)

    def snapshot(self, now: float) -> Snapshot:
        """All counters and gauges, from one moment."""
        made = Snapshot.of(
            self.counters,
            self._running(),
            self._dispatcher.with_workers + self._outcomes.delivering,
            self._outcomes.unseen,
            self.partitions.buffered,
            self.partitions.open.values(),
            self.commits.latency.histogram(),
            now,
        )
        return replace(made, concurrency=self._dispatcher.hand_over.at_once, failures=self.failures.kinds)

    @property
    def stocked_s(self) -> float:
        """How long the workers have enough to do, in seconds: completions may be looked at a little later."""
        return self._dispatcher.hand_over.stocked_s(self._dispatcher.calls)

    def _may_dispatch(self, now: float) -> bool:
        return (
            self._closing.may_start
            and not self._outcomes.too_many_unseen
            and self._lease.holds(now)
            and not (self._pipeline.commit_mode == "sync" and (self.commits.on_its_way or self._commit_is_due(now)))
        )

    def _take(self, now: float) -> Sequence[Unit]:
        if self._commit_each:
            is_coming = self.partitions.uncommitted or self.commits.on_its_way is not None
            waiting = self._acknowledgements.waiting if is_coming else 0
            self._dispatcher.hand_over.withheld = waiting + self._outcomes.delivering
        return self._dispatcher.take(now)

    def _answer_revokes(self, plan: Plan, now: float) -> None:
        """Answer the revokes whose handlers are through, or have had their time."""
        at_once = self._closing.last_commit_deadline is not None
        for revoke in self._revokes.take(now, at_once=at_once):
            plan.cancel = plan.cancel or bool(revoke.busy)
            open_ones = [one for one in revoke.assignments if one.wanted]
            # Once finished, the last commit was acknowledged, or did not get through: then neither would this one.
            entries = [] if self.phase is Phase.FINISHED else self.commits.entries(open_ones)
            plan.revoked.append(RevokeAnswer(revoke.token, entries))
            self._forget(open_ones)
            self._acknowledgements.forget(set(open_ones).difference(entry.assignment for entry in entries))

    def _answer_revokes_when_committed(self, plan: Plan, now: float) -> None:
        """Answer the revokes whose last results are in a transaction that has ended, or have had their time."""
        assert self._transacting is not None
        for revoke in self._revokes.ready(now, at_once=self._closing.last_commit_deadline is not None):
            late = now >= revoke.deadline + REVOKE_COMMIT_S or self.phase is Phase.FINISHED
            has_results = self._transacting.has_results_of(revoke.assignments)
            if not late and (has_results or self.commits.wait_for(revoke.assignments)):
                continue
            if has_results:
                self._undo(f"partitions in it are revoked, and it was not committed in {REVOKE_COMMIT_S:g} s")
            self._revokes.remove(revoke)
            revoke.warn()
            plan.revoked.append(RevokeAnswer(revoke.token, []))
            left = [one for one in revoke.assignments if one.wanted]
            self._forget(left)
            self._acknowledgements.forget(left)

    def _end_transaction(self, transacting: Transacting, plan: Plan, now: float) -> None:
        """Close the transaction when it is time; take its snapshot once all that is in it is acknowledged."""
        transaction = transacting.transaction
        leaving = self._revokes.ready(now, at_once=self._closing.last_commit_deadline is not None)
        if transacting.is_open and (self._commit_is_due(now) or (leaving and self._may_commit)):
            transaction.close()
        if transaction.is_flushed:
            entries = self.commits.plan(self.partitions.open.values(), now)
            self.partitions.uncommitted = False
            transacting.commit(entries)
            if entries is not None:
                plan.commit = entries
                for revoke in leaving:  # what is in handlers of these no longer counts
                    revoke.warn()
                    self._forget(revoke.busy)
        transacting.plan(plan, now, may_begin=self.phase is Phase.RUNNING)

    def _forget(self, assignments: Iterable[Assignment]) -> None:
        self.partitions.close(assignments)
        self._dispatcher.waiting.forget_closed()
        if self._commit_first is not None:
            self._commit_first.closed = True

    def _plan_commit(self, plan: Plan, now: float) -> None:
        if self._commit_is_due(now):
            plan.commit = self.commits.plan(self.partitions.open.values(), now)
            self.partitions.uncommitted = False

    @property
    def _may_commit(self) -> bool:
        """Whether there is something for a commit, and nothing in its way."""
        return (
            self.partitions.uncommitted
            and self.commits.on_its_way is None
            and self.phase is not Phase.FINISHED
            and (self._transacting is None or self._transacting.is_open)
        )

    def _commit_is_due(self, now: float) -> bool:
        return self._may_commit and now >= self._commit_due()

    def _commit_due(self) -> float:
        """When the next commit may go: soon, when there is nothing left to wait for; at once, when something waits for
        it."""
        if self._commit_first or (self._commit_each and self._acknowledgements.waiting):
            return self.commits.not_before
        if self.phase is Phase.DRAINING:
            is_last = self._closing.last_commit_deadline is not None
            return self.commits.not_before if is_last else self.commits.due_at(promptly=False)
        quiet = self.partitions.buffered == 0 and self._dispatcher.with_workers == 0 and self._outcomes.delivering == 0
        return self.commits.due_at(promptly=quiet)

    def _drain(self, plan: Plan, now: float) -> None:
        """Move on to the last commit once nothing is in handlers, and to the end once that is acknowledged."""
        busy = any(one.in_handlers for one in self.partitions.open.values())
        if self._closing.waits_for_handlers(now, busy=busy):
            return
        plan.cancel = plan.cancel or busy
        if not self._revokes:
            is_committed = self.commits.on_its_way is None and not self.partitions.uncommitted
            if self._transacting is not None:
                is_committed = self._transacting.has_ended or (is_committed and self._transacting.is_idle)
            self._closing.finish(now, is_committed=is_committed)

    def _fail_stalled(self, now: float) -> None:
        handed_over = [found for one in self.partitions.open.values() if (found := one.oldest_handed_over(now))]
        self._stall.moved(now, runs=False)
        if handed_over:
            self.fail(HandlerError(self._stall.text(self._running(), handed_over, now)), now, "now")
