"""A request to stop: made once, from anywhere (a signal handler too), and seen by whatever runs at that moment."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_SLICE_S = 0.05
"""How late `wait` may notice a request."""


class StopRequest:
    """Thread safety: any thread, and signal handlers: no lock is taken, not even an `Event`'s, which the interrupted
    main thread could hold at that instant."""

    def __init__(self) -> None:
        self._requested = False
        self._callback: Callable[[], None] | None = None

    @property
    def requested(self) -> bool:
        return self._requested

    def request(self) -> None:
        self._requested = True
        callback = self._callback
        if callback is not None:
            callback()

    def wait(self, seconds: float) -> bool:
        """Sleep that a request ends early; returns whether there is one."""
        until = time.monotonic() + seconds
        while not self._requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, WAIT_SLICE_S))
        return self._requested

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Within the block a request calls `callback`, at once when it was made before. Blocks do not nest."""
        assert self._callback is None
        self._callback = callback
        try:
            if self._requested:
                callback()
            yield
        finally:
            self._callback = None
