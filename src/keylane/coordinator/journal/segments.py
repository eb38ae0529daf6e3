"""The journal's segments: their bytes, where in them a partition's batches stand, and their files.

A segment is a 36-byte header, frames, and in the last one a reserve behind them, which is `FILL` to its end. A frame is
a head, one Kafka record batch in exactly the bytes that a reader of its offsets partition sees, and a mark:

    mark u8 | crc32c u32 | batch length u32 | offsets partition i32 | round u32 | record batch v2 | mark u8

The round is the bytes between the first frame that was written with this one and this one: all before was synced when
it was written. The frame's checksum covers all of its head behind it, and the batch's first 21 bytes, which end with
the batch's own checksum; that covers the rest. So every byte is covered, and none twice. docs/offset-store.md has the
layout in full.

A tail is *torn* when it is what a crash leaves of a round that was never acknowledged. A disk writes a sector whole or
not at all, and sectors in any order; where one was not written there is still the reserve, or zeros where there was
nothing. So of a torn frame all that is in some sector is `FILL` or zeros, or all from some byte on is missing; and
nothing of a later round is there. Its marks are neither, so that no end of a sound frame looks lost. Anything else that
does not hold is *damage*. ADR 77.

The journal is one file for all partitions of `__consumer_offsets`. A `View` knows a place from which on a partition's
batches are found: a sparse index, since what lies between two entries is short enough to be read through.

The files of a journal are its segments, of which the last one grows, and the snapshot that the first one follows.

    0000000007.snapshot   the image of everything before segment 7
    0000000007.journal    segments, without a gap
    0000000008.journal
    journal.json          the last one that there must be

Without a snapshot the first segment is 1. Files before the last snapshot are what a crash left between writing it and
removing them; `*.tmp` is a snapshot that was never finished. Both mean nothing and are removed by a start.

Thread safety: the executor's thread; `numbers` and `files` are changed by nobody else.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from keylane.coordinator.journal.headers import HEADER_SIZE as SEGMENT_HEADER_SIZE
from keylane.coordinator.journal.headers import (
    SEGMENT,
    JournalDamagedError,
    check_header,
    encode_header,
    partitions_of,
)
from keylane.storage.filesystem import FILL, SECTOR_BYTES, TEMPORARY_SUFFIX, DiskFullError
from keylane.storage.sealed import read_sealed, seal, write_sealed
from keylane.telling import logger_of
from keylane.wire.batches import CRC_START, HEADER_SIZE, MAGIC, PREFIX_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.storage.filesystem import AppendFile, FileSystem

logger = logger_of("keylane.coordinator")

MARK = b"\x1a"
"""How a frame begins and ends: far from `FILL` and from zero, so that no flipped bit makes one of the other."""
MARK_BYTE = MARK[0]
_FRAME_HEAD = struct.Struct(">BIIiI")
FRAME_HEAD_SIZE = _FRAME_HEAD.size
COVERED_FROM = 5
"""The frame's checksum covers what is behind it."""
_COVERED = struct.Struct(">IiI")
CHECKED_SIZE = FRAME_HEAD_SIZE + CRC_START
"""The frame's checksum covers what is before, the batch's what is behind."""
_HEADS = struct.Struct(">BIIiIqi4xBI2xi")
"""A frame's head, and of its batch: base offset, length, magic, checksum, last offset delta."""
_HEADS_SIZE = _HEADS.size
_CRC = struct.Struct(">I")

_CHUNK_BYTES = 64 * 1024
_NOT_WRITTEN = (FILL[0], 0)
"""What stands for a mark in a sector of its own that was lost. If all checksums hold, the frame is whole nonetheless,
and never cut off: it may have been acknowledged, and its mark altered since."""


Frame = tuple[int, int, int, int, bytes]
"""Position, offsets partition, base offset, last offset delta, batch: a plain tuple, since a start reads millions."""


def encode_frame(partition: int, round_bytes: int, head: bytes, rest: bytes) -> bytes:
    """`head` is the batch's first 21 bytes, `rest` all others; `round_bytes` are before it in its round."""
    assert len(head) == CRC_START
    covered = _COVERED.pack(CRC_START + len(rest), partition, round_bytes) + head
    return b"".join((MARK, _CRC.pack(crc32c(covered)), covered, rest, MARK))


def frame_size(batch_size: int) -> int:
    """Bytes of the frame around a batch."""
    return FRAME_HEAD_SIZE + batch_size + len(MARK)


def batch_in(frame: bytes) -> bytes:
    return frame[FRAME_HEAD_SIZE : -len(MARK)]


def read_frame_head(data: bytes, position: int) -> tuple[int, int]:
    """Batch length and offsets partition of a frame that was checked before."""
    _, _, length, partition, _ = _FRAME_HEAD.unpack_from(data, position)
    return length, partition


def holds(head: bytes, batch: bytes) -> bool:
    """Whether the checksums of a frame hold."""
    crc: int = _CRC.unpack_from(head, len(MARK))[0]
    batch_crc: int = _CRC.unpack_from(batch, CRC_START - _CRC.size)[0]
    return crc32c(batch[:CRC_START], crc32c(head[COVERED_FROM:])) == crc and crc32c(batch[CRC_START:]) == batch_crc


class SegmentReader:
    """Reads one segment from memory. `may_be_torn` is true for the last one: only there a crash can cut a write short.

    Iterating yields the frames in order, from `end` on, and moves it; then `end` is where sound content ends, and
    `is_torn` whether a tail of `torn_bytes` follows. A reserve is no tail.
    Raises `JournalDamagedError`.
    """

    def __init__(self, data: bytes, path: str, *, number: int, partitions: int, may_be_torn: bool) -> None:
        self.data = data
        self.path = path
        self.end = 0
        self.is_torn = False
        self._content = _Content(data) if may_be_torn else None
        self._check_header(number, partitions)

    @property
    def torn_bytes(self) -> int:
        return self._content.end - self.end if self._content is not None and self.is_torn else 0

    def _check_header(self, number: int, partitions: int) -> None:
        content, head = self._content, self.data[:SEGMENT_HEADER_SIZE]
        # Nothing is written behind a header before it is durable.
        if (
            content is not None
            and content.end < SEGMENT_HEADER_SIZE
            and partitions_of(head) is None
            and _agree(head[: content.end], SEGMENT.magic)
        ):
            self.is_torn = True
            return
        check_header(head, self.path, SEGMENT, number=number, partitions=partitions)
        self.end = SEGMENT_HEADER_SIZE

    def __iter__(self) -> Iterator[Frame]:
        data = self.data
        size = len(data)
        last = size if self._content is None else self._content.end
        unpack = _HEADS.unpack_from
        marks = (MARK_BYTE,) if self._content is None else (MARK_BYTE, *_NOT_WRITTEN)
        position = self.end
        while not self.is_torn and position < last:
            if size - position < _HEADS_SIZE:
                self._stop(position, position + _HEADS_SIZE, f"{size - position} bytes are no frame")
                return
            mark, crc, length, partition, _, base_offset, batch_length, magic, batch_crc, delta = unpack(data, position)
            start = position + FRAME_HEAD_SIZE
            checked = position + CHECKED_SIZE
            if mark not in marks or crc32c(data[position + COVERED_FROM : checked]) != crc:
                self._stop(position, checked, "the checksum of a frame does not hold")
                return
            if length < HEADER_SIZE or batch_length + PREFIX_SIZE != length or magic != MAGIC:
                raise JournalDamagedError(self.path, position, f"a frame of {length} bytes that holds no such batch")
            end = start + length
            if end >= size:
                self._stop(position, end + 1, f"a frame of {length} bytes, and {size - start} are left")
                return
            if data[end] not in marks or crc32c(data[checked:end]) != batch_crc:
                self._stop(position, end + 1, "the checksum of a record batch does not hold")
                return
            self.end = end + 1
            yield position, partition, base_offset, delta, data[start:end]
            position = end + 1

    def _stop(self, position: int, end: int, reason: str) -> None:
        """The frame from `position` to `end` (as far as it is known) does not hold: a torn tail, or damage."""
        content = self._content
        if content is None or not (
            content.end < end or (content.has_lost_sector(position, end) and not content.has_later_round(position))
        ):
            raise JournalDamagedError(self.path, position, reason)
        self.is_torn = True


def _agree(one: bytes, other: bytes) -> bool:
    return one.startswith(other) or other.startswith(one)


class _Content:
    """What is in a segment that may have a reserve: where it ends, and what of it was lost."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.end = _end_without(data, FILL + b"\0")

    def has_lost_sector(self, position: int, end: int) -> bool:
        """Whether of the bytes from `position` to `end` all that are in some sector were lost."""
        start = position
        while start < end:
            stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if self._data[start:stop] in (FILL * (stop - start), bytes(stop - start)):
                return True
            start = stop
        return False

    def has_later_round(self, position: int) -> bool:
        """Whether behind `position` there is the head of a frame whose round began behind it: it was written when what
        is at `position` was durable."""
        data = self._data
        at = data.find(MARK, position + 1, self.end)
        while at >= 0:
            if at + CHECKED_SIZE <= self.end:
                _, crc, _, _, round_bytes = _FRAME_HEAD.unpack_from(data, at)
                if at - round_bytes > position and crc32c(data[at + COVERED_FROM : at + CHECKED_SIZE]) == crc:
                    return True
            at = data.find(MARK, at + 1, self.end)
        return False


def _end_without(data: bytes, padding: bytes) -> int:
    """Where `data` ends when the padding is left out, without a copy of all."""
    end = len(data)
    while end:
        start = max(end - _CHUNK_BYTES, 0)
        rest = data[start:end].rstrip(padding)
        if rest:
            return start + len(rest)
        end = start
    return 0


# --- where batches stand ---

POSITION_BITS = 40
"""A place is a segment number and, in these low bits, a position in it."""
POSITION_MASK = (1 << POSITION_BITS) - 1
INDEX_INTERVAL_BYTES = 64 * 1024
"""A partition's view has one index entry for at least this much journal: 16 bytes of memory each."""


class View:
    """Where one offsets partition's batches are, and how far they reach."""

    __slots__ = ("appended", "durable", "next_place", "offsets", "places", "tail")

    def __init__(self) -> None:
        self.tail = 0
        """The first offset that stands in a segment; what is below it is seen through the last snapshot."""
        self.appended = 0
        """The next offset to give."""
        self.durable = 0
        """The offset behind the last durable record."""
        self.offsets = array("q")
        self.places = array("q")
        """A sparse index: base offset of a batch, and its frame's place (segment, then position)."""
        self.next_place = 0
        """From where on a frame gets its entry."""

    def append(self, base_offset: int, end: int, place: int) -> None:
        """A batch of the offsets from `base_offset` to before `end`, in the frame at that place."""
        if place >= self.next_place:
            self.offsets.append(base_offset)
            self.places.append(place)
            self.next_place = place + INDEX_INTERVAL_BYTES
        self.appended = end

    def cut(self) -> None:
        """What is not durable was not written."""
        if self.appended == self.durable:
            return
        self.appended = self.durable
        last = bisect_left(self.offsets, self.durable)
        self.offsets, self.places = self.offsets[:last], self.places[:last]
        self.next_place = self.places[-1] + INDEX_INTERVAL_BYTES if self.places else 0

    def begin(self, end: int) -> None:
        """The tail after a snapshot that was loaded."""
        self.tail = self.appended = self.durable = end

    def drop_before(self, end: int, place: int) -> None:
        """A snapshot stands for everything before."""
        self.tail = end
        first = bisect_left(self.places, place)
        # New ones: a read that is under way goes on with the old.
        self.offsets, self.places = self.offsets[first:], self.places[first:]
        if not self.places:
            self.next_place = 0


# --- files ---

MANIFEST = "journal.json"
"""The number of a segment that is there: noted when it is made, before anything in it is acknowledged. 0: none yet."""
MANIFEST_KIND = "journal"
SEGMENT_SUFFIX = ".journal"
SNAPSHOT_SUFFIX = ".snapshot"

LEAST_RESERVE_BYTES = 2_048
SMALL_SHARE = 8
"""A round is small if it takes at most one part in so many of a reserve."""


class Found(NamedTuple):
    """What a start finds."""

    snapshot: int | None
    """The segment that the last snapshot stands before."""
    segments: list[int]
    leftovers: list[str]
    """Paths that mean nothing any more."""


def segment_path(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}{SEGMENT_SUFFIX}"


def snapshot_path(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}{SNAPSHOT_SUFFIX}"


def find_files(filesystem: FileSystem, folder: str, last: int) -> Found:
    """The last snapshot, the segments from there on, and what is left over. `last` must be among the segments.

    Raises `JournalDamagedError` for what is missing.
    """
    names = filesystem.listdir(folder)
    snapshots = _numbers(names, SNAPSHOT_SUFFIX)
    numbers = _numbers(names, SEGMENT_SUFFIX)
    snapshot = snapshots[-1] if snapshots else None
    first = 1 if snapshot is None else snapshot
    segments = [number for number in numbers if number >= first]
    if not segments and snapshot is not None:
        raise JournalDamagedError(segment_path(folder, first), 0, "this segment is missing, and its snapshot is there")
    if snapshot is None and segments and segments[0] > 1:
        missing = snapshot_path(folder, segments[0])
        raise JournalDamagedError(missing, 0, "this snapshot is missing, and the segment behind it is there")
    if last > (segments[-1] if segments else 0):
        raise JournalDamagedError(segment_path(folder, last), 0, "this segment is missing")
    for expected, number in enumerate(segments, first):
        if number != expected:
            raise JournalDamagedError(
                segment_path(folder, expected), 0, f"this segment is missing, and {number} is there"
            )
    leftovers = [segment_path(folder, number) for number in numbers if number < first]
    leftovers += (snapshot_path(folder, number) for number in snapshots[:-1])
    leftovers += (f"{folder}/{name}" for name in names if name.endswith(SNAPSHOT_SUFFIX + TEMPORARY_SUFFIX))
    return Found(snapshot, segments, leftovers)


def read_manifest(filesystem: FileSystem, folder: str) -> int:
    """The number of a segment that must be there; 0 for none, and in a folder that is not a broker's.

    Raises `DataFolderError` for damage.
    """
    path = f"{folder}/{MANIFEST}"
    if not filesystem.exists(path):
        return 0
    last: int = read_sealed(filesystem, path, MANIFEST_KIND)
    return last


def write_manifest(filesystem: FileSystem, folder: str, last: int) -> None:
    """Note that this segment is there; durable on return."""
    write_sealed(filesystem, f"{folder}/{MANIFEST}", MANIFEST_KIND, last)


def encode_manifest(last: int) -> bytes:
    """The file that notes it."""
    return seal(MANIFEST_KIND, b"%d" % last)


def last_segment(filesystem: FileSystem, folder: str) -> int:
    """The last segment that is there; 0 for none."""
    return max(_numbers(filesystem.listdir(folder), SEGMENT_SUFFIX), default=0)


def _numbers(names: list[str], suffix: str) -> list[int]:
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


class Segments:
    """What one round of the group commit writes to and syncs."""

    def __init__(self, filesystem: FileSystem, folder: str, partitions: int, reserve_bytes: int) -> None:
        """The last segment has up to so many bytes of reserve behind its content."""
        self._filesystem = filesystem
        self._folder = folder
        self._partitions = partitions
        self._reserve_bytes = max(reserve_bytes, LEAST_RESERVE_BYTES)
        self._unwritten: list[bytes | bytearray | memoryview] = []
        """What the next sync writes."""
        self._is_sound = True
        """False while it is not known what is on the disk."""
        self._synced = (0, 0)
        """Segment and position behind all that rounds have made durable."""
        self._number = 0
        """The segment that takes the appends."""
        self._begun: int | None = None
        """The one that is being made."""
        self.files: dict[int, AppendFile] = {}
        self._current: AppendFile | None = None

    @property
    def path(self) -> str:
        return self._folder if self._current is None else self._current.path

    def path_of(self, number: int) -> str:
        return segment_path(self._folder, number)

    def read_all(self, number: int) -> bytes:
        return self._filesystem.read(self.path_of(number))

    def open(self, number: int, *, is_last: bool) -> None:
        """Open a segment that was replayed; the last one takes the appends."""
        file = self.files[number] = self._filesystem.open_append(self.path_of(number))
        if is_last:
            self._current, self._number = file, number

    def end_load(self, number: int, size: int) -> None:
        """Cut the old reserve and a torn tail off, so that what is appended next cannot be taken for a part of it; and
        make what is left durable before anyone sees it, since a killed process may not have."""
        file = self.files[number]
        if file.size > size:
            file.truncate(size)
        if size == 0:
            file.write(encode_header(SEGMENT, number, self._partitions))
        file.sync()
        self._synced = (number, file.size)

    def begin(self, number: int) -> None:
        """End the current segment and begin the next one; all before it is durable first, and without a reserve."""
        if self._current is not None:
            self._write()
            self._current.truncate(self._current.size)
            self._current.sync()
            self._is_sound = True
        self._begun = number
        file = self._filesystem.open_append(self.path_of(number))
        try:
            file.write(encode_header(SEGMENT, number, self._partitions))
            file.sync()
            self._filesystem.sync_dir(self._folder)
            write_manifest(self._filesystem, self._folder, number)
        except OSError:
            file.close()
            raise
        if self._current is None:
            self._synced = (number, file.size)
        self.files[number] = self._current = file
        self._number, self._begun = number, None

    def cut(self) -> None:
        """Take back what the round wrote, in every segment that it wrote to; those that it began stay, empty, if they
        were made whole."""
        self._unwritten.clear()
        if self._begun is not None:
            path, self._begun = self.path_of(self._begun), None
            if self._filesystem.exists(path):
                self._filesystem.remove(path)
            self._filesystem.sync_dir(self._folder)
        number, size = self._synced
        for begun in range(self._number, number, -1):  # the newest first: of what is left, none came before another
            self._cut_to(begun, SEGMENT_HEADER_SIZE)
        self._cut_to(number, size)
        self._synced = (self._number, self.files[self._number].size)
        self._is_sound = True

    def _cut_to(self, number: int, size: int) -> None:
        file = self.files[number]
        if file.reserved > size:
            file.truncate(size)
            file.sync()

    @property
    def synced(self) -> tuple[int, int]:
        """Segment and position behind all that is durable. For the loop, while no round is under way."""
        return self._synced

    def drop_before(self, number: int) -> None:
        """Remove the segments that a durable snapshot stands for."""
        for old in [old for old in self.files if old < number]:
            self.files.pop(old).close()
            self._filesystem.remove(self.path_of(old))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._unwritten.append(data)

    def sync(self) -> None:
        assert self._current is not None
        self._write()
        self._current.sync()
        self._is_sound = True
        self._synced = (self._number, self._current.size)

    def _write(self) -> None:
        """A small round goes into the reserve, since a new size takes longer to sync than its content; a large one is
        quicker if it is not written twice.

        A reserve ends with a sector: of one that is lost, all bytes are as they were.
        """
        file, pieces = self._current, self._unwritten
        assert file is not None
        self._is_sound = False
        size = sum(map(len, pieces))
        if file.size + size > file.reserved and size <= self._reserve_bytes // SMALL_SHARE:
            end = file.size + self._reserve_bytes
            with suppress(DiskFullError):  # what room is left is for commits, not for a reserve
                file.reserve(-(-end // SECTOR_BYTES) * SECTOR_BYTES)
        for piece in pieces:
            file.write(piece)
        pieces.clear()

    def close(self) -> None:
        if self._current is not None and self._is_sound:
            try:
                self._current.truncate(self._current.size)
            except OSError as error:
                logger.warning("%s: its reserve stays: %s", self._current.path, error)
        for file in self.files.values():
            file.close()
        self.files.clear()
