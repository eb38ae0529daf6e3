"""The simulation's workers and producer: what handlers come to, and what is true of a record then.

The idea: what the engine handed over is kept here, call by call (a record, a chain, a batch); a step takes some of them
on, draws outcomes, and notes in the log what is complete before it tells the engine. Records of a shard that came in
one batch stand in a `Line`: one is complete only after those before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.errors import Throttled
from keylane.options import Skip
from keylane.records import Output, Returned
from kit.seam import Later, NotRun, Raised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kit.seam import Call, Item, Outcome
    from kit.simulated_log import Log, Sent
    from kit.simulation import Simulation


class Hand:
    """One call, and the records of it that are not reported back."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.left = list(call.items)

    @property
    def has_begun(self) -> bool:
        return len(self.left) < len(self.call.items)


class Line:
    """Records of one shard in one batch, in order, and what is known of them. None: done."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.results: dict[Item, Outcome] = {}


class SimulatedWorkers:
    """Runs what one engine hands over, and produces its outputs, in no particular order."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._random = world.random
        self._batches = world.settings.batch is not None
        self._hands: list[Hand] = []
        self._deliveries: list[Sent] = []
        """As often as there are outputs without an answer."""
        self._results: list[Sent] = []
        self._lines: dict[Item, Line] = {}
        self._came_of: dict[Item, Sent] = {}
        """What was acknowledged, of records that are not complete yet."""
        self._void: set[Item] = set()
        """Records that run again after an earlier one of their shard: what else becomes of this attempt changes
        nothing."""

    # --- what the engine asks for ---

    def hand_over(self, calls: Sequence[Call]) -> None:
        for call in calls:
            shards = [self._shard_in_batch(item) for item in call.items]
            self._world.seen["chains"] += not call.is_batch and len(call.items) > 1
            self._world.seen["same key batches"] += call.is_batch and len(set(shards)) < len(shards)
            for index, item in enumerate(call.items):
                self._begins(item, call.items[:index])
            self._hands.append(Hand(call))

    def take_back(self, items: Sequence[Item]) -> None:
        """The engine has taken these back, which have not begun."""
        for hand in self._hands:
            for item in [one for one in hand.left if one in items]:
                hand.left.remove(item)
                self._no_longer_runs(item)
                self._not_begun(item)
        self._world.seen["recalled"] += len(items)
        self._hands = [hand for hand in self._hands if hand.left]

    def send(self, produced: Sequence[Sent], results: Sequence[Sent]) -> None:
        for sent in [*produced, *results]:
            if self._counts(sent.item):
                self._log(sent.item).running[sent.item.offset] = sent.item
        self._deliveries += [sent for sent in produced for _ in sent.sending.outputs]
        self._results += results

    def withdraw(self) -> None:
        """Some of what was handed over had not begun."""
        engine, given_back = self._world.engine, []
        for hand in list(self._hands):
            may_start = all(engine.may_start(one) for one in hand.left)
            if not hand.has_begun and not may_start and self._random.random() < 0.5:
                self._hands.remove(hand)
                for item in hand.left:
                    self._no_longer_runs(item)
                    self._not_begun(item)
                given_back.append(hand.left)
        engine.withdrawn(given_back)

    # --- steps ---

    def complete(self) -> None:
        """Some handlers end."""
        if not self._hands:
            return
        self._random.shuffle(self._hands)
        count = self._random.randint(1, min(4, len(self._hands)))
        finished, self._hands = self._hands[:count], self._hands[count:]
        if self._batches:
            batches = [self._run_batch(hand.left) for hand in finished]
            self._world.engine.batches_ended(batches, self._world.now)
        else:
            reports = [report for hand in finished for report in self._run_some(hand)]
            self._world.engine.ended(reports, self._world.now)

    def deliver(self) -> None:
        """The broker answers one output."""
        if not self._deliveries:
            return
        sent = self._deliveries.pop(self._random.randrange(len(self._deliveries)))
        error = OSError("simulated") if self._fails() else None
        number, is_last = sent.pending - 1, sent.pending == 1
        refused, blameless = self._fault(sent, error)
        failed = error is not None or sent.error is not None
        earlier, earlier_blameless = sent.error, sent.blameless
        if is_last:
            if failed:
                guiltless = blameless if earlier is None or earlier_blameless else False
                self._undelivered(sent, refused=refused, blameless=earlier_blameless if error is None else guiltless)
            elif sent.sending.is_dead_letter or not self._world.settings.results:
                self._delivered(sent, None)
        sent.answered(error, refused=refused, blameless=blameless)
        self._world.engine.answered(sent.sending, number, error, self._world.now, refused=refused, blameless=blameless)

    def _fault(self, sent: Sent, error: OSError | None) -> tuple[bool, bool]:
        """In transactions, an output may not get in, or fail because of something else."""
        if error is None or self._world.settings.delivery != "transactional":
            return False, False
        alone = len(sent.sending.outputs) == 1 and not self._is_in_line(sent.item)
        refused = alone and self._random.random() < 0.3
        return refused, not refused and self._random.random() < 0.3

    def _undelivered(self, sent: Sent, *, refused: bool, blameless: bool) -> None:
        """An output failed; in a transaction that it got into, what follows from that waits for the next epoch."""
        item, log = sent.item, self._log(sent.item)
        if self._world.settings.delivery != "transactional" or refused:
            self._delivered(sent, Raised(OSError("simulated")))
            return
        exhausted = not self._world.pipeline.tries.allow(item.attempt)
        skips = isinstance(self._world.settings.on_exhausted, Skip) and not sent.sending.is_dead_letter
        if exhausted and skips and not blameless and item.epoch == log.epoch:
            log.given_up.add(item.offset)
            log.done[item.offset] = None

    def settle(self) -> None:
        """Somebody sees a result, or fails on it."""
        if not self._results:
            return
        sent = self._results.pop(self._random.randrange(len(self._results)))
        failure = Raised(ValueError("simulated")) if self._fails() else None
        self._delivered(sent, failure)
        self._world.seen["settled"] += 1
        self._world.engine.shown(sent.sending, failure, self._world.now)

    def _fails(self) -> bool:
        return self._world.faults and self._random.random() < 0.1

    def _delivered(self, sent: Sent, failure: Raised | None) -> None:
        """Note what an attempt came to whose handler succeeded."""
        item = sent.item
        if not self._counts(item):
            return
        if failure is None:
            self._came_of[item] = sent
        line = self._lines.get(item)
        if line is not None and item in line.items:
            line.results[item] = failure
            self._advance(line)
        elif failure is None or not sent.sending.is_dead_letter:
            self._alone(item, failure)
        else:
            self._no_longer_runs(item)

    # --- handlers ---

    def _begins(self, item: Item, before: Sequence[Item]) -> None:
        """Guarantees 3 and 4, at the start of a handler; `before` come before it in the same hand-over."""
        world, log = self._world, self._log(item)
        world.check(world.engine.counts(item) and item.epoch == log.epoch, "{}: of an old assignment", item)
        world.check(item.offset not in log.running, "{}: dispatched twice at once", item)
        on_hold = world.all_paused or item.name in world.paused
        world.check(not on_hold, "{}: dispatched although its partition is paused", item)
        too_fast = world.rates.starts(item, world.now)
        world.check(too_fast is None, "{}", too_fast)
        if world.settings.delivery != "at_most_once":
            world.come_to_turn(item, item.message)
        span = world.settings.max_uncommitted
        lowest = min(log.todo, default=item.offset)
        world.check(span is None or item.offset < lowest + span, "{}: dispatched {} ahead", item, item.offset - lowest)
        world.check(item.offset in log.todo, "{}: dispatched although it is complete", item)
        is_committed = log.covers(item.offset)
        if world.settings.delivery == "at_most_once":
            world.check(is_committed, "{}: dispatched before the group has committed it", item)
            world.check((log.partition, item.offset) not in world.begun, "{}: dispatched once more", item)
            world.begun.add((log.partition, item.offset))
        else:
            world.check(not is_committed, "{}: dispatched although the group has committed it", item)
        shard = self._shard(item)
        if shard is not None:
            for offset, other in log.todo.items():
                if offset >= item.offset:
                    break
                first = log.shard(other, world.settings.ordering) == shard and log.running.get(offset) not in before
                world.check(not first, "{}: started before {} of its shard was complete", item, offset)
            for old in (one for hand in self._hands for one in hand.left if not world.engine.counts(one)):
                overlaps = old.name == item.name and self._shard(old) == shard
                world.check(not overlaps, "{}: started while {} of an earlier epoch still runs", item, old)
        log.running[item.offset] = item

    def _run_some(self, hand: Hand) -> list[tuple[Item, Outcome]]:
        """Run one or more records of a call; what it leaves runs later."""
        reports: list[tuple[Item, Outcome]] = []
        dies = self._dies()
        while hand.left:
            item = hand.left.pop(0)
            assert self._world.engine.begins(item, self._world.now), f"{item}: taken back, and not said"
            outcome = dies or self._drawn(item)
            reports.append((item, outcome))
            if self._world.engine.counts(item):
                self._alone(item, outcome)
            if outcome is not None and hand.call.is_ordered:
                for other in hand.left:
                    self._no_longer_runs(other)
                return reports
            if self._random.random() < 0.3:
                break
        if hand.left:
            self._hands.append(hand)
        return reports

    def _run_batch(self, batch: list[Item]) -> list[tuple[Item, Outcome]]:
        lines: dict[object, list[Item]] = {}
        dies = self._dies()
        outcomes: dict[Item, Outcome] = {}
        for item in batch:
            outcomes[item] = dies or self._drawn(item)
            if self._world.engine.counts(item):
                lines.setdefault(self._shard_in_batch(item), []).append(item)
        for items in lines.values():
            if len(items) == 1:
                self._alone(items[0], outcomes[items[0]])
                continue
            line = Line(items)
            self._lines |= dict.fromkeys(items, line)
            for item in items:
                if not is_delivered_first(outcomes[item]):
                    line.results[item] = outcomes[item]
            self._advance(line)
        return list(outcomes.items())

    def _dies(self) -> Raised | None:
        """The worker dies: what it was at is a failed attempt."""
        if not self._world.faults or self._random.random() >= self._world.settings.deaths:
            return None
        self._world.seen["died"] += 1
        return Raised(ChildProcessError("simulated"))

    def _drawn(self, item: Item) -> Outcome:
        """What the handler comes to; of exactly once, with its effect in the store."""
        outcome, store = self._chosen(item), self._world.store
        return outcome if store is None or isinstance(outcome, Raised | Later | NotRun) else store.handle(item, outcome)

    def _chosen(self, item: Item) -> Outcome:
        world = self._world
        if not world.engine.may_start(item) and self._random.random() < 0.2:
            self._not_begun(item)
            return NotRun()
        if self._random.random() < world.settings.later_share:
            world.seen["later"] += 1
            return Later(self._random.random())
        if world.settings.throttle_share and world.faults and self._random.random() < world.settings.throttle_share:
            world.seen["throttled"] += 1
            return Raised(Throttled(self._random.choice((None, 0, 50, 1_000))))
        if world.faults and self._random.random() < world.settings.failure_share:
            world.seen["failed"] += 1
            return Raised(ValueError("simulated"), final=self._random.random() < 0.2)
        if self._random.random() < world.settings.output_share:
            outputs = [Output("out", key=item.message.key())] * self._random.randint(1, 3)
            return Returned(outputs, outputs) if world.settings.results else outputs
        if world.settings.results:
            return Returned(None)
        world.seen["stale"] += not world.engine.counts(item)
        return None

    # --- what is true then ---

    def _alone(self, item: Item, outcome: Outcome) -> None:
        """Note what a record on its own came to."""
        if isinstance(outcome, Raised):
            self._failed(item, outcome)
        else:
            self._no_longer_runs(item)
            if outcome is None:
                self._log(item).complete(item.offset, self._came_of.pop(item, None))

    def _advance(self, line: Line) -> None:
        while line.items and line.items[0] in line.results:
            item = line.items.pop(0)
            outcome = line.results.pop(item)
            self._alone(item, outcome)
            if isinstance(outcome, Raised | NotRun | Later):
                for other in line.items:
                    self._no_longer_runs(other)
                self._void.update(line.items)
                line.items.clear()

    def _failed(self, item: Item, failure: Raised) -> None:
        self._no_longer_runs(item)
        exhausted = failure.final or not self._world.pipeline.tries.allow(item.attempt)
        if exhausted and isinstance(self._world.settings.on_exhausted, Skip):
            self._log(item).complete(item.offset)

    def _no_longer_runs(self, item: Item) -> None:
        if self._world.engine.counts(item):
            del self._log(item).running[item.offset]

    def _not_begun(self, item: Item) -> None:
        self._world.begun.discard((item.name[1], item.offset))

    def _counts(self, item: Item) -> bool:
        return self._world.engine.counts(item) and item not in self._void

    def _is_in_line(self, item: Item) -> bool:
        line = self._lines.get(item)
        return line is not None and item in line.items

    def _log(self, item: Item) -> Log:
        return self._world.logs[item.name[1]]

    def _shard(self, item: Item) -> object:
        return self._log(item).shard(item.message, self._world.settings.ordering)

    def _shard_in_batch(self, item: Item) -> object:
        """What `item` has to keep its order in, among the records of a batch; itself for nothing."""
        shard = self._shard(item)
        return item if shard is None else (item.name, item.epoch, shard)


def is_delivered_first(outcome: Outcome) -> bool:
    """Whether there is something to produce or to show before the record is complete."""
    return isinstance(outcome, list | Returned)
