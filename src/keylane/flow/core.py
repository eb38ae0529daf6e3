"""`FlowCore`: which ready items run next, and what follows from how they ended.

The idea: sources that have something ready stand in a rotation, and each turn of it takes an equal share of the room.
A source whose ready items may all not start leaves the rotation until something of its own lets it back in, so it costs
the others nothing; one that has used up its rate comes back when that has recovered. Depth first, the rotation is an
order: the first source in it takes all the room that it can use. What ended well and returned nothing is gone at once;
what failed waits for its next attempt; everything else is its owner's (`keylane.flow.items.Owner`).

Pure: time is passed in. Thread safety: none; its owner is a loop.
"""

from __future__ import annotations

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from keylane.errors import OutageError, UsageError
from keylane.flow.admission import Rotation, joined
from keylane.flow.autoscale import AutoLimit
from keylane.flow.breakers import Breakers
from keylane.flow.items import Batch, Call
from keylane.flow.keys import KeyGate
from keylane.flow.letting_in import let_in, let_in_batch
from keylane.flow.outcomes import Failure, Later, NotRun
from keylane.flow.retries import Schedule, delay_s
from keylane.flow.seen import Seen, in_hand
from keylane.flow.together import Lingering, begin_settling, give_back, told_apart, undo
from keylane.flow.urgency import RotationByPlace
from keylane.foreign_errors import is_throttled
from keylane.records import FailedAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping, Sequence

    from keylane.flow.admission import HandOver
    from keylane.flow.breakers import OpenBreaker
    from keylane.flow.items import Carried, Chain, Item, Source, Unit
    from keylane.flow.keys import KeyRule
    from keylane.flow.outcomes import Notes, Outcome
    from keylane.flow.spending import Spending
    from keylane.flow.work import Stands, Task
    from keylane.options import Flow, Rates
    from keylane.records import FailureOutcome

OUTAGE_S = 1.0
"""After which an item is tried again whose deserializer asks a service that does not answer."""

LEAST_THROTTLE_S = 0.1
"""The least wait of a throttled item: no attempt is used up, so one without any would ask without an end."""

RECALL_S = 0.05
"""How long the first of several items in one call may take before the others are taken back: it was quick, and is not
any more."""


class FlowCore:
    """The rotation, what waits for a time, and what is with the workers."""

    def __init__(
        self,
        options: Flow,
        hand_over: HandOver,
        *,
        random: Callable[[], float],
        notes: Notes,
        counters: MutableMapping[str, int],
        view: Callable[[Carried], Carried],
        alone: bool = False,
        one_a_key: bool = False,
        by_place: bool = False,
        on_failure: Callable[[FailedAttempt], None] | None = None,
        auto: Callable[[int], AutoLimit] = AutoLimit,
        spending: Spending | None = None,
    ) -> None:
        """`view` makes of a payload what user code sees; `random` gives floats from 0 to 1. `alone`: no item goes to a
        worker together with another one; `one_a_key`: not even in a batch with one of its key. `by_place`: sources are
        `keylane.flow.urgency.UrgentSource`s. `auto` makes the automatic limit, of at most so many. `spending`: what
        items cost of a budget. `on_failure` hears of each failed attempt that is told (`tell_failed`). Counted are
        "processed", "failed", "retried", "held", "throttled", "expired" and "stale"."""
        self.hand_over = hand_over
        self._random = random
        self._notes = notes
        self._counters = counters
        self._view = view
        self._on_failure = on_failure
        self._retries = options.tries
        self._may_repeat = options.guarantee != "at_most_once"
        """Whether an item runs again that uses up no attempt."""
        rotation: type[Rotation[Source]] = RotationByPlace if by_place else Rotation
        self._rotation = rotation(options.rates, depth_first=options.traversal == "depth_first")
        self._lingering = Lingering(options.batch)
        self._auto = auto(hand_over.capacity) if options.max_concurrency == "auto" else None
        """Moves the limit of the hand-over, under `max_concurrency="auto"`."""
        self._breakers = None if options.breaker is None else Breakers(options.breaker, notes.tell, view)
        self._spending = spending
        self._by_place = by_place
        looks_at_each = by_place or self._breakers is not None or spending is not None
        self._may_group = not alone and self._auto is None and options.not_before is None and not looks_at_each
        """Whether quick items may go to a worker together."""
        self._may_chain = self._may_group and options.ordering != "unordered"
        """Whether those of one shard may, as long as each is simply through."""
        self._one_a_key = one_a_key or spending is not None
        self._looks_at_each = looks_at_each
        self._asks = self._rotation.buckets.limited or looks_at_each
        """Whether each item is looked at before it goes to the workers."""
        self._schedule = Schedule()
        self._ordering = options.ordering
        self._gate: KeyGate | None = None
        """While there are rules by key."""
        self._turned_over: list[Item] = []
        self._out: dict[Unit, None] = {}
        """Handed over and not reported, of closed sources, too: the oldest first."""
        self._recall_at = inf
        """When to look at calls of several items next."""
        self.with_workers = 0
        """The items in them."""

    @property
    def calls(self) -> int:
        """Calls and batches that are with the workers."""
        return len(self._out)

    @property
    def out(self) -> Iterable[Unit]:
        """What is with the workers, the oldest first."""
        return self._out

    # --- what is fed ---

    def offer(self, source: Source) -> None:
        """`source` may have something to run."""
        self._rotation.offer(source)

    def forget_closed(self) -> None:
        """Sources were closed."""
        self._schedule.forget_closed()
        if self._gate is not None:
            self._gate.forget_closed()

    # --- the user's hand ---

    def resize(self, max_concurrency: int) -> None:
        """From now on run at most so many at once."""
        self._auto = None
        self.hand_over.resize(max_concurrency)

    def change_rates(self, rates: Rates) -> None:
        """From now on, with full buckets."""
        self._rotation.change_rates(rates)
        self._asks = self._rotation.buckets.limited or self._looks_at_each

    def change_rules(self, rules: Sequence[KeyRule]) -> None:
        """From now on these hold, by key, and no others. What has waited for one that is gone goes on."""
        before = [item for item in self.held if item.source.wanted]
        self._gate = KeyGate(rules, self._ordering) if rules else None
        self._go_on(sorted(before, key=attrgetter("number"), reverse=True))

    @property
    def has_rules(self) -> bool:
        return self._gate is not None

    @property
    def held(self) -> Iterable[Item]:
        """What waits for a rule by its key."""
        return (item for _, item, _ in self._gated())

    def _gated(self) -> Iterable[tuple[KeyRule, Item, float | None]]:
        return () if self._gate is None else self._gate.waiting

    def _go_on(self, items: Iterable[Item]) -> None:
        """What waited is ready, the last of these first."""
        for item in items:
            item.source.again(item)
            self.offer(item.source)

    def take_out(self, source: Source, number: int, now: float) -> Item | Stands:
        """One that is ready or waits is its owner's from now on, and does not run; else where it stands."""
        item = self._schedule.take_out(source, number)
        if item is None and self._gate is not None:
            item = self._gate.take_out(source, number)
        if item is not None:
            source.back_out()
        elif not source.is_due(number) and number <= source.owner.may_start():
            item = source.take_out(number)
        if item is not None:
            item.begin(now)
            return item
        if number in source.ready:
            return "delivering" if source.is_due(number) else "commit"
        for unit in self._out:
            for of, head, task in in_hand(unit):
                if of is source and number in (head, task.number):
                    return "queued" if task.why == "queued" and task.number == number else "running"
        return "behind" if source.is_behind(number) else "delivering"

    # --- what is seen from outside ---

    def work(self, sources: Iterable[Source], now: float, most: int) -> list[Task]:
        """What is in hand, what has a time, and of the other heads of shards in which items wait `most` with the
        longest queues. Looks at each item that waits once."""
        seen = Seen(self._out, self._schedule, self._gated(), self._rotation, self._breakers)
        return seen.tasks(sources, now, most)

    def open_breakers(self, now: float) -> tuple[OpenBreaker, ...]:
        """Services that are down."""
        return () if self._breakers is None else self._breakers.open(now)

    def end_lingering(self) -> None:
        """Nothing more is fed: batches wait for their least size no longer."""
        self._lingering.end()

    # --- what runs next ---

    def take(self, now: float) -> Sequence[Unit]:
        """What to hand over now."""
        self.hand_over.observe(now, self.calls)
        if self._auto is not None:
            self.hand_over.resize(self._auto.turn(now))
        self._rotation.wake(now)
        if self._gate is not None:
            self._go_on(reversed(self._gate.pop_due(now)))
        taken = self._take_calls(now) if self._lingering.size == 1 else self._take_batches(now)
        if self._auto is not None and self._rotation and self.calls >= self.hand_over.size:
            self._auto.full()
        return taken

    def pop_turned_over(self) -> list[Item]:
        """What came to its turn and goes to its owner (`Source.turn_over`)."""
        popped, self._turned_over = self._turned_over, []
        return popped

    def _take_calls(self, now: float) -> list[Unit]:
        room = min(self.hand_over.size - self.calls, self._room(now))
        rotation, is_limited = self._rotation, self._rotation.buckets.limited
        several, in_a_row, gate = 1, False, self._gate
        if self._may_group and not is_limited and (gate is None or not gate.paces):
            waiting = (source.waiting() for source in rotation)
            may_follow = self._may_chain and (gate is None or not gate.looks_at_each)
            several, in_a_row = self.hand_over.sizes(self.calls, waiting, may_follow=may_follow)
        taken: list[Unit] = []
        while rotation and room > 0:
            share = room if rotation.depth_first else room // len(rotation) or 1
            if rotation.one_by_one:
                share = 1
            for _ in range(len(rotation)):
                source = rotation.pop()
                most = min(share, room)
                if is_limited:
                    most = min(most, rotation.room_of(source, now))
                calls = self._take_of(source, most, now, several, in_a_row=in_a_row)
                taken += calls
                room -= len(calls)
                if self._spending is not None:
                    room = min(room, self._spending.room(now))
                if room <= 0 or rotation.depth_first:
                    break
        return taken

    def _take_of(self, source: Source, most: int, now: float, several: int, *, in_a_row: bool) -> list[Call]:
        looks = self._asks
        if source.has_dues:
            several, looks = 1, True
        before = source.out
        calls = source.take(most, now, several=several, in_a_row=in_a_row) if most > 0 else []
        items = source.out - before
        self._rotation.keep(source, is_taken=bool(calls))
        if self._gate is not None:
            passed = let_in(calls, self._gate, now)
            if passed is not calls:
                calls, items = passed, sum(map(len, passed))
        if looks:
            calls = [one for one in calls if self._starts(one.only_item(), now)]
            items = len(calls)
        for one in calls:
            self._out[one] = None
        self.with_workers += items
        if items > len(calls):
            self._recall_at = min(self._recall_at, now + RECALL_S)
        return calls

    def _starts(self, item: Item, now: float) -> bool:
        """Whether this one goes to the workers: not if it is its owner's, or its key has to wait."""
        source = item.source
        if source.is_due(item.number):
            source.taken_over(item.number)
            self._turned_over.append(item)
            return False
        if self._by_place and (error := source.error) is not None:
            source.owner.ended(item, Failure(error, halts=True), now)
            return False
        if self._breakers is not None:
            target = self._breakers.target(item.payload)
            if isinstance(target, UsageError):
                item.source.owner.ended(item, Failure(target, halts=True), now)
                return False
            if (held := self._breakers.starts(target, now)) is not None:
                self.put_off(item, held)
                return False
        buckets = self._rotation.buckets
        if buckets.limited:
            due = buckets.spend_key(source, item.payload.key(), now)
            if due is not None:
                self.put_off(item, due)
                return False
        if self._spending is not None and not self._is_paid(self._spending, item, now):
            return False
        if buckets.limited:
            buckets.spend(source, 1, now)
        return True

    def _is_paid(self, spending: Spending, item: Item, now: float) -> bool:
        """Whether the budget lets it start; else it waits, or its cost is none and its owner has it."""
        due = spending.starts(item, now)
        if isinstance(due, UsageError):
            item.source.owner.ended(item, Failure(due, final=True), now)
        elif due is not None:
            self.put_off(item, due)
        return due is None

    def _room(self, now: float) -> int:
        """What rates, breaker and budget let start, over all."""
        room = self._rotation.room(now)
        if self._breakers is not None:
            room = min(room, self._breakers.room(now))
        return room if self._spending is None else min(room, self._spending.room(now))

    # --- batches ---

    def _take_batches(self, now: float) -> list[Unit]:
        batches: list[Unit] = []
        while self.calls < self.hand_over.size and self._rotation and self._lingering.is_due(self._rotation, now):
            filled = [Batch(items, now) for items in self._fill(now)]
            if not filled:
                break
            batches += filled
            self._out.update(dict.fromkeys(filled))
            self.with_workers += sum(map(len, filled))
        return batches

    def _fill(self, now: float) -> list[list[Item]]:
        """One batch from as many sources as it takes, and those that go alone which were met on the way."""
        batch: list[Item] = []
        alone: list[list[Item]] = []
        rotation, size = self._rotation, self._lingering.size
        while rotation and (room := min(size - len(batch), self._room(now))) > 0:
            source = rotation.pop()
            room = min(1 if rotation.one_by_one else room, rotation.room_of(source, now))
            gate = self._gate
            looks_at_each = gate is not None and gate.looks_at_each
            one_a_key = self._one_a_key or rotation.buckets.by_key or source.has_dues or looks_at_each
            items = source.take_batch(room, now, one_a_key=one_a_key) if room else []
            rotation.keep(source, is_taken=bool(items))
            if gate is not None:
                items = let_in_batch(items, gate, now)
            if source.has_dues or self._asks:
                items = [one for one in items if self._starts(one, now)]
            if items and items[0].attempt > 1:
                alone.append(items)
            else:
                batch += items
        return [*alone, batch] if batch else alone

    # --- what workers report ---

    def calls_ended(self, units: Iterable[Unit], now: float) -> None:
        """Workers report calls and batches back, with what each item came to."""
        through: dict[Source, tuple[list[tuple[range, Sequence[Carried]]], list[int], list[Carried]]] = {}
        calls = items = 0
        took_s = 0.0
        for unit in self._heard(units, now):
            del self._out[unit]
            calls += 1
            if isinstance(unit, Batch):
                items += len(unit.items)
                self._observe(unit.since, unit.items[0].outcome, unit.items[0].source, now)
                self._batch_ended(unit, now)
                continue
            source, size = unit.source, len(unit.payloads)
            if self._auto is not None:
                self._observe(unit.since, unit.outcomes.get(0), source, now)
            ended = len(unit.numbers) - unit.first
            items += ended
            took_s += unit.took_s
            if size > 1:
                if unit.ordered or unit.outcomes or ended < size:
                    self._several_ended(unit, len(unit.numbers), now)
                    continue
            elif unit.outcomes:
                self._came_to(unit.item_at(0), unit.outcomes[0], now)
                continue
            if (of_source := through.get(source)) is None:
                of_source = through[source] = ([], [], [])
            if isinstance(unit.numbers, range):
                of_source[0].append((unit.numbers, unit.payloads))
            else:
                of_source[1].extend(unit.numbers)
                of_source[2].extend(unit.payloads)
        self._left_workers(items)
        self.hand_over.ended(items, calls, took_s)
        for source, (runs, others, payloads) in through.items():
            for run, some in joined(runs):
                self._through(source, run, some)
            if others:
                self._through(source, others, payloads)

    def _heard(self, units: Iterable[Unit], now: float) -> Iterable[Unit]:
        """The same, once breakers and budget have learned from them."""
        if self._spending is not None:
            units = self._spending.heard(units)
        return units if self._breakers is None else self._breakers.heard(units, now)

    def withdrawn(self, units: Iterable[Unit]) -> None:
        """Workers gave back what had not begun."""
        for unit in units:
            del self._out[unit]
            if self._spending is not None:
                self._spending.withdrawn(unit)
            self._left_workers(len(unit))
            if isinstance(unit, Batch):
                for item in reversed(unit.items):
                    if item.chain is not None:
                        undo(item.chain)
                    if not item.void and item.source.wanted:
                        self.put_back(item)
            else:
                if unit.source.wanted:
                    give_back(unit, *unit.recall())
                    self.offer(unit.source)

    def _left_workers(self, items: int) -> None:
        self.with_workers -= items
        assert self.with_workers >= self.calls >= 0, (self.with_workers, self.calls)

    def _observe(self, since: float, outcome: Outcome, source: Source, now: float) -> None:
        """A call ended; the automatic limit learns from that."""
        if self._auto is not None and source.wanted and not isinstance(outcome, NotRun | Later):
            is_failure = isinstance(outcome, Failure)
            if not (is_failure and outcome.is_expiry):
                self._auto.observe(since, now, failed=is_failure)

    def _through(
        self, source: Source, numbers: Sequence[int], payloads: Sequence[Carried], passed: Sequence[int] = ()
    ) -> None:
        """These ended well, and there is nothing to see through."""
        if not source.wanted:
            self._counters["stale"] += len(numbers)
            return
        self._counters["processed"] += len(numbers)
        if passed:
            source.release(numbers[len(passed) :], payloads[len(passed) :], passed)
        else:
            source.release(numbers, payloads)
        source.owner.released(numbers, payloads)
        self.offer(source)

    # --- several in one call ---

    def _several_ended(self, call: Call, end: int, now: float) -> None:
        """Of a call of several items those before index `end` that were not reported before: in order up to the first
        that is not simply through, or each for itself."""
        numbers, payloads, passed, outcomes = told_apart(call, end)
        if numbers:
            self._through(call.source, numbers, payloads, passed)
        for index, outcome in outcomes.items():
            self._came_to(call.item_at(index), outcome, now)

    def _recall(self, now: float) -> bool:
        """Take apart the calls of several items in which one takes long: those before it are through, and those behind
        it go to others, if they can be recalled. Returns whether there were any before it."""
        if now < self._recall_at:
            return False
        several = [one for one in self._out if isinstance(one, Call) and len(one) - one.first > 1]
        self._recall_at = now + RECALL_S if several else inf
        has_ended = False
        for call in [one for one in several if one.has_begun and one.began + RECALL_S <= now]:
            numbers, payloads = call.recall()
            if numbers:
                give_back(call, numbers, payloads)
                self.offer(call.source)
            end = call.ended
            ended = end - call.first
            self.with_workers -= len(numbers) + ended
            if ended:
                has_ended = True
                self.hand_over.ended(ended, 0, 0.0)  # their time comes with the call's
                self._several_ended(call, end, now)
        return has_ended

    # --- batches that ended ---

    def _batch_ended(self, batch: Batch, now: float) -> None:
        """An item that failed takes those of its shard behind it along: they run again after it."""
        heads = [item for item in batch.items if item.chain is None or item.chain.head is item]
        for item in heads:
            together = item.chain
            if together is None or not item.source.wanted:
                self._came_to(item, item.outcome, now)
            else:
                begin_settling(together, now)  # an owner that has nothing to see through releases it at once
                self._settle(together, now)

    def _settle(self, together: Chain, now: float) -> None:
        """The items of a chain are gone in order, as far as is known what they came to."""
        while (item := together.head) is not None and item in together.results:
            outcome = together.results.pop(item)
            if outcome is not None:
                undo(together)
                self._came_to(item, outcome, now)
                return
            was_held = item in together.held
            is_last = together.pass_head()
            self._counters["processed"] += not was_held
            self._gone(item, passed=not is_last)

    def _gone(self, item: Item, *, passed: bool = False) -> None:
        source = item.source
        if passed:
            source.release((), (), (item.number,))
        else:
            source.release((item.number,), (item.payload,))
        source.owner.released((item.number,), (item.payload,))
        self.offer(source)

    # --- what an item comes to ---

    def _came_to(self, item: Item, outcome: Outcome, now: float) -> None:
        if not item.source.wanted:
            self._counters["stale"] += 1
        elif outcome is None:
            self._counters["processed"] += 1
            self._gone(item)
        elif isinstance(outcome, Failure):
            self._failed(item, outcome, now)
        elif isinstance(outcome, NotRun):
            self.put_back(item)
        elif isinstance(outcome, Later):
            self.put_off(item, now + outcome.delay_s)
        else:
            self._may_chain = False  # the owner has to see it through before the next of its shard runs
            item.source.owner.ended(item, outcome, now)

    def _failed(self, item: Item, failure: Failure, now: float) -> None:
        """An attempt failed: another one follows, or its owner is told that there is none."""
        self._notes.note(failure, item.name, item.attempt, now)
        is_forbidden = failure.final or self._retries.forbid(failure.error)
        if not is_forbidden and self._may_repeat and is_throttled(failure.error):
            self._throttled(item, failure, now)
            return
        if failure.is_expiry:
            self._expired(item, failure, now)
            return
        self._counters["failed"] += 1
        first_s = item.failed_first(item.since)
        item.source.tried(item, first_s)
        breakers, target = self._breakers, None
        is_final = failure.final or (not failure.is_shared and is_forbidden)
        if breakers is not None and not is_final and breakers.counts(failure.error):
            named = breakers.target(item.payload)
            if isinstance(named, UsageError):
                item.source.owner.ended(item, Failure(named, halts=True), now)
                return
            target = named
            if self._is_held(item, failure, breakers.failed(target, item.since, now), now):
                return
        if isinstance(failure.error, OutageError) and self._is_held(item, failure, now + OUTAGE_S, now):
            return
        if not is_final and self._retries.allow(item.attempt):
            wait_s = self._wait_s(item, item.attempt, failure, now)
            if wait_s is None:
                return
            if self._retries.max_age_ms is None or now + wait_s <= first_s + self._retries.max_age_ms / 1000:
                self.tell_failed(item, failure, "retried", wait_s)
                item.again()
                self._counters["retried"] += 1
                self.put_off(item, now + wait_s)
                return
        exhausted = None if breakers is None or target is None else breakers.exhausted(target, first_s, now)
        if not self._is_held(item, failure, exhausted, now):  # something says that its service is up
            item.source.owner.ended(item, failure, now)

    def _throttled(self, item: Item, failure: Failure, now: float) -> None:
        """Its service asks for a slower pace: the attempt does not count, and another one follows for certain. All who
        share the budget slow down."""
        wait_s = self._wait_s(item, item.throttle(), failure, now)
        if wait_s is None:
            return
        wait_s = max(wait_s, LEAST_THROTTLE_S)
        if self._spending is not None:
            self._spending.cool_down(round(wait_s * 1000), item.since)
        self._counters["throttled"] += 1
        self.tell_failed(item, failure, "throttled", wait_s)
        self.put_off(item, now + wait_s)

    def _expired(self, item: Item, failure: Failure, now: float) -> None:
        """It was not called: others have the tokens that it took, and the probe that it would have been."""
        self._counters["expired"] += 1
        self._rotation.buckets.give_back(item.source, item.payload.key(), now)
        if self._breakers is not None:
            self._breakers.not_called(self._breakers.target(item.payload), item.since, now)
        item.source.owner.ended(item, failure, now)

    def _wait_s(self, item: Item, attempt: int, failure: Failure, now: float) -> float | None:
        """How long to wait after this failure, which is that of so many; None, where the user's own function gives no
        delay, and the run ends with that."""
        try:
            return delay_s(self._retries, attempt, failure.error, self._view(item.payload), self._random)
        except UsageError as error:
            error.__cause__ = failure.error
            item.source.owner.ended(item, Failure(error, halts=True), now)
            return None

    def _is_held(self, item: Item, failure: Failure, due: float | None, now: float) -> bool:
        """The attempt does not count, if there is another time for it."""
        if due is not None:
            self.tell_failed(item, failure, "held", due - now)
            self._counters["held"] += 1
            self.put_off(item, due)
        return due is not None

    def tell_failed(self, item: Item, failure: Failure, outcome: FailureOutcome, delay_s: float | None = None) -> None:
        """User code hears of a failed attempt, from who has decided what becomes of its item."""
        if self._on_failure is not None:
            delay_ms = None if delay_s is None else round(max(0.0, delay_s) * 1000)
            self._on_failure(FailedAttempt(self._view(item.payload), failure.error, item.attempt, outcome, delay_ms))

    # --- the owner's ---

    def release(self, item: Item, now: float) -> None:
        """An item that its owner held is gone, once those before it in its batch are."""
        together = item.chain
        if together is None or not item.source.wanted:
            self._gone(item)
        else:
            together.results[item] = None
            self._settle(together, now)

    def fail(self, item: Item, failure: Failure, now: float) -> None:
        """What an owner held has failed after all: it is judged as any other failed attempt, when its turn comes."""
        together = item.chain
        if together is None:
            self._failed(item, failure, now)
        else:
            together.results[item] = failure
            self._settle(together, now)

    def run_again(self, item: Item, now: float) -> None:
        """What an owner held is as if it had not run."""
        together = item.chain
        if together is None:
            self.put_back(item)
        else:
            together.results[item] = NotRun.NOT_RUN
            self._settle(together, now)

    def put_back(self, item: Item) -> None:
        item.source.not_begun(item)
        self.offer(item.source)

    def put_off(self, item: Item, due: float) -> None:
        """It waits until then."""
        item.source.put_off()
        self._schedule.add(item, due)

    # --- time ---

    def release_due(self, now: float) -> bool:
        """What has waited long enough is ready again, before newer items of its source. Returns whether items have
        ended meanwhile of calls that still run."""
        has_ended = self._recall(now)
        self._go_on(reversed(self._schedule.pop_due(now)))
        return has_ended

    @property
    def next_due(self) -> float | None:
        """When to ask for what has waited long enough."""
        due = self._schedule.next_due
        if self._recall_at == inf:
            return due
        return self._recall_at if due is None else min(due, self._recall_at)

    def next_check(self, now: float) -> float | None:
        """When there is something to hand over even if nothing happens."""
        times = [] if (waking := self._rotation.next_waking) is None else [waking]
        if self._gate is not None and (due := self._gate.next_due) is not None:
            times.append(due)
        if self._rotation and self.calls < self.hand_over.size:
            if self._breakers is not None and not self._breakers.room(now):
                times.append(self._breakers.due() or now)
            elif self._rotation.room(now) < 1 and (due := self._rotation.buckets.due()) is not None:
                times.append(due)
            elif self._spending is not None and not self._spending.room(now):
                times.append(self._spending.due(now))
            elif (until := self._lingering.until) is not None:
                times.append(until)
        return min(times, default=None)

    @property
    def stocked_s(self) -> float:
        """How long the workers have enough to do, in seconds: what ends may be looked at a little later."""
        return self.hand_over.stocked_s(self.calls)
