"""The simulation's workers and producer: what handlers come to, and what is true of a record then.

The idea: what the core was given is kept here as hand-overs (a record, a chain, a batch); a step takes some of them on,
draws outcomes, and notes in the log what is complete before it tells the core. Records of a lot are handed over one by
one. Records of a shard that came in one batch stand in a `Line`: one is complete only after those before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.engine.events import Answer, ResultsMoved
from keylane.engine.work import NOT_RUN, Failure, Later, Lot, NotRun, Work, works_in, works_of
from keylane.options import Skip
from keylane.records import Output, PlainMessage, Returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.engine.deliveries import Delivery
    from keylane.engine.work import Outcome, Unit
    from keylane.testing.simulated_log import Log
    from keylane.testing.simulation import Simulation


@dataclass(frozen=True, slots=True)
class SomeWorkers:
    """See `keylane.engine.ports.Capacity`."""

    concurrency: int
    may_queue: bool = False
    elastic: bool = False
    in_lots: bool = False


class Line:
    """Records of one shard in one batch, in order, and what is known of them. None: done."""

    def __init__(self, works: list[Work]) -> None:
        self.works = works
        self.results: dict[Work, Outcome] = {}


class SimulatedWorkers:
    """Runs what one core hands over, and produces its outputs, in no particular order."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._random = world.random
        self._batches = world.settings.batch_size > 1
        self._left: list[list[Work]] = []
        """Of each hand-over, the records that are not reported back."""
        self._lots: dict[Work, Lot] = {}
        """Of those in `_left` that came in one."""
        self._deliveries: list[Delivery] = []
        """As often as there are outputs without an answer."""
        self._results: list[Delivery] = []
        self._lines: dict[Work, Line] = {}
        self._came_of: dict[Work, Delivery] = {}
        """Deliveries that were acknowledged, of records that are not complete yet."""

    # --- what the core asks for ---

    def hand_over(self, units: Sequence[Unit]) -> None:
        for unit in units:
            if isinstance(unit, Lot):
                self._world.seen["lots"] += unit.count > 1
                for work in works_of(unit.assignment, unit.offsets, unit.messages):
                    self._begins(work, [])
                    self._left.append([work])
                    self._lots[work] = unit
                continue
            works = list(works_in(unit))
            self._world.seen["chains"] += not isinstance(unit, list) and len(works) > 1
            self._world.seen["same key batches"] += isinstance(unit, list) and any(one.chain for one in works)
            for index, work in enumerate(works):
                self._begins(work, works[:index])
            self._left.append(works)

    def send(self, deliveries: Sequence[Delivery], results: Sequence[Delivery]) -> None:
        for delivery in [*deliveries, *results]:
            if delivery.work.assignment.wanted and not delivery.void:
                self._log(delivery.work).running[delivery.work.offset] = delivery.work
        self._deliveries += [delivery for delivery in deliveries for _ in delivery.outputs]
        self._results += results

    def withdraw(self) -> None:
        """Some of what was handed over had not begun."""
        given_back = []
        lots: dict[Lot, list[Work]] = {}
        for works in list(self._left):
            if (lot := self._lots.get(works[0])) is not None:
                if not lot.assignment.may_start and self._random.random() < 0.5:
                    self._left.remove(works)
                    self._no_longer_runs(works[0])
                    del self._lots[works[0]]
                    lots.setdefault(lot, []).append(works[0])
                continue
            begun = works[0].chain is not None and works[0].chain.works[0] is not works[0] and not self._batches
            if not begun and not all(one.assignment.may_start for one in works) and self._random.random() < 0.5:
                self._left.remove(works)
                for work in works:
                    self._no_longer_runs(work)
                    self._not_begun(work)
                given_back.append(works)
        for lot, left in lots.items():
            lot.left = iter([work.message for work in left])
        units: list[Unit] = [*lots, *(works if self._batches else works[0] for works in given_back)]
        self._world.core.withdrawn(units)

    # --- steps ---

    def complete(self) -> None:
        """Some handlers end."""
        if not self._left:
            return
        self._random.shuffle(self._left)
        count = self._random.randint(1, min(4, len(self._left)))
        finished, self._left = self._left[:count], self._left[count:]
        if self._batches:
            for batch in finished:
                self._run_batch(batch)
            self._world.core.batches_completed(finished, self._world.now)
        else:
            reports = []
            moved: dict[Lot, None] = {}
            for works in finished:
                if (lot := self._lots.pop(works[0], None)) is None:
                    reports += self._run_some(works)
                else:
                    self._run_of_lot(works[0], lot)
                    moved[lot] = None
            for lot in moved:
                self._world.core.lot_moved(lot, self._world.now)
            self._world.core.completed(reports, self._world.now)

    def deliver(self) -> None:
        """The broker answers one output."""
        if not self._deliveries:
            return
        delivery = self._deliveries.pop(self._random.randrange(len(self._deliveries)))
        error = OSError("simulated") if self._fails() else None
        answer = self._answer(delivery, error)
        if delivery.pending == 1:
            if error is not None or delivery.error is not None:
                self._undelivered(delivery, answer)
            elif delivery.work.dead is not None or not self._world.settings.results:
                self._delivered(delivery, None)
        self._world.core.delivered([answer], self._world.now)

    def _answer(self, delivery: Delivery, error: OSError | None) -> Answer:
        """In transactions, an output may not get in, or fail because of something else."""
        number = delivery.pending - 1
        if error is None or self._world.settings.delivery != "transactional":
            return Answer(delivery, number, error)
        alone = len(delivery.outputs) == 1 and delivery.work.chain is None
        refused = alone and self._random.random() < 0.3
        return Answer(delivery, number, error, refused=refused, blameless=not refused and self._random.random() < 0.3)

    def _undelivered(self, delivery: Delivery, answer: Answer) -> None:
        """An output failed; in a transaction that it got into, what follows from that waits for the next epoch."""
        work, failure = delivery.work, Failure(OSError("simulated"))
        if self._world.settings.delivery != "transactional" or answer.refused:
            self._delivered(delivery, failure)
            return
        blameless = answer.blameless if delivery.error is None or delivery.blameless else False
        if answer.error is None:
            blameless = delivery.blameless
        exhausted = not self._world.pipeline.retries.allow(work.attempt)
        skips = isinstance(self._world.settings.on_exhausted, Skip) and work.dead is None
        if exhausted and skips and not blameless and work.assignment.epoch == self._log(work).epoch:
            self._log(work).given_up.add(work.offset)
            self._log(work).done[work.offset] = None

    def settle(self) -> None:
        """Somebody sees a result, or fails on it."""
        if not self._results:
            return
        delivery = self._results.pop(self._random.randrange(len(self._results)))
        failure = Failure(ValueError("simulated")) if self._fails() else None
        self._delivered(delivery, failure)
        self._world.seen["settled"] += 1
        self._world.core.results_moved(ResultsMoved([(delivery, failure)], passed=1), self._world.now)

    def _fails(self) -> bool:
        return self._world.faults and self._random.random() < 0.1

    def _delivered(self, delivery: Delivery, failure: Failure | None) -> None:
        """Note what an attempt came to whose handler succeeded."""
        work = delivery.work
        if delivery.void or not work.assignment.wanted:
            return
        if failure is None:
            self._came_of[work] = delivery
        line = self._lines.get(work)
        if line is not None and work in line.works:
            line.results[work] = failure
            self._advance(line)
        elif failure is None or work.dead is None:
            self._alone(work, failure)
        else:
            self._no_longer_runs(work)

    # --- handlers ---

    def _begins(self, work: Work, before: list[Work]) -> None:
        """Guarantees 3 and 4, at the start of a handler; `before` come before it in the same hand-over."""
        world, log, name = self._world, self._log(work), work.name
        world.check(work.assignment.wanted and work.assignment.epoch == log.epoch, f"{name}: of an old assignment")
        world.check(work.offset not in log.running, f"{name}: dispatched twice at once")
        world.check(not work.assignment.on_hold, f"{name}: dispatched although its partition is paused")
        too_fast = world.rates.starts(work, world.now)
        world.check(too_fast is None, str(too_fast))
        span = world.settings.max_uncommitted
        lowest = min(log.todo, default=work.offset)
        world.check(span is None or work.offset < lowest + span, f"{name}: dispatched {work.offset - lowest} ahead")
        world.check(work.offset in log.todo, f"{name}: dispatched although it is complete")
        committed = log.map()
        is_committed = committed is not None and committed.is_complete(work.offset)
        if world.settings.delivery == "at_most_once":
            world.check(is_committed, f"{name}: dispatched before the group has committed it")
            world.check((log.partition, work.offset) not in world.begun, f"{name}: dispatched once more")
            world.begun.add((log.partition, work.offset))
        else:
            world.check(not is_committed, f"{name}: dispatched although the group has committed it")
        shard = self._shard(work)
        if shard is not None:
            for offset, other in log.todo.items():
                if offset >= work.offset:
                    break
                first = log.shard(other, world.settings.ordering) == shard and log.running.get(offset) not in before
                world.check(not first, f"{name}: started before {offset} of its shard was complete")
            for old in (one for works in self._left for one in works if not one.assignment.wanted):
                overlaps = old.assignment.partition == log.partition and self._shard(old) == shard
                world.check(
                    not (overlaps and world.settings.delivery == "transactional"),
                    f"{name}: started while {old.name} of an earlier epoch still runs",
                )
        log.running[work.offset] = work

    def _run_of_lot(self, work: Work, lot: Lot) -> None:
        outcome = self._dies() or self._drawn(work)
        if work.assignment.wanted:
            self._alone(work, outcome)
        if outcome is None:
            lot.done.append(work.message)
        else:
            lot.came_to(work.message, outcome)

    def _run_some(self, works: list[Work]) -> list[Work]:
        """Run one or more records of a chain; what it leaves runs later."""
        reports = []
        dies = self._dies()
        while works:
            work = works.pop(0)
            reports.append(work)
            work.outcome = dies or self._drawn(work)
            if work.assignment.wanted:
                self._alone(work, work.outcome)
            if work.outcome is not None:
                for other in works:
                    self._no_longer_runs(other)
                return reports
            if self._random.random() < 0.3:
                break
        if works:
            self._left.append(works)
        return reports

    def _run_batch(self, batch: list[Work]) -> None:
        lines: dict[object, list[Work]] = {}
        dies = self._dies()
        for work in batch:
            work.outcome = dies or self._drawn(work)
            if work.assignment.wanted:
                shard = self._shard(work)
                lines.setdefault(work if shard is None else (work.assignment, shard), []).append(work)
        for works in lines.values():
            if len(works) == 1:
                self._alone(works[0], works[0].outcome)
                continue
            line = Line(works)
            self._lines |= dict.fromkeys(works, line)
            for work in works:
                if not isinstance(work.outcome, list | Returned):
                    line.results[work] = work.outcome
            self._advance(line)

    def _dies(self) -> Failure | None:
        """The worker dies: what it was at is a failed attempt."""
        if not self._world.faults or self._random.random() >= self._world.settings.deaths:
            return None
        self._world.seen["died"] += 1
        return Failure(ChildProcessError("simulated"))

    def _drawn(self, work: Work) -> Outcome:
        world = self._world
        if not work.assignment.may_start and self._random.random() < 0.2:
            self._not_begun(work)
            return NOT_RUN
        if self._random.random() < world.settings.later_share:
            world.seen["later"] += 1
            return Later(self._random.random())
        if world.faults and self._random.random() < world.settings.failure_share:
            world.seen["failed"] += 1
            return Failure(ValueError("simulated"), final=self._random.random() < 0.2)
        if self._random.random() < world.settings.output_share:
            outputs = [Output("out", key=work.message.key())] * self._random.randint(1, 3)
            return Returned(outputs, outputs) if world.settings.results else outputs
        if world.settings.results:
            return Returned(None)
        world.seen["stale"] += not work.assignment.wanted
        return None

    # --- what is true then ---

    def _alone(self, work: Work, outcome: Outcome) -> None:
        """Note what a record on its own came to."""
        if isinstance(outcome, Failure):
            self._failed(work, outcome)
        else:
            self._no_longer_runs(work)
            if outcome is None:
                self._log(work).complete(work.offset, self._came_of.pop(work, None))

    def _advance(self, line: Line) -> None:
        while line.works and line.works[0] in line.results:
            work = line.works.pop(0)
            outcome = line.results.pop(work)
            self._alone(work, outcome)
            if isinstance(outcome, Failure | NotRun | Later):
                for other in line.works:
                    self._no_longer_runs(other)
                line.works.clear()

    def _failed(self, work: Work, failure: Failure) -> None:
        self._no_longer_runs(work)
        exhausted = failure.final or not self._world.pipeline.retries.allow(work.attempt)
        if exhausted and isinstance(self._world.settings.on_exhausted, Skip):
            self._log(work).complete(work.offset)

    def _no_longer_runs(self, work: Work) -> None:
        if work.assignment.wanted:
            del self._log(work).running[work.offset]

    def _not_begun(self, work: Work) -> None:
        self._world.begun.discard((work.assignment.partition, work.offset))

    def _log(self, work: Work) -> Log:
        return self._world.logs[work.assignment.partition]

    def _shard(self, work: Work) -> object:
        assert isinstance(work.message, PlainMessage)
        return self._log(work).shard(work.message, self._world.settings.ordering)
