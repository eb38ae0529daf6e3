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
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from keylane.engine.admission import CHAIN_S, HandOver
from keylane.engine.commits import CommitEntry, CommitProblem, Commits
from keylane.engine.counters import Counters
from keylane.engine.dispatch import Dispatcher
from keylane.engine.outcomes import Outcomes
from keylane.engine.partitions import Partitions
from keylane.engine.results import NO_RESULTS
from keylane.engine.snapshot import Snapshot
from keylane.engine.verdicts import Verdicts
from keylane.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.engine.assignment import Assignment, Start
    from keylane.engine.deliveries import Delivery
    from keylane.engine.events import Answer, ResultsMoved
    from keylane.engine.ports import TopicPartition
    from keylane.engine.results import ResultsRule
    from keylane.engine.work import Unit, Work
    from keylane.options import Pipeline, Rates
    from keylane.records import Message

logger = logging.getLogger("keylane.engine")

FINAL_COMMIT_S = 10.0
"""How long stopping waits for its last commit to be acknowledged before it leaves the group without."""


class Phase(Enum):
    RUNNING = "running"
    DRAINING = "draining"
    """Nothing starts any more; records in handlers finish, then the last commit goes out."""
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RevokeAnswer:
    """The last commit of revoked partitions: commit these, then they are forgotten."""

    token: Any
    """What `revoking` was given."""
    entries: list[CommitEntry]


@dataclass(slots=True)
class Plan:
    """What to do now. Nothing in it may be left out, or done twice."""

    dispatch: Sequence[Unit] = ()
    produce: list[Delivery] = field(default_factory=list)
    results: list[Delivery] = field(default_factory=list)
    """Succeeded, and to be shown to user code before they are complete."""
    commit: list[CommitEntry] | None = None
    revoked: list[RevokeAnswer] = field(default_factory=list)
    credit: int = 0
    """Records that may be polled now."""
    pause: Sequence[Assignment] = ()
    resume: Sequence[Assignment] = ()
    ask_committed: Sequence[TopicPartition] = ()
    withdraw: bool = False
    """Take back from the workers what may not start any more."""
    cancel: bool = False
    """Tell the workers that some results can no longer count."""


@dataclass(slots=True)
class _Revoke:
    token: Any
    assignments: list[Assignment]
    deadline: float


class Core:
    """The engine of one consumer: what is assigned, what runs, what is complete, what is committed."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        concurrency: int,
        may_queue: bool,
        elastic: bool = False,
        random: Callable[[], float],
        ending_offsets: Mapping[TopicPartition, int] | None = None,
        results: ResultsRule = NO_RESULTS,
        chain_s: float = CHAIN_S,
    ) -> None:
        self._pipeline = pipeline
        self.counters = Counters()
        self.partitions = Partitions(pipeline, self.counters, ending_offsets)
        self._dispatcher = Dispatcher(
            HandOver(concurrency, may_queue=may_queue, elastic=elastic, chain_s=chain_s), pipeline
        )
        self._outcomes = Outcomes(
            self.partitions, self._dispatcher, Verdicts(pipeline, random), results, self.counters, self.fail
        )
        self.commits = Commits(pipeline.commit_interval_ms / 1000, pipeline.offset_metadata_max_bytes, self.counters)
        self._revokes: list[_Revoke] = []
        self._next = Plan()
        """Actions that events brought about, for the next plan."""
        self.phase = Phase.RUNNING
        self.failure: BaseException | None = None
        """Why the consumer stops, when it does not stop because it was asked to, or is through."""
        self._drain_deadline = 0.0
        self._last_commit_deadline: float | None = None
        """Set once nobody waits for handlers any more, and only the last commit is left."""

    # --- events: the group and the log ---

    def assigned(self, starts: Iterable[Start], now: float) -> None:
        """Partitions were assigned, and their starts resolved."""
        if not self.partitions.open:
            self.commits.started(now)
        for start in starts:
            self.partitions.add(start, self.commits.bound, may_start=self.phase is Phase.RUNNING)

    def polled(self, name: TopicPartition, epoch: int, messages: Sequence[Message]) -> None:
        """Records of one partition, in offset order. Those of an earlier epoch are dropped."""
        assignment = self.partitions.get(name, epoch)
        if assignment is not None and assignment.may_start:
            self.partitions.observe(assignment, messages)
            self._dispatcher.offer(assignment)

    def partition_ended(self, name: TopicPartition, epoch: int, log_end: int) -> None:
        """The log has nothing below `log_end` that was not polled."""
        assignment = self.partitions.get(name, epoch)
        if assignment is not None and assignment.may_start:
            self.partitions.observe_end(assignment, log_end)
            self._dispatcher.offer(assignment)

    def log_start_moved(self, name: TopicPartition, epoch: int, log_start: int) -> None:
        """The log dropped records before they were polled."""
        assignment = self.partitions.get(name, epoch)
        if assignment is not None and assignment.may_start:
            self.partitions.lose(assignment, log_start)

    def log_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """High watermarks as last seen."""
        for assignment in self.partitions.named(ends):
            assignment.log_end = ends[assignment.name]

    def revoking(self, names: Iterable[TopicPartition], token: Any, now: float) -> None:
        """Partitions are being revoked: stop dispatch, and answer once their records in handlers are through."""
        assignments = self.partitions.named(names)
        for assignment in assignments:
            assignment.may_start = False
        self._revokes.append(_Revoke(token, assignments, now + self._pipeline.revoke_timeout_ms / 1000))
        self._next.withdraw = True

    def lost(self, names: Iterable[TopicPartition]) -> None:
        """Partitions were lost: others may have them already. Forget them, without a commit."""
        self._forget(self.partitions.named(names))
        self._next.withdraw = self._next.cancel = True

    # --- events: the work ---

    def completed(self, works: Sequence[Work], now: float) -> None:
        """Workers report records back (`Outcomes.completed`)."""
        self._outcomes.completed(works, now)

    def batches_completed(self, batches: Sequence[list[Work]], now: float) -> None:
        """Workers report batches back, each record with its outcome."""
        self._outcomes.batches_completed(batches, now)

    def withdrawn(self, units: Sequence[Unit], now: float) -> None:
        """Workers gave back what no handler had begun."""
        self._outcomes.withdrawn(units, now)

    def delivered(self, answers: Iterable[Answer], now: float) -> None:
        """The broker acknowledged outputs, or refused them."""
        self._outcomes.delivered(answers, now)

    def results_moved(self, event: ResultsMoved, now: float) -> None:
        """Callbacks or a reader have seen results, or will not."""
        self._outcomes.results_moved(event, now)

    # --- events: commits, and the end ---

    def commit_answered(
        self, entries: list[CommitEntry], problems: Mapping[TopicPartition, CommitProblem], now: float
    ) -> None:
        """The broker answered a commit; `problems` names the partitions that it did not take."""
        bound = self.commits.bound
        fatal = self.commits.answered(entries, problems, now)
        self.partitions.uncommitted |= bool(problems)
        if fatal is not None:
            self.fail(PeerError(f"commits of group {self._pipeline.group_id!r} are refused: {fatal.text}"), now)
        if self.commits.bound is not bound:
            for assignment in self.partitions.open.values():
                assignment.bound = self.commits.bound
        if self.partitions.ending is not None:
            self.partitions.ending.changed()

    def group_committed(self, offsets: Mapping[TopicPartition, int | None], now: float) -> None:
        """The answer to `Plan.ask_committed`; empty when there was none."""
        assert self.partitions.ending is not None
        self.partitions.ending.committed(offsets, now)

    def stop(self, now: float) -> None:
        """Start nothing more, finish what is in handlers, commit, and be finished."""
        if self.phase is not Phase.RUNNING:
            return
        self.phase = Phase.DRAINING
        self._drain_deadline = now + self._pipeline.drain_timeout_ms / 1000
        self._next.withdraw = True
        for assignment in self.partitions.open.values():
            assignment.may_start = False
        self._next.pause = [one for one in self.partitions.open.values() if not one.paused]

    def fail(self, error: BaseException, now: float) -> None:
        """Stop, because of `error`. The first error is the one that is told."""
        if self.failure is None:
            self.failure = error
        self.stop(now)

    def abandon(self, error: BaseException) -> None:
        """Be finished at once, because of `error`: the client is gone, so nothing can be committed any more."""
        if self.failure is None:
            self.failure = error
        self._forget(list(self.partitions.open.values()))
        self._next.cancel = True
        self.phase = Phase.FINISHED

    # --- events: the user's hand ---

    def adjust(self, max_concurrency: int | None, rates: Rates | None) -> None:
        """Change what may run at once, and how much may start; None leaves it as it is."""
        if max_concurrency is not None:
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
        plan, self._next = self._next, Plan()
        self._outcomes.release(now)
        plan.produce, plan.results = self._outcomes.take()
        if self.phase is Phase.RUNNING:
            plan.ask_committed = self.partitions.ask_committed(now)
            if not self._outcomes.too_many_unseen:
                plan.dispatch = self._dispatcher.take(now)
            polling = self.partitions.poll_plan(now)
            plan.credit, plan.pause, plan.resume = polling.credit, polling.pause, polling.resume
        else:
            plan.credit = 1  # everything is paused; the poll serves the group
        self._answer_revokes(plan, now)
        if self.phase is Phase.DRAINING:
            self._drain(plan, now)
        self._plan_commit(plan, now)
        return plan

    def next_check(self, now: float) -> float | None:
        """When `plan` may have something new even if nothing happens; None when only an event can bring it."""
        times = [self._dispatcher.waiting.next_due, *(revoke.deadline for revoke in self._revokes)]
        if self.phase is Phase.RUNNING:
            times.append(self.partitions.next_check())
            if not self._outcomes.too_many_unseen:
                times.append(self._dispatcher.next_check(now))
            if self.partitions.ending is not None:
                times.append(self.partitions.ending.next_check())
        elif self.phase is Phase.DRAINING:
            times.append(self._last_commit_deadline or self._drain_deadline)
        if self.partitions.uncommitted and self.commits.on_its_way is None and self.phase is not Phase.FINISHED:
            times.append(self._commit_due())
        return min((time for time in times if time is not None), default=None)

    def snapshot(self, now: float) -> Snapshot:
        """All counters and gauges, from one moment."""
        in_flight = self._dispatcher.with_workers + self._outcomes.delivering
        return Snapshot.of(
            self.counters,
            in_flight,
            self._outcomes.unseen,
            self.partitions.buffered,
            self.partitions.open.values(),
            self.commits.latency.histogram(),
            now,
        )

    def _answer_revokes(self, plan: Plan, now: float) -> None:
        """Answer the revokes whose handlers are through, or have had their time."""
        for revoke in list(self._revokes):
            busy = [one for one in revoke.assignments if one.in_flight]
            if busy and now < revoke.deadline and self._last_commit_deadline is None:
                continue
            for one in busy:
                logger.warning(
                    "%s-%d is given up with %d records in handlers; they may run again elsewhere",
                    *one.name,
                    len(one.in_flight),
                )
            plan.cancel = plan.cancel or bool(busy)
            open_ones = [one for one in revoke.assignments if one.wanted]
            # Once finished, the last commit was acknowledged, or did not get through: then neither would this one.
            entries = [] if self.phase is Phase.FINISHED else self.commits.entries(open_ones)
            plan.revoked.append(RevokeAnswer(revoke.token, entries))
            self._forget(open_ones)
            self._revokes.remove(revoke)

    def _forget(self, assignments: Iterable[Assignment]) -> None:
        self.partitions.close(assignments)
        self._dispatcher.waiting.forget_closed()

    def _plan_commit(self, plan: Plan, now: float) -> None:
        if not self.partitions.uncommitted or self.commits.on_its_way is not None or self.phase is Phase.FINISHED:
            return
        if now >= self._commit_due():
            plan.commit = self.commits.plan(self.partitions.open.values(), now)
            self.partitions.uncommitted = False

    def _commit_due(self) -> float:
        """When the next commit may go: soon, when there is nothing left to wait for."""
        if self.phase is Phase.DRAINING:
            return self.commits.due_at(promptly=self._last_commit_deadline is not None)
        quiet = self.partitions.buffered == 0 and self._dispatcher.with_workers == 0 and self._outcomes.delivering == 0
        return self.commits.due_at(promptly=quiet)

    def _drain(self, plan: Plan, now: float) -> None:
        """Move on to the last commit once nothing is in handlers, and to the end once that is acknowledged."""
        busy = any(one.in_flight for one in self.partitions.open.values())
        if busy and now < self._drain_deadline:
            return
        if self._last_commit_deadline is None:
            self._last_commit_deadline = now + FINAL_COMMIT_S
            plan.cancel = plan.cancel or busy
        if self._revokes:
            return
        if self.commits.on_its_way is None and not self.partitions.uncommitted:
            self.phase = Phase.FINISHED
        elif now >= self._last_commit_deadline:
            logger.warning("stopping: the last commit was not acknowledged within %d s", FINAL_COMMIT_S)
            self.phase = Phase.FINISHED
