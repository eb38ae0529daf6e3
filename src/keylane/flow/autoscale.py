"""`max_concurrency="auto"`: how many handlers at once a service takes before it gets slower or refuses.

The idea: below the service's limit latency does not depend on how many requests are at once; above it, it grows with
them (by Little's law as their number over the limit). So the latency at half the limit in force is the base, measured
anew now and then, and the limit moves to where latency is a little above it: up in steps while it is not, down in
proportion when it is. Failures count the same way: a share of them above the base's lowers the limit by as much. This
is the gradient of Netflix's concurrency-limits with a base that is measured instead of remembered, so that a service
that becomes slower for all is not taken for an overloaded one.

Pure: figures and `now` go in, a limit comes out.
"""

from __future__ import annotations

from enum import Enum

FIRST_LIMIT = 4
TOLERANCE = 1.06
"""How much above the base latency may be: where it is, the service is a little above its limit."""
STEP = 1.05
"""Growth of the limit while latency is within the tolerance (at least 1)."""
FAILURES = 0.05
"""How much above the base's the failures' share of the handlers' time may be."""
PROBE_EVERY = 20
"""Windows between two measurements of the base."""
SAMPLES = 100
"""Handlers whose latency makes a window, at least; and at least `SAMPLES_A_SLOT` times the limit."""
SAMPLES_A_SLOT = 4
SMOOTHING = 0.5
"""The weight of a new base."""


class Mode(Enum):
    DOUBLING = "doubling"
    """From the start up to the first sign of the service's limit."""
    STEADY = "steady"
    PROBING = "probing"
    """At half the limit, to measure the base."""


class Window:
    """What handlers came to under one limit."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0
        self.succeeded = 0
        self.succeeded_s = 0.0
        self.failed_s = 0.0
        self.was_full = False
        """Whether the limit kept something waiting."""

    def add(self, took_s: float, *, failed: bool) -> None:
        self.count += 1
        if failed:
            self.failed_s += took_s
        else:
            self.succeeded += 1
            self.succeeded_s += took_s

    def fill(self) -> None:
        self.was_full = True

    @property
    def mean_s(self) -> float | None:
        """The latency of what succeeded; None when nothing did."""
        return self.succeeded_s / self.succeeded if self.succeeded else None

    @property
    def failing(self) -> float:
        """The share of the time that failures took: of the slots, those beyond the service's limit."""
        return self.failed_s / (self.failed_s + self.succeeded_s) if self.failed_s else 0.0


class AutoLimit:
    """The limit, and how it follows from what handlers come to."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(FIRST_LIMIT, most)
        self._kept = float(self.limit)
        """The limit apart from probes, not rounded."""
        self._mode = Mode.DOUBLING
        self._base_s: float | None = None
        self._base_failing = 0.0
        self._lowered: tuple[float, float] | None = None
        """The limit and the latency before the limit was lowered, while latency is above the tolerance."""
        self._windows = 0
        self._window = Window(float("-inf"))

    def observe(self, began: float, now: float, *, failed: bool) -> None:
        """A handler that was handed over at `began` came back."""
        if began >= self._window.since:  # others ran under another limit
            self._window.add(now - began, failed=failed)

    def full(self) -> None:
        """More was ready than the limit lets run."""
        self._window.fill()

    def turn(self, now: float) -> int:
        """The limit from now on."""
        window = self._window
        if window.count >= max(SAMPLES, SAMPLES_A_SLOT * self.limit):
            self._move(window)
            limit = max(1, min(self._most, round(self._kept)))
            self.limit = max(1, limit // 2) if self._mode is Mode.PROBING else limit
            self._window = Window(now)
        return self.limit

    def _move(self, window: Window) -> None:
        mean_s = window.mean_s
        if self._mode is Mode.PROBING or self._base_s is None:
            self._rebase(window)
            if self._mode is Mode.PROBING:
                self._mode = Mode.STEADY
                return
        ratio = 1.0 if mean_s is None or not self._base_s else mean_s / self._base_s
        failing = window.failing - self._base_failing
        if ratio > TOLERANCE and self._does_not_help(mean_s):
            self._base_s = mean_s
            ratio = 1.0
        if ratio <= TOLERANCE:
            self._lowered = None
        elif self._lowered is None and mean_s is not None:
            self._lowered = self._kept, mean_s
        if ratio > TOLERANCE or failing > FAILURES:
            self._mode = Mode.STEADY
            self._kept = max(1.0, self._kept * min(TOLERANCE / max(ratio, TOLERANCE), 1 - max(0.0, failing)))
        elif window.was_full:
            step = 2.0 if self._mode is Mode.DOUBLING else STEP
            self._kept = min(float(self._most), max(self._kept + 1, self._kept * step))
        self._windows += 1
        if self._windows % PROBE_EVERY == 0 and self._mode is Mode.STEADY:
            self._mode = Mode.PROBING

    def _does_not_help(self, mean_s: float | None) -> bool:
        """Whether the limit was lowered, and latency followed by less than half of what that should have brought:
        the service has become slower, whatever its load."""
        if self._lowered is None or mean_s is None:
            return False
        limit, before_s = self._lowered
        return self._kept < limit * 0.7 and mean_s > before_s * (1 + self._kept / limit) / 2

    def _rebase(self, window: Window) -> None:
        weight = 1.0 if self._base_s is None else SMOOTHING
        if window.mean_s is not None:
            self._base_s = weight * window.mean_s + (1 - weight) * (self._base_s or 0.0)
        self._base_failing = weight * window.failing + (1 - weight) * self._base_failing
