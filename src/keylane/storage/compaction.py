"""Compaction: of every key the last record stays; what is superseded, deleted or aborted goes.

Two passes over whole segments, which nobody appends to any more. The first notes the last offset of every key in what
was never compacted; the second writes the segments anew without what is superseded. Offsets keep their places: where
all records of some batches went, one empty batch stands for their offsets, so a log never has a gap, and recovery can
go on telling lost batches from compacted ones.

Rules, as in Apache Kafka (KIP-534):

- A tombstone stays for `delete.retention.ms` after it was first seen here, so that readers learn of it. The batch says
  when it may go.
- Records of an aborted transaction go, and of an undecided one nothing is looked at. A marker stays while a record of
  its transaction is there, and then as long as a tombstone.
- The last batch of a producer that is remembered stays, emptied, so that its sequence survives a crash.
- A batch whose records cannot be read stays, and no tombstone behind it goes: it might hold what that one deletes.

Blocking, for an executor; the log is told through what is returned.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from keylane.storage.filesystem import DiskFullError, StorageError
from keylane.storage.recovery import UnsoundBatchError, sound_batches
from keylane.storage.segment import Segment
from keylane.wire.batches import (
    MAX_FILLER_SPAN,
    BatchError,
    BatchHeader,
    decode_records,
    filler,
    read_header,
    rebuild_batch,
)
from keylane.wire.control import is_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keylane.storage.filesystem import AppendFile, FileSystem
    from keylane.storage.partition_transactions import Ended

CLEANED_SUFFIX = ".cleaned"
"""Of a segment that is being written anew; such a file may be left by a crash and means nothing."""
MAX_KEYS = 1_000_000
"""Keys of one pass, but for those of its last segment: some 150 MB. The rest waits for the next pass."""
_KEY_BYTES = 16
_SLICE_BYTES = 64 * 1024
_PAUSE_S = 0.0005
"""Between slices, so that the loop's thread is not kept waiting."""


class CompactionStoppedError(Exception):
    """The log is being closed."""


class Decided:
    """The aborted transactions of a log, to ask for batches of producers."""

    def __init__(self, aborted: Sequence[Ended]) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for ended in aborted:
            self._spans.setdefault(ended.producer_id, []).append((ended.first_offset, ended.marker_offset))

    def is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        spans = self._spans.get(header.producer_id, ())
        row = bisect_right(spans, header.base_offset, key=lambda span: span[0]) - 1
        return row >= 0 and header.base_offset < spans[row][1]


class Plan(NamedTuple):
    """What a pass knows of its log."""

    now_ms: int
    delete_retention_ms: int
    decided: Decided
    last_batches: dict[int, int]
    """Producer id -> base offset of its last batch, of the producers that are remembered."""
    must_stop: Callable[[], bool]


class Written(NamedTuple):
    """One segment in place of some."""

    segment: Segment
    removed_markers: frozenset[int]
    """Offsets of markers of aborted transactions, and of others, that are gone."""


def last_offsets(filesystem: FileSystem, segments: Sequence[Segment], plan: Plan) -> tuple[dict[bytes, int], int]:
    """The last offset of every key in these segments, and how many of them were read."""
    last: dict[bytes, int] = {}
    for number, segment in enumerate(segments):
        if len(last) >= MAX_KEYS:
            return last, number
        for header, batch in _batches(filesystem, segment, plan):
            if header.is_control or plan.decided.is_aborted(header):
                continue
            try:
                records = decode_records(batch)
            except BatchError:
                continue
            for record in records:
                if record.key is not None:
                    last[_digest(record.key)] = record.offset
    return last, len(segments)


class Cleaner:
    """The second pass: over all segments in order, some at a time."""

    def __init__(self, filesystem: FileSystem, plan: Plan, last: dict[bytes, int], index_interval: int) -> None:
        self._filesystem = filesystem
        self._plan = plan
        self._last = last
        self._index_interval = index_interval
        self._open: set[int] = set()
        """Producers with records since their last marker."""
        self._has_unreadable = False
        self._removed_markers: set[int] = set()

    def write(self, segments: Sequence[Segment], next_offset: int) -> Written | None:
        """Write segments that follow one another, up to `next_offset`, as one; it is durable under its interim name.

        None when there is nothing to gain. Raises `OSError`, `StorageError`, `BatchError` and `CompactionStoppedError`.
        """
        self._removed_markers = set()
        first = segments[0]
        path = first.path + CLEANED_SUFFIX
        if self._filesystem.exists(path):
            self._filesystem.remove(path)
        file = self._filesystem.open_append(path)
        try:
            segment = Segment(first.path, first.base_offset, first.start, self._index_interval)
            segment.epochs = first.epochs
            is_changed = self._write(segments, file, segment, next_offset)
            if not is_changed and len(segments) == 1:
                self._filesystem.remove(path)
                return None
            file.sync()
        except DiskFullError:
            self._filesystem.remove(path)  # it takes room, and the next try writes it anew
            raise
        finally:
            file.close()
        return Written(segment, frozenset(self._removed_markers))

    def _write(self, segments: Sequence[Segment], file: AppendFile, segment: Segment, next_offset: int) -> bool:
        """Whether the result differs."""
        is_changed = False
        written_to = segment.base_offset
        for old in segments:
            for header, batch in _batches(self._filesystem, old, self._plan):
                kept = self._clean(header, batch)
                is_filler = header.record_count == 0 and header.producer_id < 0
                is_changed = is_changed or (kept is not batch and not is_filler)
                if kept is not None:
                    _fill(file, segment, written_to, header.base_offset)
                    _put(file, segment, kept)
                    written_to = header.next_offset
        _fill(file, segment, written_to, next_offset)
        return is_changed

    def _clean(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """The batch to keep (the same object when it is kept as it is), or None."""
        if header.is_control:
            return self._clean_marker(header, batch)
        if header.record_count == 0:
            return batch if self._is_last(header) else None
        if header.is_transactional:
            self._open.add(header.producer_id)
        if self._plan.decided.is_aborted(header):
            return self._emptied(header)
        try:
            records = decode_records(batch)
        except BatchError:
            self._has_unreadable = True
            return batch
        horizon = header.delete_horizon_ms
        is_due = horizon is not None and self._plan.now_ms >= horizon and not self._has_unreadable
        kept = [
            record
            for record in records
            if record.key is not None
            and record.offset >= self._last.get(_digest(record.key), -1)
            and not (is_due and record.value is None)
        ]
        if not kept:
            return self._emptied(header)
        if horizon is None and any(record.value is None for record in kept):
            horizon = self._plan.now_ms + self._plan.delete_retention_ms
        elif len(kept) == len(records):
            return batch
        return rebuild_batch(header, kept, horizon)

    def _clean_marker(self, header: BatchHeader, batch: bytes) -> bytes | None:
        if is_commit(batch) is None:
            return batch
        if header.producer_id in self._open:
            self._open.remove(header.producer_id)
            return batch
        horizon = header.delete_horizon_ms
        if horizon is None:
            horizon = self._plan.now_ms + self._plan.delete_retention_ms
            return rebuild_batch(header, decode_records(batch), horizon)
        last = self._plan.last_batches.get(header.producer_id, header.next_offset)
        if self._plan.now_ms < horizon or last <= header.base_offset:
            return batch
        self._removed_markers.add(header.base_offset)
        return None

    def _emptied(self, header: BatchHeader) -> bytes | None:
        return rebuild_batch(header, (), None) if self._is_last(header) else None

    def _is_last(self, header: BatchHeader) -> bool:
        return self._plan.last_batches.get(header.producer_id) == header.base_offset


def _batches(filesystem: FileSystem, segment: Segment, plan: Plan) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches of a whole segment, checked, with pauses: what is damaged is not written anew as if it were sound.

    Raises `StorageError` for damage.
    """
    paused_at = 0
    try:
        file = segment.open(filesystem)
        for position, header, batch in sound_batches(file, 0, segment.base_offset, segment.size, segment.epochs):
            if plan.must_stop():
                raise CompactionStoppedError
            yield header, bytes(batch)
            if position - paused_at >= _SLICE_BYTES:
                paused_at = position
                time.sleep(_PAUSE_S)
    except UnsoundBatchError as error:
        raise StorageError(str(error)) from error


def _fill(file: AppendFile, segment: Segment, start: int, end: int) -> None:
    """Let an empty batch stand for these offsets, if there are any."""
    while start < end:
        last = min(end - 1, start + MAX_FILLER_SPAN)
        _put(file, segment, filler(start, last, segment.epochs.epoch_at(start)))
        start = last + 1


def _put(file: AppendFile, segment: Segment, batch: bytes) -> None:
    header = read_header(batch)
    segment.note(segment.size, header.base_offset, header.max_timestamp, len(batch))
    file.write(batch)


def _digest(key: bytes) -> bytes:
    return key if len(key) < _KEY_BYTES else hashlib.blake2b(key, digest_size=_KEY_BYTES).digest()
