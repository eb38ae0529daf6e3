"""What a node believes of producers when its files know less than its logs do, or its folder less than its producers:
nothing is given twice.

An id, or an epoch of one, that is given twice makes new batches look like old ones: acknowledged, and never written.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.broker import leader_epochs
from keylane.broker.config import BrokerConfig
from keylane.broker.node import Node
from keylane.broker.producer_ids import BLOCK_SIZE, IDS_OF_AN_EPOCH
from keylane.coordinator.transactions.transactional_ids import Producer
from keylane.errors import DataFolderError
from keylane.wire import codes
from keylane.wire.batches import HEADER_SIZE, NewRecord, decode_records, encode_batch, read_header
from kit.examples import examples
from kit.filesystem import SimulatedFileSystem

if TYPE_CHECKING:
    from keylane.storage.log import PartitionLog

DATA = "/data"
IDS = f"{DATA}/producer-ids.json"
LEADER_EPOCH = f"{DATA}/leader-epoch.json"
JOURNAL = f"{DATA}/coordinator/0000000001.journal"
CONFIG = BrokerConfig(offsets_topic_num_partitions=1)
TRANSACTIONAL = 0x10


async def open_node(filesystem: SimulatedFileSystem, now_ms: int = 1_000_000) -> Node:
    node = await Node.open(filesystem, DATA, CONFIG, lambda: now_ms)
    await node.coordinator.loaded()
    return node


def log_of(node: Node, partition: int = 0) -> PartitionLog:
    log = node.topics.log("t", partition)
    assert log is not None
    return log


async def produce(log: PartitionLog, producer: Producer, sequence: int, value: bytes, attributes: int = 0) -> None:
    """Acknowledged on return."""
    data = encode_batch(
        [NewRecord(None, value)],
        timestamp_ms=1,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
    durable = log.append(data, read_header(data), 1_000_000).durable
    if durable is not None:
        await durable


async def values(log: PartitionLog) -> list[bytes]:
    """All that a reader sees."""
    found = []
    await log.prepare(0)
    data = log.read(0, 2**30, at_least_one=True) if log.high_watermark else b""
    while len(data) > HEADER_SIZE:
        header = read_header(data)
        if not header.is_control:
            found += [record.value or b"" for record in decode_records(data[: header.length])]
        data = data[header.length :]
    return found


def put(filesystem: SimulatedFileSystem, path: str, data: bytes | None) -> None:
    """Let a file be an older copy of itself, or missing."""
    if data is not None:
        filesystem.write_atomic(path, data)
    elif filesystem.exists(path):
        filesystem.remove(path)
        filesystem.sync_dir(path.rpartition("/")[0])


@dataclass
class History:
    """Starts and stops of one node, each with producers of its own."""

    filesystem: SimulatedFileSystem = field(default_factory=SimulatedFileSystem)
    acknowledged: list[bytes] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    copies: list[bytes | None] = field(default_factory=list)

    async def run(self, producers: int, batches: int, end: Literal["stop", "kill"]) -> None:
        node = await open_node(self.filesystem)
        if not node.topics.exists("t"):
            await node.topics.create("t", 1)
        for _ in range(producers):
            producer = Producer(await node.producer_ids.new_id(), 0)
            self.given.append(producer.producer_id)
            for sequence in range(batches):
                value = b"%d %d %d" % (len(self.given), producer.producer_id, sequence)
                await produce(log_of(node), producer, sequence, value)
                self.acknowledged.append(value)
        self.copies.append(self.filesystem.read(IDS) if self.filesystem.exists(IDS) else None)
        if end == "stop":
            await node.close()
        self.filesystem = self.filesystem.after_crash()


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 7), st.sampled_from(["stop", "kill"]), st.integers(0, 9) | st.none()),
    min_size=1,
    max_size=5,
)


@given(STEPS)
@settings(max_examples=examples(60), deadline=None)
def test_what_is_acknowledged_is_there_whatever_became_of_the_file(
    steps: list[tuple[int, int, Literal["stop", "kill"], int | None]],
) -> None:
    history = History()
    for producers, batches, end, copy in steps:
        asyncio.run(history.run(producers, batches, end))
        if copy is not None:
            put(history.filesystem, IDS, (*history.copies, None)[copy % (len(history.copies) + 1)])
    asyncio.run(history.run(1, 7, "stop"))

    async def found() -> list[bytes]:
        node = await open_node(history.filesystem)
        try:
            return await values(log_of(node))
        finally:
            await node.close()

    assert asyncio.run(found()) == history.acknowledged
    assert len(set(history.given)) == len(history.given)


def test_a_folder_that_is_put_back_gives_no_id_that_a_living_producer_has() -> None:
    """Its id was given after the copy was made, so that nothing in the copy knows it."""

    async def scenario() -> list[bytes]:
        filesystem = SimulatedFileSystem()
        node = await open_node(filesystem, leader_epochs.FIRST_TICK_MS + 10_000)
        await node.topics.create("t", 1)
        await node.close()
        copy = filesystem.after_crash()
        node = await open_node(filesystem, leader_epochs.FIRST_TICK_MS + 20_000)
        living = Producer(await node.producer_ids.new_id(), 0)
        await node.close()
        node = await open_node(copy, leader_epochs.FIRST_TICK_MS + 30_000)
        try:
            await produce(log_of(node), living, 0, b"of the living one")
            await produce(log_of(node), Producer(await node.producer_ids.new_id(), 0), 0, b"of a new one")
            return await values(log_of(node))
        finally:
            await node.close()

    assert asyncio.run(scenario()) == [b"of the living one", b"of a new one"]


def test_an_expired_producer_still_counts_after_a_clean_stop() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        node = await open_node(filesystem)
        await node.topics.create("t", 1)
        await produce(log_of(node), Producer(2**62, 0), 0, b"a")
        log_of(node).expire_producers(2_000_000)
        assert log_of(node).producers() == []
        await node.close()
        node = await open_node(filesystem)
        assert await node.producer_ids.new_id() == 2**62 + BLOCK_SIZE + 1
        await node.close()

    asyncio.run(scenario())


async def init(node: Node) -> Producer:
    error, producer = await node.coordinator.transactions.init_producer_id("x", 1_000, None)
    assert error == codes.NONE
    return producer


async def transaction(node: Node, producer: Producer, sequence: int, value: bytes) -> None:
    transactions = node.coordinator.transactions
    assert await transactions.add_partitions("x", producer, [("t", 0)]) == codes.NONE
    await produce(log_of(node), producer, sequence, value, TRANSACTIONAL)
    assert await transactions.end("x", producer, committed=True) == codes.NONE
    await transactions.settled()


def test_ids_go_on_a_block_above_those_that_wrote_nothing_and_it_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of transactional producers, which the journal knows; both files are lost, and the same leader epoch is taken."""
    monkeypatch.setattr("keylane.broker.leader_epochs.secrets.randbelow", lambda _: 0)

    async def scenario() -> int:
        filesystem = SimulatedFileSystem()
        node = await open_node(filesystem)
        assert await init(node) == (IDS_OF_AN_EPOCH, 0)
        await node.close()
        put(filesystem, IDS, None)
        put(filesystem, LEADER_EPOCH, None)
        node = await open_node(filesystem)
        try:
            return await node.producer_ids.new_id()
        finally:
            await node.close()

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(scenario()) == IDS_OF_AN_EPOCH + BLOCK_SIZE + 1
    (told,) = [record.message for record in caplog.records if IDS in record.message]
    assert told == (
        f"{IDS} says that ids start at {IDS_OF_AN_EPOCH}, and producer id {IDS_OF_AN_EPOCH} is in use: the file is "
        f"missing, or an older copy of itself; ids go on from {IDS_OF_AN_EPOCH + BLOCK_SIZE + 1}"
    )


def test_an_epoch_is_not_given_twice_by_an_older_copy_of_the_journal(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[bytes]:
        filesystem = SimulatedFileSystem()
        node = await open_node(filesystem)
        await node.topics.create("t", 1)
        await init(node)
        await node.close()
        copy = filesystem.read(JOURNAL)
        node = await open_node(filesystem)
        producer = await init(node)
        await transaction(node, producer, 0, b"before")
        await node.close()
        put(filesystem, JOURNAL, copy)
        node = await open_node(filesystem)
        again = await init(node)
        assert again.producer_id == producer.producer_id
        assert again.epoch > producer.epoch
        await transaction(node, again, 0, b"after")
        try:
            return await values(log_of(node))
        finally:
            await node.close()

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(scenario()) == [b"before", b"after"]
    told = r"transactional id x: the journal has epoch 0 of producer id \d+, and a log has epoch 1"
    assert re.search(told, caplog.text)


def test_an_open_transaction_that_the_journal_does_not_know_is_refused() -> None:
    async def scenario() -> None:
        filesystem = SimulatedFileSystem()
        node = await open_node(filesystem)
        await node.topics.create("t", 1)
        producer = await init(node)
        await node.close()
        copy = filesystem.read(JOURNAL)
        node = await open_node(filesystem)
        assert await node.coordinator.transactions.add_partitions("x", producer, [("t", 0)]) == codes.NONE
        await produce(log_of(node), producer, 0, b"open", TRANSACTIONAL)
        await node.close()
        put(filesystem, JOURNAL, copy)
        await open_node(filesystem)

    told = r"t-0 has an open transaction of producer id \d+ from offset 0 on, which"
    with pytest.raises(DataFolderError, match=told):
        asyncio.run(scenario())
