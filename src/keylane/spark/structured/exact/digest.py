"""`Digest`: what a task's rows are known by, so that a replay which computes others is noticed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from operator import mul
from typing import TYPE_CHECKING, cast
from zlib import crc32

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keylane.spark.structured.sink_rows import SinkRows

_MASK = 0xFFFF_FFFF_FFFF_FFFF


@dataclass
class Digest:
    """Rows, whatever their order: equal for equal rows, and for others almost never."""

    rows: int = 0
    sum: int = 0

    def add(self, rows: SinkRows) -> None:
        """Without a loop of Python's where rows differ in key and value alone: it runs for every row of a task."""
        hashes = list(_hashes(rows))
        self.rows += len(hashes)
        # Squares, because two rows that swap a part may have the same sum of checksums.
        self.sum = (self.sum + sum(map(mul, hashes, hashes))) & _MASK


def _hashes(rows: SinkRows) -> Iterator[int]:
    """Two kinds of checksum, so that a byte which moves from the key to the value makes another row."""
    if rows.are_alike:
        start = _start(cast("str", rows.topics), (), None, rows.keys is None, False)
        keys = repeat(b"") if rows.keys is None else cast("Sequence[bytes]", rows.keys)
        return map(crc32c, cast("Sequence[bytes]", rows.values), map(crc32, keys, repeat(start)))
    return (
        crc32c(value or b"", crc32(key or b"", _start(topic, headers, partition, key is None, value is None)))
        for topic, headers, partition, key, value in rows.each()
    )


@lru_cache(1_000)
def _start(*shared: object) -> int:
    """Of what many rows share: topic, headers, partition, and whether there is no key and no value."""
    return crc32(ascii(shared).encode())
