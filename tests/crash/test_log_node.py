"""A whole node over two starts, the first stopped cleanly, after a crash at any operation.

The snapshot of a clean stop is a promise about files; it must be gone, durably, before they change.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import pytest

from keylane.broker.config import BrokerConfig
from keylane.broker.node import Node
from keylane.errors import PeerError
from keylane.wire.batches import NewRecord, encode_batch, read_header
from kit.filesystem import Content, Names, SimulatedCrashError, SimulatedFileSystem

DATA = "/data"
CONFIG = BrokerConfig(log_segment_bytes=1_024, offsets_topic_num_partitions=2)


@dataclass
class Told:
    """What clients were told."""

    topics: set[str] = field(default_factory=set)
    acknowledged: int = 0
    producer_ids: list[int] = field(default_factory=list)
    is_finished: bool = False


async def open_node(filesystem: SimulatedFileSystem) -> Node:
    return await Node.open(filesystem, DATA, CONFIG, lambda: 1_000)


ONE_RECORD = encode_batch([NewRecord(None, bytes(200))], timestamp_ms=1)
TWO_RECORDS = encode_batch([NewRecord(None, bytes(100)), NewRecord(None, bytes(91))], timestamp_ms=1)


assert len(ONE_RECORD) == len(TWO_RECORDS)


async def append(node: Node, topic: str, data: bytes) -> None:
    log = node.topics.log(topic, 0)
    assert log is not None
    appended = log.append(data, read_header(data), 0)
    assert appended.durable is not None
    await appended.durable


async def append_six(node: Node, told: Told) -> None:
    for _ in range(6):
        await append(node, "t", ONE_RECORD)
        told.acknowledged += 1


async def replace_topic(node: Node) -> None:
    """Another topic of the same name, with files of the same sizes and other offsets in them."""
    await node.topics.delete("again", node.coordinator.delete_topic_offsets)
    await node.topics.create("again", 1)
    await append(node, "again", ONE_RECORD)


async def two_starts(filesystem: SimulatedFileSystem, told: Told) -> None:
    node = await open_node(filesystem)
    try:
        await node.topics.create("t", 1)
        told.topics.add("t")
        told.producer_ids.append(await node.producer_ids.new_id())
        await append_six(node, told)
        await node.topics.create("again", 1)
        await append(node, "again", TWO_RECORDS)
    finally:
        await node.close()
    node = await open_node(filesystem)
    try:
        told.producer_ids.append(await node.producer_ids.new_id())
        await append_six(node, told)
        await replace_topic(node)
    finally:
        await node.close()
    told.is_finished = True


def attempt(filesystem: SimulatedFileSystem) -> Told:
    told = Told()
    with contextlib.suppress(SimulatedCrashError, PeerError):
        asyncio.run(two_starts(filesystem, told))
    return told


async def check(filesystem: SimulatedFileSystem, told: Told) -> None:
    node = await open_node(filesystem)
    try:
        assert told.topics <= set(node.topics.names())
        log = node.topics.log("t", 0)
        if log is not None:
            assert told.acknowledged <= log.high_watermark <= 12
            for offset in range(log.high_watermark):
                await log.prepare(offset)
                assert read_header(log.read(log.locate(offset), 1, at_least_one=True)).base_offset == offset
            position = 0
            while data := log.read(position, 100_000, at_least_one=True):
                position += len(data)
            assert position == log.synced_position
            await append(node, "t", ONE_RECORD)
        again = node.topics.log("again", 0)
        if again is not None and again.high_watermark:
            await again.prepare(0)
            header = read_header(again.read(0, 1, at_least_one=True))
            assert header.record_count == again.high_watermark, "the watermark of the files that are there"
        assert await node.producer_ids.new_id() not in told.producer_ids
    finally:
        await node.close()


@pytest.mark.parametrize(
    ("names", "content"),
    [
        ("lost", "lost"),
        pytest.param("kept", "kept", marks=pytest.mark.full),
        pytest.param("kept", "torn", marks=pytest.mark.full),
    ],
)
def test_a_crash_at_any_operation_of_two_starts_loses_nothing(names: Names, content: Content) -> None:
    whole = SimulatedFileSystem()
    assert attempt(whole).is_finished
    for operation in range(1, whole.operations + 1):
        filesystem = SimulatedFileSystem()
        filesystem.crash_at(operation)
        told = attempt(filesystem)
        assert not told.is_finished
        asyncio.run(check(filesystem.after_crash(names=names, content=content), told))
