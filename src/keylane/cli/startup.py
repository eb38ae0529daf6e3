"""`Startup`: what a process does before its pipeline runs, for its probes, and for a stop.

The idea: nothing has begun yet that would have to drain or commit. So each step of the start has a thread of its own
that a stop leaves behind, and the probes are answered from the first second: by the step, and later by what runs.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

from keylane.consumer.health import Health
from keylane.consumer.snapshot import Snapshot
from keylane.left_behind import answer_unless_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keylane.demo.stop import StopRequest
    from keylane.metrics import Lane

T = TypeVar("T")

STANDS_S = 300.0
"""A step that takes longer stands: Spark's session takes seconds, on a busy machine a minute."""


class Running(Protocol):
    """What can be watched: a `ParallelConsumer`, or a query of lanes."""

    def snapshot(self) -> Snapshot: ...
    def health(self) -> Health: ...


class WithLanes(Running, Protocol):
    @property
    def lanes(self) -> Iterable[Lane]: ...


class Startup:
    """Of a query of lanes. Thread safety: one thread starts; any may ask for snapshot, health and lanes."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._step = "it starts"
        self._since = monotonic()
        self._limit_s: float | None = None
        self._running: WithLanes | None = None

    def do(self, step: str, call: Callable[[], T], limit_s: float | None = None) -> T:
        """What `call` returns. Raises what it raises, and `StoppedError` when a stop comes first. A call without a
        limit ends by itself."""
        self._step, self._since, self._limit_s = step, monotonic(), limit_s
        return answer_unless_stopped(call, lambda: self._stop.requested, "keylane-start")

    def began(self, running: WithLanes) -> None:
        """The start is over."""
        self._running = running

    def snapshot(self) -> Snapshot:
        return Snapshot() if self._running is None else self._running.snapshot()

    def lanes(self) -> Iterable[Lane]:
        return () if self._running is None else self._running.lanes

    def health(self) -> Health:
        if self._running is not None:
            return self._running.health()
        took_s = monotonic() - self._since
        why = f"{self._step}, for {took_s:.0f} s"
        return Health(why if self._limit_s is not None and took_s > self._limit_s else None, why)
