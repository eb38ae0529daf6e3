"""What a segment file holds: its sound batches, a torn tail that is cut, or damage that is refused.

Only what was not acknowledged may be torn: the last write before a crash. So a log is cut only at the end of its last
segment, when no sound batch follows and what is there is what a crash leaves: the file ends inside the batch, or all
that lies in some sector was lost. Anything else was acknowledged once; cutting there would lose records in silence, so
the data folder is refused with file and position (docs/adr/0080).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from keylane.errors import DataFolderError
from keylane.storage.epochs import EpochHistory
from keylane.storage.filesystem import SECTOR_BYTES, StorageError
from keylane.storage.findings import Finding
from keylane.telling import logger_of
from keylane.wire.batches import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAGIC_OFFSET,
    PREFIX_SIZE,
    BatchError,
    BatchHeader,
    check_crc,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keylane.storage.filesystem import AppendFile, FileSystem

logger = logger_of("keylane.storage")

WINDOW_BYTES = 4 * 1024 * 1024
"""How much recovery reads at once (more for a batch that is larger)."""
LEAST_LOST_BYTES = 16
"""What lies of a batch in one sector counts as lost when it is all zeros, and so long: sound batches end in a zero or
two, and their base offsets begin with them."""
_OFFSET = struct.Struct(">q")


class DamagedBatchError(StorageError):
    """What was to be read does not hold; the text names file, position and offsets."""


class UnsoundBatchError(BatchError):
    """What is at a position of a segment is not the batch that follows there."""

    def __init__(self, path: str, position: int, expected: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.position = position
        self.expected = expected
        """The offset that is due there."""
        self.reason = reason


class Damage(NamedTuple):
    """Bytes of a segment that do not hold, between sound batches."""

    position: int
    end: int
    first_offset: int
    next_offset: int | None
    """Where sound batches go on; None at the segment's end."""
    reason: str

    def describe(self, path: str) -> str:
        if self.next_offset is None:
            what, way_out = f"from offset {self.first_offset} to the segment's end", "behind it"
        else:
            what, way_out = f"offsets {self.first_offset} to {self.next_offset - 1}", f"at offset {self.next_offset}"
        return (
            f"{path} at byte {self.position}: {self.reason}: {what}, records are damaged and are not served; restore "
            f"the file from a copy, or let consumers go on {way_out}"
        )


def recover_batches(
    file: AppendFile,
    base_offset: int,
    epochs: EpochHistory,
    *,
    is_last: bool,
    on_batch: Callable[[BatchHeader, int], None],
) -> int:
    """Read a whole segment, checking every batch; returns the offset after its last one.

    `on_batch(header, position)` gets each sound batch. A torn tail of the last segment is cut off, durably. Raises
    `DataFolderError` for damage that is not a torn tail.
    """
    scanned = scan_batches(file, base_offset, epochs, on_batch)
    if scanned.problem is not None:
        _cut(file, scanned.position, scanned.next_offset, epochs, scanned.problem, is_last=is_last)
    return scanned.next_offset


class Scanned(NamedTuple):
    """How far a segment is sound."""

    position: int
    next_offset: int
    problem: str | None
    """What is wrong there; None at the end of the file."""


def scan_batches(
    file: AppendFile, base_offset: int, epochs: EpochHistory | None, on_batch: Callable[[BatchHeader, int], None]
) -> Scanned:
    """Check every batch up to the first that does not hold; changes nothing."""
    expected = base_offset
    try:
        for position, header, _ in sound_batches(file, 0, base_offset, file.size, epochs):
            on_batch(header, position)
            expected = header.next_offset
    except UnsoundBatchError as error:
        return Scanned(error.position, error.expected, error.reason)
    return Scanned(file.size, expected, None)


def scan_around_damage(
    file: AppendFile,
    base_offset: int,
    end: int,
    epochs: EpochHistory,
    on_batch: Callable[[BatchHeader, int], None],
    on_damage: Callable[[Damage], None],
) -> None:
    """Check every batch up to byte `end`: what is sound, and what lies between, is told in its order."""
    position, expected = 0, base_offset
    while True:
        try:
            for at, header, _ in sound_batches(file, position, expected, end, epochs):
                on_batch(header, at)
        except UnsoundBatchError as error:
            follower = _follower(file, error.position, error.expected, end, epochs)
            if follower is None:
                on_damage(Damage(error.position, end, error.expected, None, error.reason))
                return
            position = follower
            expected = read_header(file.read(follower, HEADER_SIZE)).base_offset
            on_damage(Damage(error.position, position, error.expected, expected, error.reason))
        else:
            return


def sound_batches(
    file: AppendFile, position: int, expected: int, end: int, epochs: EpochHistory | None
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of each batch up to byte `end`, checked in every way that does not unpack its records:
    everything that reads a segment's batches reads them here, or after this. The first has the offset `expected`.
    Without `epochs`, when nothing says which they are, leader epochs only have to rise.

    Raises `UnsoundBatchError`.
    """
    window = _Window(file, end)
    epoch = 0
    while position < end:
        try:
            header, at = _sound_header(window, position, expected)
            epoch = _check_epoch(header, epochs, epoch)
        except BatchError as error:
            raise UnsoundBatchError(file.path, position, expected, str(error)) from error
        yield position, header, memoryview(window.data)[at : at + header.length]
        expected = header.next_offset
        position += header.length


def check_segments(
    filesystem: FileSystem, paths: Sequence[tuple[str, int]], epochs: EpochHistory | None
) -> tuple[list[Finding], int]:
    """What the segments of a partition hold, by path and base offset, in order, and the offset behind what is sound;
    changes nothing."""
    findings: list[Finding] = []
    expected = paths[0][1] if paths else 0
    is_broken = False
    for number, (path, base_offset) in enumerate(paths):
        file = filesystem.open_append(path)
        try:
            scanned = scan_batches(file, base_offset, epochs, lambda _header, _position: None)
            size, position, problem = file.size, scanned.position, scanned.problem
            if not is_broken and base_offset < expected and findings:
                findings.append(Finding(path, "leftover", size, 0, "compaction wrote it into the segment before it"))
                continue
            if is_broken or base_offset != expected:
                is_broken = True
                findings.append(
                    Finding(path, "behind", size, 0, f"it starts at offset {base_offset}, {expected} is due")
                )
            elif problem is None:
                findings.append(Finding(path, "sound", size, position))
                expected = scanned.next_offset
            else:
                is_last = number == len(paths) - 1
                is_torn = is_last and is_torn_tail(file, position, scanned.next_offset, epochs)
                findings.append(Finding(path, "torn" if is_torn else "damaged", size, position, problem))
                is_broken = True
                expected = scanned.next_offset
        finally:
            file.close()
    return findings, expected


def epochs_in(filesystem: FileSystem, paths: Sequence[tuple[str, int]]) -> EpochHistory:
    """What the sound batches of a partition's segments say of leader epochs, when nothing else does."""
    found: list[tuple[int, int]] = []

    def on_batch(header: BatchHeader, _position: int) -> None:
        if not found or header.leader_epoch > found[-1][0]:
            found.append((header.leader_epoch, header.base_offset))

    for path, base_offset in paths:
        file = filesystem.open_append(path)
        try:
            scan_batches(file, base_offset, None, on_batch)
        finally:
            file.close()
    return EpochHistory(tuple(found)) if found else EpochHistory()


class _Window:
    """A piece of the file in memory, moved forward as it is asked for."""

    def __init__(self, file: AppendFile, end: int) -> None:
        self.size = end
        self.data = b""
        self._file = file
        self._start = 0

    def seek(self, position: int, needed: int) -> int:
        """Where `position` is in `data`, which then holds `needed` bytes from there, or all up to the end."""
        at = position - self._start
        if at + needed > len(self.data) and self._start + len(self.data) < self.size:
            self.data = self._file.read(position, min(max(needed, WINDOW_BYTES), self.size - position))
            self._start, at = position, 0
        return at


def _sound_header(window: _Window, position: int, expected: int) -> tuple[BatchHeader, int]:
    """The header of the batch at `position`, and where the batch is in the window."""
    at = window.seek(position, HEADER_SIZE)
    header = read_header(window.data, at)
    if header.base_offset != expected:
        raise BatchError(f"a batch of offset {header.base_offset} where offset {expected} follows")
    if header.last_offset_delta < 0:
        raise BatchError(f"a batch that ends before it starts (last offset delta {header.last_offset_delta})")
    if position + header.length > window.size:
        raise BatchError(f"a batch of {header.length} bytes where {window.size - position} are left")
    at = window.seek(position, header.length)
    if not check_crc(window.data, at, header):
        raise BatchError("a batch whose checksum does not hold")
    return header, at


def _check_epoch(header: BatchHeader, epochs: EpochHistory | None, before: int) -> int:
    """The batch's leader epoch, which its checksum does not cover. Raises `BatchError` for one that is not due."""
    found = header.leader_epoch
    if epochs is None and found < before:
        raise BatchError(f"a batch of leader epoch {found} behind one of {before}")
    if epochs is not None and found != (due := epochs.epoch_at(header.base_offset)):
        raise BatchError(f"a batch of leader epoch {found} where epoch {due} goes on")
    return found


def _cut(
    file: AppendFile, position: int, expected: int, epochs: EpochHistory | None, problem: str, *, is_last: bool
) -> None:
    where = f"{file.path} at byte {position}"
    if not is_last:
        raise DataFolderError(
            f"{where}: {problem}, and later segments follow: records that were acknowledged are damaged; "
            "restore the file from a copy"
        )
    follower = find_sound_batch(file, position + 1, expected, epochs)
    if follower is not None:
        raise DataFolderError(
            f"{where}: {problem}, and a sound batch follows at byte {follower}: records that were acknowledged are "
            f"damaged; restore the file from a copy, or cut it to {position} bytes to go on without what follows"
        )
    if not is_torn_tail(file, position, expected, epochs):
        raise DataFolderError(
            f"{where}: {problem}, and no crash explains it: records that were acknowledged are damaged; restore the "
            f"file from a copy, or cut it to {position} bytes to go on without them"
        )
    logger.warning("%s: %s; cutting off the torn tail of %d bytes", where, problem, file.size - position)
    file.truncate(position)
    file.sync()


def is_torn_tail(file: AppendFile, position: int, expected: int, epochs: EpochHistory | None) -> bool:
    """Whether what is behind `position`, where nothing holds, is what a crash leaves of a last write."""
    left = file.size - position
    if left < HEADER_SIZE:
        return True
    if find_sound_batch(file, position + 1, expected, epochs) is not None:
        return False
    tail = file.read(position, left)
    fields = HEADER.unpack_from(tail)
    base_offset, length, magic = fields[0], fields[1] + PREFIX_SIZE, fields[3]
    if _has_sound_checksum(tail, length, expected):
        return False  # it is whole: what the checksum leaves out was altered
    is_header = base_offset == expected and magic == MAGIC and length >= HEADER_SIZE
    if is_header and length > left:
        return True
    return _has_lost_sector(tail, position, length if is_header else left)


def _has_sound_checksum(tail: bytes, length: int, expected: int) -> bool:
    """Whether a batch whose checksum holds begins here, whatever its header says of its offset and its length: then it
    ends where the next one's offset stands (or the beginning of that), or the file ends."""
    fields = HEADER.unpack_from(tail)
    crc, last_offset_delta = fields[4], fields[6]
    if HEADER_SIZE <= length <= len(tail) and crc32c(tail[CRC_START:length]) == crc:
        return True
    next_offset = expected + last_offset_delta + 1
    if last_offset_delta < 0 or next_offset >= 2**63:
        return False
    follower = _OFFSET.pack(next_offset)
    checked, sum_so_far = CRC_START, 0
    end = tail.find(follower, HEADER_SIZE)
    while end >= 0:
        sum_so_far = crc32c(tail[checked:end], sum_so_far)
        if sum_so_far == crc:
            return True
        checked, end = end, tail.find(follower, end + 1)
    for end in range(max(checked, HEADER_SIZE, len(tail) - _OFFSET.size + 1), len(tail) + 1):
        sum_so_far, checked = crc32c(tail[checked:end], sum_so_far), end
        if sum_so_far == crc and follower.startswith(tail[end:]):
            return True
    return False


def _has_lost_sector(tail: bytes, position: int, length: int) -> bool:
    start = 0
    while start < length:
        stop = min(length, start + SECTOR_BYTES - (position + start) % SECTOR_BYTES)
        if stop - start >= LEAST_LOST_BYTES and not any(tail[start:stop]):
            return True
        start = stop
    return False


def _follower(file: AppendFile, position: int, expected: int, end: int, epochs: EpochHistory) -> int | None:
    """Where the next sound batch starts behind one that does not hold, or None. First where that one says it ends:
    bytes of a record may look like a batch, too."""
    head = file.read(position, HEADER_SIZE)
    if len(head) == HEADER_SIZE:
        claimed: int = position + HEADER.unpack_from(head)[1] + PREFIX_SIZE
        if position < claimed < end:
            head = file.read(claimed, HEADER_SIZE)
            if _is_sound(file, head, 0, claimed, expected + 1, epochs):
                return claimed
    found = find_sound_batch(file, position + 1, expected + 1, epochs)
    return found if found is not None and found < end else None


def find_sound_batch(file: AppendFile, position: int, expected: int, epochs: EpochHistory | None) -> int | None:
    """Where the first sound batch with an offset of at least `expected` starts at or after `position`, or None."""
    size = file.size
    while size - position >= HEADER_SIZE:
        window = file.read(position, WINDOW_BYTES)
        magic_at = window.find(MAGIC, MAGIC_OFFSET)
        while magic_at >= 0:
            at = magic_at - MAGIC_OFFSET
            if _is_sound(file, window, at, position + at, expected, epochs):
                return position + at
            magic_at = window.find(MAGIC, magic_at + 1)
        if position + len(window) >= size:
            return None
        position += len(window) - HEADER_SIZE + 1
    return None


def _is_sound(
    file: AppendFile, window: bytes, at: int, position: int, expected: int, epochs: EpochHistory | None
) -> bool:
    if at + HEADER_SIZE > len(window):
        return False
    try:
        header = read_header(window, at)
        _check_epoch(header, epochs, 0)
    except BatchError:
        return False
    if header.base_offset < expected or position + header.length > file.size:
        return False
    return check_crc(file.read(position, header.length), 0, header)
