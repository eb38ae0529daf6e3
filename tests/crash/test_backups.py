"""Backups and restores that end at any operation of the disk, and those of real processes under kills.

Whatever ended them, the same command again makes them whole, and what is made is the moment that was begun with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
import subprocess
import sys
import threading
from itertools import count
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from keylane.broker import backup as backups
from keylane.broker.backup import BACKUP, COPIED, DATA, UNFINISHED, back_up, read_backup, restore
from keylane.broker.backup_points import FOLDER, POINT
from keylane.broker.checkup import check_folder
from keylane.broker.config import BrokerConfig
from keylane.broker.data_folder import META
from keylane.broker.node import Node
from keylane.broker.process import BrokerProcess
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.offset_service import CommitRequest, CommitResult
from keylane.errors import DataFolderError, PeerError, UsageError
from keylane.storage.sealed import write_sealed
from keylane.wire.batches import NewRecord, encode_batch, read_header
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOURCE, TARGET, RESTORED = "/data", "/backups/one", "/restored"
CONFIG = BrokerConfig(log_segment_bytes=1_024, offsets_topic_num_partitions=2)
NOW_MS = 1_000_000
TIMEOUT_S = 60.0


def now() -> int:
    return NOW_MS


async def append(node: Node, number: int) -> None:
    log = node.topics.log("flights", 0)
    assert log is not None
    data = encode_batch([NewRecord(b"key", b"value %d" % number + bytes(200))], timestamp_ms=NOW_MS)
    durable = log.append(data, read_header(data), NOW_MS).durable
    assert durable is not None
    await durable


async def commit(node: Node, offset: int) -> None:
    result = node.coordinator.commit(CommitRequest("group", [TopicCommit("flights", [0], [offset], [-1], None)]))
    assert isinstance(result, CommitResult)
    assert result.durable is not None
    await result.durable


async def fill(node: Node) -> None:
    await node.topics.create("flights", 2)
    for number in range(8):
        await append(node, number)
    await commit(node, 8)


def stopped_folder() -> SimulatedFileSystem:
    async def live() -> SimulatedFileSystem:
        disk = SimulatedFileSystem()
        node = await Node.open(disk, SOURCE, CONFIG, now)
        await fill(node)
        await node.close()
        return disk

    return asyncio.run(live()).after_crash()


def contents(disk: SimulatedFileSystem, path: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.listdir(path):
        if disk.is_dir(f"{path}/{name}"):
            found |= {f"{name}/{below}": data for below, data in contents(disk, f"{path}/{name}").items()}
        elif name != ".lock":
            found[name] = disk.read(f"{path}/{name}")
    return found


async def records_and_commit(disk: SimulatedFileSystem, path: str) -> tuple[int, int]:
    node = await Node.open(disk, path, CONFIG, now)
    await node.coordinator.loaded()
    log = node.topics.log("flights", 0)
    fetched = node.coordinator.fetch("group", [("flights", [0])])
    await node.close()
    assert log is not None
    assert not isinstance(fetched, int)
    return log.high_watermark, fetched[0].columns.offsets[0]


@pytest.mark.parametrize("is_crash", [False, True], ids=["killed", "power lost"])
def test_a_backup_that_ends_at_any_operation_goes_on(is_crash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "SYNCED_FILES", 3)
    stopped = stopped_folder()
    wanted = contents(stopped, SOURCE)
    went_on = 0
    for operation in count(1):
        disk = stopped.after_crash()
        disk.crash_at(operation)
        with contextlib.suppress(SimulatedCrashError):
            back_up(disk, SOURCE, TARGET, now)
            break
        disk = disk.after_crash() if is_crash else disk.after_kill()
        if disk.exists(f"{TARGET}/{BACKUP}"):
            read_backup(disk, TARGET)
        else:
            went_on += disk.exists(f"{TARGET}/{COPIED}")
            back_up(disk, SOURCE, TARGET, now)
        assert contents(disk, f"{TARGET}/{DATA}") == wanted, disk.history[-3:]
    assert operation > 40
    assert went_on > 10
    assert contents(disk, TARGET).keys() - {f"{DATA}/{name}" for name in wanted} == {BACKUP}
    assert not contents(disk, f"{SOURCE}/{FOLDER}"), "nothing is kept for it any more"


@pytest.mark.parametrize("is_crash", [False, True], ids=["killed", "power lost"])
def test_a_restore_that_ends_at_any_operation_is_no_folder_and_goes_on(is_crash: bool) -> None:
    backed_up = stopped_folder()
    back_up(backed_up, SOURCE, TARGET, now)
    wanted = contents(backed_up, f"{TARGET}/{DATA}")
    refused = 0
    for operation in count(1):
        disk = backed_up.after_crash()
        disk.crash_at(operation)
        with contextlib.suppress(SimulatedCrashError):
            restore(disk, TARGET, RESTORED)
            break
        disk = disk.after_crash() if is_crash else disk.after_kill()
        if disk.exists(f"{RESTORED}/{META}"):
            assert asyncio.run(records_and_commit(disk, RESTORED)) == (8, 8)
            continue
        if disk.exists(RESTORED) and set(disk.listdir(RESTORED)) - {".lock"}:
            with pytest.raises(DataFolderError, match=r"a restore was not finished|not empty and has no"):
                asyncio.run(Node.open(disk, RESTORED, CONFIG, now))
            refused += 1
        restore(disk, TARGET, RESTORED)
        assert contents(disk, RESTORED) == wanted
    assert operation > 30
    assert refused > 20


def test_a_moment_that_was_kept_is_what_a_later_backup_copies() -> None:
    """The broker goes on, rolls and removes segments, and is started again: what was begun with is what is there."""

    async def live() -> SimulatedFileSystem:
        disk = SimulatedFileSystem()
        node = await Node.open(disk, SOURCE, CONFIG, now)
        await fill(node)
        disk.mkdir("/backups")
        disk.mkdir(TARGET)
        disk.mkdir(f"{SOURCE}/{FOLDER}")
        write_sealed(disk, f"{TARGET}/{UNFINISHED}", backups.UNFINISHED_KIND, ["p", NOW_MS])
        await node.backup_points.make("p")
        for number in range(20):
            await append(node, number)
        await commit(node, 20)
        log = node.topics.log("flights", 0)
        assert log is not None
        await log.delete_before(15)
        await node.topics.delete("flights", node.coordinator.delete_topic_offsets)
        await node.close()
        return disk

    disk = asyncio.run(live())
    assert back_up(disk, SOURCE, TARGET, now).taken_ms == NOW_MS
    restore(disk, TARGET, RESTORED)
    assert not [finding for finding in check_folder(disk, RESTORED) if finding.is_bad]
    assert asyncio.run(records_and_commit(disk, RESTORED)) == (8, 8)


def test_what_a_start_finds_of_commits_beyond_a_log_it_says_once_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> SimulatedFileSystem:
        disk = SimulatedFileSystem()
        node = await Node.open(disk, SOURCE, CONFIG, now)
        await fill(node)
        await commit(node, 11)
        return disk.after_kill()

    with caplog.at_level(logging.WARNING):
        asyncio.run(records_and_commit(asyncio.run(live()), SOURCE))
    (said,) = [record.getMessage() for record in caplog.records if "beyond" in record.getMessage()]
    assert "1 committed offsets lie beyond" in said
    assert "11 of group 'group' in flights-0, which ends at 8" in said


def test_other_folders_are_refused_and_stay_as_they_are() -> None:
    disk = stopped_folder()
    with pytest.raises(UsageError, match=r"/nowhere is no data folder"):
        back_up(disk, "/nowhere", TARGET, now)
    with pytest.raises(UsageError, match=r"/data is not empty, and no backup"):
        back_up(disk, SOURCE, SOURCE, now)
    back_up(disk, SOURCE, TARGET, now)
    with pytest.raises(UsageError, match=r"holds a backup already"):
        back_up(disk, SOURCE, TARGET, now)
    before = contents(disk, SOURCE)
    with pytest.raises(UsageError, match=r"/data is not empty \(it has "):
        restore(disk, TARGET, SOURCE)
    assert contents(disk, SOURCE) == before
    with pytest.raises(UsageError, match=r"/data is no backup"):
        restore(disk, SOURCE, RESTORED)
    lock = disk.lock(f"{SOURCE}/.lock")
    assert lock is not None
    with pytest.raises(DataFolderError, match=r"/data is in use by a broker"):
        restore(disk, TARGET, SOURCE)
    lock.release()
    disk.remove(f"{SOURCE}/clean-shutdown.json")
    with pytest.raises(DataFolderError, match=r"did not stop cleanly: start it"):
        back_up(disk, SOURCE, "/backups/two", now)
    with pytest.raises(UsageError, match=r"is a backup that was not finished"):
        restore(disk, "/backups/two", RESTORED)


def test_each_altered_byte_and_missing_file_of_a_backup_is_refused_by_name() -> None:
    backed_up = stopped_folder()
    back_up(backed_up, SOURCE, TARGET, now)
    for path, data in contents(backed_up, f"{TARGET}/{DATA}").items():
        for altered in (None, data[:-1], b"x" + data[1:]) if data else (None,):
            disk = backed_up.after_crash()
            full = f"{TARGET}/{DATA}/{path}"
            disk.remove(full)
            if altered is not None:
                disk.open_append(full).write(altered)
            with pytest.raises(DataFolderError, match=re.escape(path)):
                restore(disk, TARGET, RESTORED)
            if disk.exists(RESTORED):
                with pytest.raises(DataFolderError, match="a restore was not finished"):
                    asyncio.run(Node.open(disk, RESTORED, CONFIG, now))


def test_a_backup_waits_for_no_broker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "HEARD_WITHIN_S", 0.0)
    disk = stopped_folder()
    lock = disk.lock(f"{SOURCE}/.lock")
    assert lock is not None
    with pytest.raises(PeerError, match=r"has not answered within 0 s"):
        back_up(disk, SOURCE, TARGET, now)
    lock.release()
    back_up(disk, SOURCE, TARGET, now)


# --- real processes ---

SETTINGS = {"log.segment.bytes": "20000", "offsets.topic.segment.bytes": "20000", "offsets.topic.num.partitions": "4"}
IN, OUT, PARTITIONS = "in", "out", 3


class Load(threading.Thread):
    """Sends one record after another to `in`, and for each a transaction: its number in every partition of `out`, and
    the group's offset behind it. `done` are the numbers whose transactions were acknowledged."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self._servers = {
            "bootstrap.servers": broker.bootstrap,
            "log_level": 0,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            # After a new bootstrap librdkafka 2.16 sends no offsets in transactions any more.
            "metadata.recovery.strategy": "none",
        }
        self._must_stop = threading.Event()
        self.done: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._must_stop.is_set():
                with contextlib.suppress(KafkaException):
                    self._send()
        except BaseException as error:
            self.error = error

    def _send(self) -> None:
        member = Consumer(self._servers | {"group.id": "copies"})
        producer = Producer(self._servers | {"transactional.id": "load", "transaction.timeout.ms": 10_000})
        producer.init_transactions(TIMEOUT_S)
        plain = Producer(self._servers)
        while not self._must_stop.is_set():
            number = self.done[-1] + 1 if self.done else 0
            place: list[int | None] = []
            plain.produce(IN, b"%d" % number, on_delivery=lambda _, told, place=place: place.append(told.offset()))  # type: ignore[misc]
            assert plain.flush(TIMEOUT_S) == 0
            assert place[0] is not None
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(OUT, b"%d" % number, partition=partition)
            offsets = [TopicPartition(IN, 0, place[0] + 1, metadata=str(number))]
            producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)
            self.done.append(number)

    def wait_for(self, more: int) -> None:
        """Return when so many more transactions were acknowledged."""
        wanted = len(self.done) + more
        until(lambda: len(self.done) >= wanted or self.error is not None, "transactions go on")
        assert self.error is None, self.error

    def stop(self) -> None:
        self._must_stop.set()
        self.join(TIMEOUT_S)
        assert self.error is None, self.error


def read(broker: BrokerProcess, topic: str, partition: int) -> list[int]:
    """All committed records."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "judge", "enable.partition.eof": True}
    consumer = Consumer(settings | {"isolation.level": "read_committed", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[int] = []
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found
        found.append(int(message.value() or b""))


def judge(folder: Path, done_before: int) -> None:
    """Start a broker in the folder. Of what was acknowledged before nothing is missing; nothing is there by half."""
    log = folder.with_name(folder.name + ".log")
    with BrokerProcess(folder, settings=SETTINGS, log=log) as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        producer = Producer(settings | {"transactional.id": "load"})
        producer.init_transactions(TIMEOUT_S)  # ends what was open
        copies = [read(broker, OUT, partition) for partition in range(PARTITIONS)]
        assert copies[0] == copies[1] == copies[2], "a transaction is in each partition or in none"
        assert copies[0][:done_before] == list(range(done_before)), "acknowledged before, and missing"
        numbers = read(broker, IN, 0)
        assert set(copies[0]) <= set(numbers), "a copy of what is not there"
        member = Consumer(settings | {"group.id": "copies"})
        (committed,) = member.committed([TopicPartition(IN, 0)], TIMEOUT_S)
        member.close()
        last = [int(committed.metadata)] if committed.metadata else []
        assert last == copies[0][-1:], "offsets go with their transaction"
        assert committed.offset <= len(numbers), "a commit beyond the log's end"
    assert "beyond" not in log.read_text()


@contextlib.contextmanager
def loaded_broker(folder: Path) -> Iterator[tuple[BrokerProcess, Load]]:
    with BrokerProcess(folder / "data", settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        made = admin.create_topics([NewTopic(IN, 1, 1), NewTopic(OUT, PARTITIONS, 1)])
        for future in made.values():
            future.result(TIMEOUT_S)
        load = Load(broker)
        load.start()
        try:
            load.wait_for(5)
            yield broker, load
        finally:
            load.stop()


class Command:
    """`keylane broker backup`, started again until it is done."""

    def __init__(self, broker: BrokerProcess, target: Path) -> None:
        self._arguments = [sys.executable, "-m", "keylane", "broker", "backup", str(broker.data_dir), str(target)]
        self._points = broker.data_dir / FOLDER

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill_when(self, is_time: str) -> None:
        """Run it up to the step where such a file is in the folder of points, or to its end."""
        with self.start() as process:
            until(lambda: bool(list(self._points.glob(is_time))) or process.poll() is not None, is_time)
            process.kill()

    def finish(self, target: Path) -> None:
        with self.start() as process:
            _, said = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0 or (target / BACKUP).exists(), said


def back_up_under_kills(folder: Path, rounds: int) -> None:
    """By turns the command is killed when it has asked, when its moment is kept, or not; and so is the broker."""
    with loaded_broker(folder) as (broker, load):
        made = []
        for number in range(rounds):
            target = folder / f"backup-{number}"
            command = Command(broker, target)
            done_before = len(load.done)
            if number % 3:
                command.kill_when(("request", f"*/{POINT}")[number % 3 - 1])
            if number % 2:
                broker.restart()
                load.wait_for(1)
            command.finish(target)
            made.append((target, done_before))
            load.wait_for(3)
        assert not list((broker.data_dir / FOLDER).glob("*/")), "no moment is kept any more"
    for target, done_before in made:
        restored = target.with_name(f"{target.name}-restored")
        subprocess.run([sys.executable, "-m", "keylane", "broker", "restore", target, restored], check=True)
        judge(restored, done_before)


@pytest.mark.full
def test_backups_under_load_and_kills_lack_nothing_and_have_nothing_by_half(tmp_path: Path) -> None:
    back_up_under_kills(tmp_path, 4)


@pytest.mark.soak
def test_many_backups_under_load_and_kills_lack_nothing_and_have_nothing_by_half(tmp_path: Path) -> None:
    back_up_under_kills(tmp_path, 60)


@pytest.mark.full
def test_a_copy_that_is_made_file_by_file_under_load_is_found_out(tmp_path: Path) -> None:
    """By the judge, or by the start: the logs have a transaction that the journal does not know."""
    copy = tmp_path / "copy"
    with loaded_broker(tmp_path) as (broker, load):
        shutil.copytree(broker.data_dir / "coordinator", copy / "coordinator")
        load.wait_for(5)
        done_before = len(load.done)
        shutil.copytree(broker.data_dir, copy, dirs_exist_ok=True, ignore=ignored("coordinator"))
    with pytest.raises((AssertionError, PeerError)):
        judge(copy, done_before)


def test_a_start_says_that_commits_are_beyond_the_logs_of_a_copy(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with BrokerProcess(tmp_path / "data") as broker:
        servers = {"bootstrap.servers": broker.bootstrap}
        producer = Producer(servers)
        member = Consumer(servers | {"group.id": "reads"})
        for end in (3, 6):
            for number in range(3):
                producer.produce(IN, b"%d" % number)
            assert producer.flush(TIMEOUT_S) == 0
            member.commit(offsets=[TopicPartition(IN, 0, end)], asynchronous=False)
            if end == 3:
                shutil.copytree(broker.data_dir / "topics", copy / "topics")
        shutil.copytree(broker.data_dir, copy, dirs_exist_ok=True, ignore=ignored("topics"))
        member.close()
    log = tmp_path / "copy.log"
    with BrokerProcess(copy, log=log):
        pass
    (said,) = [line for line in log.read_text().splitlines() if "beyond" in line]
    assert "6 of group 'reads' in in-0, which ends at 3" in said


def ignored(*names: str) -> Callable[[str, list[str]], set[str]]:
    return shutil.ignore_patterns(*names, ".lock", FOLDER)
