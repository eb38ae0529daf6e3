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
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from keylane.engine.admission import HandOver, PollBound
from keylane.engine.assignment import Assignment, Start
from keylane.engine.commits import CommitEntry, CommitProblem, Commits
from keylane.engine.counters import Counters
from keylane.engine.deliveries import DeadLetterState, Delivery, dead_letter
from keylane.engine.dispatch import Dispatcher
from keylane.engine.ending import Ending
from keylane.engine.retries import delay_s
from keylane.engine.snapshot import Snapshot
from keylane.engine.work import Failure, NotRun, Work
from keylane.errors import HandlerError, PeerError
from keylane.options import DeadLetter, Pipeline, Skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.records import Message

logger = logging.getLogger("keylane.engine")

FINAL_COMMIT_S = 10.0
"""How long stopping waits for its last commit to be acknowledged before it leaves the group without."""

TopicPartition = tuple[str, int]


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

    dispatch: list[Work] = field(default_factory=list)
    produce: list[Delivery] = field(default_factory=list)
    commit: list[CommitEntry] | None = None
    revoked: list[RevokeAnswer] = field(default_factory=list)
    credit: int = 0
    """Records that may be polled now."""
    pause: Sequence[Assignment] = ()
    resume: Sequence[Assignment] = ()
    ask_committed: list[TopicPartition] = field(default_factory=list)
    withdraw: bool = False
    """Take back from the workers what may not start any more."""
    cancel: bool = False
    """Tell the workers that some results can no longer count."""


@dataclass(slots=True)
class _Revoke:
    token: object
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
        random: Callable[[], float],
        ending_offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._random = random
        self.counters = Counters()
        self._assignments: dict[TopicPartition, Assignment] = {}
        self._dispatcher = Dispatcher(HandOver(concurrency, may_queue=may_queue))
        self._poll_bound = PollBound(pipeline.max_buffered_records)
        self._commits = Commits(pipeline.commit_interval_ms / 1000, pipeline.offset_metadata_max_bytes, self.counters)
        self._ending = Ending(ending_offsets) if ending_offsets is not None else None
        self._buffered = 0
        self._delivering = 0
        self._uncommitted = False
        """Whether a commit could have something new to say."""
        self._revokes: list[_Revoke] = []
        self._next = Plan()
        """Actions that events brought about, for the next plan."""
        self.phase = Phase.RUNNING
        self.failure: BaseException | None = None
        """Why the consumer stops, when it does not stop because it was asked to, or is through."""
        self._drain_deadline: float | None = None
        self._last_commit_deadline: float | None = None

    # --- events: the group and the log ---

    def assigned(self, starts: Iterable[Start], now: float) -> None:
        """Partitions were assigned, and their starts resolved."""
        if not self._assignments:
            self._commits.started(now)
        for start in starts:
            name = (start.topic, start.partition)
            assert name not in self._assignments, f"{name} was assigned twice"
            end = None if self._ending is None else self._ending.of(*name)
            assignment = Assignment(start, self._pipeline.ordering, self._commits.bound, end)
            assignment.may_start = self.phase is Phase.RUNNING
            self._assignments[name] = assignment
            self._lose(assignment, start.log_start)
        self._assignments_changed()

    def polled(self, name: TopicPartition, epoch: int, messages: Sequence[Message]) -> None:
        """Records of one partition, in offset order. Those of an earlier epoch are dropped."""
        assignment = self._current(name, epoch)
        if assignment is None or not assignment.may_start:
            return
        before = assignment.tracker.pending
        _, done = assignment.observe(messages, with_keys=self._pipeline.ordering == "key")
        self.counters.already_complete += done
        self._buffered += assignment.tracker.pending - before
        self._moved(assignment)

    def partition_ended(self, name: TopicPartition, epoch: int, log_end: int) -> None:
        """The log has nothing below `log_end` that was not polled."""
        assignment = self._current(name, epoch)
        if assignment is not None and assignment.may_start:
            assignment.log_end = max(log_end, assignment.log_end or 0)
            assignment.observe_end(log_end)
            self._moved(assignment)

    def log_start_moved(self, name: TopicPartition, epoch: int, log_start: int) -> None:
        """The log dropped records before they were polled."""
        assignment = self._current(name, epoch)
        if assignment is not None:
            self._lose(assignment, log_start)

    def log_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """High watermarks as last seen."""
        for name, end in ends.items():
            if name in self._assignments:
                self._assignments[name].log_end = end

    def revoking(self, names: Iterable[TopicPartition], token: object, now: float) -> None:
        """Partitions are being revoked: stop dispatch, and answer once their records in handlers are through."""
        assignments = [self._assignments[name] for name in names if name in self._assignments]
        for assignment in assignments:
            assignment.may_start = False
        self._revokes.append(_Revoke(token, assignments, now + self._pipeline.revoke_timeout_ms / 1000))
        self._next.withdraw = True

    def lost(self, names: Iterable[TopicPartition]) -> None:
        """Partitions were lost: others may have them already. Forget them, without a commit."""
        self._forget([self._assignments[name] for name in names if name in self._assignments])
        self._next.withdraw = self._next.cancel = True

    # --- events: the work ---

    def completed(self, works: Sequence[Work], now: float) -> None:
        """Workers report records back, each with its outcome."""
        self._dispatcher.reported(len(works), now)
        done: dict[Assignment, list[Work]] = defaultdict(list)
        for work in works:
            outcome, assignment = work.outcome, work.assignment
            if not assignment.wanted:
                self.counters.stale += 1
            elif outcome is None:
                done[assignment].append(work)
            elif isinstance(outcome, Failure):
                self._failed(work, outcome, now)
            elif isinstance(outcome, NotRun):
                self._not_run(work)
            else:
                self._deliver(Delivery(work, outcome))
        for assignment, finished in done.items():
            self.counters.processed += len(finished)
            self._finish(assignment, finished)

    def withdrawn(self, works: Sequence[Work], now: float) -> None:
        """Workers gave back records that no handler had begun."""
        self._dispatcher.reported(len(works), now)
        for work in works:
            if work.assignment.wanted:
                self._not_run(work)

    def delivered(self, answers: Iterable[tuple[Delivery, BaseException | None]], now: float) -> None:
        """The broker acknowledged outputs, or refused them."""
        for delivery, error in answers:
            self.counters.produced += error is None
            if not delivery.answered(error):
                continue
            self._delivering -= 1
            work = delivery.work
            if not work.assignment.wanted:
                self.counters.stale += 1
            elif delivery.error is not None:
                self._undelivered(work, delivery.error, now)
            else:
                if work.dead is None:
                    self.counters.processed += 1
                else:
                    self.counters.dead_lettered += 1
                self._finish(work.assignment, (work,))

    # --- events: commits, and the end ---

    def commit_answered(
        self, entries: list[CommitEntry], problems: Mapping[TopicPartition, CommitProblem], now: float
    ) -> None:
        """The broker answered a commit; `problems` names the partitions that it did not take."""
        bound = self._commits.bound
        fatal = self._commits.answered(entries, problems, now)
        self._uncommitted = self._uncommitted or bool(problems)
        if self._ending is not None:
            self._ending.changed()
        if fatal is not None:
            self.fail(PeerError(f"commits of group {self._pipeline.group_id!r} are refused: {fatal.text}"), now)
        if self._commits.bound is not bound:
            for assignment in self._assignments.values():
                assignment.bound = self._commits.bound

    def group_committed(self, offsets: Mapping[TopicPartition, int | None], now: float) -> None:
        """The answer to `Plan.ask_committed`."""
        assert self._ending is not None
        self._ending.committed(offsets, now)

    def stop(self, now: float) -> None:
        """Start nothing more, finish what is in handlers, commit, and be finished."""
        if self.phase is not Phase.RUNNING:
            return
        self.phase = Phase.DRAINING
        self._drain_deadline = now + self._pipeline.drain_timeout_ms / 1000
        self._next.withdraw = True
        for assignment in self._assignments.values():
            assignment.may_start = False
        self._next.pause = [one for one in self._assignments.values() if not one.paused]

    def abandon(self, error: BaseException) -> None:
        """Be finished at once, because of `error`: the client is gone, so nothing can be committed any more."""
        if self.failure is None:
            self.failure = error
        self._forget(list(self._assignments.values()))
        self._next.cancel = True
        self.phase = Phase.FINISHED

    def fail(self, error: BaseException, now: float) -> None:
        """Stop, because of `error`. The first error is the one that is told."""
        if self.failure is None:
            self.failure = error
        self.stop(now)

    # --- what to do ---

    def plan(self, now: float) -> Plan:
        """What to do now. Call it after each round of events, and when `next_check` has come."""
        ask_committed = self._watch_the_end(now)
        plan, self._next = self._next, Plan()
        plan.ask_committed = ask_committed
        for work in self._dispatcher.release_retries(now):
            self._redeliver(work, plan, now)
        if self.phase is Phase.RUNNING:
            plan.dispatch = self._dispatcher.take(now)
            polling = self._poll_bound.plan(self._buffered, now)
            plan.credit, plan.pause, plan.resume = polling.credit, polling.pause, polling.resume
        elif self.phase is Phase.DRAINING:
            plan.credit = 1  # everything is paused; the poll serves the group
        self._answer_revokes(plan, now)
        if self.phase is Phase.DRAINING:
            self._drain(plan, now)
        self._plan_commit(plan, now)
        return plan

    def next_check(self) -> float | None:
        """When `plan` may have something new even if nothing happens; None when only an event can bring it."""
        times = [
            self._dispatcher.retries.next_due,
            self._poll_bound.next_check(),
            self._drain_check(),
            *(revoke.deadline for revoke in self._revokes),
        ]
        if self._uncommitted and self._commits.on_its_way is None:
            times.append(self._commit_due())
        if self._ending is not None and self.phase is Phase.RUNNING:
            times.append(self._ending.next_check())
        return min((time for time in times if time is not None), default=None)

    def snapshot(self, now: float) -> Snapshot:
        """All counters and gauges, from one moment."""
        counters = self.counters
        assignments = sorted(self._assignments.values(), key=lambda one: one.name)
        oldest = [found for one in assignments if (found := one.oldest_in_flight(now)) is not None]
        return Snapshot(
            processed=counters.processed,
            failed=counters.failed,
            retried=counters.retried,
            dead_lettered=counters.dead_lettered,
            skipped=counters.skipped,
            produced=counters.produced,
            commits=counters.commits,
            commit_failures=counters.commit_failures,
            commits_without_map=counters.commits_without_map,
            already_complete=counters.already_complete,
            lost_to_retention=counters.lost_to_retention,
            in_flight=self._dispatcher.with_workers + self._delivering,
            buffered=self._buffered,
            oldest=max(oldest, key=lambda one: one.age_ms, default=None),
            partitions=tuple(one.snapshot() for one in assignments),
        )

    # --- completing, and failing ---

    def _finish(self, assignment: Assignment, works: Sequence[Work]) -> None:
        """Records are complete: the next of their shards may run."""
        ready, release, in_flight = assignment.ready, assignment.shards.release, assignment.in_flight
        offsets = []
        for work in works:
            offset = work.offset
            offsets.append(offset)
            del in_flight[offset]
            following = release(work)
            if following is not None:
                ready.append(following)
        self._buffered -= assignment.tracker.complete(offsets)
        self._uncommitted = True
        if not assignment.queued:
            self._dispatcher.offer(assignment)

    def _not_run(self, work: Work) -> None:
        """A dispatched record that no handler began: it is still to do, if anything of its partition is."""
        assignment = work.assignment
        del assignment.in_flight[work.offset]
        if assignment.may_start:
            assignment.ready.appendleft(work)
            self._dispatcher.offer(assignment)

    def _failed(self, work: Work, failure: Failure, now: float) -> None:
        """An attempt failed: another one later, or the pipeline's rule for exhausted records."""
        self.counters.failed += 1
        retries = self._pipeline.retries
        if not failure.final and work.attempt < retries.max_attempts:
            self._retry(work, work.attempt, now)
            work.attempt += 1
            return
        rule = self._pipeline.on_exhausted
        reason = f"{work.name}: {_text(failure.error)}; failed {_attempts(work.attempt)}"
        if isinstance(rule, Skip):
            self.counters.skipped += 1
            logger.warning("skipped %s", reason)
            self._finish(work.assignment, (work,))
        elif isinstance(rule, DeadLetter):
            logger.warning("to the dead-letter topic %r: %s", rule.topic, reason)
            work.dead = DeadLetterState(failure, work.attempt)
            self._deliver(Delivery(work, (dead_letter(work, rule.topic, failure, work.attempt),)))
        else:
            del work.assignment.in_flight[work.offset]
            self._halt(
                f"{reason}; mend the handler and start again, or set on_exhausted to DeadLetter or Skip", failure, now
            )

    def _undelivered(self, work: Work, error: BaseException, now: float) -> None:
        """An output was not acknowledged: a failed attempt. A dead letter has as many attempts of its own."""
        if work.dead is None:
            self._failed(work, Failure(error), now)
            return
        self.counters.failed += 1
        if work.dead.tries < self._pipeline.retries.max_attempts:
            self._retry(work, work.dead.tries, now)
            work.dead.tries += 1
            return
        assert isinstance(self._pipeline.on_exhausted, DeadLetter)
        del work.assignment.in_flight[work.offset]
        self._halt(
            f"{work.name}: {_text(work.dead.failure.error)}; failed {_attempts(work.dead.attempts)}, and its dead "
            f"letter could not be produced to {self._pipeline.on_exhausted.topic!r}: {_text(error)}; "
            "check that topic and start again",
            work.dead.failure,
            now,
        )

    def _halt(self, text: str, failure: Failure, now: float) -> None:
        error = HandlerError(text)
        error.__cause__ = failure.error
        self.fail(error, now)

    def _retry(self, work: Work, attempt: int, now: float) -> None:
        self.counters.retried += 1
        del work.assignment.in_flight[work.offset]
        self._dispatcher.retries.add(work, now + delay_s(self._pipeline.retries, attempt, self._random))

    def _deliver(self, delivery: Delivery) -> None:
        self._delivering += 1
        self._next.produce.append(delivery)

    def _redeliver(self, work: Work, plan: Plan, now: float) -> None:
        """A dead letter whose delivery failed goes out again."""
        rule = self._pipeline.on_exhausted
        assert work.dead is not None
        assert isinstance(rule, DeadLetter)
        work.assignment.in_flight[work.offset] = now
        self._delivering += 1
        plan.produce.append(Delivery(work, (dead_letter(work, rule.topic, work.dead.failure, work.dead.attempts),)))

    # --- partitions that go, commits, and the end ---

    def _current(self, name: TopicPartition, epoch: int) -> Assignment | None:
        assignment = self._assignments.get(name)
        return assignment if assignment is not None and assignment.epoch == epoch else None

    def _moved(self, assignment: Assignment) -> None:
        """The position of a partition moved."""
        self._uncommitted = True  # gaps and records that were complete already move the base
        self._poll_bound.polled(assignment, self._buffered)
        self._dispatcher.offer(assignment)

    def _lose(self, assignment: Assignment, log_start: int) -> None:
        lost = assignment.tracker.drop_below(log_start)
        self._uncommitted = True
        if lost:
            self.counters.lost_to_retention += lost
            logger.warning(
                "%s-%d: up to %d records below the log's start at %d were lost to retention before they were complete",
                *assignment.name,
                lost,
                log_start,
            )

    def _forget(self, assignments: Iterable[Assignment]) -> None:
        for assignment in assignments:
            assignment.close()
            self._buffered -= assignment.tracker.pending
            self._poll_bound.forget(assignment)
            del self._assignments[assignment.name]
        self._assignments_changed()
        self._dispatcher.retries.forget_closed()

    def _assignments_changed(self) -> None:
        self._poll_bound.partitions = len(self._assignments)
        if self._ending is not None:
            self._ending.changed()

    def _answer_revokes(self, plan: Plan, now: float) -> None:
        for revoke in list(self._revokes):
            busy = [one for one in revoke.assignments if one.in_flight]
            drained = self._last_commit_deadline is not None  # nobody waits for handlers any more
            if busy and now < revoke.deadline and not drained:
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
            entries = [] if self.phase is Phase.FINISHED else self._commits.entries(open_ones)
            plan.revoked.append(RevokeAnswer(revoke.token, entries))
            self._forget(open_ones)
            self._revokes.remove(revoke)

    def _plan_commit(self, plan: Plan, now: float) -> None:
        if not self._uncommitted or self._commits.on_its_way is not None or self.phase is Phase.FINISHED:
            return
        if now >= self._commit_due():
            plan.commit = self._commits.plan(self._assignments.values(), now)
            self._uncommitted = False

    def _commit_due(self) -> float:
        """When the next commit may go: soon, when there is nothing left to wait for."""
        if self.phase is Phase.DRAINING:
            return self._commits.due_at(promptly=self._last_commit_deadline is not None)
        quiet = self._buffered == 0 and self._dispatcher.with_workers == 0 and self._delivering == 0
        return self._commits.due_at(promptly=quiet)

    def _watch_the_end(self, now: float) -> list[TopicPartition]:
        """Stop when the ending offsets are reached; returns partitions whose committed offset to ask for."""
        if self._ending is None or self.phase is not Phase.RUNNING:
            return []
        if self._ending.is_reached(self._assignments):
            self.stop(now)
            return []
        return self._ending.ask(self._assignments, now)

    def _drain_check(self) -> float | None:
        if self.phase is not Phase.DRAINING:
            return None
        return self._drain_deadline if self._last_commit_deadline is None else self._last_commit_deadline

    def _drain(self, plan: Plan, now: float) -> None:
        """Move on to the last commit once nothing is in handlers, and to the end once that is acknowledged."""
        assert self._drain_deadline is not None
        busy = [one for one in self._assignments.values() if one.in_flight]
        if busy and now < self._drain_deadline:
            return
        if self._last_commit_deadline is None:
            self._last_commit_deadline = now + FINAL_COMMIT_S
            plan.cancel = plan.cancel or bool(busy)
        if self._revokes:
            return
        if self._commits.on_its_way is None and not self._uncommitted:
            self.phase = Phase.FINISHED
        elif now >= self._last_commit_deadline:
            logger.warning("stopping: the last commit was not acknowledged within %d s", FINAL_COMMIT_S)
            self.phase = Phase.FINISHED


def _text(error: BaseException) -> str:
    """An error in one line: its class and its text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _attempts(count: int) -> str:
    return f"{count} attempt{'s' if count != 1 else ''}"
