"""Set offsets to x if, and only if, they are y: against what is durable and what is on its way, all or nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from keylane.broker.config import BrokerConfig
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.offset_service import CommitRequest, CommitResult, ConditionalResult
from keylane.storage.filesystem import StorageError
from keylane.storage.shared_sync import Round
from keylane.wire import codes
from keylane.wire.conditional_commit import CONDITION_FAILED
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

FAILED = CONDITION_FAILED


def in_coordinator(check: Callable[[SimulatedFileSystem, Coordinator], Awaitable[None]]) -> None:
    async def run() -> None:
        filesystem = SimulatedFileSystem()
        coordinator = Coordinator(
            journal=on_files(filesystem, "/coordinator", InlineExecutor()),
            options=BrokerConfig(offsets_topic_num_partitions=2, message_max_bytes=3_000),
            partition_count={"flights": 50, "weather": 2}.get,
            clock=lambda: 1_700_000_000_000,
        )
        await coordinator.start()
        await check(filesystem, coordinator)
        await coordinator.close()

    asyncio.run(run())


def commit(coordinator: Coordinator, partitions: Sequence[int], offset: int, group: str = "g") -> Round:
    rows = [offset] * len(partitions)
    result = coordinator.commit(CommitRequest(group, [TopicCommit("flights", partitions, rows, rows, None)]))
    assert isinstance(result, CommitResult)
    assert result.durable is not None
    return result.durable


Row = tuple[str, int, int, int]
"""Topic, partition, the expected offset, the new one."""


def commit_if(coordinator: Coordinator, *rows: Row, group: str = "g", generation: int = -1) -> int | ConditionalResult:
    topics: dict[str, list[Row]] = {}
    for row in rows:
        topics.setdefault(row[0], []).append(row)
    commits = [
        TopicCommit(topic, [row[1] for row in found], [row[3] for row in found], [-1] * len(found), None)
        for topic, found in topics.items()
    ]
    expected = [[row[2] for row in found] for found in topics.values()]
    return coordinator.commit_if(CommitRequest(group, commits, generation=generation), expected)


def result_of(outcome: int | ConditionalResult) -> ConditionalResult:
    assert isinstance(outcome, ConditionalResult), outcome
    return outcome


def offsets(coordinator: Coordinator, partitions: Sequence[int] = (0, 1), topic: str = "flights") -> list[int]:
    found = coordinator.fetch("g", [(topic, partitions)])
    assert not isinstance(found, int)
    return list(found[0].columns.offsets)


def test_a_condition_that_holds() -> None:
    async def check(_: SimulatedFileSystem, coordinator: Coordinator) -> None:
        await commit(coordinator, [0], 5)
        result = result_of(commit_if(coordinator, ("flights", 0, 5, 9), ("flights", 1, -1, 3), ("weather", 1, -1, 2)))
        assert (result.error, result.errors, result.current) == (codes.NONE, [[0, 0], [0]], [[5, -1], [-1]])
        assert offsets(coordinator) == [5, -1], "it shows when it is durable"
        assert result.durable is not None
        await result.durable
        assert offsets(coordinator) == [9, 3]
        assert offsets(coordinator, [0, 1], "weather") == [-1, 2]

    in_coordinator(check)


@pytest.mark.parametrize("row", [("flights", 1, 0, 3), ("flights", 1, 5, 3), ("weather", 0, 7, 3)])
def test_one_condition_that_fails_refuses_all(row: Row) -> None:
    """An expected 0 is not 'no offset'."""

    async def check(_: SimulatedFileSystem, coordinator: Coordinator) -> None:
        await commit(coordinator, [0], 5)
        ends = [coordinator.end_offset(one) for one in (0, 1)]
        result = result_of(commit_if(coordinator, ("flights", 0, 5, 9), row))
        assert (result.error, result.durable) == (FAILED, None)
        assert [code for found in result.errors for code in found] == [0, FAILED]
        assert [now for found in result.current for now in found] == [5, -1]
        assert offsets(coordinator) == [5, -1]
        assert [coordinator.end_offset(one) for one in (0, 1)] == ends, "nothing is written"

    in_coordinator(check)


def test_what_is_on_its_way_counts() -> None:
    """Of two conditions on the same offset that are sent at once, one holds; its loser is answered after it."""

    async def check(_: SimulatedFileSystem, coordinator: Coordinator) -> None:
        first = commit(coordinator, [0, 1, 0], 5)
        stale = result_of(commit_if(coordinator, ("flights", 0, -1, 6)))
        assert (stale.error, stale.current) == (FAILED, [[5]])
        assert stale.durable is first, "what it says is shown when it is durable"
        winner = result_of(commit_if(coordinator, ("flights", 0, 5, 7)))
        loser = result_of(commit_if(coordinator, ("flights", 0, 5, 8)))
        assert (winner.error, loser.error, loser.current) == (codes.NONE, FAILED, [[7]])
        elsewhere = result_of(commit_if(coordinator, ("flights", 0, 5, 8), group="other"))
        assert (elsewhere.error, elsewhere.durable, elsewhere.current) == (FAILED, None, [[-1]])
        assert loser.durable is not None
        await loser.durable
        await asyncio.sleep(0)
        assert offsets(coordinator) == [7, 5]

    in_coordinator(check)


def test_a_delete_on_its_way_counts() -> None:
    async def check(_: SimulatedFileSystem, coordinator: Coordinator) -> None:
        await commit(coordinator, [0], 5)
        assert isinstance(coordinator.delete_group("g"), Round)
        assert result_of(commit_if(coordinator, ("flights", 0, 5, 6))).current == [[-1]]
        result = result_of(commit_if(coordinator, ("flights", 0, -1, 6)))
        assert result.error == codes.NONE
        assert result.durable is not None
        await result.durable
        assert offsets(coordinator) == [6, -1]

    in_coordinator(check)


def test_bad_partitions_refuse_all() -> None:
    """Unlike in OffsetCommit, where each is refused alone."""

    async def check(_: SimulatedFileSystem, coordinator: Coordinator) -> None:
        await commit(coordinator, [0], 5)
        result = result_of(commit_if(coordinator, ("flights", 0, 5, 9), ("flights", 50, -1, 1), ("none", 0, -1, 1)))
        unknown = codes.UNKNOWN_TOPIC_OR_PARTITION
        assert (result.error, result.errors) == (unknown, [[0, unknown], [unknown]])
        assert commit_if(coordinator, ("flights", 0, 5, 9), ("flights", 0, 5, 9)) == codes.INVALID_REQUEST
        large = CommitRequest("g", [TopicCommit("flights", [0, 1], [9, 9], [-1, -1], ["", "m" * 4_097])])
        assert result_of(coordinator.commit_if(large, [[5, -1]])).error == codes.OFFSET_METADATA_TOO_LARGE
        whole = CommitRequest("g", [TopicCommit("flights", [0, 1], [9, 9], [-1, -1], ["", "m" * 4_000])])
        assert coordinator.commit_if(whole, [[5, -1]]) == codes.INVALID_COMMIT_OFFSET_SIZE
        assert offsets(coordinator) == [5, -1]
        nothing = result_of(coordinator.commit_if(CommitRequest("g", []), []))
        assert (nothing.error, nothing.durable) == (codes.NONE, None)

    in_coordinator(check)


def test_only_who_may_commit_may_commit_conditionally() -> None:
    async def check(_: SimulatedFileSystem, coordinator: Coordinator) -> None:
        assert commit_if(coordinator, ("flights", 0, -1, 9), generation=3) == codes.GROUP_ID_NOT_FOUND
        assert commit_if(coordinator, ("flights", 0, -1, 9), group="g" * 40_000) == codes.INVALID_GROUP_ID

    in_coordinator(check)


def test_a_failed_disk() -> None:
    """Neither the commit nor what a refusal rests on is acknowledged."""

    async def check(filesystem: SimulatedFileSystem, coordinator: Coordinator) -> None:
        await commit(coordinator, [0], 5)
        filesystem.fail_at(filesystem.operations + 1)
        result = result_of(commit_if(coordinator, ("flights", 0, 5, 9)))
        refused = result_of(commit_if(coordinator, ("flights", 0, 5, 9)))
        for one in (result, refused):
            assert one.durable is not None
            with pytest.raises(StorageError):
                await one.durable
        await asyncio.sleep(0)
        assert offsets(coordinator) == [5, -1]
        assert commit_if(coordinator, ("flights", 0, 5, 9)) == codes.KAFKA_STORAGE_ERROR

    in_coordinator(check)
