"""Records by their timestamps: the first of a time or later, and the one with the latest."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.wire.batches import BatchError, decode_records, read_header

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keylane.storage.filesystem import FileSystem
    from keylane.storage.segment import Segment


class OffsetAndTimestamp(NamedTuple):
    """A record found by its timestamp."""

    offset: int
    timestamp_ms: int


def record_at(
    filesystem: FileSystem, segment: Segment, timestamp_ms: int, start_offset: int
) -> OffsetAndTimestamp | None:
    """The first record of this time or later, at `start_offset` or behind it, in a segment that has an index.

    In a batch whose records cannot be read it is the batch's first record: earlier, never later.
    """
    if segment.base_offset >= start_offset:
        position = segment.find_timestamp(filesystem, timestamp_ms)
        found = _first([segment.read_batch(filesystem, position)], timestamp_ms, start_offset)
        if found is not None:
            return found
    return _first(segment.times(filesystem, timestamp_ms, start_offset), timestamp_ms, start_offset)


def latest_record(filesystem: FileSystem, segment: Segment, start_offset: int) -> OffsetAndTimestamp | None:
    """The first of the records with the latest timestamp in a segment that has an index, unless it was deleted."""
    batch = segment.read_batch(filesystem, segment.max_timestamp_position)
    return _first([batch], segment.max_timestamp, start_offset)


def _first(batches: Iterable[bytes], timestamp_ms: int, start_offset: int) -> OffsetAndTimestamp | None:
    for batch in batches:
        try:
            for record in decode_records(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    return OffsetAndTimestamp(record.offset, record.timestamp_ms)
        except BatchError:
            header = read_header(batch)
            return OffsetAndTimestamp(max(header.base_offset, start_offset), header.base_timestamp)
    return None
