"""`Startup`: what a process does before its pipeline runs, for its probes, and for a stop.

The idea: nothing has begun yet that would have to drain or commit. So each step of the start has a thread of its own
that a stop leaves behind, and the probes are answered from the first second: by the step, and later by what runs.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

from keylane.consumer.health import Health
from keylane.consumer.snapshot import Snapshot
from keylane.errors import BrokerUnavailableError
from keylane.kafka.admin import Admin, RefusedError
from keylane.left_behind import answer_unless_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keylane.demo.progress import Progress
    from keylane.demo.stop import StopRequest
    from keylane.metrics import Lane
    from keylane.pipeline import Pipeline

T = TypeVar("T")

STANDS_S = 1_200.0
"""A step that takes longer stands: Spark's session takes seconds, but where it waits for executors, as long as
`spark.scheduler.maxRegisteredResourcesWaitingTime` says."""


class Running(Protocol):
    """What can be watched: a `ParallelConsumer`, or a query of lanes."""

    def snapshot(self) -> Snapshot: ...
    def health(self) -> Health: ...


class Startup:
    """Of what one command runs. Thread safety: one thread starts; any may ask for snapshot, health and lanes."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._step = "it starts"
        self._since = monotonic()
        self._limit_s: float | None = None
        self._running: Running | None = None

    def do(self, step: str, call: Callable[[], T], limit_s: float | None = None) -> T:
        """What `call` returns. Raises what it raises, and `StoppedError` when a stop comes first. A call without a
        limit ends by itself."""
        self._step, self._since, self._limit_s = step, monotonic(), limit_s
        return answer_unless_stopped(call, lambda: self._stop.requested, "keylane-start")

    def began(self, running: Running) -> None:
        """From now on this answers."""
        self._running = running

    def wait_for_brokers(self, pipeline: Pipeline, progress: Progress) -> None:
        """Returns once brokers answer, and the group's coordinator; raises `StoppedError` when a stop comes first."""
        admin = Admin(pipeline.kafka)
        said = False
        step = "it waits for the brokers"
        while True:
            try:
                self.do(step, lambda: admin.describe_group(pipeline.group_id))
            except BrokerUnavailableError as error:
                step = f"it waits for the brokers: {error}"
                if not said:
                    progress.say(f"{error}; it waits until they answer")
                    said = True
            except RefusedError:  # they answer, and what they refuse the run tells better
                return
            else:
                return

    def snapshot(self) -> Snapshot:
        return Snapshot() if self._running is None else self._running.snapshot()

    def lanes(self) -> Iterable[Lane]:
        return getattr(self._running, "lanes", ())

    def health(self) -> Health:
        if self._running is not None:
            return self._running.health()
        took_s = monotonic() - self._since
        why = f"{self._step}, for {took_s:.0f} s"
        return Health(why if self._limit_s is not None and took_s > self._limit_s else None, why)
