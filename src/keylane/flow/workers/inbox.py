"""`Inbox`: what a loop waits on, for what workers and others report."""

from __future__ import annotations

import threading
from contextlib import suppress
from time import sleep
from typing import Any

REST_SHARE = 0.5
MIN_REST_S = 0.000_2
MAX_REST_S = 0.010
"""A turn waits for more to end for this share of the time for which the workers have enough to do, within these limits:
each turn takes the interpreter's lock from them and costs some 150 µs, for one item as for a hundred."""

MANY = 200
"""Events that are worth a turn at once."""


class Inbox:
    """What the loop waits on: a list, and a bell that rings once for all that is put until the loop looks. A queue
    that locks and unlocks for each event takes 0.1 µs more an item.

    Thread safety: `put` is for any thread, and for a signal handler; `take` is the loop's. Each of their steps is
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

    def take(self, timeout_s: float | None) -> list[Any]:
        """Everything that is there; waits up to `timeout_s` (None: for ever) for the first."""
        if not self._bell.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            return []
        self._has_rung = False
        events = self._events[:]
        del self._events[: len(events)]
        return events
