"""A simulation of how a consumer's partitions share its buffer: the real `PollBound`, and a client as librdkafka is.

The idea: no clock and no client, so that a run says the same on a busy machine. The client has one queue for all
partitions, and hands it out in the order of its answers. An answer has up to `each` records of a partition, and begins
with another partition each time. A pause throws away what is queued of the partition, or on its way. Once all are
paused, it fetches nothing for a second, and a question that finds nothing is held back for half a second. Handlers take
50 ms; of each partition as many records run at once as it has keys.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from keylane.consumer.partitions import PollBound, default_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN_S = 0.001
WAIT_S = 0.05
ROUND_TRIP_S = 0.002
RECORD_S = 0.4e-6
"""What the client takes to read one record of an answer."""
QUEUE_RECORDS = 20_000
"""With so many in its queue, the client does not fetch."""
ASLEEP_S = 1.0
HELD_BACK_S = 0.5


@dataclass(slots=True)
class Tracker:
    pending: int = 0


@dataclass(eq=False, slots=True)
class Part:
    """What the bound looks at of a partition, and how far it is."""

    number: int
    log_end: int
    tracker: Tracker = field(default_factory=Tracker)
    buffered_bytes: int = 0
    is_poll_paused: bool = False
    reached_end: bool = False
    fetched: int = 0
    consumed: int = 0
    running: int = 0
    done: int = 0
    epoch: int = 0
    """Rises with each pause."""
    began_at: float | None = None
    """When its last record so far began."""

    def pause_poll(self, *, is_paused: bool) -> None:
        self.is_poll_paused = is_paused


class Client:
    """Fetches and hands out records, by their partition and first offset."""

    def __init__(self, parts: Sequence[Part], each: int, most: int) -> None:
        self._parts = parts
        self._each = each
        self._most = most
        self._queue: deque[tuple[Part, int, int]] = deque()
        self._queued = 0
        self._answer: list[tuple[Part, int, int]] | None = None
        self._answer_at = 0.0
        self._first = 0
        self._asleep_until: float | None = None

    def fetch(self, now: float) -> None:
        if self._answer is not None and now >= self._answer_at:
            for part, count, epoch in self._answer:
                if epoch == part.epoch:
                    self._queue.append((part, part.fetched, count))
                    self._queued += count
                    part.fetched += count
            self._answer = None
        if self._answer is not None or self._queued >= QUEUE_RECORDS:
            return
        if all(part.is_poll_paused for part in self._parts):
            self._asleep_until = now + ASLEEP_S if self._asleep_until is None else self._asleep_until
        elif self._asleep_until is None or now >= self._asleep_until:
            self._asleep_until = None
            self._ask(now)

    def _ask(self, now: float) -> None:
        left, answer = self._most, []
        for part in [*self._parts[self._first :], *self._parts[: self._first]]:
            count = min(self._each, left, part.log_end - part.fetched)
            if count > 0 and not part.is_poll_paused:
                answer.append((part, count, part.epoch))
                left -= count
        self._first = (self._first + 1) % len(self._parts)
        takes_s = ROUND_TRIP_S + (self._most - left) * RECORD_S if answer else HELD_BACK_S
        self._answer, self._answer_at = answer, now + takes_s

    def arrived(self, now: float) -> None:
        """A record was produced: a question that is held back has its answer."""
        if self._answer == []:
            self._answer = None
            self._ask(now)

    def pause(self, part: Part) -> None:
        kept = [one for one in self._queue if one[0] is not part]
        self._queue = deque(kept)
        self._queued = sum(count for _, _, count in kept)
        part.fetched = part.consumed
        part.epoch += 1

    def consume(self, most: int) -> list[tuple[Part, int, int]]:
        taken = []
        while most > 0 and self._queue:
            part, offset, count = self._queue.popleft()
            if count > most:
                self._queue.appendleft((part, offset + most, count - most))
                count = most
            most -= count
            self._queued -= count
            taken.append((part, offset, count))
        return taken


@dataclass(slots=True)
class Seen:
    """What came of a run."""

    filled: float
    """Records that ran, of those that could have run, had every partition always had records in the buffer."""
    most_buffered: int
    waited_s: float | None
    """How long the newcomer waited for its start."""
    starved: int
    """Partitions that have records, none of which ran."""


def run(
    log_ends: Sequence[int], *, each: int, most: int = 50_000, seconds: float = 4.0, newcomer_at: float | None = None
) -> Seen:
    """1,000 keys, in equal parts over the partitions. At `newcomer_at` the last partition has another record."""
    parts = [Part(number, end) for number, end in enumerate(log_ends)]
    keys = 1_000 // len(parts)
    client, bound = Client(parts, each, most), PollBound(default_bound(len(parts)))
    bound.share_among(len(parts))
    calls: deque[tuple[float, Part, int]] = deque()
    buffered = most_buffered = ran = could = 0
    for turn in range(int(seconds / TURN_S)):
        now = turn * TURN_S
        if newcomer_at is not None and turn == int(newcomer_at / TURN_S):
            parts[-1].log_end += 1
            client.arrived(now)
        client.fetch(now)
        while calls and calls[0][0] <= now:
            _, part, count = calls.popleft()
            part.running -= count
            part.done += count
            part.tracker.pending -= count
            buffered -= count
        for part in parts:
            count = min(keys, part.tracker.pending) - part.running
            if count > 0:
                part.running += count
                part.began_at = now
                calls.append((now + WAIT_S, part, count))
        plan = bound.plan(buffered, now)
        for one in plan.pause:
            client.pause(cast("Any", one))
        for part, offset, count in client.consume(plan.credit):
            assert offset == part.consumed, "nothing is lost, and nothing comes twice"
            part.consumed += count
            part.tracker.pending += count
            buffered += count
            bound.polled(cast("Any", part))
        most_buffered = max(most_buffered, buffered)
        ran += sum(part.running for part in parts)
        could += sum(min(keys, part.log_end - part.done) for part in parts)
    began_at = parts[-1].began_at
    waited_s = None if newcomer_at is None or began_at is None else began_at - newcomer_at
    starved = sum(part.began_at is None for part in parts if part.log_end)
    return Seen(ran / max(could, 1), most_buffered, waited_s, starved)
