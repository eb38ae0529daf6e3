"""A fetch's read of a log whose segments change between its look-up and its read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keylane.broker.reads import FetchedPartition, LogRead, Wanted
from keylane.storage.compacting import Compactor
from keylane.storage.filesystem import OsFileSystem
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import create_log
from keylane.wire import codes
from keylane.wire.batches import NewRecord, encode_batch, read_header
from kit.executor import InlineExecutor

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 30


async def filled(tmp_path: Path) -> PartitionLog:
    options = LogOptions(segment_bytes=400, index_interval_bytes=128)
    log = create_log(OsFileSystem(), str(tmp_path / "log"), options, InlineExecutor())
    for number in range(COUNT):
        data = encode_batch([NewRecord(b"key-%d" % (number % 2), b"x" * 40)], timestamp_ms=1_000 + number)
        appended = log.append(data, read_header(data), 0)
        assert appended.durable is not None
        await appended.durable
    return log


async def read(located: LogRead) -> FetchedPartition:
    answer = located.read(1_000, at_least_one=True)
    return answer if isinstance(answer, FetchedPartition) else await answer


async def located(log: PartitionLog, offset: int) -> LogRead:
    found = LogRead(log, 0, Wanted(offset, 1_000), committed_only=False)
    if (preparing := found.locate()) is not None:
        await preparing
    assert found.code == codes.NONE
    return found


def test_what_retention_took_meanwhile_is_out_of_range(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        gone, there = await located(log, 2), await located(log, COUNT - 1)
        await log.delete_before(COUNT - 1)
        assert (await read(gone)).error_code == codes.OFFSET_OUT_OF_RANGE
        found = await read(there)
        assert (found.error_code, found.log_start_offset) == (codes.NONE, COUNT - 1)
        assert read_header(found.records).base_offset == COUNT - 1
        await log.close()

    asyncio.run(scenario())


def test_what_compaction_wrote_anew_is_found_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        reads = [await located(log, offset) for offset in range(COUNT)]
        assert await Compactor(OsFileSystem(), InlineExecutor()).compact(log, 0, 0.0, 1_000)
        for offset, one in enumerate(reads):
            header = read_header((await read(one)).records)
            assert header.base_offset <= offset < header.next_offset
        await log.close()

    asyncio.run(scenario())
