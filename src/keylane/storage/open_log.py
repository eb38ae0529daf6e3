"""Three ways to open a partition's log: a new one, one after a crash, and one after a clean stop. All of them block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.errors import DataFolderError
from keylane.storage.compaction import CLEANED_SUFFIX
from keylane.storage.findings import Finding
from keylane.storage.log import START_FILE, START_KIND, LogOptions, PartitionLog
from keylane.storage.producers import Producers
from keylane.storage.recovery import check_segments, recover_batches
from keylane.storage.sealed import read_sealed
from keylane.storage.segment import NAME_DIGITS, SUFFIX, Segment, segment_name
from keylane.storage.transactions import Ended, PartitionTransactions
from keylane.wire.control import is_commit

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from keylane.storage.filesystem import FileSystem
    from keylane.wire.batches import BatchHeader


def create_log(filesystem: FileSystem, folder: str, options: LogOptions, executor: Executor) -> PartitionLog:
    """A new, empty log in a new folder, durable but for the folder's own name (the caller syncs its parent)."""
    filesystem.mkdir(folder)
    segment = Segment(f"{folder}/{segment_name(0)}", 0, 0, options.index_interval_bytes)
    segment.open(filesystem)
    segment.close()
    filesystem.sync_dir(folder)
    return PartitionLog(
        filesystem,
        folder,
        options,
        executor,
        segments=[segment],
        producers=Producers(),
        transactions=PartitionTransactions(),
        next_offset=0,
    )


def recover_log(
    filesystem: FileSystem, folder: str, options: LogOptions, executor: Executor, now_ms: int
) -> PartitionLog:
    """Read a log after a crash: check every batch, cut a torn tail, sync what is left, and rebuild what is known of
    batches, producers and transactions.

    Raises `DataFolderError` for damage. Blocks.
    """
    names = _segment_names(filesystem, folder)
    for name in filesystem.listdir(folder):
        if name.endswith(CLEANED_SUFFIX):
            filesystem.remove(f"{folder}/{name}")
    producers = Producers()
    transactions = PartitionTransactions()
    segments: list[Segment] = []
    next_offset = start = 0
    for number, name in enumerate(names):
        base_offset = int(name.removesuffix(SUFFIX))
        if segments and base_offset < next_offset:  # compaction wrote it into the one before, and then a crash came
            filesystem.remove(f"{folder}/{name}")
            continue
        if segments and base_offset != next_offset:
            raise DataFolderError(
                f"{folder}/{name}: the segment starts at offset {base_offset}, and the one before it ends at "
                f"{next_offset}: records are missing; restore the folder from a copy"
            )
        segment = Segment(f"{folder}/{name}", base_offset, start, options.index_interval_bytes)
        file = segment.open(filesystem)

        def on_batch(header: BatchHeader, position: int, segment: Segment = segment) -> None:
            segment.note(position, header.base_offset, header.max_timestamp)
            if header.is_control:
                batch = segment.open(filesystem).read(position, header.length)
                _replay_marker(header, batch, producers, transactions, now_ms)
            elif header.producer_id >= 0 and producers.record(header, header.base_offset, now_ms):
                transactions.begin(header.base_offset, segment.start + position)

        is_last = number == len(names) - 1
        next_offset = recover_batches(file, base_offset, is_last=is_last, on_batch=on_batch)
        segment.size = file.size
        start += segment.size
        if is_last:
            file.sync()  # readers will see these batches, so they must not be lost again
        segment.close()
        segments.append(segment)
    filesystem.sync_dir(folder)
    start_offset = _read_start(filesystem, folder, next_offset)
    transactions.forget_before(start_offset)
    return PartitionLog(
        filesystem,
        folder,
        options,
        executor,
        segments=segments,
        producers=producers,
        transactions=transactions,
        next_offset=next_offset,
        start_offset=start_offset,
    )


def _read_start(filesystem: FileSystem, folder: str, next_offset: int) -> int:
    """Where records were deleted up to, or 0."""
    path = f"{folder}/{START_FILE}"
    if not filesystem.exists(path):
        return 0
    start_offset: int = read_sealed(filesystem, path, START_KIND)
    if start_offset > next_offset:
        raise DataFolderError(
            f"{folder}: records were deleted up to offset {start_offset}, and the log ends at {next_offset}: records "
            "are missing; restore the folder from a copy"
        )
    return start_offset


def _replay_marker(
    header: BatchHeader, batch: bytes, producers: Producers, transactions: PartitionTransactions, now_ms: int
) -> None:
    committed = is_commit(batch)
    if committed is None:
        return
    start = producers.end_transaction(header, now_ms)
    if start is not None:
        transactions.end(Ended(header.producer_id, start, header.base_offset, not committed))


def restore_log(
    filesystem: FileSystem, folder: str, options: LogOptions, executor: Executor, snapshot: dict[str, Any]
) -> PartitionLog | None:
    """A log after a clean shutdown, from its snapshot; None when the files are not as the snapshot says. Blocks."""
    if _segment_names(filesystem, folder) != [segment_name(base_offset) for base_offset, *_ in snapshot["segments"]]:
        return None
    if "start_offset" not in snapshot:  # an older keylane left it
        return None
    segments = []
    for base_offset, start, size, max_timestamp, max_timestamp_position, first_timestamp in snapshot["segments"]:
        segment = Segment(f"{folder}/{segment_name(base_offset)}", base_offset, start, options.index_interval_bytes)
        found = segment.open(filesystem).size
        segment.close()
        if found != size:
            return None
        segment.size = size
        if size:
            segment.index = None
        segment.max_timestamp = max_timestamp
        segment.max_timestamp_position = max_timestamp_position
        segment.first_timestamp = first_timestamp
        segments.append(segment)
    return PartitionLog(
        filesystem,
        folder,
        options,
        executor,
        segments=segments,
        producers=Producers.restore(snapshot["producers"]),
        transactions=PartitionTransactions.restore(snapshot["transactions"]),
        next_offset=snapshot["next_offset"],
        start_offset=snapshot["start_offset"],
        clean_offset=snapshot["clean_offset"],
    )


def check_log(filesystem: FileSystem, folder: str) -> list[Finding]:
    """What the segments of a partition hold; changes nothing. Blocks."""
    try:
        names = _segment_names(filesystem, folder)
    except DataFolderError as error:
        return [Finding(folder, "missing", reason=str(error))]
    paths = [(f"{folder}/{name}", int(name.removesuffix(SUFFIX))) for name in names]
    found, end = check_segments(filesystem, paths)
    return [*found, *_check_start(filesystem, f"{folder}/{START_FILE}", end)]


def _check_start(filesystem: FileSystem, path: str, end: int) -> list[Finding]:
    """Whether records were deleted up to an offset that the sound part of the log has."""
    if not filesystem.exists(path):
        return []
    size = len(filesystem.read(path))
    try:
        start_offset = read_sealed(filesystem, path, START_KIND)
    except DataFolderError as error:
        return [Finding(path, "damaged", size, 0, str(error))]
    if start_offset > end:
        reason = f"records were deleted up to offset {start_offset}, and what is sound of the log ends at {end}"
        return [Finding(path, "behind", size, 0, reason)]
    return [Finding(path, "sound", size, size)]


def _segment_names(filesystem: FileSystem, folder: str) -> list[str]:
    if not filesystem.exists(folder):
        raise DataFolderError(f"{folder} is missing, and the topic registry lists it: restore the folder from a copy")
    names = [name for name in filesystem.listdir(folder) if name.endswith(SUFFIX)]
    for name in names:
        digits = name.removesuffix(SUFFIX)
        if len(digits) != NAME_DIGITS or not digits.isdigit():
            raise DataFolderError(f"{folder}/{name}: not a segment's name; move the file elsewhere")
    if not names:
        raise DataFolderError(f"{folder} holds no segment: restore the folder from a copy")
    return names
