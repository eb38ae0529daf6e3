"""What a segment file holds after a crash: its sound batches, a torn tail that is cut, or damage that is refused.

Only what was not acknowledged may be torn: the last write before a crash. So damage is cut off only at the end of a
log's last segment, when no sound batch follows it. Anything else was acknowledged once; cutting there would lose
records in silence, so the data folder is refused with file and position.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import DataFolderError
from keylane.storage.findings import Finding
from keylane.wire.batches import HEADER_SIZE, MAGIC, MAGIC_OFFSET, BatchError, BatchHeader, check_crc, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.storage.filesystem import AppendFile, FileSystem

logger = logging.getLogger("keylane.storage")

WINDOW_BYTES = 4 * 1024 * 1024
"""How much recovery reads at once (more for a batch that is larger)."""


def recover_batches(
    file: AppendFile, base_offset: int, *, is_last: bool, on_batch: Callable[[BatchHeader, int], None]
) -> int:
    """Read a whole segment, checking every batch; returns the offset after its last one.

    `on_batch(header, position)` gets each sound batch. A torn tail of the last segment is cut off, durably. Raises
    `DataFolderError` for damage that is not a torn tail.
    """
    scanned = scan_batches(file, base_offset, on_batch)
    if scanned.problem is not None:
        _cut(file, scanned.position, scanned.next_offset, scanned.problem, is_last=is_last)
    return scanned.next_offset


class Scanned(NamedTuple):
    """How far a segment is sound."""

    position: int
    next_offset: int
    problem: str | None
    """What is wrong there; None at the end of the file."""


def scan_batches(file: AppendFile, base_offset: int, on_batch: Callable[[BatchHeader, int], None]) -> Scanned:
    """Check every batch up to the first that does not hold; changes nothing."""
    window = _Window(file)
    position = 0
    expected = base_offset
    while position < window.size:
        try:
            header = _sound_header(window, position, expected)
        except BatchError as error:
            return Scanned(position, expected, str(error))
        on_batch(header, position)
        expected = header.next_offset
        position += header.length
    return Scanned(position, expected, None)


def check_segments(filesystem: FileSystem, paths: Sequence[tuple[str, int]]) -> tuple[list[Finding], int]:
    """What the segments of a partition hold, by path and base offset, in order, and the offset behind what is sound;
    changes nothing."""
    found: list[Finding] = []
    expected = paths[0][1] if paths else 0
    is_broken = False
    for number, (path, base_offset) in enumerate(paths):
        file = filesystem.open_append(path)
        try:
            scanned = scan_batches(file, base_offset, lambda _header, _position: None)
            size, position, problem = file.size, scanned.position, scanned.problem
            if not is_broken and base_offset < expected and found:
                found.append(Finding(path, "leftover", size, 0, "compaction wrote it into the segment before it"))
                continue
            if is_broken or base_offset != expected:
                is_broken = True
                found.append(Finding(path, "behind", size, 0, f"it starts at offset {base_offset}, {expected} is due"))
            elif problem is None:
                found.append(Finding(path, "sound", size, position))
                expected = scanned.next_offset
            else:
                is_last = number == len(paths) - 1
                is_torn = is_last and find_sound_batch(file, position + 1, scanned.next_offset) is None
                found.append(Finding(path, "torn" if is_torn else "damaged", size, position, problem))
                is_broken = True
                expected = scanned.next_offset
        finally:
            file.close()
    return found, expected


class _Window:
    """A piece of the file in memory, moved forward as it is asked for."""

    def __init__(self, file: AppendFile) -> None:
        self.size = file.size
        self.data = b""
        self._file = file
        self._start = 0

    def seek(self, position: int, needed: int) -> int:
        """Where `position` is in `data`, which then holds `needed` bytes from there, or all up to the end."""
        at = position - self._start
        if at + needed > len(self.data) and self._start + len(self.data) < self.size:
            self.data = self._file.read(position, max(needed, WINDOW_BYTES))
            self._start, at = position, 0
        return at


def _sound_header(window: _Window, position: int, expected: int) -> BatchHeader:
    """The header of the batch at `position`, checked in every way that does not unpack its records."""
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
    return header


def _cut(file: AppendFile, position: int, expected: int, problem: str, *, is_last: bool) -> None:
    where = f"{file.path} at byte {position}"
    if not is_last:
        raise DataFolderError(
            f"{where}: {problem}, and later segments follow: records that were acknowledged are damaged; "
            "restore the file from a copy"
        )
    follower = find_sound_batch(file, position + 1, expected)
    if follower is not None:
        raise DataFolderError(
            f"{where}: {problem}, and a sound batch follows at byte {follower}: records that were acknowledged are "
            f"damaged; restore the file from a copy, or cut it to {position} bytes to go on without what follows"
        )
    logger.warning("%s: %s; cutting off the torn tail of %d bytes", where, problem, file.size - position)
    file.truncate(position)
    file.sync()


def find_sound_batch(file: AppendFile, position: int, expected: int) -> int | None:
    """Where the first sound batch with an offset of at least `expected` starts at or after `position`, or None."""
    size = file.size
    while size - position >= HEADER_SIZE:
        window = file.read(position, WINDOW_BYTES)
        magic_at = window.find(MAGIC, MAGIC_OFFSET)
        while magic_at >= 0:
            at = magic_at - MAGIC_OFFSET
            if _is_sound(file, window, at, position + at, expected):
                return position + at
            magic_at = window.find(MAGIC, magic_at + 1)
        if position + len(window) >= size:
            return None
        position += len(window) - HEADER_SIZE + 1
    return None


def _is_sound(file: AppendFile, window: bytes, at: int, position: int, expected: int) -> bool:
    if at + HEADER_SIZE > len(window):
        return False
    try:
        header = read_header(window, at)
    except BatchError:
        return False
    if header.base_offset < expected or position + header.length > file.size:
        return False
    return check_crc(file.read(position, header.length), 0, header)
