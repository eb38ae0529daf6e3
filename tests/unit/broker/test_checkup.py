"""`keylane broker check` and `repair` on a data folder that is damaged in every kind of file."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from keylane.broker.config import BrokerConfig
from keylane.broker.node import Node
from keylane.cli import main
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.journal.headers import HEADER_SIZE
from keylane.coordinator.offset_service import CommitRequest, CommitResult
from keylane.errors import DataFolderError
from keylane.storage.filesystem import FILL, OsFileSystem
from keylane.wire.batches import NewRecord, encode_batch, read_header

COMMITS = 60
RECORDS = 40
OPTIONS = BrokerConfig(
    offsets_topic_num_partitions=2, offsets_topic_segment_bytes=2_000, log_segment_bytes=1_024, num_partitions=1
)


async def open_node(path: Path) -> Node:
    node = await Node.open(OsFileSystem(), str(path), OPTIONS, lambda: 1_700_000_000_000)
    await node.coordinator.loaded()
    return node


async def fill(path: Path) -> None:
    """A topic of several segments, and commits of ten groups: a snapshot, and segments behind it."""
    node = await open_node(path)
    await node.topics.create("flights", 1)
    log = node.topics.log("flights", 0)
    assert log is not None
    for number in range(RECORDS):
        batch = encode_batch([NewRecord(b"key", b"%d" % number * 30)], timestamp_ms=1)
        appended = log.append(batch, read_header(batch), 0)
        assert appended.durable is not None
        await appended.durable
    for number in range(COMMITS):
        commit = TopicCommit("flights", [0], [number], [-1], [f"map {number} " * 8])
        result = node.coordinator.commit(CommitRequest(f"group-{number % 10}", [commit]))
        assert isinstance(result, CommitResult)
        assert result.durable is not None
        await result.durable
        await asyncio.sleep(0)
        # A snapshot takes a thread's time: waited for, so that the folder's files are the same each time.
        snapshot = node.coordinator._journal._snapshot_task  # type: ignore[attr-defined]
        if snapshot is not None:
            await asyncio.wait({snapshot})
    answer = await node.coordinator.transactions.init_producer_id("mine", 60_000, None)
    assert answer.error == 0
    await node.close()


async def committed(path: Path) -> dict[str, int]:
    node = await open_node(path)
    found = {}
    for number in range(10):
        fetched = node.coordinator.fetch(f"group-{number}", [("flights", [0])])
        assert not isinstance(fetched, int)
        found[f"group-{number}"] = fetched[0].columns.offsets[0]
    await node.close()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    asyncio.run(fill(path))
    return path


def files(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    assert found, pattern
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["broker", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, answer = ask(capsys, "check", str(folder))
    assert (code, answer["sound"]) == (0, True)
    names = {Path(file["path"]).suffix for file in answer["files"]}
    assert names == {".properties", ".json", ".log", ".journal", ".snapshot"}
    assert ask(capsys, "repair", str(folder)) == (0, {"sound": True, "repaired": [], "left": []})
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert main(["broker", "check", str(folder)]) == 0
    assert capsys.readouterr().out.endswith(" files, 0 damaged\n")


@pytest.mark.parametrize(
    ("pattern", "which", "behind"),
    [
        ("topics/flights-0/*.log", 1, True),
        ("coordinator/*.journal", 0, False),
        ("coordinator/*.snapshot", 0, False),
        ("clean-shutdown.json", 0, False),
    ],
)
def test_damage_is_found_and_mended(
    folder: Path, capsys: pytest.CaptureFixture[str], pattern: str, which: int, behind: bool
) -> None:
    path = files(folder, pattern)[which]
    original = path.read_bytes()
    position = len(original) // 2
    flip(path, position)
    damaged = path.read_bytes()
    code, answer = ask(capsys, "check", str(folder))
    assert (code, answer["sound"]) == (1, False)
    bad = {file["path"]: file for file in answer["files"] if file["state"] not in ("sound", "torn")}
    assert bad[str(path)]["state"] == "damaged"
    assert bad[str(path)]["position"] <= position
    assert ("behind" in {file["state"] for file in bad.values()}) is behind

    code, answer = ask(capsys, "repair", str(folder))
    assert (code, answer["sound"], answer["left"]) == (0, True, [])
    lists = {str(folder / "topics/flights-0/log.json"), str(folder / "clean-shutdown.json")} if behind else set()
    assert {one["path"] for one in answer["repaired"]} == set(bad) | lists
    copies = {one["path"]: Path(one["copy"]) for one in answer["repaired"]}
    assert copies[str(path)].read_bytes() == damaged
    assert not copies[str(path)].is_relative_to(folder)
    found = asyncio.run(committed(folder))
    if "coordinator" not in pattern:
        assert found == {f"group-{number}": COMMITS - 10 + number for number in range(10)}
    assert ask(capsys, "check", str(folder))[0] == 0


def test_a_damaged_snapshot_loses_only_what_does_not_hold(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = files(folder, "coordinator/*.snapshot")
    before = asyncio.run(committed(folder))
    data = path.read_bytes()
    flip(path, data.index(b"group-3"))
    assert ask(capsys, "check", str(folder))[0] == 1
    assert ask(capsys, "repair", str(folder))[0] == 0
    after = asyncio.run(committed(folder))
    assert after != before or len(files(folder, "coordinator/*.journal")) > 1
    kept = {group: offset for group, offset in after.items() if offset == before[group]}
    assert kept, "the chunk of the other offsets partition, and what the segments hold"
    for group, offset in after.items():
        assert offset in (-1, before[group]), group


@pytest.mark.parametrize("name", ["topics.json", "producer-ids.json"])
def test_what_only_a_copy_can_mend(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = folder / name
    if not path.exists():
        path.write_text("no such file yet")
    else:
        flip(path, len(path.read_bytes()) - 3)
    code, answer = ask(capsys, "repair", str(folder))
    assert (code, [one["path"] for one in answer["left"]]) == (1, [str(path)])
    assert main(["broker", "repair", str(folder)]) == 1
    assert "restore them from a copy" in capsys.readouterr().out


def test_a_missing_segment(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *later = files(folder, "topics/flights-0/*.log")
    later[0].unlink()
    code, answer = ask(capsys, "check", str(folder))
    assert code == 1
    states = {file["path"]: file["state"] for file in answer["files"]}
    assert states[str(first)] == "sound"
    assert {states[str(path)] for path in later[1:]} == {"behind"}
    assert ask(capsys, "repair", str(folder))[0] == 0
    assert files(folder, "topics/flights-0/*.log") == [first]


@pytest.mark.parametrize("state", ["torn", "sound"])
def test_a_torn_tail_and_a_reserve_are_no_damage(folder: Path, capsys: pytest.CaptureFixture[str], state: str) -> None:
    path = files(folder, "coordinator/*.journal")[-1]
    data = path.read_bytes()
    begun = data[HEADER_SIZE:][:100] if state == "torn" else b""
    path.write_bytes(data + begun + FILL * 1_000)
    code, answer = ask(capsys, "check", str(folder))
    assert code == 0
    assert [file["state"] for file in answer["files"] if file["path"] == str(path)] == [state]
    asyncio.run(committed(folder))
    assert path.read_bytes() == data


def test_other_folders_and_folders_in_use(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "check", str(tmp_path)]) == 2
    assert "no data folder of a keylane broker" in capsys.readouterr().err

    async def in_use() -> None:
        node = await open_node(folder)
        assert main(["broker", "check", str(folder)]) == 1
        assert "in use by a broker" in capsys.readouterr().err
        await node.close()

    asyncio.run(in_use())


def test_a_broker_without_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker"]) == 2
    assert "--data-dir is missing" in capsys.readouterr().err


def test_a_log_that_is_cut_below_its_start_starts_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Records were deleted up to an offset in the last segment, and then an earlier one is damaged."""
    path = tmp_path / "data"
    asyncio.run(fill(path))

    async def delete_records() -> None:
        node = await open_node(path)
        log = node.topics.log("flights", 0)
        assert log is not None
        await log.delete_before(3)
        assert log.log_start_offset == 3
        await node.close()

    asyncio.run(delete_records())
    folder = path / "topics" / "flights-0"
    assert main(["broker", "check", str(path)]) == 0
    segment = min(folder.glob("*.log"))
    damaged = bytearray(segment.read_bytes())
    damaged[70] ^= 0xFF
    segment.write_bytes(damaged)
    assert main(["broker", "check", str(path)]) == 1
    assert "log.json: behind" in capsys.readouterr().out
    assert main(["broker", "repair", str(path)]) == 0
    assert "log.json: written anew: the log starts at offset 0" in capsys.readouterr().out

    async def look() -> None:
        node = await open_node(path)
        log = node.topics.log("flights", 0)
        assert log is not None
        assert (log.log_start_offset, log.high_watermark) == (0, 0)
        await node.close()

    asyncio.run(look())


@pytest.mark.parametrize(
    ("pattern", "which", "says"),
    [
        ("topics/flights-0/*.log", 0, "log.json: written anew: the log starts at offset "),
        ("topics/flights-0/*.log", -1, "log.json: written anew: the log starts at offset 0"),
        ("topics/flights-0/log.json", 0, "log.json: written anew: the log starts at offset 0"),
        ("coordinator/journal.json", 0, "journal.json: written anew: the last segment is "),
        ("coordinator/*.snapshot", 0, "journal.json: written anew: no committed offsets, groups and transactions"),
    ],
)
def test_what_is_missing_is_found_named_and_given_up_by_a_repair_alone(
    folder: Path, capsys: pytest.CaptureFixture[str], pattern: str, which: int, says: str
) -> None:
    path = files(folder, pattern)[which]
    path.unlink()
    with pytest.raises(DataFolderError, match="missing"):
        asyncio.run(open_node(folder))
    with pytest.raises(DataFolderError, match="missing"):  # also the next time
        asyncio.run(open_node(folder))
    assert main(["broker", "check", str(folder)]) == 1
    assert ": missing at byte 0" in capsys.readouterr().out
    assert main(["broker", "repair", str(folder)]) == 0
    assert says in capsys.readouterr().out
    assert main(["broker", "check", str(folder)]) == 0
    asyncio.run(committed(folder))


def test_a_coordinator_that_is_given_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder / "coordinator")
    with pytest.raises(DataFolderError, match="coordinator is missing, and this broker has made it"):
        asyncio.run(open_node(folder))
    assert main(["broker", "check", str(folder)]) == 1
    assert main(["broker", "repair", str(folder)]) == 0
    assert "no committed offsets, groups and transactions" in capsys.readouterr().out
    assert set(asyncio.run(committed(folder)).values()) == {-1}
