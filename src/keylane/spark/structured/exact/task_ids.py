"""What a task knows before it writes: its transactional id, and the digest of its rows. Pure.

The idea: a broker keeps every transactional id for a week, so they are used again; but EndTxn says whether a listed
transaction was committed only as long as nobody has initialised its id since. So an id serves again only in a later
batch of the same query, which Spark begins when everything of this one is ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.records import Output


class TaskIds:
    """The transactional ids of one worker process."""

    def __init__(self, make: Callable[[], str]) -> None:
        """`make` gives a word that nobody else has."""
        self._make = make
        self._last: dict[tuple[str, str], list[tuple[int, str]]] = {}
        """By prefix and query: the batch in which each id served last."""

    def take(self, prefix: str, query: str, batch: int) -> str:
        """An id for one transaction of this batch."""
        known = self._last.setdefault((prefix, query), [])
        for index, (last, name) in enumerate(known):
            if last < batch:
                known[index] = (batch, name)
                return name
        name = prefix + self._make()
        known.append((batch, name))
        return name


@dataclass
class Digest:
    """Rows, whatever their order: equal for equal rows, and for others almost never."""

    rows: int = 0
    size: int = 0
    """Bytes of keys and values."""
    sum: int = field(default=0, repr=False)

    def add(self, row: Output) -> None:
        self.rows += 1
        key, value = row.key, row.value
        of_row = crc32c(row.topic.encode(), 0 if row.partition is None else row.partition + 1)
        if key is not None:
            self.size += len(key)
            of_row = crc32c(key, of_row ^ 0x9E3779B9)
        if value is not None:
            self.size += len(value)
            of_row = crc32c(value, of_row ^ 0x7F4A7C15)
        if row.headers:
            of_row = crc32c(repr(row.headers).encode(), of_row)
        self.sum = (self.sum + of_row) & 0xFFFF_FFFF_FFFF_FFFF
