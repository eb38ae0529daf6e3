"""Python's search for cycles, while consumers run.

The idea: the search begins whenever there are 700 objects more than after the last one. Polled records come and go by
the thousand and form no cycles, so it would look at buffered records again and again: a quarter of the core's time.
While a consumer runs it begins at `THRESHOLD` more instead. A program's own setting is kept.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

THRESHOLD = 50_000
"""Above what a full buffer of records takes, two objects each; cycles of so many objects may wait."""

PYTHONS = (700, 10, 10)
"""CPython's own thresholds."""

OURS = (THRESHOLD, 10, 10)

_lock = threading.Lock()
_running = 0


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Ends with Python's thresholds again once no consumer of the process runs. Any thread."""
    global _running
    with _lock:
        _running += 1
        if gc.get_threshold() == PYTHONS:
            gc.set_threshold(*OURS)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running and gc.get_threshold() == OURS:
                gc.set_threshold(*PYTHONS)
