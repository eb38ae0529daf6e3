from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from keylane.storage.compacting import Compactor, groups
from keylane.storage.filesystem import OsFileSystem
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import check_log, create_log, recover_log
from keylane.storage.segment import Segment
from keylane.wire.batches import (
    CODECS,
    TRANSACTIONAL_MASK,
    BatchRecord,
    NewRecord,
    batches,
    compress,
    decode_records,
    encode_batch,
    filler,
    read_header,
    rebuild_batch,
)
from kit.executor import InlineExecutor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIONS = LogOptions(segment_bytes=400, index_interval_bytes=128)
DAY_MS = 86_400_000


def open_new(tmp_path: Path) -> tuple[PartitionLog, Compactor]:
    filesystem = OsFileSystem()
    log = create_log(filesystem, str(tmp_path / "log"), OPTIONS, InlineExecutor())
    return log, Compactor(filesystem, InlineExecutor())


async def put(log: PartitionLog, key: bytes | None, value: bytes | None, **fields: int) -> int:
    data = encode_batch([NewRecord(key, value)], timestamp_ms=1_000, **fields)
    appended = log.append(data, read_header(data), 0)
    assert appended.durable is not None
    await appended.durable
    return appended.base_offset


async def roll(log: PartitionLog) -> None:
    """Fill the active segment, so that all before is in others."""
    await put(log, b"filling", bytes(390))
    await put(log, b"filling", bytes(390))


def records(log: PartitionLog) -> list[BatchRecord]:
    found: list[BatchRecord] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        data = log.read(log.locate(offset), 1_000_000, at_least_one=True)
        for at, header in batches(data):
            if not header.is_control:
                found += [record for record in decode_records(data, at) if record.key != b"filling"]
            offset = header.next_offset
    return found


def rows(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records(log)]


def test_the_last_record_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        for number in range(20):
            await put(log, b"key-%d" % (number % 3), b"%d" % number)
        await put(log, None, b"without a key")
        await roll(log)
        files = len(list((tmp_path / "log").iterdir()))
        assert await compactor.compact(log, 0, 0.5, DAY_MS)
        assert rows(log) == [(17, b"key-2", b"17"), (18, b"key-0", b"18"), (19, b"key-1", b"19")]
        assert not await compactor.compact(log, 0, 0.5, DAY_MS), "nothing is dirty"
        await roll(log)
        assert await compactor.compact(log, 0, 0.0, DAY_MS)
        assert len(list((tmp_path / "log").iterdir())) < files, "small segments are put together"
        assert log.log_start_offset == 0
        await log.close()
        again = recover_log(OsFileSystem(), log.folder, OPTIONS, InlineExecutor(), 0)
        assert rows(again) == [(17, b"key-2", b"17"), (18, b"key-0", b"18"), (19, b"key-1", b"19")]
        assert again.next_offset == log.next_offset
        await again.close()

    asyncio.run(scenario())


def test_a_tombstone_goes_after_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        await put(log, b"gone", b"1")
        at = await put(log, b"gone", None)
        await roll(log)
        for now_ms, expected in ((0, [at]), (DAY_MS - 1, [at]), (DAY_MS, [])):
            assert await compactor.compact(log, now_ms, 0.0, DAY_MS)
            assert [record.offset for record in records(log)] == expected
            assert [record.timestamp_ms for record in records(log)] == [1_000] * len(expected)
            await roll(log)
        await log.close()

    asyncio.run(scenario())


def test_it_waits_until_enough_is_dirty(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        for number in range(30):
            await put(log, b"key-%d" % number, bytes(20))
        await roll(log)
        assert await compactor.compact(log, 0, 1.0, DAY_MS), "all is dirty"
        await roll(log)
        assert not await compactor.compact(log, 0, 0.9, DAY_MS)
        assert await compactor.compact(log, 0, 0.1, DAY_MS)
        await log.close()

    asyncio.run(scenario())


def test_what_is_young_is_left_alone_and_what_is_old_is_not(tmp_path: Path) -> None:
    """Records are of the time 1,000."""

    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        for number in range(30):
            await put(log, b"key-%d" % number, bytes(20))
        await roll(log)
        assert not await compactor.compact(log, 5_999, 0.0, DAY_MS, min_lag_ms=5_000)
        assert await compactor.compact(log, 6_000, 0.0, DAY_MS, min_lag_ms=5_000)
        await put(log, b"key-1", b"1")
        await roll(log)
        assert not await compactor.compact(log, 6_000, 0.9, DAY_MS, max_lag_ms=5_000)
        assert await compactor.compact(log, 6_001, 0.9, DAY_MS, max_lag_ms=5_000)
        await log.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_stays_as_long_as_its_records_and_then_as_a_tombstone(tmp_path: Path, committed: bool) -> None:
    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        mine = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL_MASK}
        await put(log, b"k", b"in a transaction", base_sequence=0, **mine)
        await log.end_transaction(7, 0, committed=committed, now_ms=0)
        await roll(log)
        assert await compactor.compact(log, 0, 0.0, DAY_MS)
        assert rows(log) == ([(0, b"k", b"in a transaction")] if committed else [])
        await put(log, b"k", b"later", base_sequence=1, **mine)
        await log.end_transaction(7, 0, committed=True, now_ms=0)
        for now_ms in (1, 2, DAY_MS + 1, DAY_MS + 2):
            # Aborted records go at once, committed ones when they are superseded, which is a compaction later.
            is_there = now_ms < DAY_MS + (2 if committed else 1)
            await roll(log)
            assert await compactor.compact(log, now_ms, 0.0, DAY_MS)
            header = read_header(log.read(log.locate(1), 1, at_least_one=True))
            assert header.is_control is is_there, now_ms
            assert log.aborted(0, 100) == ([] if committed or not is_there else [(7, 0)])
            assert [row[2] for row in rows(log)] == [b"later"]
        await log.close()

    asyncio.run(scenario())


def test_what_an_undecided_transaction_has_begun_in_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        await put(log, b"k", b"open", producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_MASK)
        await put(log, b"k", b"after it")
        await roll(log)
        assert not await compactor.compact(log, 0, 0.0, DAY_MS)
        await log.end_transaction(7, 0, committed=False, now_ms=0)
        assert await compactor.compact(log, 0, 0.0, DAY_MS)
        assert rows(log) == [(1, b"k", b"after it")]
        await log.close()

    asyncio.run(scenario())


def test_a_producers_sequence_survives_the_compaction_of_its_last_batch_and_a_crash(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        mine = {"producer_id": 7, "producer_epoch": 3}
        await put(log, b"k", b"mine", base_sequence=0, **mine)
        at = await put(log, b"k", b"mine again", base_sequence=1, **mine)
        await put(log, b"k", b"of another")
        await roll(log)
        assert await compactor.compact(log, 0, 0.0, DAY_MS)
        assert rows(log) == [(2, b"k", b"of another")]
        await log.close()
        again = recover_log(OsFileSystem(), log.folder, OPTIONS, InlineExecutor(), 0)
        repeated = encode_batch([NewRecord(b"k", b"mine again")], timestamp_ms=1_000, base_sequence=1, **mine)
        assert again.append(repeated, read_header(repeated), 0).base_offset == at
        await again.close()

    asyncio.run(scenario())


def test_behind_records_that_cannot_be_read_no_tombstone_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        broken = bytearray(encode_batch([NewRecord(b"k", b"1")], timestamp_ms=1, attributes=0))
        broken[22] = 4  # said to be zstd
        header = read_header(broken)
        appended = log.append(bytes(broken), header, 0)
        assert appended.durable is not None
        await appended.durable
        at = await put(log, b"k", None)
        await roll(log)
        for now_ms in (0, 2 * DAY_MS):
            assert await compactor.compact(log, now_ms, 0.0, DAY_MS)
            assert read_header(log.read(log.locate(0), 1, at_least_one=True)).codec == 4
            assert read_header(log.read(log.locate(at), 1, at_least_one=True)).record_count == 1
            await roll(log)
        await log.close()

    asyncio.run(scenario())


def test_a_leftover_of_a_compaction_is_told_from_damage(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        for number in range(30):
            await put(log, b"k", b"%d" % number)
        await roll(log)
        folder = tmp_path / "log"
        assert await compactor.compact(log, 0, 0.0, DAY_MS)
        second = sorted(folder.glob("*.log"))[1]
        kept = second.read_bytes()
        await roll(log)
        assert await compactor.compact(log, 0, 0.0, DAY_MS)
        assert not second.exists()
        expected = rows(log)
        await log.close()
        second.write_bytes(kept)
        (folder / f"{second.name}.cleaned").write_bytes(b"half")
        assert {finding.state for finding in check_log(OsFileSystem(), str(folder), has_facts=True)} == {
            "sound",
            "leftover",
        }
        again = recover_log(OsFileSystem(), str(folder), OPTIONS, InlineExecutor(), 0)
        assert rows(again) == expected
        assert not second.exists()
        assert not list(folder.glob("*.cleaned"))
        await again.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("at", [20, 80])
def test_damage_is_not_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int) -> None:
    async def scenario() -> None:
        log, compactor = open_new(tmp_path)
        for number in range(12):
            await put(log, b"k", b"%d" % number)
        await roll(log)
        files = sorted((tmp_path / "log").iterdir())
        damaged = bytearray(files[1].read_bytes())
        damaged[at] ^= 0xFF
        files[1].write_bytes(damaged)
        before = [file.read_bytes() for file in files]
        assert await compactor.compact(log, 0, 0.0, DAY_MS)
        assert "not compacted" in caplog.text
        assert [file.read_bytes() for file in files] == before
        await log.close()

    asyncio.run(scenario())


def test_a_compaction_that_is_stopped_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    class StopsAtTheFirstStep(InlineExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:  # type: ignore[override]
            compactor.stop()
            return super().submit(fn, *args, **kwargs)

    compactor = Compactor(OsFileSystem(), StopsAtTheFirstStep())

    async def scenario() -> None:
        log, _ = open_new(tmp_path)
        for number in range(12):
            await put(log, b"k", b"%d" % number)
        await roll(log)
        before = rows(log)
        assert await compactor.compact(log, 0, 0.0, DAY_MS)
        assert not await compactor.compact(log, 0, 0.0, DAY_MS), "nothing is begun any more"
        assert rows(log) == before
        await log.close()

    asyncio.run(scenario())


def test_segments_are_put_together_up_to_the_size_of_one() -> None:
    segments = []
    for number, size in enumerate((10, 20, 30, 100, 5, 5)):
        segment = Segment(f"/{number}", number, 0, 1)
        segment.size = size
        segments.append(segment)
    found = [[segment.size for segment in group] for group in groups(segments, 60)]
    assert found == [[10, 20, 30], [100], [5, 5]]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_is_rebuilt_in_its_compression(codec: int) -> None:
    data = encode_batch([NewRecord(b"k%d" % n, b"v" * 50, ((b"h", None),), n) for n in range(5)], timestamp_ms=9)
    header = read_header(data)
    packed = compress(codec, data[61:])
    header = header._replace(attributes=codec, length=61 + len(packed))
    kept = decode_records(data)[1:4]
    rebuilt = rebuild_batch(header, kept, None)
    assert decode_records(rebuilt) == kept
    again = read_header(rebuilt)
    assert (again.codec, again.last_offset_delta, again.record_count, again.max_timestamp) == (codec, 4, 3, 12)
    with_horizon = rebuild_batch(header, kept, 5_000)
    assert decode_records(with_horizon) == kept
    assert read_header(with_horizon).delete_horizon_ms == 5_000


def test_an_empty_batch_stands_for_offsets() -> None:
    header = read_header(filler(100, 250, 7))
    assert (header.base_offset, header.next_offset, header.record_count) == (100, 251, 0)
    assert decode_records(filler(100, 250, 7)) == []
