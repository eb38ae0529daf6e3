"""`FailureCallback`: user code that hears of failed attempts (`on_failure`), on a thread of its own.

The idea: whoever reports errors must not slow down or end what it reports of. So nobody waits for it: what it raises is
logged once, and what it is too slow for is left out, with a word in the log.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from keylane.flow.workers import places
from keylane.foreign_errors import logged_line_of
from keylane.records import Record
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.records import FailedAttempt

logger = logger_of("keylane.failures")

MOST_WAITING = 10_000
"""Attempts that may wait for the callback."""

MOST_BYTES = 64 << 20
"""Of their records' values, about: who waits keeps them in memory."""


class FailureCallback:
    """Calls `on_failure` for each failed attempt, in order. Thread safety: any thread."""

    def __init__(self, callback: Callable[[FailedAttempt], Any], name: str) -> None:
        self._callback = callback
        self._lock = threading.Lock()
        """Guards the numbers below."""
        self._waiting = self._bytes = self._left_out = 0
        self._queue: SimpleQueue[FailedAttempt | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"{name}-failures", daemon=True)
        """Started for the first attempt: a run without failures has none."""
        self._has_raised = False

    def tell(self, failed: FailedAttempt) -> None:
        """Never waits."""
        with self._lock:
            is_behind = self._waiting >= MOST_WAITING or self._bytes >= MOST_BYTES
            self._left_out += is_behind
            is_first = is_behind and self._left_out == 1
            if not is_behind:
                self._waiting += 1
                self._bytes += _size_of(failed)
                if self._thread.ident is None:
                    self._thread.start()
        if is_first:
            logger.warning("on_failure does not keep up: it is not told of attempts that fail until it does")
        if not is_behind:
            self._queue.put(failed)

    def close(self, timeout_s: float) -> None:
        """Tell what is left, for at most `timeout_s`."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("closed while on_failure still ran; its thread is left behind")
        with self._lock:
            left_out = self._left_out + self._waiting
        if left_out:
            logger.warning("on_failure did not keep up: it was not told of %d failed attempts", left_out)

    def _serve(self) -> None:
        while (failed := self._queue.get()) is not None:
            try:
                self._callback(failed)
            except BaseException as error:  # whatever it is, it must harm nothing
                self._log_once(error)
            with self._lock:
                self._waiting -= 1
                self._bytes -= _size_of(failed)

    def _log_once(self, error: BaseException) -> None:
        if not self._has_raised:
            self._has_raised = True
            where = places.text_of(places.of_traceback(error.__traceback__))
            logger.error(
                "on_failure raised %s%s; what else it raises is not logged",
                logged_line_of(error),
                f" in {where}" if where else "",
            )


def _size_of(failed: FailedAttempt) -> int:
    return len(failed.record.message) if isinstance(failed.record, Record) else 0
