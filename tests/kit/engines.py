"""Which engine stands behind the seam: `make_engine`, in the one file of the proofs that names its own classes."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from keylane.consumer.closing import Phase
from keylane.consumer.commits import CommitEntry, CommitProblem
from keylane.consumer.core import MODES, Core
from keylane.consumer.events import TransactionAnswered
from keylane.consumer.intake import Lease
from keylane.consumer.outputs import NO_RESULTS, Answer, ResultsMoved, ResultsRule
from keylane.consumer.partitions import Partition
from keylane.consumer.passing import Passing
from keylane.consumer.start import Committed, StartRule
from keylane.consumer.start import Start as CoreStart
from keylane.flow.admission import CALL_S
from keylane.flow.failures import Failures
from keylane.flow.items import Batch
from keylane.flow.items import Call as CoreCall
from keylane.flow.outcomes import NOT_RUN, Failure
from keylane.flow.outcomes import Later as CoreLater
from keylane.flow.workers.made import hand_over_to
from keylane.records import PlainMessage
from kit.seam import Call, Commit, Entry, Item, Later, NotRun, Plan, Raised, Revoked, Sending
from kit.seam import Committed as SeamCommitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from keylane.consumer.outputs import Delivery
    from keylane.consumer.passing import Told
    from keylane.consumer.snapshot import Snapshot
    from keylane.flow.items import Source, Unit
    from keylane.flow.keys import KeyRule
    from keylane.flow.outcomes import Outcome as CoreOutcome
    from keylane.flow.spending import Spends
    from keylane.flow.workers import Capacity, Running
    from keylane.offsets import OffsetMap
    from keylane.options import Rates
    from keylane.pipeline import Pipeline
    from kit.seam import Engine, Make, Outcome, Problem, Start, TopicPartition


def make_engine(pipeline: Pipeline, make: Make, random: Callable[[], float]) -> Engine:
    """The engine as it stands today. `random` gives floats from 0 to 1."""
    return CoreEngine(pipeline, make, random)


@dataclass(frozen=True, slots=True)
class SomeWorkers:
    """See `keylane.flow.workers.Capacity`."""

    concurrency: int
    may_queue: bool = False
    elastic: bool = False


def make_core(
    pipeline: Pipeline,
    workers: Capacity,
    *,
    random: Callable[[], float] = lambda: 0.0,
    lease: Lease | None = None,
    call_s: float = CALL_S,
    results: ResultsRule = NO_RESULTS,
    ending_offsets: Mapping[TopicPartition, int] | None = None,
    running: Callable[[], Sequence[Running]] = tuple,
    budget: Spends | None = None,
) -> Core:
    """A core for such workers, without a lease that ends."""
    return Core(
        pipeline,
        hand_over_to(workers, pipeline, may_queue=MODES[pipeline.guarantee].may_queue, call_s=call_s),
        lease=lease or Lease(None),
        random=random,
        failures=Failures(),
        log=logging.getLogger("keylane.consumer"),
        results=results,
        ending_offsets=ending_offsets,
        running=running,
        budget=budget,
    )


class CoreEngine:
    """`keylane.consumer.core.Core` behind the seam."""

    def __init__(self, pipeline: Pipeline, make: Make, random: Callable[[], float]) -> None:
        self._start_rule = StartRule.of(pipeline)
        self._lease = Lease(make.lease_s)
        workers = make.workers
        self._core = make_core(
            pipeline,
            SomeWorkers(workers.concurrency, workers.may_queue, workers.elastic),
            random=random,
            lease=self._lease,
            call_s=make.call_s,
            results=ResultsRule(every=make.every_result, max_unseen=make.max_unseen),
            ending_offsets=make.ending_offsets,
            budget=make.budget,
        )
        self._items: dict[tuple[Source, int], Item] = {}
        """By source and offset, its last hand-over."""
        self._units: dict[Item, tuple[Unit, int]] = {}
        """What an item was handed over in, and its index in that."""
        self._running: dict[CoreCall, list[Item]] = {}
        """Calls that are not reported, with their items."""
        self._begun: dict[CoreCall, Iterator[Any]] = {}
        """Those among them that have begun, and what is left to run."""
        self._reported: Counter[CoreCall] = Counter()
        """How many of their items have ended."""

    # --- the group and the log ---

    def resolve(
        self,
        name: TopicPartition,
        committed: SeamCommitted | None,
        log_start: int,
        log_end: int,
        changed_from: int | None = None,
    ) -> tuple[OffsetMap, bool]:
        offset, metadata, epoch = committed or (None, "", -1)
        found = Committed(
            *name, offset, metadata, log_start, log_end, leader_epoch=epoch, is_checked=True, changed_from=changed_from
        )
        return self._start_rule.resolve(found)

    def assigned(self, starts: Iterable[Start], now: float) -> None:
        made = [
            CoreStart(
                *one.name,
                one.epoch,
                one.offsets,
                one.log_start,
                one.log_end,
                leader_epoch=one.leader_epoch,
                is_unchecked=one.is_unchecked,
            )
            for one in starts
        ]
        self._core.assigned(made, now)

    def polled(self, name: TopicPartition, epoch: int, messages: Sequence[PlainMessage]) -> None:
        self._core.polled(name, epoch, messages)

    def partition_ended(self, name: TopicPartition, epoch: int, log_end: int) -> None:
        self._core.partition_ended(name, epoch, log_end)

    def log_start_moved(self, name: TopicPartition, epoch: int, log_start: int) -> None:
        self._core.log_start_moved(name, epoch, log_start)

    def revoking(self, names: Sequence[TopicPartition], token: Any, now: float) -> None:
        self._core.revoking(names, token, now)

    def lost(self, names: Sequence[TopicPartition]) -> None:
        self._core.lost(names)

    def heard(self, at: float) -> None:
        self._lease.renew(at)

    # --- the work ---

    def begins(self, item: Item, now: float) -> bool:
        unit, _ = self._units[item]
        assert isinstance(unit, CoreCall)
        if unit not in self._begun:
            self._begun[unit] = unit.begin(now)
        return next(self._begun[unit], None) is not None

    def ended(self, reports: Sequence[tuple[Item, Outcome]], now: float) -> None:
        ended: dict[CoreCall, None] = {}
        for item, outcome in reports:
            unit, index = self._units[item]
            assert isinstance(unit, CoreCall)
            self._reported[unit] += 1
            if outcome is not None:
                unit.note(index, _inside(outcome))
            if self._reported[unit] == len(unit) or (unit.ordered and outcome is not None):
                ended[unit] = None
        self._report(ended, now)

    def _report(self, units: Iterable[CoreCall], now: float) -> None:
        for unit in units:
            del self._running[unit]
            self._begun.pop(unit, None)
            unit.took_s = now - unit.began
        self._core.calls_ended(list(units), now)

    def batches_ended(self, reports: Sequence[Sequence[tuple[Item, Outcome]]], now: float) -> None:
        units = []
        for batch in reports:
            for item, outcome in batch:
                unit, index = self._units[item]
                assert isinstance(unit, Batch)
                unit.items[index].came_to(_inside(outcome))
            units.append(unit)
        self._core.calls_ended(units, now)

    def withdrawn(self, calls: Sequence[Sequence[Item]]) -> None:
        units = [self._units[items[0]][0] for items in calls]
        for unit in units:
            self._running.pop(unit, None)  # type: ignore[arg-type]
        self._core.withdrawn(units)

    def answered(
        self,
        sending: Sending,
        number: int,
        error: BaseException | None,
        now: float,
        *,
        refused: bool = False,
        blameless: bool = False,
    ) -> None:
        answer = Answer(sending.inside, number, error, refused=refused, blameless=blameless)
        self._core.delivered([answer], now)

    def shown(self, sending: Sending, failure: Raised | None, now: float) -> None:
        failed = None if failure is None else Failure(failure.error, final=failure.final)
        self._core.results_moved(ResultsMoved([(sending.inside, failed)], passed=(sending,)), now)

    def counts(self, item: Item) -> bool:
        return bool(item.inside.wanted)

    def may_start(self, item: Item) -> bool:
        return bool(item.inside.may_begin)

    # --- commits, and the end ---

    def commit_answered(self, commit: Commit, problems: Mapping[TopicPartition, Problem], now: float) -> None:
        self._core.commit_answered(commit.inside, {name: _problem(one) for name, one in problems.items()}, now)

    def transaction_answered(
        self, step: Literal["start", "commit", "abort"], problem: Problem | None, now: float
    ) -> None:
        self._core.transaction_answered(TransactionAnswered(step, problem and _problem(problem)), now)

    def stop(self, now: float) -> None:
        self._core.stop(now)

    # --- the user's hand ---

    def adjust(self, max_concurrency: int | None, rates: Rates | None) -> None:
        self._core.adjust(max_concurrency, rates)

    def pause(self, names: Iterable[TopicPartition] | None) -> None:
        self._core.pause(names)

    def resume(self, names: Iterable[TopicPartition] | None) -> None:
        self._core.resume(names)

    def rule_keys(self, rules: Sequence[KeyRule]) -> None:
        self._core.rule_keys(rules)

    def skip(self, name: TopicPartition, offset: int, now: float) -> bool:
        told: list[Told] = []
        was_complete = self.is_complete(name, offset)
        self._core.passings.begin(Passing(((*name, offset),)), told.append, now)
        return not was_complete and self.is_complete(name, offset)

    # --- what to do ---

    def plan(self, now: float) -> Plan:
        plan = self._core.plan(now)
        recalled = [item for unit, items in self._running.items() for item in items[len(unit) :]]
        for unit, items in self._running.items():
            del items[len(unit) :]
        self._report([unit for unit in self._running if self._reported[unit] == len(unit)], now)
        return Plan(
            calls=[self._call(unit) for unit in plan.dispatch],
            recalled=recalled,
            produce=[self._sending(one) for one in plan.produce],
            results=[self._sending(one) for one in plan.results],
            commit=None if plan.commit is None else _commit(plan.commit),
            abort=plan.abort,
            reload=plan.reload,
            revoked=[Revoked(one.token, _commit(one.entries)) for one in plan.revoked],
            credit=plan.credit,
            pause=[one.name for one in plan.pause],
            resume=[one.name for one in plan.resume],
            withdraw=plan.withdraw,
        )

    def snapshot(self, now: float) -> Snapshot:
        return self._core.snapshot(now)

    def next_check(self, now: float) -> float | None:
        return self._core.next_check(now)

    @property
    def is_running(self) -> bool:
        return self._core.phase is Phase.RUNNING

    @property
    def is_finished(self) -> bool:
        return self._core.phase is Phase.FINISHED

    @property
    def failure(self) -> BaseException | None:
        return self._core.failure

    @property
    def lease_until(self) -> float:
        return self._lease.until

    def is_complete(self, name: TopicPartition, offset: int) -> bool:
        partition = self._core.partitions.open.get(name)
        return partition is not None and partition.tracker.is_complete(offset)

    @property
    def holds_back(self) -> bool:
        return any(one.may_start() < one.tracker.position - 1 for one in self._core.partitions.open.values())

    @property
    def left_maps_out(self) -> bool:
        snapshot = self._core.snapshot(0.0)
        return bool(snapshot.commits_without_map or snapshot.commits_put_off)

    # --- what the engine's own objects are here ---

    def _call(self, unit: Unit) -> Call:
        if isinstance(unit, Batch):
            items = [self._item(one.source, one.number, one.payload, one.attempt) for one in unit.items]
        else:
            records = zip(unit.numbers, unit.payloads, strict=True)
            items = [self._item(unit.source, number, payload, unit.attempt) for number, payload in records]
            self._running[unit] = list(items)
        self._units |= {item: (unit, index) for index, item in enumerate(items)}
        return Call(items, is_batch=isinstance(unit, Batch), is_ordered=isinstance(unit, Batch) or unit.ordered)

    def _item(self, source: Source, number: int, payload: Any, attempt: int) -> Item:
        assert isinstance(payload, PlainMessage)
        assert isinstance(source.owner, Partition)
        item = Item(source.owner.name, source.owner.epoch, payload, attempt, source)
        self._items[source, number] = item
        return item

    def _sending(self, delivery: Delivery) -> Sending:
        one = delivery.item
        item = self._items.get((one.source, one.number))
        if item is None:  # a dead letter may go out in the epoch after its attempts
            item = self._item(one.source, one.number, one.payload, one.attempt)
        return Sending(item, delivery.outputs, delivery.is_dead_letter, delivery)


def _inside(outcome: Outcome) -> CoreOutcome:
    if isinstance(outcome, Raised):
        return Failure(outcome.error, final=outcome.final, halts=outcome.halts)
    if isinstance(outcome, Later):
        return CoreLater(outcome.delay_s)
    return NOT_RUN if isinstance(outcome, NotRun) else outcome


def _commit(entries: list[CommitEntry]) -> Commit:
    made = [Entry(one.name, one.partition.epoch, one.offset, one.metadata, one.leader_epoch) for one in entries]
    return Commit(made, entries)


def _problem(problem: Problem) -> CommitProblem:
    return CommitProblem(problem.text, metadata_too_large=problem.metadata_too_large, fenced=problem.fenced)
