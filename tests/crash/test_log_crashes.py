"""A partition's log after a crash at any operation, and after an error at any operation.

The oracle is what the producer was told: a batch whose append was acknowledged is there afterwards, byte for byte, at
its offset; what is there is a prefix of what was appended; nobody read more than what a restart finds.
"""

from __future__ import annotations

import asyncio
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
OPTIONS = LogOptions(segment_bytes=700, index_interval_bytes=128)
STATES: list[tuple[Names, Content, float]] = [
    *product(("lost", "kept"), ("lost", "kept", "zeroed"), (0.0,)),  # type: ignore[list-item]
    *product(("lost", "kept"), ("torn",), (0.01, 0.3, 0.6, 0.99)),  # type: ignore[list-item]
]


def batch(number: int, *, producer_id: int = -1, sequence: int = -1) -> bytes:
    records = [NewRecord(b"key-%d" % number, b"x" * (17 * (number % 7))) for _ in range(1 + number % 3)]
    epoch = 0 if producer_id >= 0 else -1
    return encode_batch(
        records, timestamp_ms=1_000 + number, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


@dataclass
class Told:
    """What the producer and a reader were told."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """Base offset -> batch as it was sent."""
    appended: list[bytes] = field(default_factory=list)
    read_up_to: int = 0
    errors: int = 0
    is_made: bool = False
    """Before that the registry's file says that the topic is being made, and a start removes it."""


async def produce(filesystem: SimulatedFileSystem, told: Told) -> None:
    """Twelve batches in rounds of one, two and three, over several segments; every other one idempotent."""
    log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
    filesystem.sync_dir("/")
    told.is_made = True
    number = sequence = 0
    for size in (1, 2, 3, 1, 2, 3):
        rounds = []
        for _ in range(size):
            idempotent = number % 2 == 0
            data = batch(number, producer_id=7 if idempotent else -1, sequence=sequence if idempotent else -1)
            header = read_header(data)
            if idempotent:
                sequence += header.record_count
            number += 1
            try:
                rounds.append((log.append(data, header, now_ms=0), data))
            except PeerError:
                told.errors += 1
                continue
            told.appended.append(data)
        for appended, data in rounds:
            assert appended.durable is not None
            try:
                await appended.durable
            except PeerError:
                told.errors += 1
                continue
            told.acknowledged[appended.base_offset] = data
        told.read_up_to = max(told.read_up_to, log.high_watermark)
    await log.close()


def run(filesystem: SimulatedFileSystem) -> Told:
    told = Told()
    try:
        asyncio.run(produce(filesystem, told))
    except (SimulatedCrashError, OSError):
        told.errors += 1
    return told


def content(log: PartitionLog) -> list[bytes]:
    """All visible batches, with base offset and leader epoch as produced."""
    found = []
    position = 0
    while data := log.read(position, 10_000, at_least_one=True):
        position += len(data)
        for at, header in batches(data):
            sent = bytearray(data[at : at + header.length])
            sent[:8] = bytes(8)
            found.append(bytes(sent))
    return found


async def check_restart(filesystem: SimulatedFileSystem, told: Told) -> None:
    if not told.is_made:
        assert not told.acknowledged
        return
    log = recover_log(filesystem, FOLDER, OPTIONS, InlineExecutor(), 0)
    found = content(log)
    assert found == told.appended[: len(found)], "what is found is a prefix of what was appended"
    offset = 0
    offsets = {}
    for data in found:
        offsets[offset] = data
        offset += read_header(data).record_count
    assert log.high_watermark == log.next_offset == offset
    assert told.acknowledged.items() <= offsets.items()
    assert told.read_up_to <= log.high_watermark, "a reader saw what a crash could take away"
    await check_producer(log, found)
    await log.close()


async def check_producer(log: PartitionLog, found: list[bytes]) -> None:
    """The log goes on: the last idempotent batch is known as a repeat, and a new one is taken."""
    mine = [data for data in found if read_header(data).producer_id == 7]
    if mine:
        before = log.next_offset
        repeated = log.append(mine[-1], read_header(mine[-1]), 0)
        assert repeated.durable is None
        assert repeated.base_offset < before == log.next_offset
    data = batch(99)
    appended = log.append(data, read_header(data), 0)
    assert appended.durable is not None
    await appended.durable
    assert content(log) == [*found, data]


def operations() -> int:
    filesystem = SimulatedFileSystem()
    told = run(filesystem)
    assert told.errors == 0
    assert len(told.acknowledged) == 12
    return filesystem.operations


def test_the_scenario_rolls_segments() -> None:
    filesystem = SimulatedFileSystem()
    run(filesystem)
    assert len(filesystem.listdir(FOLDER)) >= 3


@pytest.mark.parametrize(("names", "content_state", "share"), STATES)
def test_a_crash_at_any_operation_loses_nothing_acknowledged(
    names: Names, content_state: Content, share: float
) -> None:
    for operation in range(1, operations() + 1):
        filesystem = SimulatedFileSystem()
        filesystem.crash_at(operation)
        told = run(filesystem)
        found = filesystem.after_crash(names=names, content=content_state, torn_share=share)
        asyncio.run(check_restart(found, told))


def test_what_a_restart_after_a_kill_shows_survives_a_crash_right_after() -> None:
    """The killed process left bytes that were never synced: the restart must not show what it has not synced itself."""
    for operation in range(1, operations() + 1):
        filesystem = SimulatedFileSystem()
        filesystem.crash_at(operation)
        told = run(filesystem)
        killed = filesystem.after_kill()
        if not told.is_made:
            continue
        killed.sync_dir("/")
        shown = content(recover_log(killed, FOLDER, OPTIONS, InlineExecutor(), 0))
        found = content(recover_log(killed.after_crash(), FOLDER, OPTIONS, InlineExecutor(), 0))
        assert found == shown, f"operation {operation}"


def test_an_error_at_any_operation_is_never_acknowledged() -> None:
    for operation in range(1, operations() + 1):
        filesystem = SimulatedFileSystem()
        filesystem.fail_at(operation)
        told = run(filesystem)
        assert told.errors, f"operation {operation} failed, and nobody was told"
        for names, content_state, share in STATES:
            found = filesystem.after_crash(names=names, content=content_state, torn_share=share)
            asyncio.run(check_restart(found, told))


def test_after_an_error_the_log_refuses_everything() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
        data = batch(1)
        filesystem.fail_at(filesystem.operations + 2)  # the sync
        first = log.append(data, read_header(data), 0)
        assert first.durable is not None
        with pytest.raises(PeerError, match="input/output error"):
            await first.durable
        with pytest.raises(PeerError, match="nothing more is written"):
            log.append(data, read_header(data), 0)
        assert log.high_watermark == 0
        assert log.read(0, 1_000, at_least_one=True) == b""

    asyncio.run(scenario())
