"""Workers: what runs the function, behind one small protocol. Threads, one asyncio loop, or processes.

And what they report: `Inbox` is where, `Meter` and `Histogram` are how long calls took, `Stall` is whether any ends. A
histogram's buckets are powers of two, so that finding one is a shift and `bit_length`. What is quick is sampled: after
a duration below `QUICK_NS` only every sixteenth is measured, and stands for those before it, so that a record that
takes a microsecond does not spend a tenth of it on being measured.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING, Any, Protocol

from keylane.flow.items import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keylane.flow.items import Carried, Source, Unit
    from keylane.flow.work import Why


REST_SHARE = 0.5
MIN_REST_S = 0.000_2
MAX_REST_S = 0.010
"""A turn waits for more to end for this share of the time for which the workers have enough to do, within these limits:
each turn takes the interpreter's lock from them and costs some 150 µs, for one item as for a hundred."""

MANY = 200
"""Events that are worth a turn at once."""

BUCKETS = 34
"""Of 1 µs, 2 µs, 4 µs, … 2.4 hours, and one for all that is longer."""

_SHIFT = 10
QUICK_NS = 100_000
"""Measuring costs a fifth of a microsecond: a five-hundredth of this."""
LEFT_OUT = 15


class Lease(Protocol):
    """Until when the function may begin."""

    @property
    def until(self) -> float:
        """`time.monotonic()`; from then on what would begin is reported as not run."""


@dataclass(frozen=True, slots=True)
class Always:
    """A lease that never ends."""

    until: float = float("inf")


@dataclass(frozen=True, slots=True)
class WorkersFailed:
    """The workers cannot work: the resource could not be made."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker process ended under an item; another one takes its place."""

    text: str


@dataclass(frozen=True, slots=True)
class Running:
    """A call of the function that runs."""

    source: Source
    payload: Carried
    """Of the first item of a batch."""
    since: float
    """When it began, `time.monotonic()`."""
    where: Callable[[], str]
    """What it is at now."""
    why: Why = "running"
    """What it waits for, where the function says so."""

    @property
    def name(self) -> str:
        """How errors name its item."""
        return self.source.name_of(self.payload.offset())


@dataclass(frozen=True, slots=True)
class WorkersClosed:
    """How the workers ended."""

    still_running: tuple[str, ...] = ()
    """Items whose calls did not end in time; their threads are left behind."""
    error: BaseException | None = None
    """What leaving the resource raised."""


class Capacity(Protocol):
    """How much workers take."""

    @property
    def concurrency(self) -> int:
        """Calls of the function at once."""

    @property
    def may_queue(self) -> bool:
        """Whether they take more than that, and keep what does not run yet."""

    @property
    def elastic(self) -> bool:
        """Whether `resize` changes how many run at once; else they are at most so many, whatever is asked for."""


class Workers(Capacity, Protocol):
    """Runs the function. Calls come from the loop's thread; what ended is reported from others."""

    def start(self) -> None: ...
    def resize(self, concurrency: int) -> None: ...
    def submit(self, units: Sequence[Unit]) -> None:
        """Run each, and report it. An ordered call ends with the first item that is not simply through."""

    def withdraw(self) -> Sequence[Unit]:
        """Take back what has not begun and whose source may begin nothing any more."""

    def cancel(self) -> None:
        """Cancel what nobody wants any more."""

    def running(self) -> Sequence[Running]:
        """The calls that run now; not what waits for a worker."""

    def latency(self) -> Histogram:
        """How long calls took; a batch is one call."""

    def close(self, timeout_s: float) -> WorkersClosed: ...


class Inbox:
    """What the loop waits on: a list, and a bell that rings once for all that is put until the loop looks. A queue
    that locks and unlocks for each event takes 0.1 µs more an item.

    Thread safety: `put` is for any thread, and for a signal handler; `get` is the loop's. Each of their steps is
    atomic, and between none of them an event can come without a bell.
    """

    __slots__ = ("_bell", "_events", "_has_rung")

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._bell = threading.Lock()
        """Held while it has not rung."""
        self._bell.acquire()
        self._has_rung = False
        """Whether the loop will hear of what is put now. It forgets that before it looks."""

    def put(self, event: object) -> None:
        self._events.append(event)
        if not self._has_rung:
            self._has_rung = True
            with suppress(RuntimeError):  # another thread has rung, too
                self._bell.release()

    def rest(self, stocked_s: float) -> float:
        """Let the workers go on, which have enough to do for so long; returns for how long it was to be."""
        rest_s = min(MAX_REST_S, stocked_s * REST_SHARE)
        if rest_s >= MIN_REST_S and len(self._events) < MANY:
            sleep(rest_s)
        return rest_s

    def get(self, timeout_s: float | None) -> list[Any]:
        """Everything that is there; waits up to `timeout_s` (None, or more than a lock can: for ever) for the first."""
        waits_s = -1 if timeout_s is None or timeout_s > threading.TIMEOUT_MAX else max(0.0, timeout_s)
        if not self._bell.acquire(timeout=waits_s):
            return []
        self._has_rung = False
        events = self._events[:]
        del self._events[: len(events)]
        return events


def upper_bound_s(bucket: int) -> float:
    """The longest duration in a bucket, in seconds; infinite for the last."""
    return float("inf") if bucket == BUCKETS - 1 else (1 << bucket << _SHIFT) / 1e9


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations by bucket. Counts of quick ones are estimates from samples."""

    counts: tuple[int, ...] = (0,) * BUCKETS
    """By bucket; `upper_bound_s` says which durations are in it."""
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    @classmethod
    def merged(cls, many: Sequence[Histogram]) -> Histogram:
        """All together."""
        counts = tuple(map(sum, zip(*(one.counts for one in many), strict=True))) if many else (0,) * BUCKETS
        return cls(counts, sum(one.sum_s for one in many))

    def quantile_s(self, share: float) -> float | None:
        """The upper bound of the bucket that the quantile is in, in seconds; None while nothing was measured."""
        rank, seen = share * self.count, 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return upper_bound_s(bucket)
        return None

    def to_dict(self) -> dict[str, float | list[int] | None]:
        """For people and for JSON; durations in seconds. The last counts that are 0 are left out."""
        half, most = self.quantile_s(0.5), self.quantile_s(0.99)
        counts = list(self.counts)
        while counts and not counts[-1]:
            counts.pop()
        return {"count": self.count, "sum_s": round(self.sum_s, 6), "p50_s": half, "p99_s": most, "counts": counts}


class Meter:
    """Fills a histogram. Thread safety: one thread writes, any may read."""

    __slots__ = ("_counts", "_sum_ns")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self._sum_ns = 0

    def add(self, took_ns: int, left_out: int = 0) -> int:
        """One took so long, and stands for as many before it that were left out; how many to leave out next."""
        bucket = (took_ns - 1 >> _SHIFT).bit_length() if took_ns > 0 else 0
        self._counts[bucket if bucket < BUCKETS else -1] += 1 + left_out
        self._sum_ns += took_ns * (1 + left_out)
        return LEFT_OUT if took_ns < QUICK_NS else 0

    def histogram(self) -> Histogram:
        return Histogram(tuple(self._counts), self._sum_ns / 1e9)


def merged(meters: Iterable[Meter]) -> Histogram:
    """The histograms of all of them together."""
    return Histogram.merged([meter.histogram() for meter in meters])


class Stall:
    """S3: an application that hangs must not look like a healthy member of its group. Thread safety: a loop's."""

    __slots__ = ("_since", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: float | None = None
        """Since when handlers run without an end of any of them; None while none runs, or without a limit."""

    def moved(self, now: float, *, runs: bool) -> None:
        """A handler began where none ran, or ended; `runs` says whether one runs now."""
        self._since = now if runs and self._timeout_s else None

    def begun(self, now: float) -> None:
        """Handlers were started."""
        if self._since is None:
            self.moved(now, runs=True)

    def is_stalled(self, now: float) -> bool:
        return self._since is not None and now >= self._since + self._timeout_s

    def next_check(self) -> float | None:
        return None if self._since is None else self._since + self._timeout_s

    def text(self, running: Sequence[Running], handed_over: Unit, now: float) -> str:
        """What to tell, of the calls that run, and of what was handed over first and is wanted still."""
        end = "; mend the handler, or raise stall_timeout_ms (0: no limit)"
        if not running:
            items = [handed_over.item_at(handed_over.first)] if isinstance(handed_over, Call) else handed_over.items
            first = next(item for item in items if item.source.wanted)
            return (
                f"{first.name}: no handler has ended for {self._timeout_s:g} s, and none has begun on this record, "
                f"which was handed over {now - handed_over.since:.0f} s ago: the workers still make their resource, or "
                f"cannot begin{end}"
            )
        call = min(running, key=lambda one: one.since)
        others = f", and {len(running) - 1} more run" if len(running) > 1 else ""
        return (
            f"{call.name}: no handler has ended for {self._timeout_s:g} s, and this record has been in its handler for "
            f"longest ({now - call.since:.0f} s), at {call.where()}{others}{end}"
        )
