"""What readers of `__consumer_offsets` see of what a snapshot stands for: the last record of each key, at its offset.

That is what Apache Kafka leaves of a compacted topic: offsets with gaps, in the order of the last writes, and recent
tombstones. No file holds it in this form: a partition's batches are made from the snapshot when someone reads them, and
those of the partitions read last are kept in memory.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import (
    OffsetValue,
    Records,
    encode_batch,
    encode_offset_key,
    encode_offset_value,
    encode_record,
    offset_key_prefix,
)
from keylane.coordinator.journal.batch_replay import records_of
from keylane.coordinator.journal.snapshot_format import (
    KEPT,
    OFFSETS,
    TOMBSTONES,
    TRANSACTIONAL,
    kept_records,
    payload_at,
    sections,
    tombstone_batches,
    waiting_offsets,
)
from keylane.coordinator.offsets.store import TopicOffsets
from keylane.wire.batches import TRANSACTIONAL_MASK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from keylane.coordinator.offsets.store import OneOffset
    from keylane.storage.filesystem import AppendFile

RECORDS_A_BATCH = 500
CACHED_PARTITIONS = 4
NO_TIME = -1


class Place(NamedTuple):
    """Where a chunk is, and how long its payload."""

    kind: int
    partition: int
    position: int
    length: int


class _Batches(NamedTuple):
    last_offsets: list[int]
    batches: list[bytes]


_Row = tuple[int, tuple[int, int], bytes, bytes | None]
"""Offset, timestamp and producer id (-1: of no transaction), key, value."""
NO_PRODUCER = -1


class CompactedView:
    """One snapshot as a reader of `__consumer_offsets` sees it. Belongs to the event loop; works in the executor."""

    def __init__(self, file: AppendFile, places: list[Place], ends: list[int], executor: Executor) -> None:
        self._file = file
        self._places = places
        self._ends = ends
        self._executor = executor
        self._made: dict[int, _Batches] = {}
        self._readers = 0
        self._is_closed = False

    async def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the first that ends at or behind `offset`; one at least. Empty only at the end."""
        made = self._made.get(partition)
        if made is None:
            self._readers += 1
            try:
                loop = asyncio.get_running_loop()
                made = await loop.run_in_executor(self._executor, partial(self._make, partition))
            finally:
                self._readers -= 1
                self._close_when_unread()
            while len(self._made) >= CACHED_PARTITIONS:
                del self._made[next(iter(self._made))]
            self._made[partition] = made
        parts: list[bytes] = []
        size = 0
        for at in range(bisect_left(made.last_offsets, offset), len(made.batches)):
            batch = made.batches[at]
            if parts and size + len(batch) > max_bytes:
                break
            parts.append(batch)
            size += len(batch)
        return b"".join(parts)

    def close(self) -> None:
        """A newer one takes its place; reads that are under way are finished."""
        self._is_closed = True
        self._close_when_unread()

    def _close_when_unread(self) -> None:
        if self._is_closed and not self._readers:
            self._file.close()

    def _make(self, partition: int) -> _Batches:
        end = self._ends[partition]
        rows = sorted(row for row in self._rows(partition) if row[0] < end)
        made = _Batches([], [])
        start = 0
        for at in range(1, len(rows) + 1):
            if at == len(rows) or rows[at][1] != rows[start][1] or at - start == RECORDS_A_BATCH:
                made.batches.append(_encode(rows[start:at]))
                made.last_offsets.append(rows[at - 1][0])
                start = at
        if end and (not rows or rows[-1][0] < end - 1):
            # An empty batch, as Kafka's own compaction leaves one: readers learn from it that they are at the end.
            made.batches.append(b"".join(encode_batch(Records(b"", 0, NO_TIME), end - 1, 0)))
            made.last_offsets.append(end - 1)
        return made

    def _rows(self, partition: int) -> Iterator[_Row]:
        for kind, owner, position, length in self._places:
            if kind == OFFSETS and owner == partition:
                yield from _offset_rows(payload_at(self._file, position, length))
            elif kind in _ROWS:
                rows = _ROWS[kind](payload_at(self._file, position, length))
                yield from (row for owner, row in rows if owner == partition)


def _kept_rows(payload: bytes) -> Iterator[tuple[int, _Row]]:
    for owner, key, kept in kept_records(payload):
        yield owner, (kept.offset, (kept.timestamp_ms, NO_PRODUCER), key, kept.value)


def _waiting_rows(payload: bytes) -> Iterator[tuple[int, _Row]]:
    for (owner, producer_id), name, waiting in waiting_offsets(payload):
        value = OffsetValue(*waiting.value)
        batch = (value.commit_timestamp_ms, producer_id)
        yield owner, (waiting.log_offset, batch, encode_offset_key(*name), encode_offset_value(value))


def _tombstone_rows(payload: bytes) -> Iterator[tuple[int, _Row]]:
    for owner, timestamp_ms, batch in tombstone_batches(payload):
        for offset, key, value in records_of(batch):
            if value is None:
                yield owner, (offset, (timestamp_ms, NO_PRODUCER), key, None)


_ROWS = {KEPT: _kept_rows, TRANSACTIONAL: _waiting_rows, TOMBSTONES: _tombstone_rows}
"""By kind of chunk: what it holds for each partition."""


def _offset_rows(payload: bytes) -> Iterator[_Row]:
    for group, topic, kept in sections(payload):
        prefix = offset_key_prefix(group, topic)
        for index, value, log_offset in kept.values() if isinstance(kept, TopicOffsets) else (_value_of(kept),):
            key = prefix + index.to_bytes(4, "big")
            yield log_offset, (value.commit_timestamp_ms, NO_PRODUCER), key, encode_offset_value(value)


def _value_of(one: OneOffset) -> tuple[int, OffsetValue, int]:
    _, partition, offset, leader_epoch, timestamp_ms, log_offset = one
    return partition, OffsetValue(offset, leader_epoch, "", timestamp_ms, NO_TIME), log_offset


def _encode(rows: list[_Row]) -> bytes:
    """Rows of one timestamp and producer as a batch, each at its own offset."""
    base, (timestamp_ms, producer_id) = rows[0][:2]
    body = b"".join(encode_record(offset - base, key, value) for offset, _, key, value in rows)
    records = Records(body, len(rows), timestamp_ms)
    if producer_id != NO_PRODUCER:  # its epoch is not kept, and no reader asks for it
        records = records._replace(attributes=TRANSACTIONAL_MASK, producer_id=producer_id, producer_epoch=0)
    return b"".join(encode_batch(records, base, rows[-1][0] - base))
