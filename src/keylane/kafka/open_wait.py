"""Where a reader of committed records stands behind a transaction that does not end.

The idea: librdkafka tells the end of what may be read (the last stable offset), and knows the end of the log. Where the
one stays below the other, somebody's transaction is open: for as long as its producer likes, up to its timeout, or for
ever where its coordinator has lost it. Without a word that looks like a consumer that stands still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.consumer.snapshot import OpenTransactions
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Set

logger = logger_of("keylane.waits")

AFTER_S = 10.0
"""A transaction that readers wait for longer than this is told of."""


class OpenWait:
    """Of the partitions that one client reads. Thread safety: the thread that polls it, but for `wait`."""

    def __init__(self) -> None:
        self.wait: OpenTransactions | None = None
        """What it waits for now; any thread."""
        self._ends: dict[tuple[str, int], int] = {}
        """The end of what may be read, of partitions that have been read to it."""
        self._since: dict[tuple[str, int], float] = {}
        """From when on there was more behind that."""
        self._told: set[tuple[str, int]] = set()

    @property
    def names(self) -> Set[tuple[str, int]]:
        """Partitions that have been read to the end of what may be read."""
        return self._ends.keys()

    def ended(self, name: tuple[str, int], offset: int) -> None:
        """Everything below `offset` was read, and nothing from there on may be."""
        if self._ends.get(name) != offset:
            self.forget(name)
            self._ends[name] = offset

    def read(self, name: tuple[str, int], offset: int) -> None:
        """Records up to this one came."""
        if offset >= self._ends.get(name, offset + 1):
            self.forget(name)

    def forget(self, name: tuple[str, int]) -> None:
        """It is read no more."""
        self._ends.pop(name, None)
        self._since.pop(name, None)

    def look(self, log_ends: Mapping[tuple[str, int], int], paused: Container[tuple[str, int]], now: float) -> None:
        """`log_ends` are those of all records, also of open transactions. What is paused stands still by itself."""
        waiting = []
        for name, offset in self._ends.items():
            if name in paused or log_ends.get(name, offset) <= offset:
                self._since.pop(name, None)
            elif now - self._since.setdefault(name, now) >= AFTER_S:
                waiting.append((*name, offset))
        self.wait = OpenTransactions(tuple(sorted(waiting))) if waiting else None
        if self.wait is not None and any(place[:2] not in self._told for place in self.wait.places):
            self._told.update(place[:2] for place in self.wait.places)
            logger.warning("%s", self.wait)
