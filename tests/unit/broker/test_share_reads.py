"""What a member of a share group is given counts in the memory of answers, and is bounded by it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keylane.broker.config import BrokerConfig
from keylane.broker.handlers.produce import append_own
from keylane.broker.memory import AnswerRoom, SharedMemory
from keylane.broker.node import Node
from keylane.broker.share_reads import ShareFetch, ShareRequest
from keylane.broker.share_sessions import Member
from keylane.coordinator.share_groups.protocol import HeartbeatRequest
from keylane.storage.filesystem import OsFileSystem, now_ms
from keylane.wire import codes
from keylane.wire.batches import NewRecord, encode_batch

if TYPE_CHECKING:
    from pathlib import Path

TOPIC, PARTITIONS = "flights", 4
MEMBER = Member("g", "a")
MB = 1024 * 1024
WANTED = ShareRequest(max_records=100, batch_size=1, min_bytes=0, max_bytes=8 * MB, wait_s=0.0, is_strict=False)


def test_what_a_member_is_given_counts_in_the_memory_of_answers(tmp_path: Path) -> None:
    async def whole() -> None:
        node = await Node.open(OsFileSystem(), str(tmp_path / "data"), BrokerConfig(), now_ms)
        await node.coordinator.loaded()
        topic = await node.topics.create(TOPIC, PARTITIONS)
        assert (
            await node.coordinator.share_heartbeat(HeartbeatRequest(*MEMBER, 0, "c", "/h", None, (TOPIC,)))
        ).error == 0
        memory = SharedMemory(MB)
        room = AnswerRoom(memory, lambda: 0, lambda: None)
        assert node.coordinator.share is not None
        fetch = ShareFetch(node, node.coordinator.share, MEMBER, WANTED, room)
        partitions = [(topic.topic_id, index) for index in range(PARTITIONS)]
        try:
            assert not await fetch.run(partitions), "the group begins at the end"
            assert not memory.held
            batch = encode_batch([NewRecord(b"k", b"x" * (MB // 2))], timestamp_ms=now_ms())
            for index in range(PARTITIONS):
                await append_own(TOPIC, index, batch, node)
            seen = 0
            while seen < PARTITIONS:
                found = await fetch.run(partitions)
                size = sum(len(shared.records) for shared in found.values())
                assert {shared.code for shared in found.values()} == {codes.NONE}
                assert memory.held == size <= MB
                seen += len(found)
                room.settle(0)
        finally:
            await node.close()

    asyncio.run(whole())
