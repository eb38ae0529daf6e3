"""One file of a partition's log, and the sparse index that finds an offset or a timestamp in it.

A segment is a plain sequence of record batches. The index has one entry about every 4 KiB: where a batch starts, its
base offset, and the latest timestamp of all batches before it. A look-up takes the nearest entry and walks headers from
there. The index lives in memory only; recovery builds it, or, after a clean shutdown, the first reader.

What builds the index checks every batch. So a segment that has one is sound, but for the damage that the index notes:
that is never served, and what lies before and behind it is.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from keylane.storage.epochs import EpochHistory
from keylane.storage.filesystem import StorageError
from keylane.storage.recovery import Damage, DamagedBatchError, scan_around_damage, sound_batches
from keylane.telling import logger_of
from keylane.wire.batches import HEADER_SIZE, BatchError, BatchHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    from keylane.storage.filesystem import AppendFile, FileSystem

SUFFIX = ".log"
NAME_DIGITS = 20
"""A segment is named by its base offset, as Apache Kafka's are."""
NO_TIMESTAMP = -(2**63)

logger = logger_of("keylane.storage")


def segment_name(base_offset: int) -> str:
    return f"{base_offset:0{NAME_DIGITS}d}{SUFFIX}"


class Index:
    """Where batches start, about every `interval` bytes."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.positions = array("q")
        self.offsets = array("q")
        self.latest = array("q")
        """Latest timestamp of all batches before the entry."""
        self.damage: list[Damage] = []
        """What does not hold, in order. It has an entry, and so has what follows it: no look-up walks over it."""

        self._latest = NO_TIMESTAMP
        self._is_behind_damage = False

    def note(self, position: int, base_offset: int, max_timestamp: int) -> None:
        """Enter the next batch, which starts at `position`, unless the last entry is near."""
        if self._is_behind_damage or not self.positions or position - self.positions[-1] >= self.interval:
            self._enter(position, base_offset)
            self._is_behind_damage = False
        if max_timestamp > self._latest:
            self._latest = max_timestamp

    def note_damage(self, damage: Damage) -> None:
        """Enter what does not hold and comes next."""
        self._enter(damage.position, damage.first_offset)
        self._is_behind_damage = True
        self.damage.append(damage)

    def _enter(self, position: int, base_offset: int) -> None:
        self.positions.append(position)
        self.offsets.append(base_offset)
        self.latest.append(self._latest)


class Segment:
    """A segment file. `size` counts what is synced or about to be; readers stay below what the log says is synced."""

    def __init__(self, path: str, base_offset: int, start: int, index_interval: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.start = start
        """Bytes of the log before this segment, counted from the first one that is left."""
        self.size = 0
        self.epochs = EpochHistory()
        """The leader epochs of its log."""
        self._index_interval = index_interval
        self.index: Index | None = Index(index_interval)
        """None while what was found at a clean start has not been checked."""
        self.unchecked = 0
        """Bytes that were found at a clean start and have not been checked since."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_position = 0
        """Where the (first) batch with the latest timestamp starts."""
        self.first_timestamp = NO_TIMESTAMP
        """Latest timestamp in the first batch: the segment's age is counted from it."""
        self._file: AppendFile | None = None
        self._scans = 0
        self._is_retired = False

    @property
    def end(self) -> int:
        return self.start + self.size

    def open(self, filesystem: FileSystem) -> AppendFile:
        """The file, opened once. Raises `StorageError` when the segment is no longer part of the log."""
        if self._file is None:
            if self._is_retired:
                raise StorageError(f"{self.path}: the segment was removed")
            self._file = filesystem.open_append(self.path)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def retire(self) -> None:
        """The segment leaves the log: its file is closed, once nothing scans it, and never opened again (opening would
        make it anew)."""
        self._is_retired = True
        if not self._scans:
            self.close()

    async def prepare(self, filesystem: FileSystem, executor: Executor) -> None:
        """Check the segment and make the index, if there is none; damage is logged, once. Raises `StorageError` when
        the segment is removed, and `OSError`."""
        if self.index is not None:
            return
        index = Index(self._index_interval)
        size = self.size
        self._scans += 1
        try:
            await asyncio.get_running_loop().run_in_executor(executor, self._check, filesystem, index, size)
            if self.index is None:
                self._enter_appended(filesystem, index, size)
                self.index, self.unchecked = index, 0
                for damage in index.damage:
                    logger.error("%s", damage.describe(self.path))
        finally:
            self._scans -= 1
            if self._is_retired:
                self.retire()

    def found(self, size: int, max_timestamp: int, max_timestamp_position: int, first_timestamp: int) -> None:
        """Take over what a clean stop says of the file; its batches are checked before they are served."""
        self.size = self.unchecked = size
        if size:
            self.index = None
        self.max_timestamp = max_timestamp
        self.max_timestamp_position = max_timestamp_position
        self.first_timestamp = first_timestamp

    def note(self, position: int, base_offset: int, max_timestamp: int, length: int) -> None:
        """Enter a batch of `length` bytes that is durable, in order; the segment ends behind it."""
        self.size = position + length
        if self.index is not None:
            self.index.note(position, base_offset, max_timestamp)
        if position == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_position = position

    def _check(self, filesystem: FileSystem, index: Index, end: int) -> None:
        """Enter the batches up to `end`, and what is no batch (blocking)."""

        def on_batch(header: BatchHeader, position: int) -> None:
            index.note(position, header.base_offset, header.max_timestamp)

        scan_around_damage(self.open(filesystem), self.base_offset, end, self.epochs, on_batch, index.note_damage)

    def _enter_appended(self, filesystem: FileSystem, index: Index, start: int) -> None:
        """Enter what was appended since the check began. Raises `StorageError`."""
        if start == self.size:
            return
        file = self.open(filesystem)
        first = self._header(file.read(start, HEADER_SIZE), 0, start)
        for position, header, _ in sound_batches(file, start, first.base_offset, self.size, self.epochs):
            index.note(position, header.base_offset, header.max_timestamp)

    def sound_end(self, position: int) -> int:
        """Up to where what begins at `position` can be served. Raises `DamagedBatchError` for what cannot."""
        assert position >= self.unchecked, (self.path, position, self.unchecked)
        for damage in self._damage:
            if position < damage.position:
                return damage.position
            if position < damage.end:
                raise DamagedBatchError(damage.describe(self.path))
        return self.size

    @property
    def _damage(self) -> Sequence[Damage]:
        return () if self.index is None else self.index.damage

    def find_offset(self, filesystem: FileSystem, offset: int) -> int:
        """Position of the batch that holds `offset`, or of the one after it."""
        assert self.index is not None
        entry = max(bisect_right(self.index.offsets, offset) - 1, 0)
        return self._walk(filesystem, entry, lambda header: header.next_offset > offset)

    def find_timestamp(self, filesystem: FileSystem, timestamp_ms: int) -> int:
        """Position of the first batch with a record of this time or later; `max_timestamp` says that there is one.

        Raises `DamagedBatchError` where that cannot be told.
        """
        assert self.index is not None
        entry = max(bisect_left(self.index.latest, timestamp_ms) - 1, 0)
        position = self._walk(filesystem, entry, lambda header: header.max_timestamp >= timestamp_ms)
        self._refuse_damage_up_to(position)
        return position

    def times(self, filesystem: FileSystem, timestamp_ms: int, start_offset: int) -> Iterator[bytes]:
        """The batches with a record of this time or later, and one at `start_offset` or behind it."""
        assert self.index is not None
        by_time = bisect_left(self.index.latest, timestamp_ms) - 1
        entry = max(bisect_right(self.index.offsets, start_offset) - 1, by_time, 0)
        if not self.index.positions:
            return
        start = self.index.positions[entry]
        self._refuse_damage_up_to(start)
        file, first = self.open(filesystem), self.index.offsets[entry]
        for _, header, batch in sound_batches(file, start, first, self.size, self.epochs):
            if header.max_timestamp >= timestamp_ms and header.next_offset > start_offset:
                yield bytes(batch)

    def _refuse_damage_up_to(self, position: int) -> None:
        """What is damaged may have had the time that was asked for."""
        if self._damage and self._damage[0].position <= position:
            raise DamagedBatchError(self._damage[0].describe(self.path))

    def read_batch(self, filesystem: FileSystem, position: int) -> bytes:
        """The whole batch at `position`. Raises `DamagedBatchError`."""
        self.sound_end(position)
        file = self.open(filesystem)
        header = self._header(file.read(position, HEADER_SIZE), 0, position)
        return file.read(position, header.length)

    def _walk(self, filesystem: FileSystem, entry: int, is_wanted: object) -> int:
        assert self.index is not None
        assert callable(is_wanted)
        if not self.index.positions:
            return 0
        position = self.index.positions[entry]
        # Every batch that has no entry of its own starts less than an interval after the entry before it.
        chunk = self.open(filesystem).read(position, self.index.interval + HEADER_SIZE)
        at = 0
        is_damaged = any(damage.position == position for damage in self._damage)
        while not is_damaged and at + HEADER_SIZE <= len(chunk):
            header = self._header(chunk, at, position + at)
            if is_wanted(header):
                break
            at += header.length
        return position + at

    def _header(self, data: bytes, at: int, position: int) -> BatchHeader:
        try:
            return read_header(data, at)
        except BatchError as error:
            raise StorageError(f"{self.path} at byte {position}: {error}") from error
