"""The loop: one thread that owns the core, and carries events into it and its plans out of it (docs/adr/0003).

The idea: a turn takes everything that the inbox holds, tells the core, asks it for a plan, and acts. Nothing in a turn
blocks; the only wait is for the inbox, until the core's next check at the latest.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from keylane.consumer import events
from keylane.consumer.closing import Phase
from keylane.consumer.outputs import ResultsMoved
from keylane.consumer.ports import Revoking
from keylane.consumer.snapshot import Snapshot
from keylane.consumer.work import Work
from keylane.flow.items import Batch, Call
from keylane.flow.workers import MAX_REST_S, WorkerDied, WorkersFailed
from keylane.flow.workers.calls import as_told, resource_error
from keylane.flow.workers.tuning import HOST
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.consumer.callbacks import CommitCallbacks
    from keylane.consumer.closing import CloseMode
    from keylane.consumer.core import Core
    from keylane.consumer.intake import Intake, Lease
    from keylane.consumer.modes.at_least_once import Plan
    from keylane.consumer.outputs import Delivery
    from keylane.consumer.ports import ProducerPort, ResultsPort, TransactionsPort
    from keylane.consumer.settings import Change
    from keylane.flow.failure_callback import FailureCallback
    from keylane.flow.items import Unit
    from keylane.flow.workers import Inbox, Workers
    from keylane.flow.workers.blocked import LoopWatch
    from keylane.flow.workers.timeouts import Watch
    from keylane.flow.workers.tuning import Keeper

logger = logger_of("keylane.consumer")

WORKERS_CLOSE_S = 2.0
"""How long closing waits for handlers that outlived the drain, before their threads are left behind."""

PRODUCER_CLOSE_S = 5.0
"""How long closing waits for outputs that outlived the drain."""


UNITS = frozenset((Call, Batch))
T = TypeVar("T")


class Loop:
    """Runs one consumer's engine on its own thread, from `start` until everything is closed.

    Thread safety: `stop`, `tell` and `snapshot` are for any thread; everything else is the loop's.
    """

    def __init__(
        self,
        core: Core,
        inbox: Inbox,
        intake: Intake,
        workers: Workers,
        make_producer: Callable[[], ProducerPort],
        *,
        name: str,
        lease: Lease,
        results: ResultsPort[Delivery] | None = None,
        watch: Watch | LoopWatch | None = None,
        callbacks: CommitCallbacks | None = None,
        failure_callback: FailureCallback | None = None,
        transactions: Callable[[], TransactionsPort] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self._core = core
        self._inbox = inbox
        self._intake = intake
        self._workers = workers
        self._lease = lease
        self._make_producer = make_producer
        self._producer: ProducerPort | None = None
        self._make_transactions = transactions
        self._transactions: TransactionsPort | None = None
        """The producer, when it makes transactions."""
        self._results = results
        self._watch = watch
        self._callbacks = callbacks
        self._failure_callback = failure_callback
        self._keeper = keeper
        self._gap_s = 0.0 if keeper is None else keeper.gap_s
        self._polled = 0
        self._intake_closing = False
        self._intake_closed = False
        self._last_snapshot = Snapshot()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-loop", daemon=True)
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            events.PolledRecords: self._on_polled,
            events.Assigned: lambda event, now: core.assigned(event.starts, now),
            Revoking: lambda event, now: core.revoking(event.names, event.answer, now),
            events.LeaseRenewed: lambda _, __: None,
            events.Lost: self._on_lost,
            events.Deleted: lambda event, _: core.deleted(event.topic),
            events.LogEnds: lambda event, _: core.partitions.log_ends(event.ends),
            events.CommitAnswered: lambda event, now: core.commit_answered(
                event.entries, event.problems, now, event.sent
            ),
            events.TransactionAnswered: core.transaction_answered,
            events.GroupCommitted: lambda event, now: core.partitions.group_committed(event.offsets, now),
            events.Delivered: lambda event, now: core.delivered(event.answers, now),
            ResultsMoved: core.results_moved,
            events.Heard: lambda event, _: core.heard(event.count),
            events.Stop: lambda event, now: core.stop(now, event.mode, event.timeout_s),
            events.Adjust: self._on_adjust,
            events.Pause: lambda event, _: core.pause(event.names),
            events.Resume: lambda event, _: core.resume(event.names),
            events.RuleKeys: lambda event, _: core.rule_keys(event.rules),
            events.PassOver: lambda event, now: core.passings.begin(event.asked, event.answer, now),
            events.SnapshotRequest: lambda event, now: event.answer.put(self._snapshot(now)),
            events.WorkRequest: lambda event, now: event.answer.put(core.work(now)),
            events.ConsumerFailed: lambda event, now: core.fail(event.error, now),
            events.IntakeFailed: lambda event, _: core.abandon(event.error),
            events.IntakeClosed: self._on_intake_closed,
            WorkersFailed: self._on_workers_failed,
            WorkerDied: self._on_worker_died,
        }

    # --- any thread ---

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def stop(self, mode: CloseMode = "in_flight", timeout_s: float | None = None) -> None:
        self._inbox.put(events.Stop(mode, timeout_s))

    def tell(self, event: Change | events.PassOver) -> None:
        self._inbox.put(event)

    def snapshot(self) -> Snapshot:
        """Of now, or the last one when the loop has ended."""
        if self._is_own_thread:
            return self._snapshot(monotonic())
        request = events.SnapshotRequest()
        answer = self._asked(request, request.answer)
        return self._last_snapshot if answer is None else answer

    def work(self) -> Work:
        """Of now; nothing when the loop has ended."""
        if self._is_own_thread:
            return self._core.work(monotonic())
        request = events.WorkRequest()
        return self._asked(request, request.answer) or Work()

    def _asked(self, request: object, answer: SimpleQueue[T]) -> T | None:
        """What the loop answers; None when it has ended."""
        self._inbox.put(request)
        while not self.ended.is_set():
            try:
                return answer.get(timeout=0.1)
            except Empty:
                continue
        return None

    def answers(self, within_s: float) -> bool:
        """Whether the loop turns: it takes an event in this time, or has come to its end."""
        if self._is_own_thread:
            return True
        request = events.SnapshotRequest()
        self._inbox.put(request)
        deadline = monotonic() + within_s
        while not self.ended.is_set():
            try:
                request.answer.get(timeout=0.1)
            except Empty:
                if monotonic() >= deadline:
                    return False
            else:
                break
        return True

    @property
    def _is_own_thread(self) -> bool:
        """Whether a function of the user's asks that the loop itself calls (`Breaker.target`, say): it waits for no
        event, which would never come."""
        return threading.current_thread() is self._thread

    @property
    def lease(self) -> Lease:
        """Until when handlers may start; for any thread."""
        return self._lease

    @property
    def failure(self) -> BaseException | None:
        """Why it ended, when it was not asked to."""
        return self._core.failure

    def raise_failure(self) -> None:
        """Raise what ended it, if anything did; what is not an error of ours is told as a defect."""
        if self.failure is not None:
            raise as_told(self.failure)

    # --- the loop's thread ---

    def _run(self) -> None:
        try:
            if self._keeper is not None:
                self._keeper.keep(monotonic())
            self._workers.start()
            if self._results is not None:
                self._results.start()
            if self._make_transactions is not None:
                self._producer = self._transactions = self._make_transactions()
            self._intake.start()
            self._act(self._core.plan(monotonic()))  # the first credit: without it nothing ever happens
            with HOST.while_running():
                while not self._intake_closed:
                    self._turn()
        except BaseException as error:  # a defect, or the interpreter ends: told by run()
            logger.exception("the engine's loop failed")
            self._core.abandon(error)
            self._leave_group()
        finally:
            self._close()

    def _turn(self) -> None:
        rest_s = self._inbox.rest(self._core.flow.stocked_s)
        gap_s = self._gap_s if rest_s == MAX_REST_S else 0
        arrived = self._inbox.get(0) or self._wait()
        now = monotonic()
        units: list[Unit] = arrived
        if others := [event for event in arrived if type(event) not in UNITS]:
            units = [event for event in arrived if type(event) in UNITS]
            for event in others:
                self._handlers[type(event)](event, now)
                if gap_s:
                    sleep(gap_s)
        if units:
            self._core.calls_ended(units, now)
            if gap_s:
                sleep(gap_s)
        if self._watch is not None and now >= self._watch.next_check:
            self._core.stuck(self._watch.check(now))
        if self._keeper is not None and now >= self._keeper.next_check:
            self._keeper.check(now)
        self._act(self._core.plan(now))

    def _wait(self) -> list[Any]:
        """What comes next, or nothing once there is something to check."""
        now = monotonic()
        check = self._core.next_check(now)
        if self._watch is not None:
            check = self._watch.next_check if check is None else min(check, self._watch.next_check)
        return self._inbox.get(None if check is None else check - now)

    def _act(self, plan: Plan) -> None:
        if plan.dispatch:
            self._workers.submit(plan.dispatch)
        if plan.produce:
            if self._producer is None:
                self._producer = self._make_producer()
            self._producer.send(plan.produce)
        if plan.abort is not None:
            assert self._transactions is not None, "there are no transactions to abort"
            self._transactions.abort(renew=plan.abort)
        if plan.results:
            assert self._results is not None, "results that nobody wants"
            self._results.put(plan.results)
        for told in plan.told:
            assert self._callbacks is not None, "nobody wants to hear of commits"
            self._callbacks.put(told)
        if plan.withdraw and (withdrawn := self._workers.withdraw()):
            self._core.withdrawn(withdrawn)
            self._act(self._core.plan(monotonic()))
        if plan.cancel:
            self._workers.cancel()
        for answer in plan.revoked:
            answer.token.put(answer.entries)
        self._direct_intake(plan)

    def _direct_intake(self, plan: Plan) -> None:
        intake = self._intake
        if plan.pause:
            intake.pause({one.name: one.epoch for one in plan.pause})
        if plan.resume:
            intake.resume({one.name: one.epoch for one in plan.resume})
        if plan.commit is not None:
            (intake if self._transactions is None else self._transactions).commit(plan.commit)
        if plan.reload:
            assert self._transactions is not None, "there are no transactions that were undone"
            self._transactions.reload(plan.reload)
        if plan.ask_committed:
            intake.ask_committed(list(plan.ask_committed))
        intake.allow(self._polled + plan.credit)
        if self._core.phase is Phase.FINISHED and not self._intake_closing:
            self._intake_closing = True
            intake.close()

    def _on_polled(self, event: events.PolledRecords, _: float) -> None:
        self._polled = event.total
        for name, epoch, log_start in event.polled.log_starts:
            self._core.log_start_moved(name, epoch, log_start)
        for name, epoch, messages in event.polled.batches:
            self._core.polled(name, epoch, messages)
        for name, epoch, log_end in event.polled.ends:
            self._core.partition_ended(name, epoch, log_end)

    def _on_lost(self, event: events.Lost, _: float) -> None:
        self._core.lost(event.names)
        event.answer.put(None)

    def _snapshot(self, now: float) -> Snapshot:
        return replace(self._core.snapshot(now), handler_latency=self._workers.latency())

    def _on_adjust(self, event: events.Adjust, _: float) -> None:
        if event.max_concurrency is not None:
            self._workers.resize(event.max_concurrency)
        self._core.adjust(event.max_concurrency, event.rates)

    def _on_workers_failed(self, event: WorkersFailed, now: float) -> None:
        self._core.fail(resource_error("could not be made", event.error), now)

    def _on_worker_died(self, event: WorkerDied, _: float) -> None:
        self._core.worker_died()
        logger.warning("%s; another one takes its place", event.text)

    def _on_intake_closed(self, _: events.IntakeClosed, __: float) -> None:
        self._intake_closed = True

    def _leave_group(self) -> None:
        """After a failure of the loop itself: let the intake close, answering its revokes with nothing to commit."""
        self._intake.close()
        while not self._intake_closed:
            for event in self._inbox.get(None):
                if isinstance(event, Revoking):
                    event.answer.put([])
                elif isinstance(event, events.Lost):
                    event.answer.put(None)
                elif isinstance(event, events.IntakeClosed):
                    self._intake_closed = True

    def _close(self) -> None:
        try:
            self._end_all()
        except BaseException as error:  # who waits for the end is told, whatever it is
            logger.exception("the engine's end failed")
            self._core.note(error)
        finally:
            self.ended.set()

    def _end_all(self) -> None:
        closed = self._workers.close(WORKERS_CLOSE_S)
        for name in closed.still_running:
            logger.error("closed while the handler still ran on %s; its thread is left behind", name)
        if closed.error is not None:
            self._core.note(resource_error("could not be closed", closed.error))
        if self._producer is not None:
            self._producer.close(PRODUCER_CLOSE_S)
        if self._callbacks is not None:
            self._callbacks.close(WORKERS_CLOSE_S)
        if self._results is not None:
            self._results.close(WORKERS_CLOSE_S)
        if self._failure_callback is not None:
            self._failure_callback.close(WORKERS_CLOSE_S)
        for event in self._inbox.get(0):  # what callbacks raised while the run ended
            if isinstance(event, events.ConsumerFailed):
                self._core.note(event.error)
        self._intake.join()
        self._core.failures.end(monotonic())
        self._last_snapshot = self._snapshot(monotonic())
