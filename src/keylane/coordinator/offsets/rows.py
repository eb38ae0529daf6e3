"""Committed offsets of one group as bytes, purely: rows in the order of their keys, in blocks of about 4 KB.

A row has 32 bytes, big-endian, so that a column of many rows is one slice of an array of words:

    0 u8 | the topic's mark, 24 bits | partition i32 | offset i64 | leader epoch i32 | timestamp u48 | log offset u48

The first seven bytes behind the 0 are its key. A block is kept without its first byte, the 0: one row is then a `bytes`
of exactly 64 bytes, which is what S1 allows an entry. Metadata and expiry (`beside`) are rare or long, so a block whose
rows have any has a tail:

    rows, without the first byte | end of each row's beside u32 … | besides | nothing or one byte | rows u16

A beside is empty, or an expire timestamp i64 and the metadata in UTF-8. A block without one has a length of 31 modulo
32, and one with a tail never has. Blocks are never changed: another one takes their place.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.formats import NO_TIMESTAMP
from keylane.wire.columns import FEW_ROWS, as_array, read_column, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROW_BYTES = 32
KEPT_ROW_BYTES = 31
"""Of a block with one row."""
MARK_BYTES, KEY_BYTES, OFFSET_END = 3, 7, 19
"""Where in the first row of a block the mark ends, the key, and offset with leader epoch."""
BLOCK_BYTES = 4096
"""A block with more than this is divided: what one commit copies stays small."""
MAX_48_BITS = (1 << 48) - 1

_LEAD = b"\0"
_ROW = struct.Struct(">3siqiIQ")
_BEHIND_MARK = struct.Struct(">iqiIQ")
_OFFSET_AND_EPOCH = struct.Struct(">qi")
_I32 = struct.Struct(">i")
_EXPIRES = struct.Struct(">q")
_COUNT = struct.Struct(">H")
_END_BYTES = 4
_IS_LITTLE = sys.byteorder == "little"

key_of = struct.Struct(">3si").pack
"""The key of a mark and a partition."""


class Row(NamedTuple):
    """What stands in a row behind the topic's mark."""

    partition: int
    offset: int
    leader_epoch: int
    timestamp_ms: int
    log_offset: int


class Columns(NamedTuple):
    """Rows of one topic by column, as a snapshot has them."""

    partitions: array[int]
    offsets: array[int]
    timestamps: array[int]
    leader_epochs: array[int]
    log_offsets: array[int]


def row_of(mark: bytes, partition: int, offset: int, leader_epoch: int, timestamp_ms: int, log_offset: int) -> bytes:
    """A block of this row. A timestamp before 1970, or after the year 10,000, becomes the nearest that fits."""
    if not 0 <= timestamp_ms <= MAX_48_BITS:
        timestamp_ms = _within_48_bits(timestamp_ms)
    low = (timestamp_ms & 0xFFFF) << 48 | log_offset & MAX_48_BITS
    return _ROW.pack(mark, partition, offset, leader_epoch, timestamp_ms >> 16, low)


def read_row(block: bytes, row: int = 0) -> Row:
    partition, offset, leader_epoch, high, low = _BEHIND_MARK.unpack_from(block, row * ROW_BYTES + MARK_BYTES)
    return Row(partition, offset, leader_epoch, high << 16 | low >> 48, low & MAX_48_BITS)


def offset_in(block: bytes, row: int) -> bytes:
    """Offset and leader epoch, as `encode_offset` makes them."""
    return block[row * ROW_BYTES + KEY_BYTES : row * ROW_BYTES + OFFSET_END]


def encode_offset(offset: int, leader_epoch: int) -> bytes:
    """As rows have them, and answers too."""
    return _OFFSET_AND_EPOCH.pack(offset, leader_epoch)


def mark_in(block: bytes, row: int) -> bytes:
    return block[row * ROW_BYTES : row * ROW_BYTES + MARK_BYTES]


def first_key(mark: bytes) -> bytes:
    return mark + b"\0\0\0\0"


def last_key(mark: bytes) -> bytes:
    return mark + b"\xff\xff\xff\xff"


def beside_of(metadata: str, expires: int) -> bytes:
    """Empty where there is neither."""
    return _EXPIRES.pack(expires) + metadata.encode() if metadata or expires != NO_TIMESTAMP else b""


def read_beside(beside: bytes) -> tuple[str, int]:
    """Metadata and expire timestamp."""
    return (beside[_EXPIRES.size :].decode(), _EXPIRES.unpack_from(beside)[0]) if beside else ("", NO_TIMESTAMP)


def is_plain(block: bytes) -> bool:
    """Whether no row has anything beside it."""
    return len(block) % ROW_BYTES == KEPT_ROW_BYTES


def count_of(block: bytes) -> int:
    """How many rows it has."""
    size = len(block)
    if size % ROW_BYTES == KEPT_ROW_BYTES:
        return (size + 1) // ROW_BYTES
    count: int = _COUNT.unpack_from(block, size - _COUNT.size)[0]
    return count


def find(block: bytes, key: bytes) -> int:
    """The row with this key; or, where there is none, -1 - the row that would come behind it."""
    if block[:KEY_BYTES] == key:
        return 0
    count = count_of(block)
    # Partitions that follow each other are the usual case.
    row: int = _I32.unpack_from(key, MARK_BYTES)[0] - _I32.unpack_from(block, MARK_BYTES)[0]
    if 0 < row < count and block[row * ROW_BYTES : row * ROW_BYTES + KEY_BYTES] == key:
        return row
    low, high = 0, count
    while low < high:
        row = (low + high) // 2
        if block[row * ROW_BYTES : row * ROW_BYTES + KEY_BYTES] < key:
            low = row + 1
        else:
            high = row
    is_there = low < count and block[low * ROW_BYTES : low * ROW_BYTES + KEY_BYTES] == key
    return low if is_there else -1 - low


def place_of(blocks: Sequence[bytes], key: bytes) -> int:
    """Which of the blocks of a group has this key, or would have it."""
    if len(blocks) == 1:
        return 0
    return max(bisect_left(blocks, (int.from_bytes(key, "big") + 1).to_bytes(KEY_BYTES + 1, "big")[1:]) - 1, 0)


def rows_in(block: bytes) -> bytes:
    """The rows alone, as a block."""
    return block if is_plain(block) else block[: count_of(block) * ROW_BYTES - 1]


def besides_in(block: bytes) -> list[bytes]:
    """What each row has beside it."""
    count = count_of(block)
    if is_plain(block):
        return [b""] * count
    at = count * ROW_BYTES - 1
    ends = struct.unpack_from(f">{count}I", block, at)
    at += count * _END_BYTES
    starts = (0, *ends)
    return [block[at + start : at + end] for start, end in zip(starts, ends, strict=False)]


def beside_in(block: bytes, row: int) -> bytes:
    """What this row has beside it."""
    if is_plain(block):
        return b""
    count = count_of(block)
    at = count * ROW_BYTES - 1
    start = int.from_bytes(block[at + (row - 1) * _END_BYTES : at + row * _END_BYTES], "big") if row else 0
    end = int.from_bytes(block[at + row * _END_BYTES : at + (row + 1) * _END_BYTES], "big")
    at += count * _END_BYTES
    return block[at + start : at + end]


def block_of(rows: bytes, besides: Sequence[bytes] | None) -> bytes:
    """A block of these rows, which are one already where none has anything beside it."""
    if besides is None or not any(besides):
        return rows
    ends = list(accumulate(map(len, besides)))
    parts = [rows, struct.pack(f">{len(ends)}I", *ends), *besides]
    size = len(rows) + len(ends) * _END_BYTES + ends[-1] + _COUNT.size
    if size % ROW_BYTES == KEPT_ROW_BYTES:
        parts.append(_LEAD)
    parts.append(_COUNT.pack(len(ends)))
    return b"".join(parts)


def divided(rows: bytes, besides: Sequence[bytes] | None = None) -> list[bytes]:
    """Blocks of these rows, none for none: of like numbers of rows, and about `BLOCK_BYTES` at most."""
    count = (len(rows) + 1) // ROW_BYTES
    size = len(rows) + (sum(map(len, besides)) if besides is not None else 0)
    if size <= BLOCK_BYTES or count == 1:
        return [block_of(rows, besides)] if rows else []
    pieces = min(-(-size // BLOCK_BYTES), count)
    step = -(-count // pieces)
    return [
        block_of(
            rows[start * ROW_BYTES : (start + step) * ROW_BYTES - 1],
            None if besides is None else besides[start : start + step],
        )
        for start in range(0, count, step)
    ]


def marks_in(block: bytes) -> list[bytes]:
    """The topics of its rows, each once."""
    count, row = count_of(block), 0
    marks = []
    while row < count:
        mark = mark_in(block, row)
        marks.append(mark)
        row = _behind(block, last_key(mark))
    return marks


def of_mark(block: bytes, mark: bytes) -> bytes:
    """The part of a block that has the rows of this topic; empty where there are none."""
    count = count_of(block)
    start, end = _before(block, first_key(mark)), _behind(block, last_key(mark))
    if (start, end) == (0, count):
        return block
    return block_of(part_of(block, start, end), None if is_plain(block) else besides_in(block)[start:end])


def part_of(rows: bytes, start: int, end: int) -> bytes:
    """From one of these rows up to another one."""
    return rows[start * ROW_BYTES : max(end * ROW_BYTES - 1, 0)]


def _before(block: bytes, key: bytes) -> int:
    """How many rows come before this key."""
    at = find(block, key)
    return at if at >= 0 else -1 - at


def _behind(block: bytes, key: bytes) -> int:
    """How many rows come up to this key."""
    at = find(block, key)
    return at + 1 if at >= 0 else -1 - at


def joined(rows: Iterable[bytes]) -> bytes:
    """The rows of blocks that follow each other and have nothing beside them, as one."""
    return _LEAD.join(rows)


def with_row(rows: bytes, at: int, row: bytes) -> bytes:
    """These rows with another one in the place of this one."""
    if len(rows) == KEPT_ROW_BYTES:
        return row
    return b"".join((rows[: at * ROW_BYTES], row, rows[at * ROW_BYTES + KEPT_ROW_BYTES :]))


def with_rows(rows: bytes, at: int, count: int, new: bytes) -> bytes:
    """These rows with new ones (or none) in the place of `count` of them."""
    if count * ROW_BYTES == len(rows) + 1:
        return new
    before, behind = rows[: max(at * ROW_BYTES - 1, 0)], rows[(at + count) * ROW_BYTES :]
    return _LEAD.join(part for part in (before, new, behind) if part)


def merged(block: bytes, new: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, list[bytes], int]:
    """The rows of a block and these, each with what is beside it, which are in order and replace those with their keys;
    and how many of them are new."""
    added = len(new)
    starts = range(0, count_of(block) * ROW_BYTES if block else 0, ROW_BYTES)
    keys = [block[at : at + KEY_BYTES] for at in starts]
    if keys and keys != [row[:KEY_BYTES] for row, _ in new]:
        each = zip(keys, starts, besides_in(block), strict=True)
        pairs = {key: (block[at : at + KEPT_ROW_BYTES], beside) for key, at, beside in each}
        pairs |= {pair[0][:KEY_BYTES]: pair for pair in new}
        new = sorted(pairs.values())
        added = len(new)
    return joined([row for row, _ in new]), [beside for _, beside in new], added - len(keys)


def as_rows(mark: bytes, columns: Columns) -> bytes:
    """The rows of these columns, which are in the order of their keys."""
    count = len(columns.partitions)
    if count < FEW_ROWS:
        each = zip(
            columns.partitions,
            columns.offsets,
            columns.leader_epochs,
            columns.timestamps,
            columns.log_offsets,
            strict=True,
        )
        return joined(row_of(mark, *row) for row in each)
    timestamps = columns.timestamps
    if min(timestamps) < 0 or max(timestamps) > MAX_48_BITS:
        timestamps = array("q", map(_within_48_bits, timestamps))
    # A number of 48 bits goes in as one of 64, and what stands before it goes over its two zeros.
    places = {
        4: as_array("i", columns.partitions),
        8: as_array("q", columns.offsets),
        24: as_array("q", columns.log_offsets),
        18: as_array("q", timestamps),
        16: as_array("i", columns.leader_epochs),
    }
    return write_rows(_LEAD + mark + bytes(ROW_BYTES - 4), count, places)[1:]


def commit_rows(
    mark: bytes,
    partitions: Sequence[int],
    offsets: Sequence[int],
    leader_epochs: Sequence[int],
    timestamp_ms: int,
    log_offset: int,
) -> bytes:
    """The rows of one commit, whose log offsets follow each other from this one on; keys in their order."""
    count = len(partitions)
    if count < FEW_ROWS * 2:
        timestamp_ms = _within_48_bits(timestamp_ms)
        high, low = timestamp_ms >> 16, (timestamp_ms & 0xFFFF) << 48 | log_offset & MAX_48_BITS
        each = zip(partitions, offsets, leader_epochs, range(low, low + count), strict=True)
        return joined(
            [mark + _BEHIND_MARK.pack(partition, offset, epoch, high, at) for partition, offset, epoch, at in each]
        )
    low = log_offset & 0xFFFF
    until = len(_numbers()) - low
    if count > until:  # the upper 32 bits of the log offset change here
        return joined(
            commit_rows(mark, partitions[part], offsets[part], leader_epochs[part], timestamp_ms, at)
            for part, at in ((slice(until), log_offset), (slice(until, count), log_offset + until))
        )
    places = {
        4: as_array("i", partitions),
        8: as_array("q", offsets),
        16: as_array("i", leader_epochs),
        30: _numbers()[low : low + count],
    }
    return write_rows(_LEAD + row_of(mark, 0, 0, 0, timestamp_ms, log_offset), count, places)[1:]


@cache
def _numbers() -> array[int]:
    return array("H", range(1 << 16))


def fetched_in(rows: bytes) -> tuple[array[int], array[int]]:
    """Offsets and leader epochs."""
    raw = _LEAD + rows
    return _native(array("q", raw)[1::4]), _native(array("i", raw)[4::8])


def partitions_in(rows: bytes) -> array[int]:
    return _native(array("i", _LEAD + rows)[1::8])


def timestamps_in(rows: bytes) -> array[int]:
    return _read_48_bits(rows, 18)


def columns_in(rows: bytes) -> Columns:
    offsets, leader_epochs = fetched_in(rows)
    return Columns(partitions_in(rows), offsets, timestamps_in(rows), leader_epochs, _read_48_bits(rows, 24))


def _within_48_bits(number: int) -> int:
    return min(max(number, 0), MAX_48_BITS)


def _native(column: array[int]) -> array[int]:
    if _IS_LITTLE:
        column.byteswap()
    return column


def _read_48_bits(rows: bytes, at: int) -> array[int]:
    """The column whose 64 bits begin at `at`, without the upper 16, which are another one's."""
    raw = bytearray(_LEAD + rows)
    count = len(raw) // ROW_BYTES
    raw[at::ROW_BYTES] = raw[at + 1 :: ROW_BYTES] = bytes(count)
    return read_column(bytes(raw), at, ROW_BYTES, count, "q")
