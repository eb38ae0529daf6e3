"""What may run: of a source by its order (`Shards`), at once by what workers take (`HandOver`), and of many sources
the one whose turn it is (`Rotation`).

The idea of the first: a shard has at most one item out (ready, running, waiting, or held by its owner), or a few that
were handed over together. The others of the shard wait behind in the order of their numbers, and releasing the last
one out brings out the next. KEY has a shard a key of the source, PARTITION one for the source, UNORDERED none. An item
without a key has nothing to keep its place relative to: under KEY it is a shard of its own, so items without a key are
unordered among themselves. A key's queue is no object of its own: of each item that has one behind it the source knows
that one, and of each key the last. That costs nothing where most keys have one item, and what was handed over together
and has not run is still in its place.

Of the second: workers that can queue get a few milliseconds' worth of work beyond what runs, so that a thread that ends
an item finds the next one without a turn of the loop; slow functions leave the queue all but empty, so nothing gets old
in it. What is quick goes several at a time, as many as run in `CALL_S`.

Of the third: sources stand in a row, and the first gives what it may. It goes to the end of the row, or back to its
front where the order is depth first; one that gave nothing, or has nothing more, leaves until it is offered again. One
that has used up its rate rests, and comes back by itself when that has recovered.

Pure: time is passed in.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections import deque
from itertools import chain, islice, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from keylane.errors import InternalError
from keylane.flow.rates import UNLIMITED, Buckets, Rated
from keylane.flow.work import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keylane.options import Ordering, Rates

# --- by the order of a source ---


class Payload(Protocol):
    """What is fed to a flow. Clients' messages are as they are; `offset` is an item's number in its source."""

    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def __len__(self) -> int:
        """Bytes that count against a bound of memory."""


T = TypeVar("T")

RUN = 256
"""Items that stand in the queue of what is ready as one. What is left of a run when some are taken is copied."""


class Ready:
    """What may run, in the order of its turn: runs of numbers, ascending in each, and their payloads."""

    __slots__ = ("_runs", "count")

    def __init__(self) -> None:
        self._runs: deque[tuple[Sequence[int], Sequence[Payload]]] = deque()
        self.count = 0

    @property
    def numbers(self) -> Iterator[int]:
        return chain.from_iterable(numbers for numbers, _ in self._runs)

    def put(self, numbers: Sequence[int], payloads: Sequence[Payload], *, first: bool = False) -> None:
        """Behind all others, or `first`."""
        self.count += len(numbers)
        runs = [(numbers, payloads)]
        if not 0 < len(numbers) <= RUN:
            runs = [(numbers[at : at + RUN], payloads[at : at + RUN]) for at in range(0, len(numbers), RUN)]
        if first:
            self._runs.extendleft(reversed(runs))
        else:
            self._runs.extend(runs)

    def pop(self, most: int) -> tuple[Sequence[int], Sequence[Payload]]:
        """Up to `most` of the first run."""
        numbers, payloads = self._runs.popleft()
        if len(numbers) > most:
            self._runs.appendleft((numbers[most:], payloads[most:]))
            numbers, payloads = numbers[:most], payloads[:most]
        self.count -= len(numbers)
        return numbers, payloads

    def take_out(self, number: int) -> Payload | None:
        """This one may not run; None, if it is not here."""
        for at, (numbers, payloads) in enumerate(self._runs):
            where = bisect_left(numbers, number)
            if where < len(numbers) and numbers[where] == number:
                left = [(numbers[:where], payloads[:where]), (numbers[where + 1 :], payloads[where + 1 :])]
                runs = list(self._runs)
                runs[at : at + 1] = [one for one in left if one[0]]
                self._runs = deque(runs)
                self.count -= 1
                return payloads[where]
        return None


def joined(runs: Sequence[tuple[range, Sequence[T]]]) -> Sequence[tuple[range, Sequence[T]]]:
    """Numbers that calls had, and their payloads, as the ranges that they make up."""
    if len(runs) == 1:
        return runs
    ranges: list[tuple[range, list[T]]] = []
    for run, some in sorted(runs, key=lambda one: one[0].start):
        if ranges and ranges[-1][0].stop == run.start:
            before, payloads = ranges[-1]
            payloads += some
            ranges[-1] = range(before.start, run.stop), payloads
        else:
            ranges.append((run, list(some)))
    return ranges


class Shards:
    """The ordering of one source's items. As it is UNORDERED: every item may run.

    The caller hands in the items in the order of their numbers, and releases exactly what it was given. Numbers go
    beside the payloads, because asking each for its number again costs as much as what is done here. Those that follow
    one another are a `range`, which costs nothing.
    """

    def admit(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> tuple[Sequence[int], Sequence[Payload]]:
        """Take newly fed items; return what may run at once, in order."""
        return numbers, payloads

    def release(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> list[Payload]:  # noqa: ARG002 - for others
        """These are gone, each the last of its shard that was out: return the next ones, which may run now."""
        return []

    def passed(self, numbers: Sequence[int]) -> None:
        """These are gone, and the next of their shards were handed over with them."""

    def behind(self, number: int, most: int, limit: int) -> list[Payload]:  # noqa: ARG002 - for others
        """Up to `most` items that wait behind one that is out, in order, with numbers up to `limit`."""
        return []

    def is_behind(self, number: int) -> bool:  # noqa: ARG002 - for others
        """Whether an item waits behind another one."""
        return False

    def queues(self) -> Iterator[Queue]:
        """Of the shards in which items wait for their head."""
        return iter(())

    @property
    def count(self) -> int:
        """Shards with an item out or waiting."""
        return 0


class ByPartition(Shards):
    """PARTITION: one item of the source at a time."""

    def __init__(self) -> None:
        self._is_out = False
        self._waiting: deque[Payload] = deque()
        """Those that were handed over with the one that is out stay in it until one of them is released."""

    def admit(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> tuple[Sequence[int], Sequence[Payload]]:
        ready = 0 if self._is_out else 1
        self._waiting.extend(payloads[ready:])
        self._is_out = self._is_out or bool(payloads)
        return numbers[:ready], payloads[:ready]

    def release(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> list[Payload]:  # noqa: ARG002 - the protocol's
        following = []
        waiting = self._waiting
        for number in numbers:
            if not self._is_out:
                raise InternalError(f"number {number} was released, but is not out")
            while waiting and waiting[0].offset() <= number:
                waiting.popleft()
            if waiting:
                following.append(waiting.popleft())
            else:
                self._is_out = False
        return following

    def behind(self, number: int, most: int, limit: int) -> list[Payload]:
        waiting = self._waiting
        skipped = 0
        while skipped < len(waiting) and waiting[skipped].offset() <= number:
            skipped += 1
        return list(takewhile(lambda one: one.offset() <= limit, islice(waiting, skipped, skipped + most)))

    def is_behind(self, number: int) -> bool:
        return any(one.offset() == number for one in self._waiting)

    def queues(self) -> Iterator[Queue]:
        if self._waiting:
            yield Queue(None, len(self._waiting), None)

    @property
    def count(self) -> int:
        return int(self._is_out)


class ByKey(Shards):
    """KEY: one item of a key at a time; items without a key run freely."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}
        """By key, the last item's number, while one of it is out."""
        self._next: dict[int, Payload] = {}
        """By number, the item behind."""

    def admit(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> tuple[Sequence[int], Sequence[Payload]]:
        firsts: list[int] = []
        ready: list[Payload] = []
        lasts, nexts = self._last, self._next
        for number, payload in zip(numbers, payloads, strict=True):
            key = payload.key()
            if key is not None:
                last = lasts.setdefault(key, number)
                if last is not number:
                    nexts[last] = payload
                    lasts[key] = number
                    continue
            firsts.append(number)
            ready.append(payload)
        return (firsts, ready) if len(firsts) < len(numbers) else (numbers, payloads)

    def release(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> list[Payload]:
        following = []
        lasts, nexts = self._last, self._next
        for number, payload in zip(numbers, payloads, strict=True):
            behind = nexts.pop(number, None)
            if behind is not None:
                following.append(behind)
            elif (key := payload.key()) is not None and lasts.pop(key, None) != number:
                raise InternalError(f"number {number} was released, but nothing of its key is out")
        return following

    def passed(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._next[number]

    def behind(self, number: int, most: int, limit: int) -> list[Payload]:
        behind: list[Payload] = []
        nexts = self._next
        one = nexts.get(number)
        while one is not None and len(behind) < most and (number := one.offset()) <= limit:
            behind.append(one)
            one = nexts.get(number)
        return behind

    def is_behind(self, number: int) -> bool:
        return any(one.offset() == number for one in self._next.values())

    def queues(self) -> Iterator[Queue]:
        nexts = self._next
        for head in nexts.keys() - {one.offset() for one in nexts.values()}:
            behind, one = 0, nexts.get(head)
            key = None if one is None else one.key()
            while one is not None:
                behind += 1
                one = nexts.get(one.offset())
            yield Queue(head, behind, key)

    @property
    def count(self) -> int:
        return len(self._last)


def shards_for(ordering: Ordering) -> Shards:
    """The shards of a new source."""
    return {"key": ByKey, "partition": ByPartition, "unordered": Shards}[ordering]()


# --- at once ---

OBSERVED_S = 0.010
FIRST_OBSERVED_S = 0.001
"""For how long what ends is counted before its rate is believed: the first time this long, then twice as long each
time. Until a rate is known nothing waits in the workers' queue, and each end is worth a turn of the loop."""

AHEAD_S = 0.05
"""How much work, in time, may wait in the workers' queue. Handlers that began together end together: the next ones then
begin without a turn of the loop."""

BELIEVED = 3
"""A rate is believed for so many times as long as it was counted."""

WANTED_S = 0.02
LEAST_WANTED = 256
MOST_WANTED = 10_000
"""How many items one feed brings: what the workers get through in this time, within these limits. Each waits for the
interpreter's lock, and one of thousands keeps it for milliseconds, in which no thread begins or ends one."""

MAX_AHEAD = 5_000
"""Items that may wait in the workers' queue, however fast they are: more gains nothing (measured)."""

CALL_S = 0.002
"""How long a call of several items may keep a worker. It pays where the function is quicker than what a hand-over
costs; with slower ones each item goes alone."""

LEAST_S = 1e-9
"""Calls are not counted as quicker than that."""

ALONE = 25
"""So many times as long where workers are left over: a key's items then go one after another without a turn of the loop
between them, and no other key waits for it."""

ENOUGH = 100
"""Items of different shards that keep workers busy for a turn of the loop, without those behind them."""


class HandOver:
    """How much may be with the workers at once.

    `capacity` is what they run at once; `limit`, where it is less, is the most that they are given. The other arguments
    say what the workers can do (`keylane.flow.workers.Capacity`), and what the options leave of that.
    """

    def __init__(
        self,
        capacity: int,
        *,
        may_queue: bool,
        elastic: bool = False,
        call_s: float = CALL_S,
    ) -> None:
        self.capacity = capacity
        self.limit = capacity
        self._withheld = 0
        self._elastic = elastic
        self._may_queue = may_queue
        self._call_s = call_s
        self._ahead = 0
        self._calls_per_s = self._items_per_s = 0.0
        self._items_a_call = 0.0
        """How many run in a call's time, by how long calls took in their workers."""
        self._calls = 0
        self._items = 0
        self._took_s = 0.0
        self._since = 0.0
        self._observed_s = FIRST_OBSERVED_S
        self._believed_s = 0.0

    def resize(self, limit: int) -> None:
        """From now on give at most so much."""
        self.limit = limit
        if self._elastic:
            self.capacity = limit

    def withhold(self, places: int) -> None:
        """So many places are kept by items whose calls are through."""
        self._withheld = places

    def ended(self, items: int, calls: int, took_s: float) -> None:
        """`took_s`: the times of the calls in their workers, all together."""
        self._items += items
        self._calls += calls
        self._took_s += took_s

    def observe(self, now: float, calls: int) -> None:
        """All that ended before a turn is counted, and so many calls are out still: see how fast the workers are."""
        elapsed = now - self._since
        if not self._calls:
            if not calls:  # idle
                self._since = now
        elif elapsed >= self._observed_s:
            self._calls_per_s = self._calls / elapsed
            self._ahead = int(min(self._calls_per_s * AHEAD_S, MAX_AHEAD * self._calls / max(self._items, 1)))
            self._items_per_s = self._items / elapsed
            self._items_a_call = self._items * self._call_s / max(self._took_s, LEAST_S)
            self._believed_s = elapsed * BELIEVED
            self._items = self._calls = 0
            self._took_s = 0.0
            self._since = now
            self._observed_s = min(OBSERVED_S, 2 * self._observed_s)

    @property
    def at_once(self) -> int:
        """Calls that may run at once."""
        return min(self.limit, self.capacity)

    @property
    def size(self) -> int:
        """Calls that may be with the workers. Below their capacity nothing queues there, because it would run."""
        if self.limit < self.capacity or not self._may_queue:
            return self.at_once - self._withheld
        return self.capacity + self._ahead

    @property
    def wanted(self) -> int:
        """Items that the next feed may bring, as far as the workers are concerned."""
        return max(LEAST_WANTED, min(MOST_WANTED, int(self._items_per_s * WANTED_S)))

    def stocked_s(self, calls: int) -> float:
        """How long what waits of so many calls keeps the workers busy, in seconds, at their pace, as far as that can be
        told."""
        if not self._calls_per_s:
            return 0.0
        return max(0.0, min(self._believed_s, (calls - self.at_once) / self._calls_per_s))

    def sizes(self, calls: int, waiting: Iterable[int], *, may_follow: bool) -> tuple[int, bool]:
        """How many items go in one call, beside so many that are out; and whether they follow one another in a shard
        (where they may), or are of different ones. `waiting` are the shards that have one ready, by source."""
        free, at_once = self.at_once - calls, max(1, self.at_once)
        different = self._at_a_time()
        if different == 1 and free <= 0:
            return 1, False
        ready, enough = 0, max(different * at_once, free + 1, ENOUGH)
        for count in waiting:
            ready += count
            if ready >= enough:
                break
        if may_follow and ready < ENOUGH:
            in_a_row = self._at_a_time(ALONE if free > 0 and ready <= free else 1)
            if in_a_row > 1:
                return in_a_row, True
        return max(1, min(different, ready // at_once)), False

    def _at_a_time(self, times: int = 1) -> int:
        """Items that a worker gets through in so many times the time of a call."""
        return max(1, int(self._items_a_call * times))


# --- in turn ---


class InTurn(Rated, Protocol):
    """A source: so much of it as a row needs."""

    def has_turn(self) -> bool: ...


S = TypeVar("S", bound=InTurn)


class Rotation(Generic[S]):
    """The row, who rests, and the rates that send them there."""

    one_by_one = False
    """Whether a source gives one item when it is its turn, and no more."""

    def __init__(self, rates: Rates, *, depth_first: bool) -> None:
        self.buckets = Buckets(rates)
        self.depth_first = depth_first
        self._row: deque[S] = deque()
        self._queued: set[S] = set()
        """Those in the row."""
        self._resting: list[tuple[float, int, S]] = []
        """Sources that have used up their rate, and until when: a heap."""
        self._at_rest: set[S] = set()
        """The same sources."""
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[S]:
        return iter(self._row)

    def offer(self, source: S) -> None:
        """`source` may have something to run."""
        if source not in self._queued and source.has_turn() and source not in self._at_rest:
            self._queued.add(source)
            if self.depth_first:
                insort(self._row, source, key=attrgetter("name"))
            else:
                self._row.append(source)

    def pop(self) -> S:
        """Whose turn it is: `keep` follows."""
        return self._row.popleft()

    def keep(self, source: S, *, is_taken: bool) -> None:
        """It has had its turn, and something was taken of it, or nothing."""
        if not is_taken or not source.has_turn():
            self._queued.discard(source)
        elif self.depth_first:
            self._row.appendleft(source)
        else:
            self._row.append(source)

    # --- rates ---

    def room(self, now: float) -> int:
        """What the rate over all lets start."""
        return self.buckets.room(now) if self.buckets.limited else UNLIMITED

    def room_of(self, source: S, now: float) -> int:
        """What the source's rate lets start; without any, it comes back by itself."""
        bucket = self.buckets.of(source)
        if bucket is None:
            return UNLIMITED
        room = bucket.room(now)
        if not room:
            self._at_rest.add(source)
            heapq.heappush(self._resting, (bucket.due(), next(self._order), source))
        return room

    def is_resting(self, source: S) -> bool:
        return source in self._at_rest

    def wake(self, now: float) -> None:
        """Those whose rate has recovered are back."""
        while self._resting and self._resting[0][0] <= now:
            source = heapq.heappop(self._resting)[2]
            self._at_rest.discard(source)
            self.offer(source)

    @property
    def next_waking(self) -> float | None:
        return self._resting[0][0] if self._resting else None

    def change_rates(self, rates: Rates) -> None:
        """From now on, with full buckets."""
        self.buckets = Buckets(rates)
        rested = list(self._at_rest)
        self._resting.clear()
        self._at_rest.clear()
        for source in rested:
            self.offer(source)
