"""`HandOver`: how much is handed to workers at once, a small pure planner.

The idea: workers that can queue get a few milliseconds' worth of work beyond what runs, so that a thread that ends an
item finds the next one without a turn of the loop; slow functions leave the queue all but empty, so nothing gets old in
it. What is quick goes several at a time, as many as run in `CALL_S`.
"""

from __future__ import annotations

OBSERVED_S = 0.010
FIRST_OBSERVED_S = 0.001
"""How long completions are counted before their rate is believed: the first time this long, then twice as long each
time. Until a rate is known nothing waits in the workers' queue, and each completion is worth a turn of the loop."""

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

ALONE = 25
"""So many times as long where workers are left over: a key's items then go one after another without a turn of the loop
between them, and no other key waits for it."""


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
        self._calls = 0
        self._items = 0
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

    def completed(self, items: int, calls: int) -> None:
        self._items += items
        self._calls += calls

    def observe(self, now: float, calls: int) -> None:
        """All completions of a turn are counted, and so many calls are out still: see how fast the workers are."""
        elapsed = now - self._since
        if not self._calls:
            if not calls:  # idle
                self._since = now
        elif elapsed >= self._observed_s:
            self._calls_per_s = self._calls / elapsed
            self._ahead = int(min(self._calls_per_s * AHEAD_S, MAX_AHEAD * self._calls / max(self._items, 1)))
            self._items_per_s = self._items / elapsed
            self._believed_s = elapsed * BELIEVED
            self._items = self._calls = 0
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

    def at_a_time(self, calls: int, *, alone: bool = False) -> int:
        """Items that one of so many calls gets through in the time of a call; `alone`: nobody waits for a worker."""
        call_s = self._call_s * ALONE if alone else self._call_s
        return max(1, int(self._items_per_s * call_s) // max(1, min(calls, self.at_once)))
