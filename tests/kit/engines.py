"""Which engine stands behind the seam: `make_engine`, in the one file of the proofs that names its own classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from keylane.engine.admission import HandOver
from keylane.engine.assignment import Start as CoreStart
from keylane.engine.closing import Phase
from keylane.engine.commits import CommitEntry, CommitProblem
from keylane.engine.core import Core
from keylane.engine.events import Answer, ResultsMoved, TransactionAnswered
from keylane.engine.lease import Lease
from keylane.engine.results import ResultsRule
from keylane.engine.start import Committed, StartRule
from keylane.engine.work import NOT_RUN, Failure, Work, works_in
from keylane.engine.work import Later as CoreLater
from keylane.records import PlainMessage
from kit.seam import Call, Commit, Entry, Item, Later, NotRun, Plan, Raised, Revoked, Sending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keylane.engine.deliveries import Delivery
    from keylane.engine.work import Outcome as CoreOutcome
    from keylane.engine.work import Unit
    from keylane.offsets import OffsetMap
    from keylane.options import Pipeline, Rates
    from kit.seam import Engine, Make, Outcome, Problem, Start, TopicPartition


def make_engine(pipeline: Pipeline, make: Make, random: Callable[[], float]) -> Engine:
    """The engine as it stands today. `random` gives floats from 0 to 1."""
    return CoreEngine(pipeline, make, random)


@dataclass(frozen=True, slots=True)
class SomeWorkers:
    """See `keylane.engine.ports.Capacity`."""

    concurrency: int
    may_queue: bool = False
    elastic: bool = False


class CoreEngine:
    """`keylane.engine.core.Core` behind the seam."""

    def __init__(self, pipeline: Pipeline, make: Make, random: Callable[[], float]) -> None:
        self._start_rule = StartRule.of(pipeline)
        self._lease = Lease(make.lease_s)
        workers = make.workers
        self._core = Core(
            pipeline,
            HandOver.to(
                pipeline,
                SomeWorkers(workers.concurrency, workers.may_queue, workers.elastic),
                chain_s=make.chain_s,
            ),
            lease=self._lease,
            random=random,
            results=ResultsRule(every=make.every_result, max_unseen=make.max_unseen),
            ending_offsets=make.ending_offsets,
        )
        self._items: dict[Work, Item] = {}
        """By work, its last hand-over."""
        self._units: dict[Item, Unit] = {}
        """By the first record of what was handed over at once."""

    # --- the group and the log ---

    def resolve(
        self, name: TopicPartition, committed: tuple[int, str] | None, log_start: int, log_end: int
    ) -> tuple[OffsetMap, bool]:
        offset, metadata = committed or (None, "")
        return self._start_rule.resolve(Committed(*name, offset, metadata, log_start, log_end))

    def assigned(self, starts: Iterable[Start], now: float) -> None:
        made = [CoreStart(*one.name, one.epoch, one.offsets, one.log_start, one.log_end) for one in starts]
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

    def ended(self, reports: Sequence[tuple[Item, Outcome]], now: float) -> None:
        self._core.completed([_with(*one) for one in reports], now)

    def batches_ended(self, reports: Sequence[Sequence[tuple[Item, Outcome]]], now: float) -> None:
        self._core.batches_completed([[_with(*one) for one in batch] for batch in reports], now)

    def withdrawn(self, calls: Sequence[Sequence[Item]]) -> None:
        self._core.withdrawn([self._units[items[0]] for items in calls])

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
        self._core.results_moved(ResultsMoved([(sending.inside, failed)], passed=1), now)

    def counts(self, item: Item) -> bool:
        return bool(item.inside.assignment.wanted)

    def may_start(self, item: Item) -> bool:
        return bool(item.inside.assignment.may_start)

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

    # --- what to do ---

    def plan(self, now: float) -> Plan:
        plan = self._core.plan(now)
        return Plan(
            calls=[self._call(unit) for unit in plan.dispatch],
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

    @property
    def holds_back(self) -> bool:
        return any(one.held for one in self._core.partitions.open.values())

    @property
    def left_maps_out(self) -> bool:
        counters = self._core.counters
        return bool(counters.commits_without_map or counters.commits_put_off)

    # --- what the engine's own objects are here ---

    def _call(self, unit: Unit) -> Call:
        items = [self._item(work) for work in works_in(unit)]
        self._units[items[0]] = unit
        return Call(items, is_batch=isinstance(unit, list))

    def _item(self, work: Work) -> Item:
        assert isinstance(work.message, PlainMessage)
        item = Item(work.assignment.name, work.assignment.epoch, work.message, work.attempt, work)
        self._items[work] = item
        return item

    def _sending(self, delivery: Delivery) -> Sending:
        work = delivery.work
        item = self._items.get(work) or self._item(work)  # a dead letter may go out in the epoch after its attempts
        return Sending(item, delivery.outputs, work.dead is not None, delivery)


def _with(item: Item, outcome: Outcome) -> Work:
    work: Work = item.inside
    work.outcome = _inside(outcome)
    return work


def _inside(outcome: Outcome) -> CoreOutcome:
    if isinstance(outcome, Raised):
        return Failure(outcome.error, final=outcome.final)
    if isinstance(outcome, Later):
        return CoreLater(outcome.delay_s)
    return NOT_RUN if isinstance(outcome, NotRun) else outcome


def _commit(entries: list[CommitEntry]) -> Commit:
    return Commit([Entry(one.name, one.assignment.epoch, one.offset, one.metadata) for one in entries], entries)


def _problem(problem: Problem) -> CommitProblem:
    return CommitProblem(problem.text, metadata_too_large=problem.metadata_too_large, fenced=problem.fenced)
