"""A log over several starts, each a leader epoch, with a crash at any operation: no batch is found whose epoch is not
known, and each epoch ends where it did."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import product
from typing import TYPE_CHECKING

import pytest

from keylane.errors import DataFolderError, PeerError
from keylane.storage.compacting import Compactor
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import create_log, recover_log
from keylane.wire.batches import NewRecord, batches, encode_batch, read_header
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem

if TYPE_CHECKING:
    from kit.filesystem import Content, Names

FOLDER = "/log"
OPTIONS = LogOptions(segment_bytes=300, index_interval_bytes=128)
LARGER = LogOptions(segment_bytes=1_000, index_interval_bytes=128)
"""Segments with batches of several epochs."""
STATES: list[tuple[Names, Content]] = list(product(("lost", "kept"), ("lost", "kept", "torn")))
STARTS, BATCHES = 4, 3
EPOCH_AT = 12


async def append(log: PartitionLog, epochs: dict[int, int]) -> None:
    data = encode_batch([NewRecord(b"key", b"x" * 40)] * 2, timestamp_ms=1_000)
    appended = log.append(data, read_header(data), now_ms=0)
    assert appended.durable is not None
    await appended.durable
    epochs[appended.base_offset] = log.leader_epoch


def reopened(filesystem: SimulatedFileSystem, epoch: int, options: LogOptions = OPTIONS) -> PartitionLog:
    log = recover_log(filesystem, FOLDER, options, InlineExecutor(), 0)
    log.begin_epoch(max(epoch, log.leader_epoch + 1))
    return log


async def work(filesystem: SimulatedFileSystem, epochs: dict[int, int], options: LogOptions = OPTIONS) -> None:
    """Epochs 10, 20, …; of each batch that was acknowledged its own."""
    log = create_log(filesystem, FOLDER, options, InlineExecutor(), 10)
    filesystem.sync_dir("/")
    for start in range(STARTS):
        if start:
            log = reopened(filesystem, 10 * (start + 1), options)
        for _ in range(BATCHES):
            await append(log, epochs)
        await log.close()


def found(log: PartitionLog) -> dict[int, int]:
    shown = {}
    offset = log.log_start_offset
    while offset < log.high_watermark:
        for _, header in batches(log.read(log.locate(offset), 1_000_000, at_least_one=True)):
            shown[header.base_offset] = header.leader_epoch
            offset = header.next_offset
    return shown


def test_no_crash_leaves_a_batch_of_an_epoch_that_is_not_known() -> None:
    whole = SimulatedFileSystem()
    asyncio.run(work(whole, {}))
    for operation in range(1, whole.operations + 1):
        disk, acknowledged = SimulatedFileSystem(), dict[int, int]()
        disk.crash_at(operation)
        with contextlib.suppress(PeerError, SimulatedCrashError):
            asyncio.run(work(disk, acknowledged))
        if not acknowledged:
            continue
        for names, content in STATES:
            log = reopened(disk.after_crash(names=names, content=content), 1_000)
            shown = found(log)
            assert acknowledged.items() <= shown.items(), disk.history[-1]
            for epoch in set(shown.values()):
                last = max(offset for offset, one in shown.items() if one == epoch)
                assert log.end_of_epoch(epoch) == (epoch, last + 2), disk.history[-1]


def test_an_epoch_that_was_altered_is_damage() -> None:
    disk = SimulatedFileSystem()
    asyncio.run(work(disk, {}))
    path = f"{FOLDER}/{disk.listdir(FOLDER)[0]}"
    data = bytearray(disk.read(path))
    data[EPOCH_AT + 3] ^= 1
    file = disk.open_append(path)
    file.truncate(0)
    file.write(bytes(data))
    file.sync()
    with pytest.raises(DataFolderError, match="a batch of leader epoch 11 where epoch 10 goes on"):
        recover_log(disk, FOLDER, OPTIONS, InlineExecutor(), 0)


def test_epochs_end_where_they_did_once_their_records_are_compacted() -> None:
    async def scenario() -> None:
        disk = SimulatedFileSystem()
        await work(disk, {}, LARGER)
        log = reopened(disk, 1_000, LARGER)
        before = [log.end_of_epoch(10 * (start + 1)) for start in range(STARTS)]
        for _ in range(7):
            await append(log, {})
        batches_before = len(found(log))
        assert await Compactor(disk, InlineExecutor()).compact(log, 0, 0.0, 0)
        assert len(found(log)) < batches_before
        await log.close()
        again = reopened(disk, 2_000, LARGER)
        assert [again.end_of_epoch(10 * (start + 1)) for start in range(STARTS)] == before

    asyncio.run(scenario())
