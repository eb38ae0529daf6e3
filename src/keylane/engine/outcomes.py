"""What records come to: from a worker's report, over outputs and results, to completion, a retry or the end.

The idea: a record on its own goes through `_came_to`, whatever happened to it. Records of one shard that came in one
batch wait for one another in their `Chain`: one completes only after those before it, and one that fails takes those
after it along, to run again.

Thread safety: none; its owner is the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.engine.deliveries import Delivery
from keylane.engine.verdicts import Again
from keylane.engine.work import Failure, Later, NotRun, leave_chain, works_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keylane.engine.assignment import Assignment
    from keylane.engine.counters import Counters
    from keylane.engine.dispatch import Dispatcher
    from keylane.engine.events import Answer, ResultsMoved
    from keylane.engine.failures import Failures
    from keylane.engine.partitions import Partitions
    from keylane.engine.results import ResultsRule
    from keylane.engine.transacting import Transacting
    from keylane.engine.verdicts import Verdict, Verdicts
    from keylane.engine.work import Chain, Outcome, Unit, Work


class Outcomes:
    """Carries out what follows each outcome, on the partitions and the dispatcher that it is given."""

    def __init__(
        self,
        partitions: Partitions,
        dispatcher: Dispatcher,
        verdicts: Verdicts,
        rule: ResultsRule,
        counters: Counters,
        fail: Callable[[BaseException, float], None],
        failures: Failures,
        transacting: Transacting | None = None,
        undo: Callable[[str], None] | None = None,
    ) -> None:
        self._partitions = partitions
        self._dispatcher = dispatcher
        self._verdicts = verdicts
        self._rule = rule
        self._counters = counters
        self._fail = fail
        self._failures = failures
        self._transacting = transacting
        self._undo_transaction = undo
        self._produce: list[Delivery] = []
        self._results: list[Delivery] = []
        self.delivering = 0
        """Records that wait for the acknowledgement of their outputs, or for results to be seen."""
        self.unseen = 0
        """Results that wait for a callback or a reader."""

    @property
    def too_many_unseen(self) -> bool:
        """Whether nothing new may start until results are seen."""
        return self.unseen >= self._rule.max_unseen

    def release(self, now: float) -> None:
        """Let go on what has waited long enough."""
        for work in self._dispatcher.release_due(now):
            work.assignment.in_flight[work.offset] = now
            self._deliver(self._verdicts.dead_letter(work), now)

    def take(self) -> tuple[list[Delivery], list[Delivery]]:
        """What to produce, and which results to show; each is handed out once."""
        taken, self._results = self._results, []
        if self._transacting is not None:
            return self._take_into_transaction(self._transacting), taken
        produce, self._produce = self._produce, []
        return produce, taken

    def _take_into_transaction(self, transacting: Transacting) -> list[Delivery]:
        """What goes into the open transaction; without one it waits. What nobody wants any more must not be seen."""
        if not self._produce or not transacting.is_open:
            return []
        wanted = [one for one in self._produce if one.work.assignment.wanted and not one.void]
        self.delivering -= len(self._produce) - len(wanted)
        self._counters.stale += len(self._produce) - len(wanted)
        self._produce = []
        return transacting.put(wanted)

    def judge(self, works: Iterable[Work], now: float) -> None:
        """The turn of these has come, whose failed attempt ended a transaction."""
        for work in works:
            undone = work.assignment.failures.pop(work.offset)
            undone.restore(work)
            if work.dead is None:
                self._failed(work, undone.failure, now, now)
            else:
                self._undelivered(work, undone.failure, now)

    # --- reports ---

    def completed(self, works: Sequence[Work], now: float) -> None:
        """Workers report records back, each with its outcome; those of a chain in order, up to the first whose outcome
        is not None, which ends the chain."""
        going_on = not_run = 0
        self._dispatcher.came_back(works, now)
        done: dict[Assignment, tuple[list[Work], list[Work]]] = {}
        assignment = None
        for work in works:
            if work.assignment is not assignment:
                assignment = work.assignment
                finished, passed = done.setdefault(assignment, ([], []))
            if work.outcome is not None:
                not_run += 0 if work.chain is None else self._undo(work.chain)
                self._came_to(work, work.outcome, now)
                continue
            finished.append(work)
            if work.chain is not None and not leave_chain(work):
                passed.append(work)
                going_on += 1
        self._dispatcher.reported(len(works) + not_run, len(works) - going_on)
        for assignment, (finished, passed) in done.items():
            if not assignment.wanted:
                self._counters.stale += len(finished)
            elif finished:
                self._counters.processed += len(finished)
                self._finish(assignment, finished, passed)

    def batches_completed(self, batches: Sequence[list[Work]], now: float) -> None:
        """Workers report batches back, each record with its outcome.

        A record whose outcome is a failure takes those of its shard behind it along: they run again after it.
        """
        for batch in batches:
            self._dispatcher.came_back(batch[:1], now)
            self._dispatcher.reported(len(batch), 1)
            firsts = [work for work in batch if work.chain is None or work.chain.works[0] is work]
            for work in firsts:
                if work.chain is None or not work.assignment.wanted:
                    self._came_to(work, work.outcome, now)
                else:
                    self._begin_settling(work.chain, now)
                    self._settle(work.chain, now)

    def _came_to(self, work: Work, outcome: Outcome, now: float) -> None:
        """What a record on its own came to."""
        if not work.assignment.wanted:
            self._counters.stale += 1
        elif outcome is None:
            self._counters.processed += 1
            self._finish(work.assignment, (work,), () if work.chain is None or leave_chain(work) else (work,))
        elif isinstance(outcome, Failure):
            self._failed(work, outcome, work.assignment.in_flight[work.offset], now)
        elif isinstance(outcome, NotRun):
            self._not_run(work)
        elif isinstance(outcome, Later):
            self._later(work, now + outcome.delay_s)
        elif (refused := self._verdicts.refused(outcome)) is not None:
            self._came_to(work, refused, now)
        else:
            self._dispatcher.may_chain = False  # its outputs have to be acknowledged before the next of its shard runs
            self._deliver(Delivery(work, outcome), now)

    def _begin_settling(self, chain: Chain, now: float) -> None:
        """Records of one shard came back with their batch: send their outputs, up to the first that failed."""
        for work in chain.works:
            outcome = work.outcome
            if not (outcome is None or isinstance(outcome, Failure | NotRun | Later)):
                outcome = self._verdicts.refused(outcome) or outcome
            if outcome is None or isinstance(outcome, Failure | NotRun | Later):
                chain.results[work] = outcome
                if outcome is not None:
                    break
            else:
                delivery = chain.deliveries[work] = Delivery(work, outcome)
                self._deliver(delivery, now)

    def _settle(self, chain: Chain, now: float) -> None:
        """Complete the records of a chain in order, as far as is known what they came to."""
        while chain.at < len(chain.works) and (work := chain.works[chain.at]) in chain.results:
            outcome = chain.results.pop(work)
            if isinstance(outcome, Delivery):
                self._show(outcome)
                break
            if outcome is not None:
                self._undo(chain)
            self._came_to(work, outcome, now)
            if outcome is not None:
                break

    def _undo(self, chain: Chain) -> int:
        """The first incomplete record of a chain goes on alone; how many others wait for it again."""
        rest = chain.undo()
        if rest and rest[0].assignment.wanted:
            rest[0].assignment.put_back(rest)
        return len(rest)

    def withdrawn(self, units: Sequence[Unit]) -> None:
        """Workers gave back what no handler had begun."""
        for unit in units:
            works = works_in(unit)
            self._dispatcher.reported(len(works), 1)
            for work in reversed(works):
                if work.chain is not None:
                    self._undo(work.chain)
                if work.assignment.wanted and work.offset in work.assignment.in_flight:
                    self._not_run(work)

    def delivered(self, answers: Iterable[Answer], now: float) -> None:
        """The broker acknowledged outputs, or refused them."""
        for answer in answers:
            delivery = answer.delivery
            self._counters.produced += answer.error is None
            if not delivery.answered(answer):
                continue
            self.delivering -= 1
            if self._is_undone_by(delivery):
                continue
            work = delivery.work
            if work.dead is None:
                if delivery.error is None:
                    self._succeeded(delivery, now)
                else:
                    self._delivery_came_to(delivery, Failure(delivery.error), now)
            elif not work.assignment.wanted:
                self._counters.stale += 1
            elif delivery.error is not None:
                self._undelivered(work, Failure(delivery.error), now)
            else:
                self._counters.dead_lettered += 1
                self._finish(work.assignment, (work,))

    def _is_undone_by(self, delivery: Delivery) -> bool:
        """Whether what became of this delivery has ended its transaction."""
        if self._transacting is None or (why := self._transacting.delivered(delivery)) is None:
            return False
        assert self._undo_transaction is not None, why
        self._undo_transaction(why)
        return True

    def _succeeded(self, delivery: Delivery, now: float) -> None:
        """All outputs are acknowledged: complete, unless user code is to see the result first, in the shard's order."""
        chain = delivery.work.chain
        if delivery.void or not delivery.work.assignment.wanted or not self._rule.wants(delivery):
            self._delivery_came_to(delivery, None, now)
        elif chain is None or chain.works[chain.at] is delivery.work:
            self._show(delivery)
        else:
            chain.results[delivery.work] = delivery

    def _show(self, delivery: Delivery) -> None:
        self.delivering += 1
        self.unseen += 1
        self._results.append(delivery)

    def results_moved(self, event: ResultsMoved, now: float) -> None:
        """Callbacks or a reader have seen results, or will not."""
        self.unseen -= event.passed
        self.delivering -= len(event.settled)
        for delivery, outcome in event.settled:
            self._delivery_came_to(delivery, outcome, now)

    def _delivery_came_to(self, delivery: Delivery, outcome: Failure | NotRun | None, now: float) -> None:
        """What an attempt came to whose handler succeeded."""
        work, chain = delivery.work, delivery.work.chain
        if delivery.void:
            self._counters.stale += 1
        elif chain is None or not work.assignment.wanted:
            self._came_to(work, outcome, now)
        else:
            del chain.deliveries[work]
            chain.results[work] = outcome
            self._settle(chain, now)

    def _finish(self, assignment: Assignment, works: Sequence[Work], passed: Sequence[Work] = ()) -> None:
        self._partitions.complete(assignment, works, passed)
        self._dispatcher.offer(assignment)

    def _not_run(self, work: Work) -> None:
        """A dispatched record that no handler began: it is still to do, if anything of its partition is."""
        assignment = work.assignment
        del assignment.in_flight[work.offset]
        if assignment.may_take:
            assignment.again.appendleft(work)
            self._dispatcher.offer(assignment)

    def _failed(self, work: Work, failure: Failure, began: float, now: float) -> None:
        """An attempt that was handed over at `began` failed."""
        self._failures.note(failure, work.name, work.attempt, now)
        self._judged(work, self._verdicts.failed(work, failure, began, now), now)

    def _undelivered(self, work: Work, failure: Failure, now: float) -> None:
        """A dead letter was not acknowledged."""
        self._failures.note(failure, work.name, work.attempt, now)
        self._judged(work, self._verdicts.undelivered(work, failure.error), now)

    def _judged(self, work: Work, verdict: Verdict, now: float) -> None:
        """Carry out what follows a failed attempt."""
        self._counters.failed += 1
        if work.first_s is not None:
            work.assignment.retrying[work.offset] = work.first_s
        if isinstance(verdict, Again):
            self._counters.retried += 1
            self._later(work, now + verdict.delay_s)
        elif isinstance(verdict, Delivery):
            self._deliver(verdict, now)
        elif isinstance(verdict, Exception):
            del work.assignment.in_flight[work.offset]
            self._fail(verdict, now)
        else:
            self._counters.skipped += 1
            self._finish(work.assignment, (work,))

    def _later(self, work: Work, due: float) -> None:
        del work.assignment.in_flight[work.offset]
        self._dispatcher.waiting.add(work, due)

    def _deliver(self, delivery: Delivery, now: float) -> None:
        if not delivery.outputs:
            self._succeeded(delivery, now)
            return
        self.delivering += 1
        self._produce.append(delivery)
