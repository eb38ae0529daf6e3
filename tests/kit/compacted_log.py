"""A compacted log and a model of it: what readers of committed records must see, whatever was compacted and when.

The model knows every record that was written, and which transaction it belongs to. It holds that

- a reader of committed records sees committed records only, at their own offsets, in order, each as it was written;
- the last committed record of every key is among them, or it is a tombstone, and nothing of its key is seen;
- offsets have no gap, and every offset is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keylane.wire.batches import TRANSACTIONAL_MASK, NewRecord, batches, decode_records, encode_batch, read_header
from keylane.wire.control import is_commit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.storage.log import PartitionLog

TRANSACTIONAL = (8, 9)
"""Producers whose batches are transactional; others with a positive id are idempotent only."""
Row = tuple[bytes, bytes | None]
"""Key and value."""


@dataclass
class CompactedLogModel:
    """What was written: by offset, its key, its value and its transaction's outcome. Times are the caller's."""

    records: dict[int, Row] = field(default_factory=dict)
    outcomes: dict[int, bool | None] = field(default_factory=dict)
    """Offset -> whether it is committed; None while that is open."""
    open: dict[int, list[int]] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    now_ms: int = 0

    def committed(self, below: int) -> dict[int, Row]:
        return {offset: self.records[offset] for offset, done in self.outcomes.items() if done and offset < below}

    async def write(self, log: PartitionLog, producer: int, rows: Sequence[tuple[bytes, bool]]) -> None:
        """Append a batch of these keys; True with a key means a tombstone."""
        records = [
            NewRecord(key, None if is_tombstone else b"%d-%d" % (log.next_offset, index))
            for index, (key, is_tombstone) in enumerate(rows)
        ]
        sequence = self.sequences.get(producer, 0)
        data = encode_batch(
            records,
            timestamp_ms=self.now_ms,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
            attributes=TRANSACTIONAL_MASK if producer in TRANSACTIONAL else 0,
        )
        appended = log.append(data, read_header(data), self.now_ms)
        assert appended.durable is not None
        await appended.durable
        self.sequences[producer] = sequence + len(records)
        for index, record in enumerate(records):
            offset = appended.base_offset + index
            self.records[offset] = (record.key or b"", record.value)
            self.outcomes[offset] = None if producer in TRANSACTIONAL else True
            if producer in TRANSACTIONAL:
                self.open.setdefault(producer, []).append(offset)

    async def end(self, log: PartitionLog, producer: int, *, committed: bool) -> None:
        """End the producer's transaction, if it has one."""
        if producer in self.open:
            await log.end_transaction(producer, 0, committed=committed, now_ms=self.now_ms)
            for offset in self.open.pop(producer):
                self.outcomes[offset] = committed

    def check(self, log: PartitionLog) -> None:
        """Raise `AssertionError` unless the log is what the model says."""
        committed = self.committed(log.stable_offset)
        found = seen(log)
        assert list(found) == sorted(found)
        assert found.items() <= committed.items(), "nothing aborted, nothing made up, nothing moved"
        last = {key: offset for offset, (key, _) in sorted(committed.items())}
        for key, offset in last.items():
            assert offset in found or committed[offset][1] is None, f"the last record of {key!r}, at {offset}"
            if offset not in found:
                assert key not in {row[0] for row in found.values()}, "what a tombstone deleted has come back"
        for offset in range(log.log_start_offset, log.high_watermark):
            header = read_header(log.read(log.locate(offset), 1, at_least_one=True))
            assert header.base_offset <= offset < header.next_offset


def seen(log: PartitionLog) -> dict[int, Row]:
    """What a reader of committed records makes of its fetches, as clients do; all indexes must be there."""
    found: dict[int, Row] = {}
    offset = log.log_start_offset
    while offset < log.stable_offset:
        data = log.read(log.locate(offset), 300, at_least_one=True, end=log.stable_position)
        whole = list(batches(data))
        aborted = sorted(log.aborted(offset, whole[-1][1].next_offset), key=lambda row: row[1])
        skipping: set[int] = set()
        for at, header in whole:
            assert header.base_offset <= offset < header.next_offset
            while aborted and aborted[0][1] <= header.last_offset:
                skipping.add(aborted.pop(0)[0])
            if header.is_control:
                if is_commit(data[at : at + header.length]) is False:
                    skipping.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipping):
                for record in decode_records(data, at):
                    found[record.offset] = (record.key or b"", record.value)
            offset = header.next_offset
    return found
