"""Watches a run from outside: the service's own counts, and the group's offsets by another client, over time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import KeylaneError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from keylane.demo.service_process import ServiceStats

INTERVAL_S = 0.2
"""Between two looks at the service (one small HTTP request)."""

OFFSETS_EVERY = 3
"""Looks between two at the group's offsets, which cost the broker more."""


class ToDo(NamedTuple):
    """Over all partitions of the topic."""

    lag: int
    """Log ends less committed offsets."""
    remaining: int
    """What is really left, by the offset maps."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    seconds: float
    """Since the observer started."""
    in_flight: int
    """The most requests that the service held at once since the look before."""
    answered: int
    """Requests it has answered since it started."""
    to_do: ToDo
    """What the group had still to do at the last look at its offsets."""


class Observer:
    """Samples in a thread of its own from enter to exit.

    `before_look` is called first each time. A look that fails (a broker that is restarting) is left out and counted.
    """

    def __init__(
        self,
        stats: Callable[[], ServiceStats],
        to_do: Callable[[], ToDo],
        on_sample: Callable[[Sample], None],
        before_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._stats, self._to_do, self._on_sample = stats, to_do, on_sample
        self._before_look = before_look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keylane-demo-observer", daemon=True)
        self.samples: list[Sample] = []
        self.failed_looks = 0

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        looks, to_do = 0, None
        while True:
            self._before_look()
            try:
                if to_do is None or looks % OFFSETS_EVERY == 0:
                    to_do = self._to_do()
                stats = self._stats()
            except KeylaneError:
                self.failed_looks += 1
            else:
                sample = Sample(time.monotonic() - started, stats.recent_peak, stats.total, to_do)
                self.samples.append(sample)
                self._on_sample(sample)
            looks += 1
            if self._stop.wait(INTERVAL_S):
                return


def rate(samples: list[Sample], over_s: float = 2.0) -> float:
    """Answers a second over the last `over_s` seconds of samples; 0 before there are two."""
    if len(samples) < 2:
        return 0.0
    last = samples[-1]
    first = next(sample for sample in samples if last.seconds - sample.seconds <= over_s)
    elapsed = last.seconds - first.seconds
    return (last.answered - first.answered) / elapsed if elapsed else 0.0
