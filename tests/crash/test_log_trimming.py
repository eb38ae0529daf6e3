"""A partition's log that records are removed from, after a crash at any operation, and after an error at any operation.

What was deleted and answered stays deleted; what was acknowledged and not deleted is there, byte for byte; offsets have
no gap and never start anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import pytest

from keylane.errors import PeerError
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import create_log, recover_log
from keylane.wire.batches import NewRecord, batches, encode_batch, read_header
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem

if TYPE_CHECKING:
    from kit.filesystem import Content, Names

FOLDER = "/log"
OPTIONS = LogOptions(segment_bytes=300, index_interval_bytes=128)
STATES: list[tuple[Names, Content]] = list(product(("lost", "kept"), ("lost", "kept", "torn")))
APPENDS = 4
"""Batches between two removals."""


@dataclass
class Told:
    """What clients were told, and what they asked for."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    deleted_below: int = 0
    asked_below: int = 0
    seen_start: int = 0
    is_finished: bool = False
    is_made: bool = False
    """Before that the registry's file says that the topic is being made, and a start removes it."""


async def append(log: PartitionLog, told: Told, number: int) -> None:
    data = encode_batch([NewRecord(b"key-%d" % number, b"x" * 40)] * 2, timestamp_ms=1_000 + number)
    appended = log.append(data, read_header(data), now_ms=0)
    assert appended.durable is not None
    await appended.durable
    told.acknowledged[appended.base_offset] = data


async def remove(log: PartitionLog, told: Told, step: int) -> None:
    if step == 1:  # all, by age: the active segment is rolled first
        told.asked_below = log.high_watermark
        await log.remove_expired(10**9, 1_000, -1)
    elif step == 2:
        told.asked_below = max(told.asked_below, log.high_watermark)
        await log.remove_expired(0, -1, 400)
    else:  # inside a segment, and up to the end
        offset = log.high_watermark - (3 if step == 0 else 0)
        told.asked_below = max(told.asked_below, offset)
        await log.delete_before(offset)
        assert log.log_start_offset == offset
        told.deleted_below = offset
    told.seen_start = max(told.seen_start, log.log_start_offset)


async def work(filesystem: SimulatedFileSystem, told: Told) -> None:
    log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
    filesystem.sync_dir("/")
    told.is_made = True
    for step in range(4):
        for number in range(APPENDS):
            await append(log, told, step * APPENDS + number)
        await remove(log, told, step)
    await append(log, told, 99)
    await log.close()
    told.is_finished = True


def attempt(filesystem: SimulatedFileSystem) -> Told:
    told = Told()
    with contextlib.suppress(SimulatedCrashError, PeerError, OSError):
        asyncio.run(work(filesystem, told))
    return told


async def check(filesystem: SimulatedFileSystem, told: Told) -> None:
    if not told.is_made:
        assert not told.acknowledged
        return
    log = recover_log(filesystem, FOLDER, OPTIONS, InlineExecutor(), 0)
    end = max((offset + 2 for offset in told.acknowledged), default=0)
    assert told.deleted_below <= log.log_start_offset <= max(told.asked_below, told.seen_start)
    assert end <= log.high_watermark <= end + 2
    expected = {offset: data for offset, data in told.acknowledged.items() if offset >= log.log_start_offset}
    found = {}
    position = log.locate(log.log_start_offset)
    while data := log.read(position, 100_000, at_least_one=True):
        for at, header in batches(data):
            found[header.base_offset] = bytes(8) + data[at + 8 : at + header.length]
        position += len(data)
    assert expected.items() <= found.items()
    offsets = sorted(found)
    assert offsets == list(range(offsets[0], log.high_watermark, 2)) if offsets else not expected
    await append(log, Told(), 100)
    assert log.high_watermark in (end + 2, end + 4)
    await log.close()


def operations() -> int:
    filesystem = SimulatedFileSystem()
    assert attempt(filesystem).is_finished
    return filesystem.operations


@pytest.mark.parametrize(("names", "content"), STATES)
def test_a_crash_at_any_operation_keeps_what_was_told(names: Names, content: Content) -> None:
    for operation in range(1, operations() + 1):
        filesystem = SimulatedFileSystem()
        filesystem.crash_at(operation)
        told = attempt(filesystem)
        assert not told.is_finished
        asyncio.run(check(filesystem.after_crash(names=names, content=content), told))


def test_an_error_at_any_operation_keeps_what_was_told() -> None:
    for operation in range(1, operations() + 1):
        filesystem = SimulatedFileSystem()
        filesystem.fail_at(operation)
        told = attempt(filesystem)
        for names, content in (STATES[0], STATES[-1]):
            asyncio.run(check(filesystem.after_crash(names=names, content=content), told))


def test_what_could_not_be_removed_is_removed_the_next_time() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
        told = Told()
        for number in range(APPENDS):
            await append(log, told, number)
        filesystem.fail_at(filesystem.operations + 1)
        await log.remove_expired(0, -1, 0 + 130)
        before = [name for name in filesystem.listdir(FOLDER) if name.endswith(".log")]
        assert log.log_start_offset > 0
        await append(log, told, 5)
        await log.remove_expired(0, -1, 130)
        after = [name for name in filesystem.listdir(FOLDER) if name.endswith(".log")]
        assert int(before[0].removesuffix(".log")) == 0
        assert int(after[0].removesuffix(".log")) == log.log_start_offset > 0
        await log.close()

    asyncio.run(scenario())
