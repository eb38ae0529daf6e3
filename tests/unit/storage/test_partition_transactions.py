"""Undecided and aborted transactions of one partition; and a log with markers, live and after a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import create_log, recover_log, restore_log
from keylane.storage.partition_transactions import Ended, PartitionTransactions
from keylane.storage.producers import ProducerEpochError, TransactionStateError
from keylane.wire.batches import NewRecord, batches, encode_batch, read_header
from keylane.wire.control import encode_marker, is_commit
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

OPTIONS = LogOptions(400, 4_096)
FOLDER = "/t-0"


def test_the_first_undecided_one_holds_the_stable_end() -> None:
    transactions = PartitionTransactions()
    assert PartitionTransactions().first_undecided is None
    transactions.begin(10, 1_000)
    transactions.begin(20, 2_000)
    transactions.end(Ended(7, 20, 30, is_aborted=False))
    assert transactions.first_undecided == (10, 1_000)
    transactions.end(Ended(8, 10, 31, is_aborted=True))
    assert transactions.first_undecided is None


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["write", "commit", "abort"])), max_size=40), st.data())
def test_a_reader_is_told_of_every_aborted_transaction_in_its_range(
    steps: list[tuple[int, str]], data: st.DataObject
) -> None:
    """Against a list of all that was ever aborted; what is given in addition does no harm, but must overlap."""
    transactions = PartitionTransactions()
    opened: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    offset = 0
    for producer, what in steps:
        if what == "write" and producer not in opened:
            opened[producer] = offset
            transactions.begin(offset, offset * 10)
        elif what != "write" and producer in opened:
            first = opened.pop(producer)
            transactions.end(Ended(producer, first, offset, is_aborted=what == "abort"))
            if what == "abort":
                aborted.append((producer, first, offset))
        offset += 1
    stable = min(opened.values(), default=offset)
    assert (transactions.first_undecided or (stable,))[0] == stable
    restored = PartitionTransactions.restore(transactions.snapshot())
    start = data.draw(st.integers(0, stable))
    end = data.draw(st.integers(start, stable))
    expected = [(producer, first) for producer, first, marker in aborted if marker >= start and first < end]
    assert transactions.aborted(start, end) == restored.aborted(start, end) == expected


@pytest.mark.parametrize("committed", [True, False])
def test_markers_say_what_they_are(committed: bool) -> None:
    marker = encode_marker(5, 3, committed=committed, timestamp_ms=99, base_offset=7)
    header = read_header(marker)
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, -1)
    assert (header.base_offset, header.max_timestamp) == (7, 99)
    assert is_commit(marker) is committed


def batch(producer_id: int, sequence: int, *, epoch: int = 0, transactional: bool = True) -> bytes:
    return encode_batch(
        [NewRecord(b"k", b"v" * 20)],
        timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=0x10 if transactional else 0,
    )


async def write(log: PartitionLog, data: bytes) -> int:
    appended = log.append(data, read_header(data), 50)
    if appended.durable is not None:
        await appended.durable
    return appended.base_offset


Reopen = Any


def in_transaction(log: PartitionLog) -> list[tuple[int, int]]:
    """Id and epoch of the producers that have a transaction open."""
    return [(one.producer_id, one.epoch) for one in log.producers() if one.transaction_start >= 0]


async def after_a_crash(filesystem: SimulatedFileSystem, log: PartitionLog) -> PartitionLog:
    return recover_log(filesystem.after_crash(), FOLDER, OPTIONS, InlineExecutor(), 60)


async def after_a_stop(filesystem: SimulatedFileSystem, log: PartitionLog) -> PartitionLog:
    await log.close()
    found = restore_log(filesystem.after_crash(), FOLDER, OPTIONS, InlineExecutor(), log.snapshot())
    assert found is not None
    for offset in range(found.high_watermark):
        await found.prepare(offset)
    return found


async def live(filesystem: SimulatedFileSystem, log: PartitionLog) -> PartitionLog:
    return log


@pytest.mark.parametrize("reopen", [live, after_a_crash, after_a_stop])
def test_a_log_knows_its_transactions_live_and_after_a_restart(reopen: Reopen) -> None:
    async def run() -> None:
        filesystem = SimulatedFileSystem()
        log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
        filesystem.sync_dir("/")
        assert await write(log, batch(1, 0)) == 0
        assert await write(log, batch(2, 0)) == 1
        assert log.stable_offset == 0
        await log.end_transaction(2, 0, committed=False, now_ms=1)  # offset 2
        assert log.stable_offset == 0, "producer 1 is undecided"
        await log.end_transaction(1, 0, committed=True, now_ms=1)  # offset 3
        assert log.stable_offset == log.high_watermark == 4
        await log.end_transaction(1, 0, committed=True, now_ms=1)  # once more, as after a crash
        assert await write(log, batch(9, 0, transactional=False)) == 5
        assert await write(log, batch(1, 1)) == 6
        await log.end_transaction(3, 4, committed=False, now_ms=1)  # nothing was written here
        assert await write(log, batch(9, 1, transactional=False)) == 8
        log = await reopen(filesystem, log)
        assert (log.stable_offset, log.high_watermark) == (6, 9)
        assert log.aborted(0, 6) == [(2, 1)]
        assert log.aborted(3, 6) == []
        assert in_transaction(log) == [(1, 0)]
        await log.prepare(6)
        assert log.stable_position == log.locate(6)
        stable, position = b"", 0
        while data := log.read(position, 10_000, at_least_one=True, end=log.stable_position):
            stable += data
            position += len(data)
        assert [header.base_offset for _, header in batches(stable)] == [0, 1, 2, 3, 4, 5]
        assert await write(log, batch(1, 1)) == 6, "a repeated batch is known"
        with pytest.raises(TransactionStateError):
            await write(log, batch(1, 2, transactional=False))
        with pytest.raises(ProducerEpochError):
            log.end_transaction(3, 3, committed=False, now_ms=1)
        await log.end_transaction(1, 1, committed=False, now_ms=1)  # fenced: a higher epoch
        assert log.stable_offset == log.high_watermark == 10
        assert log.aborted(6, 10) == [(1, 6)]
        with pytest.raises(ProducerEpochError):
            await write(log, batch(1, 2))
        assert await write(log, batch(1, 0, epoch=1)) == 10, "a new epoch begins its sequences anew"

    asyncio.run(run())


def test_a_transaction_is_decided_when_its_marker_is_durable() -> None:
    async def run() -> None:
        filesystem = SimulatedFileSystem()
        log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
        await write(log, batch(1, 0))
        arrived: list[int] = []
        log.stable_listeners.add(arrived.append)
        durable = log.end_transaction(1, 0, committed=True, now_ms=1)
        assert log.stable_offset == 0
        assert arrived == []
        await durable
        assert log.stable_offset == 2
        assert arrived == [log.synced_position]

    asyncio.run(run())


def test_a_producer_in_a_transaction_is_not_forgotten() -> None:
    async def run() -> None:
        log = create_log(SimulatedFileSystem(), FOLDER, OPTIONS, InlineExecutor())
        await write(log, batch(1, 0))
        await write(log, batch(2, 0))
        await log.end_transaction(2, 0, committed=True, now_ms=50)
        log.expire_producers(51)
        assert in_transaction(log) == [(1, 0)]
        with pytest.raises(TransactionStateError):
            await write(log, batch(1, 1, transactional=False))
        assert await write(log, batch(2, 77)) == 3, "forgotten: any sequence"

    asyncio.run(run())
