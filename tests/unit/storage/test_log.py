from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from keylane.errors import DataFolderError
from keylane.storage.filesystem import SECTOR_BYTES, OsFileSystem
from keylane.storage.log import Appended, LogOptions, PartitionLog
from keylane.storage.log_view import OffsetAndTimestamp
from keylane.storage.open_log import create_log, recover_log, restore_log
from keylane.storage.recovery import DamagedBatchError
from keylane.wire.batches import NewRecord, batches, decode_records, encode_batch, read_header
from kit.executor import InlineExecutor

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = LogOptions(segment_bytes=1_000, index_interval_bytes=200)


def batch(timestamp_ms: int = 1_000, count: int = 1, size: int = 20, **fields: Any) -> bytes:
    records = [NewRecord(b"k", b"v" * size, (), index) for index in range(count)]
    return encode_batch(records, timestamp_ms=timestamp_ms, **fields)


async def append(log: PartitionLog, data: bytes) -> Appended:
    appended = log.append(data, read_header(data), 0)
    if appended.durable is not None:
        await appended.durable
    return appended


def open_new(tmp_path: Path) -> PartitionLog:
    return create_log(OsFileSystem(), str(tmp_path / "log"), OPTIONS, InlineExecutor())


def recover(tmp_path: Path) -> PartitionLog:
    return recover_log(OsFileSystem(), str(tmp_path / "log"), OPTIONS, InlineExecutor(), 0)


async def filled(tmp_path: Path, count: int = 40) -> PartitionLog:
    log = open_new(tmp_path)
    for number in range(count):
        await append(log, batch(1_000 + 10 * number, count=1 + number % 3))
    return log


def placed(data: bytes, base_offset: int) -> bytes:
    """A batch as it stands in a log."""
    return base_offset.to_bytes(8, "big") + data[8:]


def restore(tmp_path: Path, log: PartitionLog) -> PartitionLog:
    """The log after a clean stop and a start."""
    restored = restore_log(OsFileSystem(), str(tmp_path / "log"), OPTIONS, InlineExecutor(), log.snapshot())
    assert restored is not None
    return restored


def offsets(data: bytes) -> list[int]:
    return [header.base_offset for _, header in batches(data)]


def test_every_offset_is_found_across_segments(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        assert len(list((tmp_path / "log").iterdir())) > 3
        for wanted in range(log.next_offset):
            data = log.read(log.locate(wanted), 1, at_least_one=True)
            header = read_header(data)
            assert header.base_offset <= wanted <= header.last_offset
            assert len(data) == header.length
        await log.close()

    asyncio.run(scenario())


def test_a_reader_walks_through_all_batches_with_any_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        for limit in (1, 100, 333, 100_000):
            position, found = 0, []
            while data := log.read(position, limit, at_least_one=True):
                whole = list(batches(data))
                assert whole, "at least one whole batch"
                found += [header.base_offset for _, header in whole]
                position += sum(header.length for _, header in whole)
            assert found == sorted(found)
            assert len(found) == 40
            assert position == log.synced_position
        first = log.read(0, 1, at_least_one=True)
        for limit in (1, 30, len(first) - 1):
            assert log.read(0, limit, at_least_one=False) == b"", "no part of a first batch"
        assert log.read(0, len(first), at_least_one=False) == first
        assert log.read(0, len(first) + 9, at_least_one=False)[: len(first)] == first
        assert log.read(0, 0, at_least_one=False) == b""
        await log.close()

    asyncio.run(scenario())


def test_nothing_is_visible_before_it_is_synced(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = open_new(tmp_path)
        seen: list[int] = []
        log.listeners.add(seen.append)
        data = batch(count=3)
        appended = log.append(data, read_header(data), 0)
        assert (log.next_offset, log.high_watermark, log.synced_position) == (3, 0, 0)
        assert log.locate(0) == 0
        assert log.read(0, 1_000, at_least_one=True) == b""
        assert appended.durable is not None
        await appended.durable
        assert (log.high_watermark, log.synced_position) == (3, len(data))
        assert seen == [len(data)]
        await log.close()
        assert seen == [len(data), 0]
        assert log.is_closed

    asyncio.run(scenario())


def test_a_repeated_batch_waits_for_the_first_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = open_new(tmp_path)
        data = batch(producer_id=3, producer_epoch=0, base_sequence=0)
        first = log.append(data, read_header(data), 0)
        again = log.append(data, read_header(data), 0)
        assert again.base_offset == first.base_offset == 0
        assert again.durable is first.durable, "not acknowledged before the first one is durable"
        assert first.durable is not None
        await first.durable
        assert log.append(data, read_header(data), 0) == Appended(0, None)
        assert log.next_offset == 1
        await log.close()

    asyncio.run(scenario())


def test_offsets_by_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        records = []
        position = 0
        while data := log.read(position, 100_000, at_least_one=True):
            for at, _ in batches(data):
                records += decode_records(data, at)
            position += len(data)
        for time in range(990, 1_400, 3):
            expected = next(
                (OffsetAndTimestamp(r.offset, r.timestamp_ms) for r in records if r.timestamp_ms >= time), None
            )
            assert await log.offset_for_timestamp(time) == expected
        latest = max(records, key=lambda record: record.timestamp_ms)
        assert await log.latest_timestamp() == OffsetAndTimestamp(latest.offset, latest.timestamp_ms)
        await log.close()

    asyncio.run(scenario())


def test_times_that_go_back_are_found_where_they_first_come(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = open_new(tmp_path)
        assert await log.latest_timestamp() is None
        assert await log.offset_for_timestamp(0) is None
        times = [500, 100, 900, 200, 950, 10] * 5
        for time in times:
            await append(log, batch(time, size=100))
        assert await log.offset_for_timestamp(501) == OffsetAndTimestamp(2, 900)
        assert await log.offset_for_timestamp(901) == OffsetAndTimestamp(4, 950)
        assert await log.offset_for_timestamp(951) is None
        assert await log.latest_timestamp() == OffsetAndTimestamp(4, 950)
        await log.close()

    asyncio.run(scenario())


def test_the_record_with_the_latest_time_is_told_of_until_its_segment_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = open_new(tmp_path)
        times = [500, 900, 200, *[300 + number for number in range(40)]]
        for time in times:
            await append(log, batch(time, size=100))
        await log.delete_before(2)
        assert await log.latest_timestamp() == OffsetAndTimestamp(1, 900), "the segment that has it is still there"
        await log.delete_before(len(times) - 1)
        assert await log.latest_timestamp() == OffsetAndTimestamp(len(times) - 1, 339)
        await log.close()

    asyncio.run(scenario())


def test_a_clean_start_reads_nothing_until_it_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        await log.close()
        snapshot = log.snapshot()
        restored = restore_log(OsFileSystem(), str(tmp_path / "log"), OPTIONS, InlineExecutor(), snapshot)
        assert restored is not None
        assert restored.next_offset == restored.high_watermark == log.next_offset
        assert restored.synced_position == log.synced_position
        assert not restored.is_prepared(7)
        assert restored.is_prepared(restored.next_offset)
        for wanted in (7, 0, restored.next_offset - 1):
            await restored.prepare(wanted)
            header = read_header(restored.read(restored.locate(wanted), 1, at_least_one=True))
            assert header.base_offset <= wanted <= header.last_offset
        assert await restored.offset_for_timestamp(1_111) == await log.offset_for_timestamp(1_111)
        assert await restored.latest_timestamp() == await log.latest_timestamp()
        await append(restored, batch(count=2))
        assert restored.high_watermark == log.next_offset + 2
        await restored.close()
        await log.close()

    asyncio.run(scenario())


def test_an_index_that_is_built_while_the_log_grows_has_both_parts(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = LogOptions(1_000_000, 200)
        filesystem, folder = OsFileSystem(), str(tmp_path / "log")
        log = create_log(filesystem, folder, options, InlineExecutor())
        for number in range(20):
            await append(log, batch(number))
        await log.close()
        restored = restore_log(filesystem, folder, options, InlineExecutor(), log.snapshot())
        assert restored is not None
        building = asyncio.ensure_future(restored.prepare(3))
        for number in range(20, 40):
            await append(restored, batch(number))
        await building
        for wanted in range(40):
            data = restored.read(restored.locate(wanted), 1, at_least_one=True)
            assert read_header(data).base_offset == wanted
        await restored.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["longer", "missing", "more"])
def test_a_snapshot_that_does_not_fit_is_not_used(tmp_path: Path, change: str) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        await log.close()
        files = sorted((tmp_path / "log").glob("*.log"))
        if change == "longer":
            files[-1].write_bytes(files[-1].read_bytes() + b"x")
        elif change == "missing":
            files[-1].unlink()
        else:
            (tmp_path / "log" / f"{9999:020d}.log").write_bytes(b"")
        restored = restore_log(OsFileSystem(), str(tmp_path / "log"), OPTIONS, InlineExecutor(), log.snapshot())
        assert restored is None

    asyncio.run(scenario())


def test_a_segment_that_got_shorter_after_a_clean_stop_is_refused(tmp_path: Path) -> None:
    """Cut between two batches it would look sound."""

    async def scenario() -> None:
        log = await filled(tmp_path)
        await log.close()
        last = max((tmp_path / "log").glob("*.log"))
        *_, (start, _) = batches(last.read_bytes())
        last.write_bytes(last.read_bytes()[:start])
        with pytest.raises(
            DataFolderError, match=rf"{last.name} has {start} bytes, and had \d+ at the last clean stop"
        ):
            restore(tmp_path, log)

    asyncio.run(scenario())


def test_recovery_finds_what_was_appended(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        await append(log, batch(producer_id=3, producer_epoch=1, base_sequence=4, count=2))
        await log.close()
        found = recover(tmp_path)
        assert found.snapshot() == log.snapshot()
        await found.close()

    asyncio.run(scenario())


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        await log.close()
        last = max((tmp_path / "log").glob("*.log"))
        sound = last.read_bytes()
        begun = placed(batch(size=2_000), log.next_offset)
        to_sector = -(len(sound) + 700) % SECTOR_BYTES
        lost = begun[: 700 + to_sector] + bytes(SECTOR_BYTES) + begun[700 + to_sector + SECTOR_BYTES :]
        assert len(lost) == len(begun)
        for tail in (begun[:-1], begun[:70], begun[:30], b"\0" * 500, b"garbage", lost, lost[:-300], lost + begun[:20]):
            last.write_bytes(sound + tail)
            found = recover(tmp_path)
            assert found.next_offset == log.next_offset
            assert last.read_bytes() == sound
            await found.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("torn", [0, 3, 8, 40, 100])
def test_no_flip_in_the_last_batch_is_taken_for_a_torn_tail(tmp_path: Path, torn: int) -> None:
    """Also when a crash has left a part of another batch behind it."""

    async def scenario() -> None:
        log = await filled(tmp_path)
        await log.close()
        last = max((tmp_path / "log").glob("*.log"))
        sound = last.read_bytes()
        *_, (start, header) = batches(sound)
        tail = placed(batch(), header.next_offset)[:torn]
        for position in range(start, len(sound)):
            for mask in (0x01, 0x80, 0xFF):
                data = bytearray(sound + tail)
                data[position] ^= mask
                last.write_bytes(data)
                with pytest.raises(DataFolderError, match=rf"{last.name} at byte {start}: .*records that were ack"):
                    recover(tmp_path)
                assert last.read_bytes() == data, "nothing is changed"

    asyncio.run(scenario())


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_a_damaged_middle_is_refused_with_file_and_position(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        await log.close()
        files = sorted((tmp_path / "log").glob("*.log"))
        last = files[-1].read_bytes()
        positions = [position for position, _ in batches(last)]
        assert len(positions) >= 3
        for inside in (0, 9, 20, 65):  # offset, length, checksum, a record
            damage(files[-1], positions[1] + inside)
            before = files[-1].read_bytes()
            with pytest.raises(
                DataFolderError, match=rf"{files[-1].name} at byte {positions[1]}: .*a sound batch follows"
            ):
                recover(tmp_path)
            assert files[-1].read_bytes() == before, "nothing is changed"
            files[-1].write_bytes(last)
        damage(files[1], len(files[1].read_bytes()) - 1)
        with pytest.raises(DataFolderError, match=rf"{files[1].name} at byte \d+: .*later segments follow"):
            recover(tmp_path)

    asyncio.run(scenario())


def test_missing_segments_and_folders_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await filled(tmp_path)
        await log.close()
        files = sorted((tmp_path / "log").glob("*.log"))
        for missing, says in (
            (0, "the segment with offset 0"),
            (1, "records are missing"),
            (-1, "was begun"),
        ):
            kept = files[missing].read_bytes()
            files[missing].unlink()
            with pytest.raises(DataFolderError, match=says) as caught:
                recover(tmp_path)
            assert files[missing].name in str(caught.value) or missing != -1
            files[missing].write_bytes(kept)
        facts = tmp_path / "log" / "log.json"
        kept = facts.read_bytes()
        facts.unlink()
        with pytest.raises(DataFolderError, match=r"log\.json is missing: restore it"):
            recover(tmp_path)
        facts.write_bytes(kept)
        recover(tmp_path)
        for file in (tmp_path / "log").iterdir():
            file.unlink()
        with pytest.raises(DataFolderError, match="holds no segment"):
            recover(tmp_path)
        (tmp_path / "log" / "17.log").touch()
        with pytest.raises(DataFolderError, match="not a segment's name"):
            recover(tmp_path)
        (tmp_path / "log" / "17.log").unlink()
        (tmp_path / "log").rmdir()
        with pytest.raises(DataFolderError, match="is missing"):
            recover(tmp_path)

    asyncio.run(scenario())


@pytest.mark.parametrize("which", [0, 1, 3, -1])
def test_damage_after_a_clean_stop_is_never_served_and_what_is_around_it_is(
    tmp_path: Path, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Every bit of a batch: none of it is read, what lies before and behind it is, and the log names it once."""

    async def scenario() -> None:
        log = await filled(tmp_path, 20)
        await log.close()
        path = min((tmp_path / "log").glob("*.log"))
        sound = path.read_bytes()
        start, header = list(batches(sound))[which]
        undamaged = restore(tmp_path, log)
        whole = {offset: await first_at(undamaged, offset) for offset in range(log.next_offset)}
        await undamaged.close()
        for position in range(start, start + header.length):
            data = bytearray(sound)
            data[position] ^= 1 << position % 8
            path.write_bytes(data)
            caplog.clear()
            restored = restore(tmp_path, log)
            for offset in range(log.next_offset):
                if header.base_offset <= offset <= header.last_offset:
                    with pytest.raises(DamagedBatchError, match=rf"{path.name} at byte {start}: .*offset"):
                        await first_at(restored, offset)
                else:
                    assert await first_at(restored, offset) == whole[offset]
            assert len(caplog.messages) == 1, "told once, however many ask"
            with pytest.raises(DamagedBatchError):
                await restored.offset_for_timestamp(header.max_timestamp)
            await restored.close()

    asyncio.run(scenario())


async def first_at(log: PartitionLog, offset: int) -> bytes:
    """The batch that holds the offset, and nothing behind it."""
    await log.prepare(offset)
    return log.read(log.locate(offset), 1, at_least_one=True)
