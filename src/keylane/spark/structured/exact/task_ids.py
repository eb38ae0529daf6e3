"""What a task knows before it writes: its transactional id, and the digest of its rows. Pure.

The idea: a broker keeps every transactional id for a week, so they are used again; but EndTxn says whether a listed
transaction was committed only as long as nobody has initialised its id since. So an id serves again only in a later
batch of the same query, which Spark begins when everything of this one is ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    sum: int = 0

    def add(self, rows: Sequence[Output]) -> None:
        """In one loop: it runs for every row that a task writes."""
        topic, of_topic, size, total = "", 0, 0, 0
        for row in rows:
            key, value = row.key, row.value
            if row.topic != topic:
                topic, of_topic = row.topic, crc32c(row.topic.encode()) * _TOPIC
            parts = of_topic
            if key is not None:
                size += len(key)
                parts += (1 + crc32c(key)) * _KEY
            if value is not None:
                size += len(value)
                parts += (1 + crc32c(value)) * _VALUE
            if row.partition is not None:
                parts += (1 + row.partition) * _PARTITION
            if row.headers:
                parts += crc32c(repr([tuple(one) for one in row.headers]).encode()) * _HEADERS
            total += parts * parts  # squares: two rows that swap their values have another sum
        self.rows += len(rows)
        self.size += size
        self.sum = (self.sum + total) & _MASK


_TOPIC, _KEY, _VALUE, _PARTITION, _HEADERS = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_MASK = 0xFFFF_FFFF_FFFF_FFFF
