"""`Core`: a consumer as a state machine. Events and `now` go in, `plan` says what to do.

The idea: everything that decides is here and in the small planners it is made of; there is no thread, clock or
client, so a seeded simulation drives it through any schedule. A record is polled, runs in the flow
(`keylane.flow.core`), perhaps waits for its outputs, and completes; a commit says how far that has got. What a delivery
mode does in another way is its object's (`keylane.consumer.modes`).

Guarantees that live here: a commit never passes an incomplete record (1), is made of one snapshot and counts
when it is acknowledged (2), records of a shard never overlap (4), a completion of a closed assignment changes nothing
(6).

Thread safety: none; its owner is the loop.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from keylane.consumer.closing import CloseMode, Closing, Phase
from keylane.consumer.commits import Acknowledgements, CommitEntry, CommitProblem, Commits
from keylane.consumer.deliveries import Deliveries
from keylane.consumer.held_keys import HeldKeys
from keylane.consumer.modes.almost_once import AlmostOnce
from keylane.consumer.modes.at_least_once import AtLeastOnce, Parts, Plan
from keylane.consumer.modes.at_most_once import AtMostOnce
from keylane.consumer.modes.transactional import Transactional
from keylane.consumer.outputs import NO_RESULTS
from keylane.consumer.partitions import Partitions
from keylane.consumer.passing import Passings
from keylane.consumer.revokes import Revokes
from keylane.consumer.snapshot import Snapshot
from keylane.consumer.work import MOST, Work, with_reasons
from keylane.errors import HandlerError, PeerError, TopicDeletedError
from keylane.flow.core import FlowCore
from keylane.flow.items import sources_of
from keylane.flow.spending import Spending
from keylane.flow.workers import Stall
from keylane.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.consumer.events import TransactionAnswered
    from keylane.consumer.intake import Lease
    from keylane.consumer.outputs import Answer, Delivery, ResultsMoved, ResultsRule
    from keylane.consumer.partitions import Partition
    from keylane.consumer.start import Start, TopicPartition
    from keylane.flow.admission import HandOver
    from keylane.flow.failures import Failures
    from keylane.flow.items import Item, Unit
    from keylane.flow.keys import KeyRule
    from keylane.flow.outcomes import Outcome
    from keylane.flow.spending import Spends
    from keylane.flow.workers import Running
    from keylane.options import Rates
    from keylane.pipeline import Pipeline
    from keylane.records import FailedAttempt, Message
    from keylane.telling import Log

MODES: dict[str, type[AtLeastOnce]] = {
    "at_least_once": AtLeastOnce,
    "at_most_once": AtMostOnce,
    "almost_once": AlmostOnce,
    "transactional": Transactional,
    "exactly_once": AtLeastOnce,
}


class Core:
    """One consumer: what is assigned, what runs, what is complete, what is committed."""

    def __init__(
        self,
        pipeline: Pipeline,
        hand_over: HandOver,
        *,
        random: Callable[[], float],
        lease: Lease,
        failures: Failures,
        log: Log,
        ending_offsets: Mapping[TopicPartition, int] | None = None,
        results: ResultsRule = NO_RESULTS,
        running: Callable[[], Sequence[Running]] = tuple,
        on_failure: Callable[[FailedAttempt], None] | None = None,
        budget: Spends | None = None,
    ) -> None:
        """`budget`: who has what a pipeline with `budget=...` spends."""
        self._pipeline = pipeline
        self._running = running
        self._lease = lease
        self._log = log
        self._counters: Counter[str] = Counter()
        self.failures = failures
        mode = MODES[pipeline.guarantee]
        self.partitions = Partitions(pipeline, self, self._counters, ending_offsets, log)
        self.flow = FlowCore(
            pipeline,
            hand_over,
            random=random,
            notes=failures,
            counters=self._counters,
            view=Record,
            alone=mode.alone,
            one_a_key=mode.one_a_key,
            by_place=pipeline.priority is not None,
            on_failure=on_failure,
            spending=None
            if budget is None or pipeline.budget is None
            else Spending(budget, pipeline.budget.amounts, Record),
        )
        self._deliveries = Deliveries(
            pipeline,
            self.flow,
            results,
            self._counters,
            halt=self.fail,
            notes=failures,
            random=random,
            log=log,
        )
        self._commits = Commits(pipeline, self._counters, log, self.fail, may_put_off=mode.may_put_off)
        self._acknowledgements = Acknowledgements(pipeline, results, keeps_records=mode.keeps_records)
        self.passings = Passings(pipeline, self.partitions, self.flow, self._deliveries)
        self._held_keys = HeldKeys(pipeline.group_id, log)
        self._revokes = Revokes(pipeline.revoke_timeout_ms / 1000, log)
        self._next = Plan()
        """Actions that events brought about, for the next plan."""
        self._closing = Closing(pipeline.drain_timeout_ms / 1000, log)
        self._stall = Stall(pipeline.stall_timeout_ms / 1000)
        self._mode = mode(
            Parts(
                pipeline,
                self.flow,
                self.partitions,
                self._deliveries,
                self._commits,
                self._acknowledgements,
                self._revokes,
                self._closing,
                self._counters,
                log,
                fail_at_once=self._fail_at_once,
                forget=self._forget,
                withdraw=self._withdraw,
            )
        )

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
            self._commits.started(now)
        for start in starts:
            partition = self.partitions.add(
                start,
                self._commits.bound,
                may_take=self._closing.may_start,
                may_begin=self._mode.begins_when_stopped,
            )
            self._mode.begin(partition, self._next)

    def polled(self, name: TopicPartition, epoch: int, messages: Sequence[Message]) -> None:
        """Records of one partition, in offset order. Those of an earlier epoch are dropped."""
        if (partition := self._current(name, epoch)) is not None:
            self.partitions.observe(partition, messages)
            self.flow.offer(partition.source)

    def partition_ended(self, name: TopicPartition, epoch: int, log_end: int) -> None:
        """The log has nothing below `log_end` that was not polled."""
        if (partition := self._current(name, epoch)) is not None:
            self.partitions.observe_end(partition, log_end)
            self.flow.offer(partition.source)

    def log_start_moved(self, name: TopicPartition, epoch: int, log_start: int) -> None:
        """The log dropped records before they were polled."""
        if (partition := self._current(name, epoch)) is not None:
            self.partitions.lose(partition, log_start)

    def _current(self, name: TopicPartition, epoch: int) -> Partition | None:
        """The partition of that epoch, while something of it may start."""
        partition = self.partitions.get(name, epoch)
        return partition if partition is not None and partition.source.may_take else None

    def revoking(self, names: Iterable[TopicPartition], token: Any, now: float) -> None:
        """Partitions are being revoked: stop dispatch, and answer once their records in handlers are through."""
        names = list(names)
        self._revokes.begin(self.partitions.named(names), token, now, may_begin=self._mode.begins_when_stopped)
        self._mode.given_up(names)
        self._next.withdraw_calls()

    def lost(self, names: Iterable[TopicPartition]) -> None:
        """Partitions were lost: others may have them already. Forget them, without a commit."""
        names = list(names)
        lost = self.partitions.named(names)
        self._forget(lost)
        self._acknowledgements.forget(lost)
        self._withdraw()
        self._mode.lost(names, lost)

    def deleted(self, topic: str) -> None:
        """A topic is no more: nothing of it can be committed, and what was read of it is given up. Others go on."""
        gone = [one for one in self.partitions.open.values() if one.name[0] == topic]
        text = f"topic {topic!r} was deleted"
        if self.partitions.ending is None:
            unfinished = sum(one.tracker.pending + one.claimed for one in gone)
            self._log.error(
                "%s: %d records that were read of it are not processed; made anew, it is read as a new topic",
                text,
                unfinished,
            )
        elif left := self.partitions.ending.delete(topic, self.partitions.open):
            text = f"{text} before all of it was processed; left: {', '.join(left)}"
            self._log.error("%s", text)
            self.note(TopicDeletedError(text))
        else:
            self._log.warning("%s after all of it was processed", text)
        self.lost([one.name for one in gone])

    # --- events: the work ---

    def calls_ended(self, units: Sequence[Unit], now: float) -> None:
        """Workers report calls and batches back, with what each record came to."""
        self._mode.came_back(units)
        self.flow.calls_ended(units, now)
        self._stall.moved(now, runs=self.flow.calls > 0)

    def withdrawn(self, units: Sequence[Unit]) -> None:
        """Workers gave back what no handler had begun."""
        self._mode.came_back(units)
        self.flow.withdrawn(units)

    def ended(self, item: Item, outcome: Outcome, now: float) -> None:
        """The flow's: a handler returned outputs or a value, or failed for the last time."""
        self._deliveries.ended(item, outcome, now)

    def released(self, partition: Partition, offsets: Sequence[int], messages: Sequence[Message]) -> None:
        """The flow's: records are through."""
        self.partitions.released(partition, messages)
        self._mode.complete(partition, offsets)
        self._commits.count(len(offsets))
        self._acknowledgements.completed(partition, messages)

    def delivered(self, answers: Iterable[Answer], now: float) -> None:
        """The broker acknowledged outputs, or refused them."""
        self._deliveries.delivered(answers, now, self._mode.is_undone_by)

    def results_moved(self, event: ResultsMoved[Delivery], now: float) -> None:
        """Callbacks or a reader have seen results, or will not."""
        self._deliveries.results_moved(event, now)

    def heard(self, count: int) -> None:
        """User code has heard of so many commits and committed records."""
        self._acknowledgements.heard(count)

    def stuck(self, handlers: int) -> None:
        """So many handlers are over their time now."""
        self._counters["stuck"] = handlers

    def worker_died(self) -> None:
        self._counters["workers_died"] += 1

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
        bound = self._commits.bound
        sent = entries if sent is None else sent
        fatal = self._commits.answered(entries, sent, problems, now)
        self._mode.acknowledged([entry for entry in sent if entry.name not in problems])
        if (told := self._acknowledgements.answered(sent, problems)) is not None:
            self._next.told.extend(told.parts())
        if problems:
            self.partitions.doubt_commits()
        if fatal is not None:
            self.fail(PeerError(f"commits of group {self._pipeline.group_id!r} are refused: {fatal.text}"), now)
        if self._commits.bound is not bound:
            for partition in self.partitions.open.values():
                partition.change_bound(self._commits.bound)
        if self.partitions.ending is not None:
            self.partitions.ending.changed()

    def transaction_answered(self, event: TransactionAnswered, now: float) -> None:
        """The transactional producer did what it was asked for, or could not."""
        entries = self._commits.on_its_way
        if event.step == "commit" and entries is not None:
            self.commit_answered(entries, {} if event.problem is None else event.problem.of(entries), now)
        self._mode.transaction_answered(event, now)

    def stop(self, now: float, mode: CloseMode = "in_flight", timeout_s: float | None = None) -> None:
        """Poll nothing more, finish what `mode` says, commit, and be finished; within `timeout_s`, if it is given,
        instead of `drain_timeout_ms`."""
        if self._closing.begin(mode, now, timeout_s):
            self._stop_starting()

    def _stop_starting(self) -> None:
        self._next.withdraw_calls()
        for partition in self.partitions.open.values():
            partition.source.stop(may_begin=self._mode.begins_when_stopped)

    def fail(self, error: BaseException, now: float, mode: CloseMode = "in_flight") -> None:
        """Stop, because of `error`. The first error is the one that is told."""
        self.note(error)
        self.stop(now, mode)

    def _fail_at_once(self, error: BaseException, now: float) -> None:
        self.fail(error, now, "now")

    def note(self, error: BaseException) -> None:
        """Something to tell in the end, unless there was something before."""
        self._closing.note(error)

    def abandon(self, error: BaseException) -> None:
        """Be finished at once, because of `error`: the client is gone, so nothing can be committed any more."""
        self.note(error)
        self._forget(list(self.partitions.open.values()))
        self._withdraw()
        self._closing.abandon()

    # --- events: the user's hand ---

    def adjust(self, max_concurrency: int | None, rates: Rates | None) -> None:
        """Change what may run at once, and how much may start; None leaves it as it is."""
        if max_concurrency is not None:
            self.flow.resize(max_concurrency)
        if rates is not None:
            self.flow.change_rates(rates)

    def pause(self, names: Iterable[TopicPartition] | None) -> None:
        """Start nothing of these partitions (None: of any) until `resume`."""
        self.partitions.pause(names)

    def resume(self, names: Iterable[TopicPartition] | None) -> None:
        for partition in self.partitions.resume(names):
            self.flow.offer(partition.source)

    def rule_keys(self, rules: Sequence[KeyRule]) -> None:
        """From now on these hold for records, by their keys, and no others."""
        self.flow.change_rules(rules)

    # --- what to do ---

    def plan(self, now: float) -> Plan:
        """What to do now. Call it after each round of events, and when `next_check` has come."""
        self._see_to_the_end(now)
        self._tell_failures(now)
        plan, self._next = self._next, Plan()
        self._mode.answer_revokes(plan, now)  # before the dispatch: nothing starts of what is given up
        self.withdrawn(self._mode.given_back())
        self._release_due(now)
        self._plan_dispatch(plan, now)
        plan.send(self._mode.outputs(), self._deliveries.pop_results())
        self._plan_poll(plan, now)
        self._plan_drain(plan, now)
        self._renew_commits(now)
        self._mode.commit(plan, now, is_due=self._commit_is_due(now))
        if self.flow.has_rules:
            self._held_keys.look(self.flow.held, self.partitions.open.values(), now)
        self.passings.look()
        return plan

    def _see_to_the_end(self, now: float) -> None:
        if self.phase is Phase.RUNNING and self.partitions.end_is_reached():
            self.stop(now)
        if self._closing.emptied(self.partitions.buffered, now):
            self._stop_starting()
        if self._stall.is_stalled(now):
            self._fail_stalled(now)

    def _tell_failures(self, now: float) -> None:
        if (due := self.failures.next_check()) is not None and now >= due:
            self.failures.check(now)

    def _release_due(self, now: float) -> None:
        if self.flow.release_due(now):
            self._stall.moved(now, runs=True)
        self._deliveries.release_due(now)

    def _plan_dispatch(self, plan: Plan, now: float) -> None:
        taken: Sequence[Unit] = ()
        if self._may_dispatch(now):
            self._mode.before_take()
            taken = self.flow.take(now)
        plan.hand_over(self._mode.hand_over(taken, now, may_start=self._lease.holds(now)))
        if plan.dispatch:
            self._stall.begun(now)

    def _plan_poll(self, plan: Plan, now: float) -> None:
        if self.phase is not Phase.RUNNING:
            return
        plan.ask(self.partitions.ask_committed(now))
        polling = self.partitions.poll_plan(now)
        plan.poll(min(polling.credit, self.flow.hand_over.wanted), polling.pause, polling.resume)

    def next_check(self, now: float) -> float | None:
        """When `plan` may have something new even if nothing happens; None when only an event can bring it."""
        times = [self.flow.next_due, self._deliveries.next_due, self._mode.next_check()]
        times += self._revokes.deadlines(now, self._mode.revoke_commit_s)
        times += [self._closing.next_check(), self._stall.next_check(), self.failures.next_check()]
        if self._may_dispatch(now):
            times.append(self.flow.next_check(now))
        if self.phase is Phase.RUNNING:
            times += [self.partitions.next_check(), self._commits.renewal_at]
            if self.partitions.ending is not None:
                times.append(self.partitions.ending.next_check())
        if self._may_commit:
            times.append(self._commit_due())
        return min((time for time in times if time is not None), default=None)

    def snapshot(self, now: float) -> Snapshot:
        """All counters and gauges, from one moment."""
        return Snapshot.of(
            self._counters,
            self._running(),
            (one.snapshot() for one in self.partitions.open.values()),
            (oldest for one in self.partitions.open.values() if (oldest := one.oldest_tried) is not None),
            now,
            handed_over=self.flow.with_workers + self._deliveries.delivering,
            unseen=self._deliveries.unseen,
            buffered=self.partitions.buffered,
            commit_latency=self._commits.latency.histogram(),
            concurrency=self.flow.hand_over.at_once,
            failures=self.failures.kinds,
            breakers=self.flow.open_breakers(now),
        )

    def work(self, now: float) -> Work:
        """What is in hand, and what waits, and why."""
        work = Work.of(self.flow.work([one.source for one in self.partitions.open.values()], now, MOST), now)
        waiting = [one for one in self._running() if one.why != "running"]
        return with_reasons(work, {(*one.source.name, one.payload.offset()): one.why for one in waiting})

    def _may_dispatch(self, now: float) -> bool:
        return (
            self._closing.may_start
            and not self._deliveries.too_many_unseen
            and not self._acknowledgements.too_many_unheard
            and self._lease.holds(now)
            and not (self._pipeline.commit.mode == "sync" and (self._commits.on_its_way or self._commit_is_due(now)))
        )

    def _forget(self, partitions: Iterable[Partition]) -> None:
        self.partitions.close(partitions)
        self.flow.forget_closed()
        self._deliveries.forget_closed()
        self._mode.closed()

    def _withdraw(self) -> None:
        self._next.withdraw_calls(cancel=True)

    @property
    def _may_commit(self) -> bool:
        """Whether there is something for a commit, and nothing in its way."""
        return (
            self.partitions.uncommitted
            and self._commits.on_its_way is None
            and self.phase is not Phase.FINISHED
            and self._mode.may_commit
        )

    def _commit_is_due(self, now: float) -> bool:
        return self._may_commit and now >= self._commit_due()

    def _commit_due(self) -> float:
        """When the next commit may go: soon, when there is nothing left to wait for; at once, when something waits for
        it."""
        if self._mode.waits_for_commit:
            return self._commits.not_before
        if self.phase is Phase.DRAINING:
            return (
                self._commits.not_before
                if self._closing.waits_for_last_commit
                else self._commits.due_at(promptly=False)
            )
        quiet = not (self.partitions.buffered or self.flow.with_workers or self._deliveries.delivering)
        return self._commits.due_at(promptly=quiet)

    def _renew_commits(self, now: float) -> None:
        due = self._commits.renewal_at
        if due is not None and now >= due and self.phase is Phase.RUNNING:
            self._commits.renew(self.partitions.open.values(), now)
            self.partitions.doubt_commits()

    def _plan_drain(self, plan: Plan, now: float) -> None:
        """Move on to the last commit once nothing is in handlers, and to the end once that is acknowledged."""
        if self.phase is not Phase.DRAINING:
            return
        busy = any(one.in_handlers for one in self.partitions.open.values())
        if self._closing.waits_for_handlers(now, busy=busy):
            return
        if busy:
            plan.end_calls()
        if not self._revokes and self._closing.finish(now, is_committed=self._mode.is_committed):
            self._counters["ended_uncommitted"] += 1

    def _fail_stalled(self, now: float) -> None:
        self._stall.moved(now, runs=False)
        oldest = next((unit for unit in self.flow.out if any(one.wanted for one in sources_of(unit))), None)
        if oldest is not None:
            self.fail(HandlerError(self._stall.text(self._running(), oldest, now)), now, "now")
