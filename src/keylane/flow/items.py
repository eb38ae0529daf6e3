"""`Source`: items in one order, from the moment they are fed until they are gone; and what of them is handed over.

The idea: a payload waits as it is and goes to a worker in a `Call`, alone or with others if they are quick, or in a
`Batch` for one call of the function. Only what does not simply end well becomes an `Item`, which remembers its
attempts. Calls and batches are handed over, never shared: the flow owns one until it gives it to the workers, they own
it until they report it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from itertools import chain
from operator import length_hint
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from keylane.flow.admission import Ready, shards_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from keylane.errors import UsageError
    from keylane.flow.admission import Payload, Shards
    from keylane.flow.outcomes import Outcome
    from keylane.flow.work import Queue
    from keylane.options import Ordering

Carried: TypeAlias = Any
"""A payload, whose type its owner knows."""


class Item:
    """One that has been handed over and is not simply through: it failed, waits, or is held by its owner."""

    __slots__ = (
        "attempt",
        "chain",
        "cost",
        "first_s",
        "number",
        "outcome",
        "payload",
        "since",
        "source",
        "throttled",
        "void",
    )

    def __init__(self, source: Source, number: int, payload: Carried, since: float = 0.0) -> None:
        self.source = source
        self.number = number
        self.payload = payload
        self.since = since
        """When it was handed over last."""
        self.attempt = 1
        """Of the function; the first is 1."""
        self.throttled = 0
        """How many attempts in a row were throttled, the last ones."""
        self.first_s: float | None = None
        """When the first attempt was handed over; set when that fails."""
        self.cost: Mapping[str, int] | None = None
        """What an attempt costs of a budget, once that was asked for."""
        self.chain: Chain | None = None
        """Set while others of its shard are in the same batch."""
        self.outcome: Outcome = None
        """What its batch came to for it; written by the worker."""
        self.void = False
        """True once what becomes of it changes nothing: an earlier one of its shard failed, and it runs again."""

    @property
    def name(self) -> str:
        """How errors and logs name it."""
        return self.source.name_of(self.number)

    def begin(self, now: float, chain: Chain | None = None) -> None:
        """It is handed over."""
        self.since = now
        self.chain = chain

    def came_to(self, outcome: Outcome) -> None:
        """The worker's, of one in a batch."""
        self.outcome = outcome

    def failed_first(self, began: float) -> float:
        """When its first attempt began; of the first that fails, `began`."""
        self.throttled = 0
        if self.first_s is None:
            self.first_s = began
        return self.first_s

    def throttle(self) -> int:
        """Its service has throttled it: how often in a row."""
        self.throttled += 1
        return self.throttled

    def again(self) -> None:
        self.attempt += 1

    def restore(self, attempt: int, first_s: float | None) -> None:
        """It is the same as one that was fed before."""
        self.attempt, self.first_s = attempt, first_s

    def leave_chain(self, *, void: bool = False) -> None:
        self.chain = None
        self.void = self.void or void

    def __repr__(self) -> str:
        return f"Item({self.name}, attempt {self.attempt})"


ALL_WELL: dict[int, Outcome] = {}
"""Of calls in which nothing came to anything else: it stays empty."""


class Call:
    """Payloads of one source that a worker runs one after another.

    Several go together where they are quick: `ordered` ones are of one shard, and end with the first that does not
    simply end well; others have nothing to do with one another. What has not begun can be recalled while it runs.
    """

    __slots__ = (
        "_answered",
        "_rest",
        "began",
        "first",
        "item",
        "numbers",
        "ordered",
        "outcomes",
        "payloads",
        "since",
        "source",
        "took_s",
    )

    def __init__(
        self,
        source: Source,
        numbers: Sequence[int],
        payloads: Sequence[Carried],
        since: float,
        item: Item | None = None,
        *,
        ordered: bool = False,
    ) -> None:
        self.source = source
        self.numbers = numbers
        self.payloads = payloads
        self.since = since
        """When it was handed over."""
        self.item = item
        """Of one that goes alone: it was handed over before, or looked at."""
        self.ordered = ordered
        self.outcomes = ALL_WELL
        """By index, what did not simply end well; written by the worker."""
        self._rest = iter(payloads)
        self._answered: int | None = None
        """How many have ended, where the worker took all at once; None where it takes one after another."""
        self.first = 0
        """The index of the first that was not reported before."""
        self.began = 0.0
        """When the worker took it; 0 before that."""
        self.took_s = 0.0
        """How long it was in the worker, who says so when it reports it."""

    @property
    def attempt(self) -> int:
        return 1 if self.item is None else self.item.attempt

    # --- the worker's ---

    def begin(self, now: float) -> Iterator[Carried]:
        """The payloads to run, each taken from the iterator when its turn comes."""
        self.began = now
        return self._rest

    def begin_all(self, now: float) -> list[Carried]:
        """The payloads, all at once: none can be recalled from now on. The worker says which have ended."""
        self._answered = 0
        return list(self.begin(now))

    def answered(self, count: int) -> None:
        """So many have ended of those that the worker took at once, and what they came to is noted."""
        self._answered = count

    def note(self, index: int, outcome: Outcome) -> None:
        """What one came to that did not simply end well."""
        if self.outcomes is ALL_WELL:
            self.outcomes = {}
        self.outcomes[index] = outcome

    # --- the flow's ---

    @property
    def has_begun(self) -> bool:
        """Whether the worker is at the first payload, or beyond it: there is one, then, that is not taken back."""
        return length_hint(self._rest) < len(self.payloads)

    @property
    def ended(self) -> int:
        """How many are known to have ended before the call comes back: all before the one that the worker is at."""
        last = len(self.numbers) - 1
        return last - length_hint(self._rest) if self._answered is None else min(self._answered, last)

    def recall(self) -> tuple[Sequence[int], list[Carried]]:
        """Take back what has not begun: the numbers and payloads. Atomic, so that each is run or taken back."""
        rest = list(self._rest)
        begun = len(self.numbers) - len(rest)
        numbers, self.numbers = self.numbers[begun:], self.numbers[:begun]
        return numbers, rest

    def reported(self, first: int) -> None:
        """Those before this index are through."""
        self.first = first

    def item_at(self, index: int) -> Item:
        """The one at this index, as it is from now on."""
        return self.item or Item(self.source, self.numbers[index], self.payloads[index], self.since)

    def only_item(self) -> Item:
        """Of a call of one: it is the same one whenever it is asked for."""
        assert len(self.numbers) == 1, self.numbers
        self.item = self.item_at(0)
        return self.item

    def __len__(self) -> int:
        return len(self.numbers)


class Batch:
    """Items for one call of the function, of any sources."""

    __slots__ = ("items", "since")

    def __init__(self, items: list[Item], since: float) -> None:
        self.items = items
        self.since = since

    def __len__(self) -> int:
        return len(self.items)


Unit: TypeAlias = "Call | Batch"
"""What a worker gets at once."""


def sources_of(unit: Unit) -> Sequence[Source]:
    """Those whose items it has."""
    return (unit.source,) if isinstance(unit, Call) else [item.source for item in unit.items]


class Chain:
    """Items of one shard in one batch. They are gone in this order, and leave it when they are: items and chains that
    name one another would wait for the garbage collector. All of it is the flow's."""

    __slots__ = ("_at", "held", "items", "results")

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self._at = 0
        self.results: dict[Item, Outcome] = {}
        """What items came to while an earlier one is not gone."""
        self.held: set[Item] = set()
        """Those that their owner sees through."""

    @property
    def head(self) -> Item | None:
        """The first that is not gone."""
        return self.items[self._at] if self._at < len(self.items) else None

    @property
    def on_their_way(self) -> int:
        """How many their owner has not seen through."""
        return sum(one.chain is self and one not in self.results for one in self.held)

    def pass_head(self) -> bool:
        """The head is gone, and leaves; whether it was the last."""
        self.items[self._at].leave_chain()
        self._at += 1
        return self._at == len(self.items)

    def undo(self) -> Sequence[Item]:
        """Only the head stays out, on its own; returns the others, which run again."""
        rest = self.items[self._at + 1 :]
        self.items[self._at].leave_chain()
        for item in rest:
            item.leave_chain(void=True)
        self._at = len(self.items)
        return rest


class Owner(Protocol):
    """Whose items they are: may it start, it ended, it is released."""

    def may_start(self) -> int:
        """The highest number that may start now; -1: none."""

    def started(self, highest: int) -> None:
        """Items were handed over; `highest` is the highest number among them."""

    def ended(self, item: Item, outcome: Outcome, now: float) -> None:
        """What the function returned, or a `Failure` after which there is no attempt. The owner holds the item until it
        releases it, or lets it fail or run again (`keylane.flow.core.FlowCore`)."""

    def released(self, numbers: Sequence[int], payloads: Sequence[Carried]) -> None:
        """These are gone."""


class Source:
    """The items of one order, and the one who moves them:

    | state | who holds it | what brings it there | it becomes |
    |---|---|---|---|
    | ready | the source: the first of its shard in `_ready`, what was out before in `_again`, what may not start yet in `_beyond`; what is behind the first in `_shards` | `feed`; `again`; `not_begun`, `put_back` | running (`take`, `take_batch`); held by its owner (`take_out`); gone (`close`) |
    | running | a call or a batch in `FlowCore.out`, with the workers or on its way to them | `take`, `take_batch` | gone (`release`, `close`); held by its owner (`ended`, or `taken_over` at its turn); waiting (`put_off`: it failed, it has a time, the rate of its key is used up, its key is held, its service is down); ready (`not_begun`, `put_back`) |
    | waiting | the flow's `Schedule`, its `KeyGate`, or its owner's; nobody's where its failure ends the run | `put_off` | ready (`again`); held by its owner (`back_out`); gone (`close`) |
    | held by its owner | who sees it through: `Owner.ended`, until `FlowCore.release`, `fail` or `run_again`; in a batch also its `Chain`, while an earlier one of its shard is held | `ended`, `taken_over`, `take_out`, `back_out` | gone (`release`, `close`); waiting (`put_off`); ready (`not_begun`, `put_back`) |
    | gone | nobody: the next of its shard is ready | `release`, `close`; after `stop` `not_begun`, `put_back` as well | |

    A source that comes again is another one: what names a closed one changes nothing. Thread safety: the flow's, but
    for `may_begin` and `wanted`, which workers read.
    """  # noqa: E501 - a table

    def __init__(
        self,
        name: Any,
        owner: Owner,
        ordering: Ordering,
        name_of: Callable[[int], str],
        *,
        depth_first: bool = False,
    ) -> None:
        self.name = name
        """Sources are in the order of their names, depth first."""
        self.owner = owner
        self.name_of = name_of
        """How errors and logs name an item, by its number."""
        self._depth_first = depth_first
        self._shards: Shards = shards_for(ordering)
        self._ready = Ready()
        self._again: deque[Item] = deque()
        self._beyond: list[tuple[int, Payload]] = []
        """By number: a heap. What was out before is never beyond: how far items may start never goes back."""
        self._last = -1
        """The highest number that was fed."""
        self._tried: dict[int, float] = {}
        """Of those that failed and are not gone, when their first attempt began."""
        self._dues: set[int] = set()
        """Numbers that go to their owner when their turn comes, and not to the workers."""
        self.out = 0
        """How many run, or are held by their owner."""
        self.may_take = True
        """False once nothing more of it is handed over."""
        self.may_begin = True
        """False once nothing that was handed over may begin."""
        self.wanted = True
        """False once no result counts any more: it was closed."""
        self._is_paused = False

    # --- ready ---

    @property
    def error(self) -> UsageError | None:
        """What ends the run with its next item."""
        return None

    def feed(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> None:
        """These follow what was fed before, in the order of their numbers."""
        if numbers:
            self._last = numbers[-1]
            self._ready.put(*self._shards.admit(numbers, payloads))

    def again(self, item: Item) -> None:
        """What waited has come to its time: before everything else."""
        self._again.appendleft(item)

    def not_begun(self, item: Item) -> None:
        """It was handed over and did not run: before everything else."""
        self.out -= 1
        if self.may_take:
            self._again.appendleft(item)

    def put_back(self, numbers: Sequence[int], payloads: Sequence[Payload], *, behind: bool) -> None:
        """What was handed over with others did not run. What followed `behind` another one is in its place still."""
        self.out -= len(numbers)
        if not behind and self.may_take:
            self._ready.put(numbers, payloads, first=True)

    def block(self, number: int, payload: Payload) -> None:
        """Hold back what has the same key: something of it runs that was handed over before. `payload` stands for it,
        with a number that no item has, until it is freed."""
        self._shards.admit((number,), (payload,))

    def free(self, number: int, payload: Payload) -> None:
        self._follow((number,), (payload,))

    def has_turn(self) -> bool:
        """Whether something of it may run, as far as it goes."""
        return self.goes_on and bool(self._ready.count or self._again or self._beyond)

    def waiting(self) -> int:
        """Shards that have an item ready."""
        return len(self._beyond) + len(self._again) + self._ready.count

    @property
    def tries_again(self) -> bool:
        """Whether the first that is ready failed before."""
        return bool(self._again) and self._again[0].attempt > 1

    @property
    def shards(self) -> int:
        """Keys with an item out or waiting; see `Shards.count`."""
        return self._shards.count

    def startable(self, most: int) -> int:
        """How many items a batch could hold now, counted up to `most`."""
        count = len(self._beyond)
        for number in chain([item.number for item in self._again], self._ready.numbers):
            if count >= most:
                break
            count += 1 + len(self._shards.behind(number, most - count - 1, self._last))
        return count

    # --- ready -> running ---

    def _limit(self) -> int:
        """The highest number that may start; what was beyond an earlier one, and is not any more, comes first."""
        if not self.goes_on:
            return -1
        limit = self.owner.may_start()
        back = []
        while self._beyond and self._beyond[0][0] <= limit:
            back.append(heapq.heappop(self._beyond))
        if back:
            self._ready.put(*zip(*back, strict=True), first=True)
        return limit

    def take(self, room: int, now: float, *, several: int = 1, in_a_row: bool = False) -> list[Call]:
        """Up to `room` calls of items that may run at once.

        Up to `several` items go in one call: of different shards, or, `in_a_row`, of one. What was handed over before
        goes alone.
        """
        limit = self._limit()
        if limit < 0:
            return []
        calls: list[Call] = []
        highest = -1
        while self._again and len(calls) < room:
            item = self._again.popleft()
            item.begin(now)
            calls.append(Call(self, (item.number,), (item.payload,), now, item))
        self.out += len(calls)
        at_a_time = 1 if in_a_row else several
        while len(calls) < room:
            numbers, payloads = self._next_ready(limit, (room - len(calls)) * at_a_time)
            if not numbers:
                break
            if several == 1:
                calls += [Call(self, (one,), (payload,), now) for one, payload in zip(numbers, payloads, strict=True)]
            elif not in_a_row and len(numbers) <= several:
                calls.append(Call(self, numbers, payloads, now))
            elif in_a_row:
                for number, payload in zip(numbers, payloads, strict=True):
                    behind = self._shards.behind(number, several - 1, limit)
                    others = [one.offset() for one in behind]
                    call = Call(self, (number, *others), (payload, *behind), now, ordered=True)
                    calls.append(call)
                    self.out += len(behind)
                    highest = max(highest, call.numbers[-1])
            else:
                starts = range(0, len(numbers), several)
                calls += [Call(self, numbers[at : at + several], payloads[at : at + several], now) for at in starts]
            self.out += len(numbers)
            if (last := numbers[-1]) > highest:
                highest = last
        if highest >= 0:
            self.owner.started(highest)
        return calls

    def _next_ready(self, limit: int, most: int) -> tuple[Sequence[int], Sequence[Payload]]:
        """Up to `most` that are ready for the first time and may start."""
        while self._ready.count:
            numbers, payloads = self._ready.pop(most)
            if numbers[-1] <= limit:
                return numbers, payloads
            within = bisect_right(numbers, limit)
            for one in zip(numbers[within:], payloads[within:], strict=True):
                heapq.heappush(self._beyond, one)
            if within:
                return numbers[:within], payloads[:within]
        return (), ()

    def take_batch(self, room: int, now: float, *, one_a_key: bool = False) -> list[Item]:
        """Up to `room` items for one batch: of each shard in turn as many as there are, in order.

        An item that is tried again comes alone, so that it cannot fail the others with it once more.
        """
        limit = self._limit()
        batch: list[Item] = []
        while limit >= 0 and len(batch) < room:
            if batch and self.tries_again:
                break
            if self._again:
                first = self._again.popleft()
            elif ready := self._next_ready(limit, 1)[1]:
                first = Item(self, ready[0].offset(), ready[0])
            else:
                break
            first.begin(now)
            items = [first]
            most = 1 if one_a_key or first.attempt > 1 else room - len(batch)
            behind = self._shards.behind(first.number, most - 1, limit)
            if behind:
                items += [Item(self, one.offset(), one) for one in behind]
                together = Chain(items)
                for item in items:
                    item.begin(now, together)
            batch += items
            if first.attempt > 1:
                break
        if batch:
            self.out += len(batch)
            self.owner.started(max(item.number for item in batch))
        return batch

    def take_out(self, number: int) -> Item | None:
        """One that is ready is held by its owner; None, if it is not ready, or behind another one."""
        if (item := next((one for one in self._again if one.number == number), None)) is not None:
            self._again.remove(item)
        elif (payload := self._ready.take_out(number)) is not None:
            item = Item(self, number, payload)
            self.owner.started(number)
        self.out += item is not None
        return item

    # --- running, held -> waiting, gone ---

    def put_off(self) -> None:
        """One that was out waits from now on."""
        self.out -= 1

    def back_out(self) -> None:
        """One that waited is held by its owner once more."""
        self.out += 1

    def tried(self, item: Item, first_s: float) -> None:
        """It failed, and is not gone."""
        self._tried[item.number] = first_s

    def release(self, numbers: Sequence[int], payloads: Sequence[Carried], passed: Sequence[int] = ()) -> None:
        """These are gone. After each the next of its shard is ready, but for those `passed` as well: behind these it
        was handed over with them."""
        self.out -= len(numbers) + len(passed)
        if self._tried:
            for number in (*numbers, *passed):
                self._tried.pop(number, None)
        if passed:
            self._shards.passed(passed)
        self._follow(numbers, payloads)

    def _follow(self, numbers: Sequence[int], payloads: Sequence[Carried]) -> None:
        """What stands behind these is ready: of all of it the shard that is furthest behind first."""
        if following := self._shards.release(numbers, payloads):
            by_number = {one.offset(): one for one in following}
            ascending = sorted(by_number)
            run = range(ascending[0], ascending[-1] + 1)
            ready = [by_number[number] for number in ascending]
            self._ready.put(run if len(run) == len(ready) else ascending, ready, first=self._depth_first)

    # --- its own ---

    def turn_over(self, numbers: Iterable[int]) -> None:
        """These go to their owner when their turn comes (`taken_over`), and not to the workers."""
        self._dues = set(numbers)

    @property
    def has_dues(self) -> bool:
        return bool(self._dues)

    def is_due(self, number: int) -> bool:
        return number in self._dues

    def taken_over(self, number: int) -> None:
        self._dues.discard(number)

    def pause(self, *, is_paused: bool) -> None:
        """By the user."""
        self._is_paused = is_paused

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def goes_on(self) -> bool:
        """Whether anything of it is handed over."""
        return self.may_take and not self._is_paused

    def stop(self, *, may_begin: bool = False) -> None:
        """Hand over nothing more of it; `may_begin`: what was handed over may run still."""
        self.may_take = False
        self.may_begin = may_begin

    def close(self) -> None:
        """Nothing of it starts, and nothing of it counts, any more."""
        self.may_take = self.may_begin = self.wanted = False
        self._ready = Ready()
        self._again.clear()
        self._beyond.clear()

    def is_behind(self, number: int) -> bool:
        return self._shards.is_behind(number)

    def queues(self) -> Iterator[Queue]:
        """Of the shards in which items wait for their head."""
        return self._shards.queues()

    @property
    def ready(self) -> Iterator[int]:
        """Numbers of what may run, or could if it were not too far ahead."""
        return chain([item.number for item in self._again], [number for number, _ in self._beyond], self._ready.numbers)

    def has_tried(self, number: int) -> bool:
        """Whether it failed, and is not gone."""
        return number in self._tried

    @property
    def oldest_tried(self) -> tuple[float, int] | None:
        """When the first attempt of one began that failed and is not gone, and its number."""
        return min(((since, number) for number, since in self._tried.items()), default=None)

    def __repr__(self) -> str:
        return f"Source({self.name})"
