"""Transactions after a crash or an error at any operation of the disk: whole or not at all, as clients were told.

Two producers, classic ones or such with an epoch for each transaction, write to two topics and commit offsets of a
group, in transactions that commit, abort, are fenced, or are still open. After the crash a start takes prepared ones up
again, and time ends the open ones. The oracle is what clients were told: lost, duplicated, aborted and read, or in
part: none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import pytest

from keylane.broker.backup import UNFINISHED, UNFINISHED_KIND, back_up, restore
from keylane.broker.backup_points import FOLDER
from keylane.broker.config import BrokerConfig
from keylane.broker.node import Node
from keylane.coordinator.formats import OFFSETS_TOPIC, TopicCommit, partition_for
from keylane.coordinator.offset_service import CommitRequest
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.errors import DataFolderError, PeerError
from keylane.storage.sealed import write_sealed
from keylane.wire import codes
from keylane.wire.batches import NewRecord, batches, decode_records, encode_batch, read_header
from kit.filesystem import Content, Names, SimulatedCrashError, SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

DATA = "/data"
RESTORED = "/restored"
POINT_ID = "0" * 32
PARTITIONS = 2
CONFIG = BrokerConfig(
    log_segment_bytes=1_024, offsets_topic_num_partitions=PARTITIONS, offsets_topic_segment_bytes=1_500
)
TIMEOUT_MS = 10_000
TOPICS = ("a", "b")


@dataclass
class Clock:
    now_ms: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Told:
    """What clients were told."""

    topics: set[str] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    """Transactions whose commit was asked for, answered or not."""
    is_finished: bool = False


class Client:
    """A transactional producer, without a socket."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name
        self.producer = Producer(-1, -1)
        self.sequences: Counter[tuple[str, int]] = Counter()

    async def init(self) -> None:
        transactions = self.node.coordinator.transactions
        error, self.producer = await transactions.init_producer_id(self.name, TIMEOUT_MS, None)
        if error == codes.CONCURRENT_TRANSACTIONS:  # a transaction is aborted first
            await transactions.settled()
            error, self.producer = await transactions.init_producer_id(self.name, TIMEOUT_MS, None)
        expect(error)

    async def write(self, number: int) -> None:
        """A record in each topic, and the group's offset, all of transaction `number`."""
        transactions = self.node.coordinator.transactions
        offsets = (OFFSETS_TOPIC, partition_for(self.name, PARTITIONS))
        await self._add([*((topic, 0) for topic in TOPICS), offsets])
        for topic in TOPICS:
            expect(transactions.check_write(self.name, self.producer, (topic, 0)))
            await self._append(topic, number)
        commit = TopicCommit("a", [0], [number], [-1], [f"map-{number}"])
        result = self.node.coordinator.commit_in_transaction(
            CommitRequest(self.name, [commit]), self.name, self.producer
        )
        if isinstance(result, int):
            expect(result)
        assert not isinstance(result, int)
        assert result.durable is not None
        await result.durable

    async def _add(self, partitions: list[tuple[str, int]]) -> None:
        expect(await self.node.coordinator.transactions.add_partitions(self.name, self.producer, partitions))

    async def _append(self, topic: str, number: int) -> None:
        log = self.node.topics.log(topic, 0)
        assert log is not None
        data = encode_batch(
            [NewRecord(None, b"%d" % number)],
            timestamp_ms=1,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=self.sequences[topic, self.producer.epoch],
            attributes=0x10,
        )
        self.sequences[topic, self.producer.epoch] += 1
        durable = log.append(data, read_header(data), 1).durable
        assert durable is not None
        await durable

    async def end(self, *, committed: bool) -> None:
        transactions = self.node.coordinator.transactions
        expect(await transactions.end(self.name, self.producer, committed=committed))
        await transactions.settled()


class NewClient(Client):
    """One of transactions V2 (KIP-890): it adds no partitions, and goes on in a new epoch after each end."""

    async def _add(self, partitions: list[tuple[str, int]]) -> None:
        joining = self.node.coordinator.transactions.join(self.name, self.producer, partitions)
        if joining is not None:
            await joining
            expect(joining.error)

    async def end(self, *, committed: bool) -> None:
        transactions = self.node.coordinator.transactions
        before = self.producer
        error, self.producer = await transactions.end_to_next_epoch(self.name, before, committed=committed)
        expect(error)
        assert self.producer == (before.producer_id, before.epoch + 1)
        await transactions.settled()


def expect(error: int) -> None:
    if error in (codes.KAFKA_STORAGE_ERROR, codes.CONCURRENT_TRANSACTIONS):
        raise PeerError("the disk has failed, or a marker waits for it")
    assert error == codes.NONE


@contextlib.asynccontextmanager
async def alone(_: Node) -> AsyncIterator[None]:
    """Nothing goes on beside the life."""
    yield


async def run_transactions(
    filesystem: SimulatedFileSystem,
    told: Told,
    kind: type[Client],
    beside: Callable[[Node], AbstractAsyncContextManager[None]] = alone,
) -> None:
    node = await Node.open(filesystem, DATA, CONFIG, Clock())
    try:
        async with beside(node):
            await live(node, told, kind)
    finally:
        with contextlib.suppress(SimulatedCrashError):
            await node.close()
    told.is_finished = True
    assert told.committed == {0, 2, 51, 100}


async def live(node: Node, told: Told, kind: type[Client]) -> None:
    for topic in TOPICS:
        await node.topics.create(topic, 1)
        told.topics.add(topic)
    x, y = kind(node, "x"), kind(node, "y")
    await x.init()
    await y.init()
    await y.write(100)  # stays open, so x is undecided for readers behind it
    for number in range(4):
        await x.write(number)
        told.asked |= set() if number % 2 else {number}
        await x.end(committed=number % 2 == 0)
        (told.aborted if number % 2 else told.committed).add(number)
    await x.write(50)
    successor = kind(node, "x")
    await successor.init()
    told.aborted.add(50)
    await successor.write(51)
    told.asked.add(51)
    await successor.end(committed=True)
    told.committed.add(51)
    told.asked.add(100)
    await y.end(committed=True)
    told.committed.add(100)
    await y.write(101)


async def read_committed(node: Node, topic: str) -> list[int]:
    """What a consumer of committed records makes of the log."""
    log = node.topics.log(topic, 0)
    assert log is not None
    assert log.stable_offset == log.high_watermark, "nothing is undecided any more"
    aborted = sorted(log.aborted(0, log.stable_offset), key=lambda one: one[1])
    for offset in range(log.high_watermark):
        await log.prepare(offset)
    found = []
    left_out: set[int] = set()
    position = 0
    while data := log.read(position, 100_000, at_least_one=True, end=log.stable_position):
        position += len(data)
        for at, header in batches(data):
            while aborted and aborted[0][1] <= header.base_offset:
                left_out.add(aborted.pop(0)[0])
            if header.is_control:
                left_out.discard(header.producer_id)
            elif header.producer_id not in left_out:
                found += [int(record.value or b"") for record in decode_records(data, at)]
    return found


async def check(filesystem: SimulatedFileSystem, told: Told, kind: type[Client], path: str = DATA) -> None:
    clock = Clock()
    node = await Node.open(filesystem, path, CONFIG, clock)
    try:
        transactions = node.coordinator.transactions
        await node.coordinator.loaded()
        await transactions.settled()
        clock.now_ms += TIMEOUT_MS + 1
        await transactions.abort_timed_out()
        await transactions.settled()
        if not told.topics >= set(TOPICS):
            return
        a, b = await read_committed(node, "a"), await read_committed(node, "b")
        assert a == b, "a transaction is whole in every partition"
        assert len(a) == len(set(a)), "duplicated"
        assert told.committed <= set(a), "lost"
        assert not told.aborted & set(a), "aborted and read"
        assert set(a) <= told.asked
        for name, numbers in (("x", range(100)), ("y", range(100, 200))):
            fetched = node.coordinator.fetch(name, None, require_stable=True)
            assert not isinstance(fetched, int)
            last = [number for number in a if number in numbers][-1:]
            rows = [(list(one.columns.offsets), list(one.columns.metadata or ())) for one in fetched]
            assert rows == [([number], [f"map-{number}"]) for number in last], "offsets go with their transaction"
        again = kind(node, "x")
        await again.init()
        await again.write(60)
        await again.end(committed=True)
        assert await read_committed(node, "a") == [*a, 60]
    finally:
        await node.close()


def attempt(filesystem: SimulatedFileSystem, kind: type[Client]) -> Told:
    told = Told()
    with contextlib.suppress(SimulatedCrashError, PeerError, OSError):
        asyncio.run(run_transactions(filesystem, told, kind))
    return told


@pytest.mark.parametrize(
    ("names", "content", "first", "step"),
    [
        pytest.param("lost", "lost", 1, 2, marks=pytest.mark.full),
        ("kept", "torn", 2, 2),
        pytest.param("lost", "lost", 1, 1, marks=pytest.mark.soak),
        pytest.param("kept", "torn", 1, 1, marks=pytest.mark.soak),
        pytest.param("kept", "kept", 1, 1, marks=pytest.mark.soak),
    ],
)
def test_a_crash_at_any_operation_leaves_transactions_whole(
    names: Names, content: Content, first: int, step: int
) -> None:
    """In the short form the two ways to lose what was not synced take turns."""
    crash_everywhere(names, content, first, step, Client)


@pytest.mark.parametrize(
    ("names", "content", "step"),
    [
        ("lost", "torn", 3),
        pytest.param("lost", "lost", 1, marks=pytest.mark.soak),
        pytest.param("kept", "torn", 1, marks=pytest.mark.soak),
    ],
)
def test_a_crash_at_any_operation_leaves_transactions_with_an_epoch_each_whole(
    names: Names, content: Content, step: int
) -> None:
    crash_everywhere(names, content, 1, step, NewClient)


def crash_everywhere(names: Names, content: Content, first: int, step: int, kind: type[Client]) -> None:
    for operation in count(first, step):
        filesystem = SimulatedFileSystem()
        filesystem.crash_at(operation)
        told = attempt(filesystem, kind)
        found = filesystem.after_crash(names=names, content=content)
        try:
            asyncio.run(check(found, told, kind))
        except BaseException as error:
            error.add_note(f"crash at operation {operation}: {filesystem.history[-1]}; {told}")
            raise
        if told.is_finished:
            break
    assert operation > 100


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_an_error_at_an_operation_is_never_a_false_answer(step: int) -> None:
    fail_everywhere(step, Client)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_an_error_at_an_operation_is_never_a_false_answer_about_the_next_epoch(step: int) -> None:
    fail_everywhere(step, NewClient)


def fail_everywhere(step: int, kind: type[Client]) -> None:
    operation = 0
    while True:
        operation += step
        filesystem = SimulatedFileSystem()
        filesystem.fail_at(operation)
        told = attempt(filesystem, kind)
        try:
            asyncio.run(check(filesystem.after_crash(names="kept"), told, kind))
        except BaseException as error:
            error.add_note(f"error at operation {operation} of {len(filesystem.history)}; {told}")
            raise
        if told.is_finished and operation > len(filesystem.history):
            break


class PointTaker(SimulatedFileSystem):
    """Takes a backup's point while the given operation of the broker's life is under way."""

    def __init__(self, operation: int, told: Told) -> None:
        super().__init__()
        self._taken_at = operation
        self._told = told
        self._node: Node | None = None
        self.taking: asyncio.Task[None] | None = None
        self.before = self.after = Told()
        """What clients were told when the point was asked for, and when it was there."""

    @contextlib.asynccontextmanager
    async def beside(self, node: Node) -> AsyncIterator[None]:
        self._node, self._loop = node, asyncio.get_running_loop()
        yield
        self._node = None
        await asyncio.sleep(0)
        if self.taking is not None:
            await self.taking

    def operation(self, kind: str, path: str, size: int = 0) -> None:
        super().operation(kind, path, size)
        if self._node is not None and self.operations >= self._taken_at:
            node, self._node = self._node, None
            self._loop.call_soon_threadsafe(self._take, node)

    def _take(self, node: Node) -> None:
        self.taking = self._loop.create_task(self._made(node))

    async def _made(self, node: Node) -> None:
        if not self.exists(f"{DATA}/{FOLDER}"):
            self.mkdir(f"{DATA}/{FOLDER}")
        self.before = deepcopy(self._told)
        await node.backup_points.make(POINT_ID)
        self.after = deepcopy(self._told)

    def restored(self) -> Told:
        """Back the point up and restore it to `/restored`: what clients must find there."""
        self.mkdir("/to")
        write_sealed(self, f"/to/{UNFINISHED}", UNFINISHED_KIND, [POINT_ID, 0])
        back_up(self, DATA, "/to", Clock())
        restore(self, "/to", RESTORED)
        before, after = self.before, self.after
        return Told(before.topics, before.committed, before.aborted, after.asked)


@pytest.mark.parametrize("kind", [Client, NewClient])
@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_a_backup_of_any_moment_has_transactions_whole(kind: type[Client], step: int) -> None:
    points = 0
    for operation in count(1, step):
        told = Told()
        disk = PointTaker(operation, told)
        asyncio.run(run_transactions(disk, told, kind, disk.beside))
        if disk.taking is None:
            break
        points += 1
        try:
            asyncio.run(check(disk, disk.restored(), kind, RESTORED))
        except BaseException as error:
            error.add_note(f"point at operation {operation}: {disk.before}, {disk.after}")
            raise
    assert points > 150 / step


class PlainCopier(SimulatedFileSystem):
    """Copies a folder as `cp -r` does: the logs at one operation, and the rest some time later."""

    def __init__(self, operation: int) -> None:
        super().__init__()
        self._copied_at = operation

    def operation(self, kind: str, path: str, size: int = 0) -> None:
        super().operation(kind, path, size)
        if path.startswith(DATA) and self.operations == self._copied_at:
            self.mkdir(RESTORED)
            self._copy("topics")
        elif path.startswith(DATA) and self.exists(RESTORED) and self.operations > self._copied_at + 100:
            self._copied_at = 10**9
            for name in self.listdir(DATA):
                if name not in ("topics", ".lock"):
                    self._copy(name)

    def _copy(self, name: str) -> None:
        source, target = f"{DATA}/{name}", f"{RESTORED}/{name}"
        if self.is_dir(source):
            self.mkdir(target)
            for child in self.listdir(source):
                self._copy(f"{name}/{child}")
        else:
            self.open_append(target).write(self.read(source))


def test_a_plain_copy_under_load_is_found_out() -> None:
    """The oracle of the backups fails where a backup is none."""
    refused = 0
    for operation in range(60, 140, 8):
        disk = PlainCopier(operation)
        told = Told()
        asyncio.run(run_transactions(disk, told, Client))
        with contextlib.suppress(AssertionError, DataFolderError):
            asyncio.run(check(disk, Told(told.topics, asked=told.asked), Client, RESTORED))
            continue
        refused += 1
    assert refused


@pytest.mark.parametrize("kind", [Client, NewClient])
def test_what_is_live_is_what_a_restart_finds(kind: type[Client]) -> None:
    """Killed, not crashed: the machine keeps what was written."""
    filesystem = SimulatedFileSystem()
    told = attempt(filesystem, kind)
    assert told.is_finished
    asyncio.run(check(filesystem.after_kill(), told, kind))
