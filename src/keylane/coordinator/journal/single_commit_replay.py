"""The replay of commits of one offset without metadata, which most frames of a journal are: one flat loop.

A start is to replay 200,000 entries a second. Frame by frame such commits come to 91,000 to 128,000 (a second of
processor time; of groups that are new, and that were seen before), here to 310,000 to 630,000.

What such a batch has behind its checksum:

    a header, whose attributes and last offset delta are 0
    number of records = 1, sizes, deltas = 0, type of the key, length of the group   the *start*
    group
    topic, partition, size and version of the value                                  the *rest*, which repeats
    offset, leader epoch, no metadata, timestamp, no headers

The sizes follow from the batch's own, so a batch of a known size whose start is known has a known layout, which is one
`struct`; and a known rest says topic and partition. So a few looks into dictionaries check every byte that a step for
each field would check.

The loop takes nothing that is not in order in every respect, and never says why: it stops before it, and
`SegmentReader` and `Replayer` take, or refuse, that one frame by the book.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from crc32c import crc32c

from keylane.coordinator.formats import OFFSET_KEY_VERSION, OFFSET_VALUE_VERSION
from keylane.coordinator.journal.segments import CHECKED_SIZE, COVERED_FROM, FRAME_HEAD_SIZE, MARK_BYTE, frame_size
from keylane.wire.batches import CRC_START, HEADER_SIZE, MAGIC, PREFIX_SIZE
from keylane.wire.primitives import varint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.coordinator.journal.segments import View
    from keylane.coordinator.offsets.store import OffsetStore

MAX_RESTS = 100_000
"""Topics with their partitions that are kept: some 20 MB while a start replays."""
MAX_SIZES = 1_000
"""Sizes of batches whose layouts are kept: for each, one layout for a length of a topic's name."""

_HEADS = struct.Struct(">BIIi4xqi4xBI6s")
"""A frame's head, and of its batch: base offset, length, magic, checksum, attributes and last offset delta."""
_NO_ATTRIBUTES = bytes(6)
_LEAST_SIZE = frame_size(HEADER_SIZE)
_I32 = struct.Struct(">i")
_TAIL_FORMAT = "qihqb"
_TAIL_SIZE = struct.calcsize(f">{_TAIL_FORMAT}")
_VALUE_HEAD = varint(1 + _TAIL_SIZE) + OFFSET_VALUE_VERSION.to_bytes(2, "big")
"""The size of a value without metadata, as only those have it (its version, and the tail but for the headers)."""
_ONE_RECORD = b"\0\0\0\1"
_NO_DELTAS = b"\0\0\0"
"""A record's attributes, timestamp delta and offset delta."""
_KEY_TYPE = OFFSET_KEY_VERSION.to_bytes(2, "big")
_START_AT = HEADER_SIZE - CRC_START - len(_ONE_RECORD)
_LENGTH_SIZE = 2

_Unpack = Callable[[bytes], tuple[bytes, bytes, int, int, int, int, int]]
"""To group, rest, offset, leader epoch, length of the metadata, timestamp, number of headers."""
_OfSize = tuple[slice, dict[bytes, _Unpack]]
"""Where the start of batches of one size is; and by start how they are taken apart."""
_UNKNOWN: _OfSize = (slice(0), {})


class SingleCommits:
    """Replays them into a store and the views of the offsets partitions."""

    def __init__(self, store: OffsetStore, views: Mapping[int, View]) -> None:
        self._put = store.put_plain
        self._views = {partition: view for partition, view in views.items() if partition >= 0}
        self._layouts: dict[int, _OfSize] = {}
        """By size of the batch."""
        self._rests: dict[bytes, tuple[str, int]] = {}
        """Topic and partition."""

    def replay(self, data: bytes, position: int, stop: int, place: int) -> int:
        """Every frame of a segment from `position` on, until one is no such commit, or begins at `stop` or behind it;
        where that is. `place` is the segment's."""
        unpack_heads, put = _HEADS.unpack_from, self._put
        views, layouts, rests = self._views, self._layouts, self._rests
        size = len(data)
        stop = min(stop, size - _LEAST_SIZE)
        while position < stop:
            mark, crc, length, partition, base_offset, batch_length, magic, batch_crc, other = unpack_heads(
                data, position
            )
            checked = position + CHECKED_SIZE
            end = position + FRAME_HEAD_SIZE + length
            batch = data[checked:end]
            if crc32c(batch) != batch_crc or crc32c(data[position + COVERED_FROM : checked]) != crc:
                break
            if end >= size or mark != MARK_BYTE or data[end] != MARK_BYTE:
                break
            if batch_length + PREFIX_SIZE != length or magic != MAGIC or other != _NO_ATTRIBUTES:
                break
            try:
                start, known = layouts[length]
                group, rest, offset, leader_epoch, _, timestamp, headers = known[batch[start]](batch)
                topic, index = rests[rest]
                view = views[partition]
            except KeyError:
                if self._learn(length, batch):
                    continue
                break
            if headers or base_offset != view.appended:
                break
            try:
                put(group.decode(), topic, index, offset, leader_epoch, timestamp, base_offset)
            except UnicodeDecodeError:
                break
            if place + position < view.next_place:
                view.appended = base_offset + 1
            else:
                view.append(base_offset, base_offset + 1, place + position)
            position = end + 1
        return position

    def _learn(self, size: int, batch: bytes) -> bool:
        """What was not known of this batch, from its attributes on; False when there is nothing to learn."""
        start, known = self._layouts.get(size, _UNKNOWN)
        unpack = known.get(batch[start])
        if unpack is None:
            return self._learn_layout(size, batch)
        _, rest, *_ = unpack(batch)
        return rest not in self._rests and self._learn_rest(rest)

    def _learn_layout(self, size: int, batch: bytes) -> bool:
        """How all batches of its size and start are taken apart; False when it is no such commit."""
        start = _start_without_length(size)
        if start is None or not batch.startswith(start, _START_AT):
            return False
        group_at = _START_AT + len(start) + _LENGTH_SIZE
        group_size = int.from_bytes(batch[group_at - _LENGTH_SIZE : group_at], "big", signed=True)
        rest_size = len(batch) - group_at - group_size - _TAIL_SIZE
        if group_size < 0 or rest_size < 0:
            return False
        if size not in self._layouts:
            if len(self._layouts) >= MAX_SIZES:
                self._layouts.clear()
            self._layouts[size] = slice(_START_AT, group_at), {}
        _, known = self._layouts[size]
        known[batch[_START_AT:group_at]] = struct.Struct(f">{group_at}x{group_size}s{rest_size}s{_TAIL_FORMAT}").unpack
        return True

    def _learn_rest(self, rest: bytes) -> bool:
        """Its topic and partition; False when it is none."""
        partition_at = len(rest) - len(_VALUE_HEAD) - _I32.size
        topic_size = int.from_bytes(rest[:_LENGTH_SIZE], "big", signed=True)
        if not rest.endswith(_VALUE_HEAD) or _LENGTH_SIZE + topic_size != partition_at:
            return False
        try:
            topic = rest[_LENGTH_SIZE:partition_at].decode()
        except UnicodeDecodeError:
            return False
        if len(self._rests) >= MAX_RESTS:
            self._rests.clear()
        self._rests[rest] = topic, _I32.unpack_from(rest, partition_at)[0]
        return True


@lru_cache(maxsize=MAX_SIZES)
def _start_without_length(size: int) -> bytes | None:
    """The start of a batch of that size, up to the length of its group; None when there is no such batch."""
    record_size = _size_behind_varint(size - HEADER_SIZE)
    if record_size is None:
        return None
    key_size = _size_behind_varint(record_size - len(_NO_DELTAS) - len(_VALUE_HEAD) - _TAIL_SIZE)
    if key_size is None:
        return None
    return b"".join((_ONE_RECORD, varint(record_size), _NO_DELTAS, varint(key_size), _KEY_TYPE))


def _size_behind_varint(total: int) -> int | None:
    """How many bytes follow a varint of their number, when there are so many with it."""
    return next((total - n for n in range(1, min(total, 6)) if len(varint(total - n)) == n), None)
