"""`priority`: what is urgent starts first, and nothing waits for ever.

The idea: every item takes a place in one line when it is fed: its number among all that were fed, less `OVERTAKES` for
each step of its priority. So an item is overtaken by those alone that came at most so many items later for each step
between them: that is the bound, and it needs no clock. What is ready goes by its place, over all sources. A key (under
"partition", a source) has the best place of all that waits in it, so that nothing urgent waits behind its own key's
slower ones for longer than it has to.

Pure. Thread safety: none; its owner is the flow's.
"""

from __future__ import annotations

import heapq
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.flow.admission import Ready, Rotation
from keylane.flow.items import Source
from keylane.foreign_errors import short_class_of
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from keylane.flow.admission import Payload
    from keylane.flow.items import Carried, Owner
    from keylane.options import Ordering

OVERTAKES = 10_000
"""How many items that came before it one step of priority overtakes: half of what a pipeline buffers by default."""

SPARE = 1_000
"""Entries of what is gone that a heap may hold beside as many as it needs, until it is made anew."""

Shard = Any
"""What keeps its order: a key, a source, or an item's own number."""


class Line:
    """The places of all sources of a flow."""

    def __init__(self, priority: Mapping[str, int] | Callable[..., int], view: Callable[[Carried], Carried]) -> None:
        """`view` makes of a payload what user code sees."""
        self._priority = priority
        self._view = view
        self._fed = 0
        self.error: UsageError | None = None
        """What the user's function raised, or returned in place of a number: the run ends with the next item."""

    def place(self, payload: Carried) -> int:
        """Of the next one that is fed; the lower goes first."""
        self._fed += 1
        return self._fed - OVERTAKES * self._priority_of(payload)

    def _priority_of(self, payload: Carried) -> int:
        if not callable(self._priority):
            return self._priority.get(payload.topic(), 0)
        try:
            given: object = self._priority(self._view(payload))
        except BaseException as raised:  # whatever it is, it must not end the loop
            self.error = UsageError(f"the function priority raised {short_class_of(raised)}; mend it")
            return 0
        if isinstance(given, bool) or not isinstance(given, int):
            self.error = UsageError(f"the function priority returned {kind_of(given)}: return a whole number")
            return 0
        return given


class ReadyByPlace(Ready):
    """What may run of one source, the best place first."""

    __slots__ = ("_heap", "_last", "_line", "_ready", "_shard_of", "_waiting")

    def __init__(self, line: Line, ordering: Ordering) -> None:
        super().__init__()
        self._line = line
        self._shard_of: Callable[[Payload], Shard] = _SHARDS[ordering]
        self._waiting: dict[Shard, list[tuple[int, int]]] = {}
        """By shard, a heap of place and number of all that waits in it; what is gone stays until it is at the top."""
        self._last: dict[Shard, int] = {}
        """By shard, the number of the last that was fed."""
        self._ready: dict[Shard, tuple[int, int, Payload]] = {}
        """By shard, place and number of its head, and the head, while that may run."""
        self._heap: list[tuple[int, int, Shard]] = []
        """The same, and places that heads had before."""

    def feed(self, payloads: Sequence[Payload]) -> None:
        """These follow: each has its place, and its shard no worse one."""
        for payload in payloads:
            shard = self._shard_of(payload)
            place = self._line.place(payload)
            self._last[shard] = number = payload.offset()
            heapq.heappush(self._waiting.setdefault(shard, []), (place, number))
            head = self._ready.get(shard)
            if head is not None and place < head[0]:
                self._stand(shard, place, *head[1:])

    def gone(self, payloads: Sequence[Payload]) -> None:
        """These are gone, and in each shard all before them."""
        for payload in payloads:
            shard = self._shard_of(payload)
            if self._last.get(shard) == payload.offset():
                del self._last[shard], self._waiting[shard]

    def _stand(self, shard: Shard, place: int, number: int, payload: Payload) -> None:
        self._ready[shard] = (place, number, payload)
        heapq.heappush(self._heap, (place, number, shard))
        if len(self._heap) > 2 * len(self._ready) + SPARE:
            self._heap = [(*one[:2], shard) for shard, one in self._ready.items()]
            heapq.heapify(self._heap)

    def place_of(self, head: Payload) -> int:
        """The best of its shard's, of which it is the first that is not gone."""
        shard, number = self._shard_of(head), head.offset()
        waiting = self._waiting[shard]
        if len(waiting) > 2 * (self._last[shard] - number) + SPARE:
            waiting[:] = [one for one in waiting if one[1] >= number]
            heapq.heapify(waiting)
        while waiting[0][1] < number:
            heapq.heappop(waiting)
        return waiting[0][0]

    @property
    def best(self) -> float:
        """The place of what runs next."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else inf

    def _drop_stale(self) -> None:
        while self._heap and self._ready.get(self._heap[0][2], ())[:2] != self._heap[0][:2]:
            heapq.heappop(self._heap)

    # --- as any other ---

    @property
    def numbers(self) -> Iterator[int]:
        return (number for _, number, _ in sorted(self._ready.values(), key=lambda one: one[:2]))

    def put(self, numbers: Sequence[int], payloads: Sequence[Payload], *, first: bool = False) -> None:  # noqa: ARG002 - by place
        for number, payload in zip(numbers, payloads, strict=True):
            self._stand(self._shard_of(payload), self.place_of(payload), number, payload)
        self.count = len(self._ready)

    def pop(self, most: int) -> tuple[Sequence[int], Sequence[Payload]]:  # noqa: ARG002 - one at a time
        self._drop_stale()
        _, number, shard = heapq.heappop(self._heap)
        payload = self._ready.pop(shard)[2]
        self.count = len(self._ready)
        return (number,), (payload,)

    def take_out(self, number: int) -> Payload | None:
        found = next((shard for shard, one in self._ready.items() if one[1] == number), None)
        if found is None:
            return None
        payload = self._ready.pop(found)[2]
        self.count = len(self._ready)
        return payload


_SHARDS: Mapping[Ordering, Callable[[Payload], Shard]] = {
    "key": lambda one: one.offset() if (key := one.key()) is None else key,
    "partition": lambda _: None,
    "unordered": lambda one: one.offset(),
}


class UrgentSource(Source):
    """A source whose items go by their places."""

    _ready: ReadyByPlace

    def __init__(self, name: Any, owner: Owner, ordering: Ordering, name_of: Callable[[int], str], line: Line) -> None:
        super().__init__(name, owner, ordering, name_of)
        self.line = line
        self._ready = ReadyByPlace(line, ordering)

    def feed(self, numbers: Sequence[int], payloads: Sequence[Payload]) -> None:
        self._ready.feed(payloads)
        super().feed(numbers, payloads)

    def release(self, numbers: Sequence[int], payloads: Sequence[Carried], passed: Sequence[int] = ()) -> None:
        self._ready.gone(payloads)
        super().release(numbers, payloads, passed)

    @property
    def error(self) -> UsageError | None:
        return self.line.error

    @property
    def place(self) -> float:
        """Of what runs next; what was out before goes before the others of its source."""
        if self._again:
            return self._ready.place_of(self._again[0].payload)
        beyond = self._ready.place_of(self._beyond[0][1]) if self._beyond else inf
        return min(beyond, self._ready.best)

    def close(self) -> None:
        super().close()
        self._ready = ReadyByPlace(self.line, "unordered")


class RotationByPlace(Rotation[Source]):
    """The source goes first whose next item has the best place, and gives that one."""

    one_by_one = True

    def pop(self) -> Source:
        chosen = min(self._row, key=attrgetter("place"))
        self._row.remove(chosen)
        return chosen
