"""Who is served when: loading, failures, closing; and what the shell makes of commits that are too large."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import pytest

from keylane.broker.config import BrokerConfig
from keylane.coordinator import coordinator as shell
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.formats import (
    OffsetKey,
    OffsetValue,
    TopicCommit,
    decode_key,
    decode_offset_value,
    partition_for,
)
from keylane.coordinator.groups.protocol import JoinRequest, Leaver, SyncRequest
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.journal.segments import SEGMENT_SUFFIX
from keylane.coordinator.offset_service import CommitRequest, CommitResult
from keylane.errors import DataFolderError
from keylane.storage import shared_sync
from keylane.storage.filesystem import StorageError
from keylane.wire import codes
from keylane.wire.batches import batches, decode_records
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = "/coordinator"
NOW_MS = 1_700_000_000_000
JOIN = JoinRequest(
    "", None, "c", "/host", 10_000, 10_000, "consumer", (("range", b"s"),), requires_known_member_id=False
)


def make(filesystem: SimulatedFileSystem, executor: Executor | None = None, **options: Any) -> Coordinator:
    on_load_failure = options.pop("on_load_failure", None)
    may_sync_inline = options.pop("may_sync_inline", False)
    return Coordinator(
        journal=on_files(filesystem, FOLDER, executor or InlineExecutor(), may_sync_inline=may_sync_inline),
        options=BrokerConfig(offsets_topic_num_partitions=2, group_initial_rebalance_delay_ms=0, **options),
        partition_count={"flights": 100}.get,
        clock=lambda: NOW_MS,
        on_load_failure=on_load_failure,
    )


def request(offset: int = 5, group: str = "g", **values: Any) -> CommitRequest:
    return CommitRequest(group, [TopicCommit("flights", [0], [offset], [-1], None)], **values)


async def commit(coordinator: Coordinator, wanted: CommitRequest) -> None:
    result = coordinator.commit(wanted)
    assert isinstance(result, CommitResult), result
    assert result.durable is not None
    await result.durable


def offset_of(coordinator: Coordinator, group: str = "g") -> int | tuple[int, ...]:
    found = coordinator.fetch(group, [("flights", [0])])
    return found if isinstance(found, int) else tuple(found[0].columns.offsets)


class HeldExecutor(Executor):
    """Does nothing until `release`."""

    def __init__(self) -> None:
        self._held: list[Callable[[], None]] = []
        self._is_open = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        if self._is_open:
            work()
        else:
            self._held.append(work)
        return future

    def release(self) -> None:
        self._is_open = True
        for work in self._held:
            work()


async def lived(**options: Any) -> SimulatedFileSystem:
    """A folder with one commit in it."""
    filesystem = SimulatedFileSystem()
    coordinator = make(filesystem, **options)
    await coordinator.start()
    await coordinator.loaded()
    await commit(coordinator, request())
    await coordinator.close()
    return filesystem


def test_nothing_is_known_before_the_journal_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is an error that clients wait out, never an offset of -1."""
    monkeypatch.setattr(shell, "START_WAIT_S", 0.01)

    async def check() -> None:
        executor = HeldExecutor()
        coordinator = make(await lived(), executor)
        await coordinator.start()
        loading = codes.COORDINATOR_LOAD_IN_PROGRESS
        assert coordinator.fetch("g", None) == loading
        assert coordinator.commit(request()) == loading
        assert (await coordinator.join("g", JOIN)).error == loading
        assert (await coordinator.sync("g", SyncRequest("m", None, 1, None, None, {}))).error == loading
        assert await coordinator.leave("g", [Leaver("m", None)]) == (loading, ())
        assert coordinator.describe("g")[0] == loading
        assert coordinator.list_groups() == (loading, ())
        assert coordinator.heartbeat("g", "m", None, 1) == codes.NONE, "a session is kept while nobody can tell"
        executor.release()
        await coordinator.loaded()
        assert offset_of(coordinator) == (5,)
        assert coordinator.heartbeat("g", "m", None, 1) == codes.UNKNOWN_MEMBER_ID
        await coordinator.close()

    asyncio.run(check())


def test_damage_that_is_found_late_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(shell, "START_WAIT_S", 0.01)

    async def check() -> None:
        filesystem = await lived()
        path = f"{FOLDER}/0000000001{SEGMENT_SUFFIX}"
        data = bytearray(filesystem.read(path))
        data[60] ^= 1
        filesystem.open_append(path).truncate(0)
        filesystem.open_append(path).write(data)
        told: list[DataFolderError] = []
        executor = HeldExecutor()
        coordinator = make(filesystem, executor, on_load_failure=told.append)
        await coordinator.start()
        executor.release()
        with pytest.raises(DataFolderError, match=path):
            await coordinator.loaded()
        await asyncio.sleep(0)
        assert len(told) == 1
        assert coordinator.fetch("g", None) == codes.COORDINATOR_NOT_AVAILABLE, "and never 'no offset'"
        await coordinator.close()

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(check())
    assert "committed offsets cannot be loaded" in caplog.text


def test_a_folder_that_cannot_be_written_is_one_clear_error() -> None:
    filesystem = SimulatedFileSystem()
    filesystem.fail_at(1)
    with pytest.raises(DataFolderError, match=r"/coordinator: .*input/output error"):
        asyncio.run(make_and_start(filesystem))


async def make_and_start(filesystem: SimulatedFileSystem) -> None:
    await make(filesystem).start()


def test_a_commit_larger_than_a_batch_may_be_is_refused_whole() -> None:
    async def check() -> None:
        coordinator = make(SimulatedFileSystem(), message_max_bytes=300, offset_metadata_max_bytes=4_096)
        await coordinator.start()
        await commit(coordinator, request(1))
        topics = [TopicCommit("flights", [0, 1], [2, 2], [-1, -1], ["", "m" * 300])]
        assert coordinator.commit(CommitRequest("g", topics)) == codes.INVALID_COMMIT_OFFSET_SIZE
        assert offset_of(coordinator) == (1,)
        await coordinator.close()

    asyncio.run(check())


def test_a_commit_of_nothing_writes_nothing() -> None:
    async def check() -> None:
        coordinator = make(SimulatedFileSystem())
        await coordinator.start()
        for topics in ([], [TopicCommit("flights", [], [], [], None)], [TopicCommit("none", [], [], [], None)] * 2):
            result = coordinator.commit(CommitRequest("g", topics))
            assert isinstance(result, CommitResult)
            assert result.durable is None
            assert list(result.errors) == [None] * len(topics)
        assert [coordinator.end_offset(partition) for partition in range(2)] == [0, 0]
        await coordinator.close()

    asyncio.run(check())


def test_members_too_large_to_keep() -> None:
    async def check() -> None:
        coordinator = make(SimulatedFileSystem(), message_max_bytes=300)
        await coordinator.start()
        joined = await coordinator.join("g", JOIN)
        assignment = {joined.member_id: bytes(300)}
        synced = await coordinator.sync("g", SyncRequest(joined.member_id, None, 1, None, None, assignment))
        assert synced.error == codes.UNKNOWN_SERVER_ERROR
        await coordinator.close()

    asyncio.run(check())


def test_a_broken_disk_refuses_commits_and_still_tells_what_is_durable() -> None:
    async def check() -> None:
        filesystem = SimulatedFileSystem()
        coordinator = make(filesystem)
        await coordinator.start()
        await commit(coordinator, request(1))
        joined = await coordinator.join("members", JOIN)
        filesystem.fail_at(filesystem.operations + 2)
        with pytest.raises(StorageError, match=f"{FOLDER}.*restart the broker"):
            await commit(coordinator, request(2))
        assert coordinator.commit(request(3)) == codes.KAFKA_STORAGE_ERROR
        assert offset_of(coordinator) == (1,)
        sync = SyncRequest(joined.member_id, None, 1, None, None, {joined.member_id: b"all"})
        assert (await coordinator.sync("members", sync)).error == codes.COORDINATOR_NOT_AVAILABLE
        left = await coordinator.leave("members", [Leaver(joined.member_id, None)])
        assert left[0] in (codes.NONE, codes.COORDINATOR_NOT_AVAILABLE)
        with pytest.raises(StorageError):
            await coordinator.delete_topic_offsets("flights")
        await coordinator.close()

    asyncio.run(check())


def test_closing_answers_who_waits_and_keeps_what_was_accepted() -> None:
    async def check() -> None:
        filesystem = SimulatedFileSystem()
        coordinator = make(filesystem)
        await coordinator.start()
        first = await coordinator.join("g", JOIN)
        waiting = asyncio.create_task(coordinator.join("g", JOIN))
        accepted = asyncio.create_task(commit(coordinator, request(9, "other")))
        await asyncio.sleep(0)
        await coordinator.close()
        await accepted
        assert (await waiting).error == codes.NOT_COORDINATOR
        assert coordinator.commit(request()) == codes.NOT_COORDINATOR
        assert coordinator.heartbeat("g", first.member_id, None, 1) == codes.NOT_COORDINATOR
        assert coordinator.list_groups() == (codes.COORDINATOR_NOT_AVAILABLE, ())
        again = make(filesystem.after_crash())
        await again.start()
        assert offset_of(again, "other") == (9,)
        await again.close()

    asyncio.run(check())


def test_a_client_that_went_away_is_not_answered() -> None:
    async def check() -> None:
        coordinator = make(SimulatedFileSystem())
        await coordinator.start()
        gone = asyncio.create_task(coordinator.join("g", JOIN))
        await asyncio.sleep(0)
        gone.cancel()
        stays = await coordinator.join("g", JOIN)
        assert stays.generation == 1
        await coordinator.close()

    asyncio.run(check())


def test_offsets_of_topics_that_are_gone_end_at_the_start() -> None:
    """A crash may come between the end of a topic and the end of its offsets; a new topic must not inherit them."""

    async def check() -> None:
        filesystem = await lived()
        coordinator = Coordinator(
            journal=on_files(filesystem, FOLDER, InlineExecutor()),
            options=BrokerConfig(offsets_topic_num_partitions=2),
            partition_count=lambda _topic: None,
            clock=lambda: NOW_MS,
        )
        await coordinator.start()
        assert coordinator.fetch("g", None) == []
        await coordinator.close()
        again = make(filesystem)
        await again.start()
        assert offset_of(again) == (-1,)
        await again.close()

    asyncio.run(check())


def test_the_view_of_an_offsets_partition_ends_at_what_is_synced() -> None:
    async def check() -> None:
        coordinator = make(SimulatedFileSystem())
        await coordinator.start()
        result = coordinator.commit(request(5))
        assert isinstance(result, CommitResult)
        assert result.durable is not None
        partition = partition_for("g", 2)
        assert coordinator.end_offset(partition) == 0
        await result.durable
        assert coordinator.end_offset(partition) == 1
        await coordinator.close()

    asyncio.run(check())


def test_the_view_of_an_offsets_partition() -> None:
    """What a reader of `__consumer_offsets` gets: Kafka's records, the tombstone of an ended topic last."""

    async def check() -> None:
        coordinator = make(SimulatedFileSystem())
        await coordinator.start()
        await commit(coordinator, request(5, retention_ms=1_000))
        await coordinator.delete_topic_offsets("flights")
        partition = partition_for("g", 2)
        assert coordinator.end_offset(partition) == 2
        data = await coordinator.read(partition, 0, 10_000)
        records = [record for at, _ in batches(data) for record in decode_records(data, at)]
        assert [decode_key(record.key or b"") for record in records] == [OffsetKey("g", "flights", 0)] * 2
        first, last = (record.value for record in records)
        assert first is not None
        assert decode_offset_value(first) == OffsetValue(5, -1, "", NOW_MS, NOW_MS + 1_000)
        assert last is None
        assert await coordinator.read(partition, 2, 10_000) == b""
        assert coordinator.end_offset(1 - partition) == 0
        await coordinator.close()

    asyncio.run(check())


@pytest.mark.parametrize("max_bytes", [1, 500, 10**6])
def test_reading_on_from_any_offset(max_bytes: int) -> None:
    """The sparse index, several segments, and another partition's frames in between."""

    async def check() -> None:
        coordinator = make(SimulatedFileSystem(), offsets_topic_segment_bytes=200_000)
        await coordinator.start()
        other = next(name for name in ("h", "i", "j") if partition_for(name, 2) != partition_for("g", 2))
        for number in range(300):
            topics = [TopicCommit("flights", list(range(20)), [number] * 20, [-1] * 20, None)]
            coordinator.commit(CommitRequest("g", topics))
            if number % 3 == 0:
                coordinator.commit(CommitRequest(other, topics * 5))
        await commit(coordinator, request(1))
        partition = partition_for("g", 2)
        end = coordinator.end_offset(partition)
        assert end == 300 * 20 + 1
        for offset in (0, 1, 19, 20, 2_345, 5_999, end - 1):
            data = await coordinator.read(partition, offset, max_bytes)
            headers = [header for _, header in batches(data)]
            assert headers[0].base_offset <= offset < headers[0].next_offset
            assert [a.next_offset for a in headers[:-1]] == [b.base_offset for b in headers[1:]]
            assert len(headers) == 1 or len(data) <= max_bytes
        await coordinator.close()

    asyncio.run(check())


def test_known_commits_stand_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers and a restart see one log, whichever way a commit went; segments end where they are full."""
    monkeypatch.setattr(shared_sync, "INLINE_LIMIT_S", 60.0)

    async def check() -> None:
        filesystem = SimulatedFileSystem()
        coordinator = make(filesystem, offsets_topic_segment_bytes=200_000, may_sync_inline=True)
        await coordinator.start()
        known = coordinator.know(request())
        assert known is not None
        for number in range(2_000):
            if number % 3 == 0:
                await commit(coordinator, request(number))
                continue
            durable = coordinator.commit_known(known, number, -1)
            assert durable is not None
            if number % 3 == 2:
                await durable
                assert offset_of(coordinator) == (number,)
        await commit(coordinator, request(7))
        segments = [name for name in filesystem.listdir(FOLDER) if name.endswith(SEGMENT_SUFFIX)]
        assert max(segments) > "0000000001", "the first was full; a snapshot may stand for it"
        partition = partition_for("g", 2)
        assert coordinator.end_offset(partition) == 2_001
        found, committed = 0, []
        while found < 2_001:
            data = await coordinator.read(partition, found, 10_000)
            for at, header in batches(data):
                for record in decode_records(data, at):  # none where a snapshot stands for a segment
                    assert record.value is not None
                    committed.append(decode_offset_value(record.value).offset)
                found = header.next_offset
        assert committed[-400:] == [*range(1_601, 2_000), 7]
        again = make(filesystem.after_crash(), offsets_topic_segment_bytes=200_000)
        await again.start()
        assert (offset_of(again), again.end_offset(partition)) == ((7,), 2_001)
        await again.close()
        await coordinator.close()

    asyncio.run(check())


def test_groups_of_other_nodes_are_refused() -> None:
    """Ownership of offsets partitions: what this node does not own it neither serves, lists, expires nor changes."""

    async def check() -> None:
        filesystem = SimulatedFileSystem()
        mine, other = "g", next(name for name in ("h", "i", "j") if partition_for(name, 2) != partition_for("g", 2))
        both = make(filesystem)
        await both.start()
        for group in (mine, other):
            await commit(both, request(group=group, retention_ms=0))
            joined = await both.join(group, JOIN)
            sync = SyncRequest(joined.member_id, None, 1, None, None, {joined.member_id: b"all"})
            assert (await both.sync(group, sync)).error == codes.NONE
        await both.close()

        refused = codes.NOT_COORDINATOR
        node = make(filesystem, keylane_owned_offsets_partitions=str(partition_for(mine, 2)))
        await node.start()
        assert offset_of(node, mine) == (5,)
        assert node.describe(mine)[1].state == "Stable"
        assert (node.owns(mine), node.owns(other)) == (True, False)
        end = node.end_offset(partition_for(other, 2))
        assert node.fetch(other, None) == refused
        assert node.commit(request(group=other)) == refused
        assert (await node.join(other, JOIN)).error == refused
        assert (await node.sync(other, SyncRequest("m", None, 1, None, None, {}))).error == refused
        assert node.heartbeat(other, "m", None, 1) == refused
        assert await node.leave(other, [Leaver("m", None)]) == (refused, ())
        assert node.describe(other)[0] == refused
        assert node.delete_group(other) == refused
        assert node.delete_offsets(other, [("flights", [0])]) == refused
        assert [row.group for row in node.list_groups()[1]] == [mine]
        assert await node.expire() == (0, 0)
        assert node.end_offset(partition_for(other, 2)) == end
        await node.close()

    asyncio.run(check())


@pytest.mark.parametrize("codec", [1, 4])
def test_compressed_batches_are_read_again(codec: int) -> None:
    """`offsets.topic.compression.codec`: where it saves anything; a restart and readers see the same."""

    async def check() -> None:
        filesystem = SimulatedFileSystem()
        coordinator = make(filesystem, offsets_topic_compression_codec=codec)
        await coordinator.start()
        metadata = [f"map {partition}" for partition in range(100)]
        topics = [TopicCommit("flights", list(range(100)), list(range(100)), [-1] * 100, metadata)]
        await commit(coordinator, CommitRequest("g", topics))
        await commit(coordinator, request(77))
        data = await coordinator.read(partition_for("g", 2), 0, 100_000)
        (large, many), (_, one) = batches(data)
        assert (many.codec, one.codec) == (codec, 0)
        assert len(decode_records(data, large)) == 100
        assert many.length < 100 * 30
        await coordinator.close()
        again = make(filesystem)
        await again.start()
        found = again.fetch("g", None)
        assert not isinstance(found, int)
        assert list(found[0].columns.offsets) == [77, *range(1, 100)]
        assert list(found[0].columns.metadata or ()) == ["", *metadata[1:]]
        await again.close()

    asyncio.run(check())
