"""A disk without room: what was refused is nowhere, what was acknowledged is there, and with room all goes on.

What is known of a log after a refused write is compared with what a restart finds: they are the same, always.
"""

from __future__ import annotations

import asyncio
import errno
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keylane.broker.config import BrokerConfig
from keylane.broker.data_folder import open_data_folder
from keylane.broker.topics import NewTopic, TopicRegistry
from keylane.coordinator.formats import TopicCommit, encode_commit
from keylane.coordinator.journal.image import Image
from keylane.coordinator.journal.journal import FileJournal
from keylane.errors import PeerError
from keylane.storage.compacting import Compactor
from keylane.storage.facts import FACTS_FILE
from keylane.storage.filesystem import NoRoomError, StorageError
from keylane.storage.log import LogOptions, PartitionLog
from keylane.storage.open_log import create_log, recover_log
from keylane.storage.producers import OutOfOrderSequenceError
from keylane.wire.batches import HEADER_SIZE, NewRecord, decode_records, encode_batch, read_header
from kit.examples import examples
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keylane.storage.shared_sync import Round

OPTIONS = LogOptions(segment_bytes=400, index_interval_bytes=100)
FOLDER = "/t-0"
FULL = OSError(errno.ENOSPC, "no room")
TRANSACTIONAL = 0x10


def values(log: PartitionLog) -> list[bytes]:
    """All that a reader sees."""
    found: list[bytes] = []
    position = 0
    while data := log.read(position, 2**30, at_least_one=True):
        position += len(data)
        while len(data) >= HEADER_SIZE:
            header = read_header(data)
            if not header.is_control:
                found += [record.value or b"" for record in decode_records(data[: header.length])]
            data = data[header.length :]
    return found


def known(log: PartitionLog) -> Any:
    """Of batches, producers and transactions: what the next append and the next read are judged by, but for the times.
    (How stable the log was when a marker became durable is a bound that depends on what was appended by then.)"""
    snapshot = log.snapshot()
    states = [[producer_id, epoch, *rest] for producer_id, epoch, _, *rest in snapshot["producers"]["states"]]
    transactions = snapshot["transactions"]
    aborted = [row[:3] for row in transactions["aborted"]]
    return snapshot["next_offset"], sorted(states), transactions["undecided"], aborted, log.stable_offset


@dataclass
class Writer:
    """Producers of one partition: a plain one, an idempotent one, and a transactional one."""

    log: PartitionLog
    sent: int = 0
    sequence: int = 0
    """Of the idempotent one: the next to send."""
    in_transaction: int = 0
    """Of the transactional one."""
    outcomes: list[tuple[bytes, Round]] = field(default_factory=list)
    last: tuple[bytes, bytes] = (b"", b"")
    """Of the idempotent one: value and batch."""

    def append(self, kind: str, size: int) -> None:
        self.sent += 1
        value = (b"%s %d " % (kind.encode(), self.sent)).ljust(size, b".")
        fields: dict[str, Any] = {}
        if kind == "idempotent":
            fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": self.sequence}
            self.sequence += 1
        elif kind == "transactional":
            fields = {"producer_id": 8, "producer_epoch": 0, "base_sequence": self.in_transaction}
            fields["attributes"] = TRANSACTIONAL
            self.in_transaction += 1
        data = encode_batch([NewRecord(None, value)], timestamp_ms=1, **fields)
        try:
            durable = self.log.append(data, read_header(data), 0).durable
        except OutOfOrderSequenceError:  # the one before it was refused meanwhile
            return
        assert durable is not None
        self.outcomes.append((value, durable))
        if kind == "idempotent":
            self.last = value, data

    def repeat(self) -> bytes:
        """Sends the idempotent one's last batch again; what stands where the answer says that it is."""
        data = self.last[1]
        appended = self.log.append(data, read_header(data), 0)
        assert appended.durable is None, "it was written once more"
        found = self.log.read(self.log.locate(appended.base_offset), 1, at_least_one=True)
        return decode_records(found)[0].value or b""

    def end(self) -> None:
        self.log.end_transaction(8, 0, committed=self.sent % 2 == 0, now_ms=0)

    async def settle(self) -> tuple[list[bytes], list[bytes]]:
        """What was acknowledged, and what was refused, since the last time."""
        acknowledged, refused = [], []
        for value, durable in self.outcomes:
            try:
                await durable
            except NoRoomError:
                refused.append(value)
            else:
                acknowledged.append(value)
        self.outcomes = []
        # As clients do, the sequences go on where the log stands.
        last = {producer.producer_id: producer.last_sequence for producer in self.log.producers()}
        self.sequence, self.in_transaction = last.get(7, -1) + 1, last.get(8, -1) + 1
        return acknowledged, refused


APPENDS = st.tuples(st.sampled_from(["plain", "idempotent", "transactional", "end", "turn"]), st.integers(20, 250))
TURNS = st.lists(st.tuples(st.integers(0, 900) | st.none(), st.lists(APPENDS, min_size=1, max_size=8)), max_size=8)


async def write(turns: list[tuple[int | None, list[tuple[str, int]]]]) -> None:
    filesystem = SimulatedFileSystem()
    log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
    filesystem.sync_dir("/")
    writer = Writer(log)
    everything: list[bytes] = []
    maybe: set[bytes] = set()
    for room, appends in [*turns, (None, [("plain", 30), ("idempotent", 30)])]:
        filesystem.room = room
        for kind, size in appends:
            if kind == "end":
                writer.end()
            elif kind == "turn":
                await asyncio.sleep(0)
            else:
                writer.append(kind, size)
        acknowledged, refused = await writer.settle()
        await log._sync.close()
        everything += acknowledged
        maybe |= set(refused)
        shown = values(log)
        assert [value for value in shown if value not in maybe] == everything
        if writer.last[0] in shown:
            assert writer.repeat() == writer.last[0], "taken for a record that is not there"
        for names, content in (("lost", "lost"), ("kept", "kept"), ("kept", "torn")):
            after = filesystem.after_crash(names=names, content=content)  # type: ignore[arg-type]
            again = recover_log(after, FOLDER, OPTIONS, InlineExecutor(), 0)
            assert values(again) == shown
            assert known(again) == known(log)
    assert not refused, "there was room in the end"
    await log.close()


@given(TURNS)
@settings(max_examples=examples(100), deadline=None)
def test_a_log_knows_what_a_restart_would_find_whatever_was_refused(
    turns: list[tuple[int | None, list[tuple[str, int]]]],
) -> None:
    asyncio.run(write(turns))


def test_what_a_roll_made_durable_stays_when_the_next_segment_finds_no_room() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
        writer = Writer(log)
        writer.append("idempotent", 200)
        await writer.settle()
        filesystem.room = 230
        writer.append("idempotent", 30)  # fits, and so do the facts of a new segment
        writer.append("idempotent", 200)  # into a new segment, which is made, and has no room for it
        acknowledged, refused = await writer.settle()
        assert (len(acknowledged), len(refused)) == (0, 2)
        assert len(values(log)) == 2
        assert filesystem.listdir(FOLDER) == [f"{0:020d}.log", f"{2:020d}.log", FACTS_FILE]
        filesystem.room = None
        writer.append("idempotent", 200)
        assert len((await writer.settle())[0]) == 1
        assert len(values(log)) == 3
        await log.close()

    asyncio.run(scenario())


def test_a_compaction_takes_no_segment_that_may_still_grow() -> None:
    """A roll whose round is under way may be taken back; then appends go on in the segment before it."""

    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
        writer = Writer(log)
        writer.append("plain", 200)
        await writer.settle()
        writer.append("plain", 200)
        assert log.decided_segments() == []
        await writer.settle()
        assert len(log.decided_segments()) == 1
        await log.close()

    asyncio.run(scenario())


def test_a_failed_sync_is_final_whatever_the_reason() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
        writer = Writer(log)
        filesystem.fail_at(filesystem.operations + 2, FULL)
        writer.append("plain", 30)
        with pytest.raises(StorageError, match="nothing more is written to it") as refused:
            await writer.settle()
        assert not isinstance(refused.value, NoRoomError)
        assert filesystem.history[-1].startswith("sync ")
        with pytest.raises(StorageError, match="restart the broker"):
            writer.append("plain", 30)
        await log.close()

    asyncio.run(scenario())


def test_retention_makes_room_on_a_disk_that_is_all_but_full() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
        writer = Writer(log)
        for _ in range(4):
            writer.append("plain", 200)
            await writer.settle()
        filesystem.room = 0
        await log.remove_expired(10**9, 1, -1)
        assert len(filesystem.listdir(FOLDER)) == 5, "nothing goes before it is noted, which takes a few bytes"
        filesystem.room = 150
        await log.remove_expired(10**9, 1, -1)
        assert filesystem.listdir(FOLDER) == [f"{4:020d}.log", FACTS_FILE]
        filesystem.room = None
        writer.append("plain", 200)
        await writer.settle()
        assert log.high_watermark == 5
        await log.close()

    asyncio.run(scenario())


def test_a_compaction_without_room_leaves_nothing_behind_and_is_tried_again() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        log = create_log(filesystem, FOLDER, OPTIONS, InlineExecutor())
        for number in range(6):
            data = encode_batch([NewRecord(b"k", b"%d" % number * 100)], timestamp_ms=1)
            durable = log.append(data, read_header(data), 0).durable
            assert durable is not None
            await durable
        before = filesystem.listdir(FOLDER)
        size = sum(len(filesystem.read(f"{FOLDER}/{name}")) for name in before)
        compactor = Compactor(filesystem, InlineExecutor())
        filesystem.room = 10
        assert await compactor.compact(log, 0, 0.0, 1_000)
        assert filesystem.listdir(FOLDER) == before
        filesystem.room = None
        assert await compactor.compact(log, 0, 0.0, 1_000)
        assert filesystem.listdir(FOLDER) == before
        assert sum(len(filesystem.read(f"{FOLDER}/{name}")) for name in before) < size
        await log.close()

    asyncio.run(scenario())


# --- the journal ---

JOURNAL = BrokerConfig(offsets_topic_num_partitions=2, offsets_topic_segment_bytes=900)


def journal_of(filesystem: SimulatedFileSystem) -> tuple[FileJournal, Image]:
    image = Image()
    executor = InlineExecutor()
    return (
        FileJournal(filesystem, "/coordinator", executor, executor, image=image, options=JOURNAL, clock=lambda: 1),
        image,
    )


def offsets_in(image: Image) -> dict[tuple[str, int], int]:
    found = {}
    for group in image.store.groups:
        for _, (partitions, offsets, *_) in image.store.fetch_all(group):
            found.update({(group, index): offset for index, offset in zip(partitions, offsets, strict=True)})
    return found


COMMITS = st.lists(
    st.tuples(
        st.integers(0, 1_500) | st.none(),
        st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6), st.booleans()), min_size=1, max_size=8),
    ),
    max_size=8,
)


async def commit(turns: list[tuple[int | None, list[tuple[int, int, bool]]]]) -> None:
    filesystem = SimulatedFileSystem()
    journal, image = journal_of(filesystem)
    await journal.load()
    filesystem.sync_dir("/")
    expected: dict[tuple[str, int], int] = {}
    ends = [0, 0]
    offset = 0
    told: list[StorageError | None] = []

    def answered(partition: int, rows: TopicCommit, error: StorageError | None, base: int) -> None:
        told.append(error)
        if error is None:
            assert base == ends[partition]
            ends[partition] += len(rows.partitions)
            image.store.apply(f"g{partition}", [rows], base, 1)
            expected.update({(f"g{partition}", index): rows.offsets[0] for index in rows.partitions})

    for room, commits in [*turns, (None, [(0, 1, False)])]:
        filesystem.room = room
        told.clear()
        rounds = []
        for partition, count, turns_after in commits:
            offset += 1
            rows = TopicCommit("t", list(range(count)), [offset] * count, [0] * count, None)

            done = functools.partial(answered, partition, rows)
            rounds.append(journal.append(partition, encode_commit(f"g{partition}", [rows], 1), done))
            if turns_after:
                await asyncio.sleep(0)
        for durable in rounds:
            try:
                await durable
            except NoRoomError:
                assert room is not None
        if journal._snapshot_task is not None:
            await asyncio.wait({journal._snapshot_task})
        assert len(told) == len(commits)
        assert [journal.end_offset(partition) for partition in (0, 1)] == ends
        for partition in (0, 1):
            data, at = await journal.read(partition, 0, 2**30), 0
            while data:
                header = read_header(data)
                assert header.base_offset >= at
                at, data = header.next_offset, data[header.length :]
            assert at <= ends[partition]
        for names, content in (("lost", "lost"), ("kept", "kept"), ("kept", "torn")):
            again, found = journal_of(filesystem.after_crash(names=names, content=content))  # type: ignore[arg-type]
            await again.load()
            assert offsets_in(found) == expected
            assert [again.end_offset(partition) for partition in (0, 1)] == ends
            await again.close()
    assert told == [None], "there was room in the end"
    await journal.close()


SEGMENTS_IN_ONE_ROUND = [
    (None, [(0, count, False) for count in (1, 1, 1, 2, 6, 3, 6, 6)]),
    (1_018, [(0, count, False) for count in (1, 1, 5, 6, 1)]),
]
"""The round that finds no room has ended one segment, filled the next, and begun a third."""


@given(COMMITS)
@example(SEGMENTS_IN_ONE_ROUND)
@settings(max_examples=examples(60), deadline=None)
def test_a_journal_holds_what_was_acknowledged_whatever_was_refused(
    turns: list[tuple[int | None, list[tuple[int, int, bool]]]],
) -> None:
    asyncio.run(commit(turns))


def test_the_last_room_is_for_commits_and_not_for_a_reserve() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        journal, _ = journal_of(filesystem)
        await journal.load()
        filesystem.room = 1_000  # less than the least reserve
        rows = TopicCommit("t", [0], [1], [0], None)
        for _ in range(5):
            await journal.append(0, encode_commit("g", [rows], 1), lambda *_: None)
        await journal.close()

    asyncio.run(scenario())


# --- the registry ---

STEPS = ["create a 2", "create b 1", "grow b 3", "alter b", "delete a", "create a 1 c 2", "delete b", "delete c"]


async def change(registry: TopicRegistry, step: str) -> None:
    words = step.split()
    if words[0] == "create":
        new = [NewTopic(name, int(count), {}) for name, count in zip(words[1::2], words[2::2], strict=True)]
        await registry.create_all(new)
    elif words[0] == "grow":
        await registry.add_partitions(words[1], int(words[2]))
    elif words[0] == "alter":
        await registry.alter(words[1], {"retention.ms": "5000"})
    else:
        await registry.delete(words[1], forget)


async def forget(_name: str) -> None:
    pass


async def open_registry(filesystem: SimulatedFileSystem) -> TopicRegistry:
    open_data_folder(filesystem, "/data", 1)
    registry = TopicRegistry(
        filesystem, "/data", BrokerConfig(), InlineExecutor(), lambda: 0, epoch_of_topic=lambda _: 1
    )
    registry.load(None)
    await registry.finish_interrupted(forget)
    return registry


def shape(registry: TopicRegistry) -> dict[str, int | None]:
    return {name: registry.partition_count(name) for name in registry.names()}


def growing(filesystem: SimulatedFileSystem, since: int) -> Iterator[int]:
    for number, line in enumerate(filesystem.history[since:], since + 1):
        if line.split()[0] in ("create", "write", "mkdir", "rename"):
            yield number


async def registry_history(full_at: int) -> SimulatedFileSystem:
    """All steps, with no room at one operation; a step that was refused is asked for again."""
    filesystem = SimulatedFileSystem()
    registry = await open_registry(filesystem)
    filesystem.sync_dir("/")
    filesystem.fail_at(full_at, FULL)
    for step in STEPS:
        before = shape(registry)
        try:
            await change(registry, step)
        except NoRoomError:
            assert shape(registry) == before, f"{step} was refused, and it did something"
            found = await open_registry(filesystem.after_crash())
            assert shape(found) == before
            await change(registry, step)
        folders = {f"{name}-{index}" for name, count in shape(registry).items() for index in range(count or 0)}
        assert set(filesystem.listdir("/data/topics")) >= folders
    found = await open_registry(filesystem.after_crash())
    assert shape(found) == shape(registry) == {"a": 1}
    assert filesystem.listdir("/data/topics") == ["a-0"]
    await registry.close()
    return filesystem


def test_a_topic_that_finds_no_room_is_refused_and_made_the_next_time() -> None:
    async def scenario() -> None:
        first = await registry_history(10**9)
        opened = next(number for number, line in enumerate(first.history) if line.endswith("topics/a-0"))
        count = 0
        for operation in growing(first, opened - 3):
            await registry_history(operation)
            count += 1
        assert count > 20

    asyncio.run(scenario())


def test_another_error_is_still_final_for_the_registry() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        registry = await open_registry(filesystem)
        filesystem.fail_at(filesystem.operations + 2)
        for _ in range(2):
            with pytest.raises(PeerError, match="neither made nor deleted"):
                await registry.create("a", 1)

    asyncio.run(scenario())
