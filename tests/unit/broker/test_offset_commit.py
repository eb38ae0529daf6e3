"""What OffsetCommit says of a commit that is refused as a whole, in each version's words."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kio.serial import entity_reader

from keylane.broker.config import BrokerConfig
from keylane.broker.dispatch import Later, RequestHeader
from keylane.broker.handlers import offset_commit
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.offset_service import CommitRequest
from keylane.wire import codes
from keylane.wire.versions import response_type
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

TOPICS = [TopicCommit("flights", [0], [7], [-1], None)]


async def answer(coordinator: Coordinator, request: CommitRequest, version: int) -> int:
    """The error code of its one partition."""
    node: Any = SimpleNamespace(coordinator=coordinator)
    body = offset_commit.begin(request, RequestHeader(8, version, 1, None, "h"), node)
    if isinstance(body, Later):
        await asyncio.wait({body.durable})
        body = body.finish()
    whole = body if isinstance(body, bytes) else b"".join(body)
    entity: Any = entity_reader(response_type("offset_commit", version))(whole, 0)[0]
    ((partition,),) = (topic.partitions for topic in entity.topics)
    return int(partition.error_code)


@pytest.mark.parametrize("version", range(2, 10))
def test_a_member_of_a_group_that_is_not_there(version: int) -> None:
    async def check() -> None:
        executor = InlineExecutor()
        coordinator = Coordinator(
            journal=on_files(SimulatedFileSystem(), "/coordinator", executor),
            options=BrokerConfig(offsets_topic_num_partitions=2),
            partition_count={"flights": 8}.get,
            clock=lambda: 0,
        )
        await coordinator.start()
        of_a_member = CommitRequest("g", TOPICS, "a-1", None, 3)
        unknown = codes.GROUP_ID_NOT_FOUND if version >= 9 else codes.ILLEGAL_GENERATION
        assert await answer(coordinator, of_a_member, version) == unknown
        assert await answer(coordinator, CommitRequest("g", TOPICS), version) == codes.NONE
        assert await answer(coordinator, of_a_member, version) == codes.UNKNOWN_MEMBER_ID, "it has offsets"
        await coordinator.close()

    asyncio.run(check())
