"""`Deadlines`: which of many is due next, in one heap with one entry each.

What only moves a deadline away leaves the heap alone: an entry that comes due too early is taken out, and whoever asked
finds nothing to do and notes the next deadline. So a heartbeat costs nothing here, and any other change O(log n).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Key = TypeVar("Key")
"""Of what has deadlines; keys of the same deadline are due in their order."""


class Deadlines(Generic[Key]):
    """By key: a time at which it is to be looked at."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Key]] = []
        self._noted: dict[Key, int] = {}

    @property
    def next_ms(self) -> int | None:
        """When something is due; there may be nothing to do for it yet."""
        return self._heap[0][0] if self._heap else None

    def note(self, key: Key, deadline_ms: int | None) -> None:
        """It has this deadline (or none); what is noted stays, unless this is nearer."""
        noted = self._noted.get(key)
        if deadline_ms is not None and (noted is None or deadline_ms < noted):
            self._noted[key] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, key))

    def forget(self, key: Key) -> None:
        self._noted.pop(key, None)

    def due(self, now_ms: int) -> Iterator[Key]:
        """Those whose time has come, each once: note its next deadline before you ask for another one."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, key = heapq.heappop(self._heap)
            if self._noted.get(key) == deadline_ms:  # else a nearer entry took its place
                del self._noted[key]
                yield key
