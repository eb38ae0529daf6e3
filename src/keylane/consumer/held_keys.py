"""`HeldKeys`: tells when records that are held by their keys keep the others of their partition from running.

The idea: what is held is not complete, so it counts against the bounds that everything incomplete counts against: the
records that are buffered, and those that an offset map says are incomplete (docs/adr/0002). Bounds hold whatever an
operator says; who reads the log learns why nothing moves.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.consumer.partitions import Partition
    from keylane.flow.items import Item
    from keylane.telling import Log

LOOK_S = 1.0
INTERVAL_S = 60.0
"""Between two looks, which go through all that is held, and between two lines of the same."""


class HeldKeys:
    """Of one consumer. Thread safety: none; its owner is the loop."""

    def __init__(self, group: str, log: Log) -> None:
        self._group = group
        self._log = log
        self._due = 0.0
        self._told: dict[Partition, float] = {}
        """When each was told of last."""

    def look(self, held: Iterable[Item], partitions: Iterable[Partition], now: float) -> None:
        """These wait for a rule, of these partitions."""
        if now < self._due:
            return
        self._due = now + LOOK_S
        count = Counter(item.source for item in held)
        standing = [one for one in partitions if count[one.source] and one.is_full]
        self._told = {one: self._told[one] for one in standing if one in self._told}
        for one in standing:
            if now >= self._told.get(one, now - INTERVAL_S) + INTERVAL_S:
                self._told[one] = now
                self._log.warning(
                    "%s-%d: %d records that rules of an operator hold, and those behind them, take all that may be "
                    "unfinished of it: nothing else of it runs until they are released or skipped; `keylane operate "
                    "show %s` has the rules",
                    *one.name,
                    count[one.source],
                    self._group,
                )
