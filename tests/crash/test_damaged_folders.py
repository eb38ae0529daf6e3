"""A data folder in which a byte was altered, or from which a file was taken, after every way to stop and start.

The oracle is what a broker shows of the same folder when nothing is altered: after damage each piece of it is as it
was, or refused. A refused start names the file; a refused read is an error of its own, and what lies around the damage
is read. And whenever anything is refused, the check of the folder finds it too.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from keylane.broker.checkup import check_folder
from keylane.broker.config import BrokerConfig
from keylane.broker.data_folder import META
from keylane.broker.node import Node
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.offset_service import CommitRequest, CommitResult
from keylane.errors import DataFolderError, PeerError
from keylane.storage.sealed import seal
from keylane.wire.batches import NewRecord, batches, encode_batch, read_header
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = "/data"
CONFIG = BrokerConfig(log_segment_bytes=1_500, offsets_topic_num_partitions=2, offsets_topic_segment_bytes=1_500)
NOW_MS = 1_000_000
GROUPS = 6
EPOCH_AT = 12
"""Bytes of a batch before its leader epoch."""
Files = dict[str, bytes]
Seen = dict[Any, Any]
Way = Literal["start", "start, kill, start", "start, append, kill, start", "start, stop, start"]
WAYS: tuple[Way, ...] = ("start", "start, kill, start", "start, append, kill, start", "start, stop, start")


@pytest.fixture(scope="module", autouse=True)
def known_steps() -> Iterator[None]:
    """The clock stands, and leader epochs go on by one: starts of equal folders show the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keylane.broker.leader_epochs.LARGEST_STEP", 1)
        yield


class Refused(NamedTuple):
    """In place of a value."""

    text: str


async def open_node(filesystem: SimulatedFileSystem) -> Node:
    node = await Node.open(filesystem, DATA, CONFIG, lambda: NOW_MS)
    await node.coordinator.loaded()
    return node


def leave(node: Node) -> None:
    """The process is killed: nothing is written any more."""
    node.executor.shutdown()
    node._journal_executor.shutdown()


async def append(node: Node, topic: str, data: bytes) -> None:
    log = node.topics.log(topic, 0)
    assert log is not None
    durable = log.append(data, read_header(data), NOW_MS).durable
    assert durable is not None
    await durable


def batch(number: int, *, transactional: bool = False) -> bytes:
    """Every third one with a sector of zeros in it."""
    records = [NewRecord(b"key-%d" % at, b"value-%d" % number) for at in range(1 + number % 3)]
    if number % 3 == 1:
        records.append(NewRecord(None, bytes(600)))
    attributes = 0x10 if transactional else 0
    producer = {"producer_id": 900 + number, "producer_epoch": 0, "base_sequence": 0} if transactional else {}
    return encode_batch(records, timestamp_ms=1_000 + 10 * number, attributes=attributes, **producer)


async def fill(node: Node) -> None:
    """A log of several segments whose start was moved, an idle one, and a journal with a snapshot."""
    await node.topics.create("flights", 1, {"max.message.bytes": "100000"})
    await node.topics.create("idle", 2)
    for number in range(12):
        await append(node, "flights", batch(number))
    log = node.topics.log("flights", 0)
    assert log is not None
    for number, committed in ((20, True), (21, False)):
        await append(node, "flights", batch(number, transactional=True))
        await log.end_transaction(900 + number, 0, committed=committed, now_ms=NOW_MS)
    await append(node, "flights", batch(30))
    await log.delete_before(7)
    for number in range(5 * GROUPS):
        commit = TopicCommit("flights", [0], [number], [-1], [f"map {number} " * 8])
        result = node.coordinator.commit(CommitRequest(f"group-{number % GROUPS}", [commit]))
        assert isinstance(result, CommitResult)
        assert result.durable is not None
        await result.durable
        snapshot = node.coordinator._journal._snapshot_task  # type: ignore[attr-defined]
        if snapshot is not None:
            await asyncio.wait({snapshot})
    assert (await node.coordinator.transactions.init_producer_id("mine", 60_000, None)).error == 0


async def seen(node: Node) -> Seen:
    """All that clients can ask for."""
    found: Seen = {"cluster": node.cluster_id, "topics": node.topics.names()}
    for name in node.topics.names():
        topic = node.topics.get(name)
        assert topic is not None
        found[name] = (topic.topic_id, topic.partition_count, topic.settings)
        for partition, log in enumerate(topic.logs):
            at = f"{name}-{partition}"
            found[at] = (log.log_start_offset, log.next_offset, log.stable_offset, log.aborted(0, log.next_offset))
            for offset in range(log.log_start_offset, log.high_watermark):
                found[at, offset] = await asked(batch_at(log, offset))
            for time in range(990, 1_320, 10):
                found[at, "time", time] = await asked(log.offset_for_timestamp(time))
            found[at, "latest"] = await asked(log.latest_timestamp())
    for number in range(GROUPS):
        fetched = node.coordinator.fetch(f"group-{number}", [("flights", [0])])
        assert not isinstance(fetched, int)
        found["group", number] = [(list(one.columns.offsets), one.columns.metadata) for one in fetched]
    for partition in range(CONFIG.offsets_topic_num_partitions):
        found["offsets", partition] = end = node.coordinator.end_offset(partition)
        for offset in range(end):
            found["offsets", partition, offset] = await asked(node.coordinator.read(partition, offset, 1))
    found["new producer"] = await node.producer_ids.new_id() > 0
    return found


async def batch_at(log: Any, offset: int) -> bytes:
    await log.prepare(offset)
    data: bytes = log.read(log.locate(offset), 1, at_least_one=True)
    return data


async def asked(answer: Any) -> Any:
    try:
        return await answer
    except PeerError as error:
        return Refused(str(error))


async def go(filesystem: SimulatedFileSystem, way: Way) -> Seen:
    """Start the broker in this way, and look. Raises `DataFolderError` where a start is refused."""
    node = await open_node(filesystem)
    if way == "start, append, kill, start":
        await append(node, "flights", batch(31))
    if way == "start, stop, start":
        await node.close()
        node = await open_node(filesystem)
    elif way != "start":
        leave(node)
        node = await open_node(filesystem.after_kill())
    try:
        return await seen(node)
    finally:
        leave(node)


def files_of(filesystem: SimulatedFileSystem, folder: str = DATA) -> Iterator[tuple[str, bytes]]:
    for name in filesystem.listdir(folder):
        path = f"{folder}/{name}"
        if filesystem.is_dir(path):
            yield from files_of(filesystem, path)
        else:
            yield path, filesystem.read(path)


def disk_of(files: Files) -> SimulatedFileSystem:
    filesystem = SimulatedFileSystem()
    folders = {path.rpartition("/")[0] for path in files} | {f"{DATA}/topics"}
    for folder in sorted({DATA} | folders):
        filesystem.mkdir(folder)
    for path, data in files.items():
        file = filesystem.open_append(path)
        file.write(data)
        file.sync()
    for folder in ("/", DATA, *folders):
        filesystem.sync_dir(folder)
    return filesystem


def stopped(*, cleanly: bool) -> Files:
    async def live() -> Files:
        filesystem = SimulatedFileSystem()
        node = await open_node(filesystem)
        await fill(node)
        if cleanly:
            await node.close()
        else:
            leave(node)
        return dict(files_of(filesystem))

    return asyncio.run(live())


def torn() -> Files:
    """Killed in the middle of a write to the log, and of one to the journal."""
    files = stopped(cleanly=False)
    log = max(path for path in files if path.endswith(".log") and "flights" in path)
    begun = batch(5)
    *_, (_, last) = batches(files[log])
    next_offset = last.next_offset
    files[log] += (next_offset.to_bytes(8, "big") + begun[8:])[:-10]
    return files


FOLDERS: dict[str, Callable[[], Files]] = {
    "stopped": lambda: stopped(cleanly=True),
    "killed": lambda: stopped(cleanly=False),
    "torn": torn,
}


@pytest.fixture(scope="module", params=list(FOLDERS))
def folder(request: pytest.FixtureRequest) -> tuple[Files, dict[Way, Seen]]:
    """A folder, and what each way to start it shows."""
    files = FOLDERS[request.param]()
    assert len([path for path in files if path.endswith(".log") and "flights" in path]) >= 3
    assert [path for path in files if path.endswith(".snapshot")]
    return files, {way: asyncio.run(go(disk_of(files), way)) for way in WAYS}


def judge(files: Files, path: str, way: Way, expected: Seen) -> bool:
    """Fails on a wrong value; whether anything was refused."""
    is_found = f"{DATA}/{META}" not in files or any(one.is_bad for one in check_folder(disk_of(files), DATA))
    text = ""
    try:
        shown = asyncio.run(go(disk_of(files), way))
    except DataFolderError as error:
        text = str(error)
        shown = {}
    if not shown:
        assert path in text, f"{path}: not named: {text}"
        assert is_found, f"{path}: refused, and the check finds nothing: {text}"
        return True
    assert shown.keys() == expected.keys()
    refused = {name for name, value in shown.items() if isinstance(value, Refused)}
    wrong = {name: (value, expected[name]) for name, value in shown.items() if value != expected[name]}
    assert wrong.keys() <= refused, f"{path}, {way}: a wrong value: {wrong}"
    assert is_found or not refused, f"{path}, {way}: refused, and the check finds nothing: {refused}"
    return bool(refused)


def flips(files: Files, share: int | None) -> Iterator[tuple[str, int, int]]:
    """Path, position and mask: every byte, or so many of each file."""
    chosen = random.Random(22)
    for path, data in files.items():
        content = data.rstrip(b"\xe5")
        every = range(len(content))
        some = (
            every
            if share is None
            else sorted({0, len(content) - 1, *chosen.choices(every, k=share)} if content else ())
        )
        for position in some:
            yield path, position, chosen.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
        if len(data) > len(content):
            yield path, chosen.randrange(len(content), len(data)), 255


@pytest.mark.parametrize("share", [12, pytest.param(None, marks=pytest.mark.soak)])
def test_no_flipped_byte_becomes_a_wrong_value(
    folder: tuple[Files, dict[Way, Seen]], share: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # every start of a damaged folder says so
    files, expected = folder
    refused = 0
    for number, (path, position, mask) in enumerate(flips(files, share)):
        data = bytearray(files[path])
        data[position] ^= mask
        for way in WAYS if share is None else (WAYS[number % len(WAYS)],):
            refused += judge(files | {path: bytes(data)}, path, way, expected[way])
    assert refused > 50


@pytest.mark.parametrize("way", WAYS)
def test_no_file_is_missed_in_silence(
    folder: tuple[Files, dict[Way, Seen]], way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    files, expected = folder
    not_needed = {f"{DATA}/.lock", f"{DATA}/clean-shutdown.json", f"{DATA}/leader-epoch.json"}
    for path in files.keys() - {f"{DATA}/producer-ids.json"}:  # see test_producer_ids
        left = {name: data for name, data in files.items() if name != path}
        folder_of = path.rpartition("/")[0]
        named = folder_of if path.endswith((".log", META)) else path  # a segment's name is not known elsewhere
        is_refused = judge(left, named, way, expected[way])
        assert is_refused == (path not in not_needed), path


# --- a folder of format 1, which did not know what must be there ---


def of_format_1(files: Files) -> Files:
    """The folder as an older keylane would have left it, which knew no leader epoch but 0."""
    node_id, start = 1, 7
    cluster = re.search(rb"cluster\.id=.*\n", files[f"{DATA}/{META}"])
    assert cluster is not None
    later = ("/log.json", "/journal.json", "/leader-epoch.json")
    old = {path: data for path, data in files.items() if not path.endswith(later)}
    for path in old:
        if path.endswith(".log"):
            old[path] = without_epochs(old[path])
    old[f"{DATA}/{META}"] = b"keylane.format.version=1\n" + cluster[0] + b"node.id=%d\n" % node_id
    old[f"{DATA}/topics/flights-0/log-start.json"] = seal("log-start", b"%d" % start)
    return old


def without_epochs(data: bytes) -> bytes:
    found = bytearray(data)
    for position, _ in batches(data):
        found[position + EPOCH_AT : position + EPOCH_AT + 4] = bytes(4)
    return bytes(found)


def but_for_epochs(shown: Seen) -> Seen:
    return {name: without_epochs(value) if isinstance(value, bytes) else value for name, value in shown.items()}


def test_an_older_folder_is_read_and_knows_from_then_on_what_must_be_there(
    folder: tuple[Files, dict[Way, Seen]],
) -> None:
    files, expected = folder
    old = of_format_1(files)
    assert not any(finding.is_bad for finding in check_folder(disk_of(old), DATA))
    disk = disk_of(old)
    assert but_for_epochs(asyncio.run(go(disk, "start"))) == but_for_epochs(expected["start"])
    upgraded = dict(files_of(disk))
    assert {path for path in upgraded if path.endswith("/log.json")} == {
        path for path in files if path.endswith("/log.json")
    }
    assert f"{DATA}/topics/flights-0/log-start.json" not in upgraded
    last = max(path for path in upgraded if path.endswith(".log") and "flights" in path)
    with pytest.raises(DataFolderError, match=f"{last}: missing"):
        asyncio.run(go(disk_of({path: data for path, data in upgraded.items() if path != last}), "start"))


def test_a_crash_while_an_older_folder_becomes_a_newer_one_changes_nothing(
    folder: tuple[Files, dict[Way, Seen]],
) -> None:
    files, expected = folder
    old = of_format_1(files)

    async def first_start(filesystem: SimulatedFileSystem) -> None:
        leave(await open_node(filesystem))

    whole = disk_of(old)
    before = whole.operations
    asyncio.run(first_start(whole))
    for operation in range(before + 1, whole.operations + 1):
        disk = disk_of(old)
        disk.crash_at(operation)
        with pytest.raises(SimulatedCrashError):
            asyncio.run(first_start(disk))
        for found in (disk.after_crash(), disk.after_crash(names="kept", content="torn")):
            shown = asyncio.run(go(found, "start"))
            assert but_for_epochs(shown) == but_for_epochs(expected["start"]), disk.history[-1]
