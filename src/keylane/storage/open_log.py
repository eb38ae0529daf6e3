"""Three ways to open a partition's log: a new one, one after a crash, and one after a clean stop. All of them block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.errors import DataFolderError
from keylane.storage.compaction import CLEANED_SUFFIX
from keylane.storage.epochs import EpochHistory
from keylane.storage.facts import FACTS_FILE, LogFacts
from keylane.storage.findings import Finding
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.partition_transactions import Ended, PartitionTransactions
from keylane.storage.producers import Producers
from keylane.storage.recovery import check_segments, recover_batches
from keylane.storage.segment import NAME_DIGITS, SUFFIX, Segment, segment_name
from keylane.wire.control import is_commit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from keylane.storage.filesystem import FileSystem
    from keylane.wire.batches import BatchHeader


WAY_OUT = "restore it from a copy, or let `keylane broker repair` go on with what is there"


def create_log(
    filesystem: FileSystem, folder: str, options: LogOptions, executor: Executor, leader_epoch: int = 0
) -> PartitionLog:
    """A new, empty log in a new folder, durable but for the folder's own name (the caller syncs its parent)."""
    log = make_log(filesystem, folder, options, executor, leader_epoch)
    sync_logs(filesystem, [folder])
    return log


def sync_logs(filesystem: FileSystem, folders: Sequence[str]) -> None:
    """Make new logs durable, but for their folders' own names."""
    filesystem.sync_all([f"{folder}/{FACTS_FILE}" for folder in folders], folders)


def make_log(
    filesystem: FileSystem, folder: str, options: LogOptions, executor: Executor, leader_epoch: int
) -> PartitionLog:
    """A new, empty log in a new folder. The caller syncs it."""
    filesystem.mkdir(folder)
    segment = Segment(f"{folder}/{segment_name(0)}", 0, 0, options.index_interval_bytes)
    segment.open(filesystem)
    segment.close()
    facts = LogFacts(filesystem, folder, epochs=EpochHistory(((leader_epoch, 0),)))
    facts.make()
    return PartitionLog(
        filesystem,
        folder,
        options,
        executor,
        segments=[segment],
        facts=facts,
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
    names = segment_names(filesystem, folder)
    facts = LogFacts.read(filesystem, folder)
    missing = _missing(folder, names, facts)
    if missing is not None:
        raise DataFolderError(f"{missing.path}: missing: {missing.reason}; {WAY_OUT}")
    for name in filesystem.listdir(folder):
        if name.endswith(CLEANED_SUFFIX):
            filesystem.remove(f"{folder}/{name}")
    producers = Producers()
    transactions = PartitionTransactions()
    segments: list[Segment] = []
    next_offset = start = 0
    for number, name in enumerate(names):
        base_offset = base_of(name)
        if segments and base_offset < next_offset:  # compaction wrote it into the one before, and then a crash came
            filesystem.remove(f"{folder}/{name}")
            continue
        if segments and base_offset != next_offset:
            raise DataFolderError(
                f"{folder}/{name}: the segment starts at offset {base_offset}, and the one before it ends at "
                f"{next_offset}: records are missing; {WAY_OUT}"
            )
        segment = Segment(f"{folder}/{name}", base_offset, start, options.index_interval_bytes)
        file = segment.open(filesystem)

        def on_batch(header: BatchHeader, position: int, segment: Segment = segment) -> None:
            segment.note(position, header.base_offset, header.max_timestamp, header.length)
            if header.is_control:
                batch = segment.open(filesystem).read(position, header.length)
                _replay_marker(header, batch, producers, transactions, now_ms)
            elif header.producer_id >= 0 and producers.record(header, header.base_offset, now_ms):
                transactions.begin(header.base_offset, segment.start + position)

        is_last = number == len(names) - 1
        try:
            next_offset = recover_batches(file, base_offset, facts.epochs, is_last=is_last, on_batch=on_batch)
            start += segment.size
            if is_last:
                file.sync()  # readers will see these batches, so they must not be lost again
        finally:
            segment.close()
        segments.append(segment)
    filesystem.sync_dir(folder)
    if facts.start > next_offset:
        raise DataFolderError(
            f"{folder}: the log starts at offset {facts.start}, and it ends at {next_offset}: records are missing; "
            f"{WAY_OUT}"
        )
    transactions.forget_before(facts.start)
    return PartitionLog(
        filesystem,
        folder,
        options,
        executor,
        segments=segments,
        facts=facts,
        producers=producers,
        transactions=transactions,
        next_offset=next_offset,
    )


def _missing(folder: str, names: list[str], facts: LogFacts) -> Finding | None:
    """The first or the last segment, when it is not there."""
    first, last = base_of(names[0]), base_of(names[-1])
    if first > facts.start:
        reason = f"the segment with offset {facts.start}, where the log starts; the first one there is {names[0]}"
        return Finding(folder, "missing", reason=reason)
    if last < facts.last:
        reason = f"the segment was begun, and the last one there is {names[-1]}"
        return Finding(f"{folder}/{segment_name(facts.last)}", "missing", reason=reason)
    return None


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
    """A log after a clean shutdown, from its snapshot; None when the files are not as the snapshot says. Blocks.

    Raises `DataFolderError` when one of them is shorter than it says.
    """
    facts = LogFacts.read(filesystem, folder)
    if segment_names(filesystem, folder) != [segment_name(base_offset) for base_offset, *_ in snapshot["segments"]]:
        return None
    if "clean_offset" not in snapshot:  # an older keylane left it
        return None
    segments = []
    for base_offset, start, size, max_timestamp, max_timestamp_position, first_timestamp in snapshot["segments"]:
        segment = Segment(f"{folder}/{segment_name(base_offset)}", base_offset, start, options.index_interval_bytes)
        found = filesystem.size_of(segment.path)
        if found < size:
            raise DataFolderError(f"{segment.path} has {found} bytes, and had {size} at the last clean stop; {WAY_OUT}")
        if found > size:
            return None
        segment.found(size, max_timestamp, max_timestamp_position, first_timestamp)
        segments.append(segment)
    return PartitionLog(
        filesystem,
        folder,
        options,
        executor,
        segments=segments,
        facts=facts,
        producers=Producers.restore(snapshot["producers"]),
        transactions=PartitionTransactions.restore(snapshot["transactions"]),
        next_offset=snapshot["next_offset"],
        clean_offset=snapshot["clean_offset"],
    )


def check_log(filesystem: FileSystem, folder: str, *, has_facts: bool) -> list[Finding]:
    """What the files of a partition hold; changes nothing. `has_facts` is False in a folder of format 1. Blocks."""
    path = f"{folder}/{FACTS_FILE}"
    try:
        names = segment_names(filesystem, folder)
    except DataFolderError as error:
        return [Finding(folder, "missing", reason=str(error))]
    paths = [(f"{folder}/{name}", base_of(name)) for name in names]
    if not has_facts:
        return check_segments(filesystem, paths, None)[0]
    try:
        facts = LogFacts.read(filesystem, folder)
    except DataFolderError as error:
        found, _ = check_segments(filesystem, paths, None)
        if not filesystem.exists(path):
            return [*found, Finding(path, "missing", reason="it says which segments there must be")]
        return [*found, Finding(path, "damaged", len(filesystem.read(path)), 0, str(error))]
    found, end = check_segments(filesystem, paths, facts.epochs)
    size = len(filesystem.read(path))
    missing = _missing(folder, names, facts)
    if missing is not None:
        found.append(missing)
    if facts.start > end:
        reason = f"the log starts at offset {facts.start}, and what is sound of it ends at {end}"
        return [*found, Finding(path, "behind", size, 0, reason)]
    return [*found, Finding(path, "sound", size, size)]


def base_of(name: str) -> int:
    """The offset that a segment is named by."""
    return int(name.removesuffix(SUFFIX))


def segment_names(filesystem: FileSystem, folder: str) -> list[str]:
    """The files of a partition's segments, in order. Raises `DataFolderError`."""
    try:
        found = filesystem.listdir(folder)
    except FileNotFoundError as error:
        text = f"{folder} is missing, and the topic registry lists it: restore the folder from a copy"
        raise DataFolderError(text) from error
    names = [name for name in found if name.endswith(SUFFIX)]
    for name in names:
        digits = name.removesuffix(SUFFIX)
        if len(digits) != NAME_DIGITS or not digits.isdigit():
            raise DataFolderError(f"{folder}/{name}: not a segment's name; move the file elsewhere")
    if not names:
        raise DataFolderError(f"{folder} holds no segment: restore the folder from a copy")
    return names
