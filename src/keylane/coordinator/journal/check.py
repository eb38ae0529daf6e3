"""The coordinator's folder, checked without changing it; and a snapshot made of what holds in a damaged one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from keylane.coordinator.formats import RecordFormatError, journal_partitions, partition_for
from keylane.coordinator.journal import snapshot_format
from keylane.coordinator.journal.batch_replay import Replayer
from keylane.coordinator.journal.headers import HEADER_SIZE, JournalDamagedError, partitions_of
from keylane.coordinator.journal.image import Image
from keylane.coordinator.journal.segments import (
    MANIFEST,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    SegmentReader,
    find_files,
    read_manifest,
    segment_path,
    snapshot_path,
)
from keylane.coordinator.journal.snapshots import Snapshots
from keylane.errors import DataFolderError
from keylane.storage.findings import Finding

if TYPE_CHECKING:
    from keylane.storage.filesystem import FileSystem


def check_journal(filesystem: FileSystem, folder: str) -> list[Finding]:
    """Every file in the folder. Blocks."""
    partitions = _partitions(filesystem, folder)
    last, manifest = _check_manifest(filesystem, folder)
    try:
        files = find_files(filesystem, folder, last)
    except JournalDamagedError as error:
        missing = Finding(error.path, "missing", reason=error.reason)
        return [missing, *_after_gap(filesystem, folder, error.path), *manifest]
    checker = _Checker(filesystem, folder, partitions)
    if files.snapshot is not None:
        checker.check_snapshot(files.snapshot)
    for number in files.segments:
        checker.check_segment(number, is_last=number == files.segments[-1])
    leftovers = [Finding(path, "leftover", len(filesystem.read(path))) for path in files.leftovers]
    return [*checker.findings, *leftovers, *manifest]


def _check_manifest(filesystem: FileSystem, folder: str) -> tuple[int, list[Finding]]:
    """The number of the segment that must be there, where that can be told."""
    path = f"{folder}/{MANIFEST}"
    if not filesystem.exists(path):  # of format 1, or missed by the folder's check
        return 0, []
    size = len(filesystem.read(path))
    try:
        return read_manifest(filesystem, folder), [Finding(path, "sound", size, size)]
    except DataFolderError as error:
        return 0, [Finding(path, "damaged", size, 0, str(error))]


def salvage_snapshot(filesystem: FileSystem, folder: str, number: int) -> int:
    """Replace a damaged snapshot by one of the chunks in it that hold; returns how many did not. Blocks."""
    partitions = _partitions(filesystem, folder)
    image = Image()
    damaged: list[DataFolderError] = []
    ends: list[int] = []
    file = filesystem.open_append(snapshot_path(folder, number))
    try:
        for chunk in snapshot_format.read_chunks(file, number=number, partitions=partitions, skip=damaged.append):
            try:
                if chunk.kind == snapshot_format.ENDS:
                    ends = snapshot_format.decode_ends(chunk)
                elif chunk.kind != snapshot_format.END:
                    snapshot_format.load_chunk(chunk, image)
            except JournalDamagedError as error:
                damaged.append(error)
    except DataFolderError as error:  # behind it nothing can be read
        damaged.append(error)
    finally:
        file.close()
    ends = _mended_ends(filesystem, folder, number, partitions, ends or _least_ends(image, partitions))
    with ThreadPoolExecutor(1) as executor:
        snapshots = Snapshots(filesystem, folder, executor, partitions=partitions, image=image)
        asyncio.run(snapshots.write(number, ends))
        snapshots.close()
    return len(damaged)


def _least_ends(image: Image, partitions: int) -> list[int]:
    """Behind the last record that is left of each offsets partition, and of the transactions' states."""
    ends = dict.fromkeys(journal_partitions(partitions), 0)
    for (partition, _), kept in image.kept.items():
        ends[partition] = max(ends[partition], kept.offset + 1)
    for group in image.store.groups:
        partition = partition_for(group, partitions)
        last = max(max(columns.log_offsets) for _, (columns, _) in image.store.topics_of(group))
        ends[partition] = max(ends[partition], last + 1)
    return [*ends.values()]


def _mended_ends(filesystem: FileSystem, folder: str, number: int, partitions: int, ends: list[int]) -> list[int]:
    """Where the frames of the segment behind the snapshot go on, where there are any: what a start will ask for."""
    first: dict[int, int] = {}
    path = segment_path(folder, number)
    with contextlib.suppress(DataFolderError):
        reader = SegmentReader(filesystem.read(path), path, number=number, partitions=partitions, may_be_torn=True)
        for _, partition, base_offset, _, _ in reader:
            first.setdefault(partition, base_offset)
    pairs = itertools.zip_longest(journal_partitions(partitions), ends, fillvalue=0)
    return [first.get(partition, end) for partition, end in pairs]


class _Checker:
    """Loads everything as a start does, into an image that nobody uses."""

    def __init__(self, filesystem: FileSystem, folder: str, partitions: int) -> None:
        self.findings: list[Finding] = []
        self._filesystem = filesystem
        self._folder = folder
        self._partitions = partitions
        self._image = Image()
        self._replayer = Replayer(self._image)
        self._ends = dict.fromkeys(journal_partitions(partitions), 0)
        self._knows_ends = True
        self._is_broken = False

    def check_snapshot(self, number: int) -> None:
        file = self._filesystem.open_append(snapshot_path(self._folder, number))
        try:
            for chunk in snapshot_format.read_chunks(file, number=number, partitions=self._partitions):
                if chunk.kind == snapshot_format.ENDS:
                    self._ends |= zip(self._ends, snapshot_format.decode_ends(chunk), strict=False)
                elif chunk.kind != snapshot_format.END:
                    snapshot_format.load_chunk(chunk, self._image)
            self.findings.append(Finding(file.path, "sound", file.size, file.size))
        except JournalDamagedError as error:
            self.findings.append(Finding(file.path, "damaged", file.size, error.position, error.reason))
            self._knows_ends = False
        except DataFolderError as error:
            self.findings.append(Finding(file.path, "damaged", file.size, 0, str(error)))
            self._knows_ends = False
        finally:
            file.close()

    def check_segment(self, number: int, *, is_last: bool) -> None:
        path = segment_path(self._folder, number)
        data = self._filesystem.read(path)
        if self._is_broken:
            self.findings.append(Finding(path, "behind", len(data), 0, "an earlier segment is damaged"))
            return
        try:
            reader = SegmentReader(data, path, number=number, partitions=self._partitions, may_be_torn=is_last)
            for position, partition, base_offset, last_offset_delta, batch in reader:
                self._check_frame(path, position, partition, base_offset)
                self._ends[partition] = base_offset + last_offset_delta + 1
                self._replay(path, position, partition, batch)
        except JournalDamagedError as error:
            self._is_broken = True
            self.findings.append(Finding(path, "damaged", len(data), error.position, error.reason))
            return
        reason = "unacknowledged bytes that a crash left" if reader.is_torn else ""
        self.findings.append(Finding(path, "torn" if reader.is_torn else "sound", len(data), reader.end, reason))

    def _check_frame(self, path: str, position: int, partition: int, base_offset: int) -> None:
        if partition not in self._ends:
            raise JournalDamagedError(path, position, f"a frame of offsets partition {partition}")
        if self._knows_ends and base_offset != self._ends[partition]:
            raise JournalDamagedError(path, position, f"offset {base_offset}, where {self._ends[partition]} is due")

    def _replay(self, path: str, position: int, partition: int, batch: bytes) -> None:
        try:
            self._replayer.replay(partition, batch)
        except RecordFormatError as error:
            raise JournalDamagedError(path, position, str(error)) from error


def _partitions(filesystem: FileSystem, folder: str) -> int:
    """By the header of the first segment that has a sound one; 1 when none has."""
    for name in filesystem.listdir(folder):
        if name.endswith(SEGMENT_SUFFIX):
            found = partitions_of(filesystem.read(f"{folder}/{name}")[:HEADER_SIZE])
            if found is not None:
                return found
    return 1


def _after_gap(filesystem: FileSystem, folder: str, missing: str) -> list[Finding]:
    """All segments that need the missing file: the ones behind a segment, and behind a snapshot also its own."""
    first = missing.removesuffix(SNAPSHOT_SUFFIX)
    later = [f"{folder}/{name}" for name in filesystem.listdir(folder) if name.endswith(SEGMENT_SUFFIX)]
    reason = f"{missing} is missing"
    return [Finding(path, "behind", len(filesystem.read(path)), 0, reason) for path in later if path > first]
