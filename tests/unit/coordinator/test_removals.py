"""How offsets and groups end: by age (KIP-211), on request, with their topic; tombstones first, the cache after."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keylane.broker.config import BrokerConfig
from keylane.coordinator import removals
from keylane.coordinator.coordinator import Coordinator, DeleteResult
from keylane.coordinator.formats import GroupKey, OffsetKey, TopicCommit, decode_key, partition_for
from keylane.coordinator.groups.protocol import JoinRequest, Leaver, SyncRequest
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.offset_service import CommitRequest, CommitResult
from keylane.storage.filesystem import StorageError
from keylane.storage.shared_sync import Round
from keylane.wire import codes
from keylane.wire.batches import batches, decode_records
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedFileSystem

MINUTE = 60_000
RETENTION = 10 * MINUTE
SUBSCRIPTION = b"\0\x03" + b"\0\0\0\x01" + b"\0\x07flights" + b"\xff\xff\xff\xff" + b"what a newer version adds"


class World:
    """A coordinator and its clock."""

    def __init__(self, filesystem: SimulatedFileSystem | None = None, **options: Any) -> None:
        self.now = 1_700_000_000_000
        self.filesystem = filesystem or SimulatedFileSystem()
        self.topics = {"flights": 100, "weather": 100}
        self.options = BrokerConfig(
            offsets_topic_num_partitions=2,
            offsets_retention_minutes=RETENTION // MINUTE,
            group_initial_rebalance_delay_ms=0,
            **options,
        )

    async def open(self) -> Coordinator:
        coordinator = Coordinator(
            journal=on_files(self.filesystem, "/coordinator", InlineExecutor()),
            options=self.options,
            partition_count=self.topics.get,
            clock=lambda: self.now,
        )
        await coordinator.start()
        return coordinator


Check = Callable[[World, Coordinator], Awaitable[None]]


def in_world(check: Check, world: World | None = None) -> None:
    world = world or World()

    async def run() -> None:
        coordinator = await world.open()
        await check(world, coordinator)
        await coordinator.close()

    asyncio.run(run())


def send(coordinator: Coordinator, group: str, partitions: list[int], topic: str = "flights", **values: Any) -> Round:
    rows = [5] * len(partitions)
    result = coordinator.commit(CommitRequest(group, [TopicCommit(topic, partitions, rows, rows, None)], **values))
    assert isinstance(result, CommitResult), result
    assert result.durable is not None
    return result.durable


def left(coordinator: Coordinator, group: str) -> set[tuple[str, int]]:
    """The offsets that the group has, by name."""
    found = coordinator.fetch(group, None)
    assert not isinstance(found, int), found
    return {(topic, partition) for topic, columns, _ in found for partition in columns.partitions}


async def member_of(
    coordinator: Coordinator, group: str, subscription: bytes = SUBSCRIPTION, kind: str = "consumer"
) -> str:
    """The id of the only member of a stable group."""
    protocols = (("range", subscription),)
    joined = await coordinator.join(
        group,
        JoinRequest("", None, "c", "/h", 10_000, 10_000, kind, protocols, requires_known_member_id=False),
    )
    assert joined.error == codes.NONE
    sync = SyncRequest(joined.member_id, None, joined.generation, None, None, {joined.member_id: b"all"})
    assert (await coordinator.sync(group, sync)).error == codes.NONE
    return joined.member_id


async def records(coordinator: Coordinator, group: str) -> list[tuple[object, bool]]:
    """What the log says of this group's partition: keys, and whether there is a value."""
    partition = partition_for(group, 2)
    offset = 0
    found: list[tuple[object, bool]] = []
    while offset < coordinator.end_offset(partition):
        data = await coordinator.read(partition, offset, 10_000)
        for at, header in batches(data):
            found += [(decode_key(r.key or b""), r.value is not None) for r in decode_records(data, at)]
            offset = header.next_offset
    return found


def snapshot_of(world: World) -> str | None:
    """The number of the last snapshot, once the segments that it stands for are gone."""
    names = sorted(world.filesystem.listdir("/coordinator"))
    first = next(name.removesuffix(".journal") for name in names if name.endswith(".journal"))
    return first if f"{first}.snapshot" in names else None


# --- by age ---


def test_offsets_of_a_simple_consumer_go_by_their_commit() -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0, 1])
        world.now += 1
        await send(coordinator, "g", [1, 2])
        world.now += RETENTION - 2
        assert await coordinator.expire() == (0, 0)
        world.now += 1
        assert await coordinator.expire() == (1, 0)
        assert left(coordinator, "g") == {("flights", 1), ("flights", 2)}
        world.now += 1
        assert await coordinator.expire() == (2, 0)
        assert left(coordinator, "g") == set()
        assert coordinator.describe("g")[1].state == "Dead", "a group that has nothing is no group"
        assert coordinator.expired == (3, 0)

    in_world(check)


def test_a_retention_of_the_commits_own_is_honoured() -> None:
    """`retention_time_ms` of OffsetCommit 2 to 4, both shorter and longer than the broker's."""

    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0], retention_ms=1_000)
        await send(coordinator, "g", [1], retention_ms=2 * RETENTION)
        await send(coordinator, "g", [2])
        world.now += 999
        assert await coordinator.expire() == (0, 0)
        world.now += 1
        assert await coordinator.expire() == (1, 0)
        world.now += RETENTION
        assert await coordinator.expire() == (1, 0)
        assert left(coordinator, "g") == {("flights", 1)}
        await send(coordinator, "g", [1])  # without one, the broker's rule holds again
        world.now += RETENTION - 1
        assert await coordinator.expire() == (0, 0)

    in_world(check)


def test_a_live_group_keeps_what_it_subscribes_to() -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0])
        await send(coordinator, "g", [3], "weather")
        await send(coordinator, "g", [1], retention_ms=1)
        await member_of(coordinator, "g")
        world.now += 2 * RETENTION
        assert await coordinator.expire() == (1, 0), "only the topic that nobody subscribes to any more"
        assert left(coordinator, "g") == {("flights", 0), ("flights", 1)}

    in_world(check)


@pytest.mark.parametrize(
    ("kind", "subscription"), [("consumer", b"\0\0\0\0\0\x05"), ("consumer", b""), ("connect", SUBSCRIPTION)]
)
def test_a_live_group_that_cannot_be_understood_keeps_everything(kind: str, subscription: bytes) -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0], "weather")
        await member_of(coordinator, "g", subscription, kind)
        world.now += 9 * RETENTION
        assert await coordinator.expire() == (0, 0)

    in_world(check)


def test_a_group_in_a_rebalance_keeps_everything() -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0], "weather")
        protocols = (("range", SUBSCRIPTION),)
        request = JoinRequest(
            "", None, "c", "/h", 10_000, 10_000, "consumer", protocols, requires_known_member_id=False
        )
        assert (await coordinator.join("g", request)).error == codes.NONE
        assert coordinator.describe("g")[1].state == "CompletingRebalance"
        world.now += 9 * RETENTION
        assert await coordinator.expire() == (0, 0)

    in_world(check)


def test_the_retention_begins_when_the_last_member_leaves() -> None:
    """And anew with a later commit of an administrator's, where Apache Kafka would remove that with the next check."""

    async def check(world: World, coordinator: Coordinator) -> None:
        epoch = world.now
        world.now -= 30_000  # the member's last commit is older
        await send(coordinator, "g", [0, 1])
        world.now = epoch
        member_id = await member_of(coordinator, "g")
        await coordinator.leave("g", [Leaver(member_id, None)])
        world.now = epoch + RETENTION - 5_000
        await send(coordinator, "g", [1])
        assert await coordinator.expire() == (0, 0)
        world.now = epoch + RETENTION + 5_000
        assert await coordinator.expire() == (1, 0)
        assert left(coordinator, "g") == {("flights", 1)}
        world.now += RETENTION
        assert await coordinator.expire() == (1, 1), "the group goes with its last offset"
        assert coordinator.describe("g")[1].state == "Dead"
        assert (await records(coordinator, "g"))[-2:] == [(OffsetKey("g", "flights", 1), False), (GroupKey("g"), False)]

    in_world(check)


def test_what_is_being_committed_is_not_stale() -> None:
    """A tombstone behind a commit that is not durable yet would undo it."""

    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0])
        world.now += 2 * RETENTION
        waits = send(coordinator, "g", [0])
        assert await coordinator.expire() == (0, 0)
        await waits
        assert left(coordinator, "g") == {("flights", 0)}

    in_world(check)


def test_many_stale_offsets_go_in_batches_by_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "SLICE_GROUPS", 3)
    monkeypatch.setattr(removals, "TOMBSTONES_A_BATCH", 7)

    async def check(world: World, coordinator: Coordinator) -> None:
        for number in range(20):
            await send(coordinator, f"group-{number}", list(range(number + 1)))
        before = [coordinator.end_offset(partition) for partition in range(2)]
        world.now += RETENTION
        assert await coordinator.expire() == (210, 0)
        after = [coordinator.end_offset(partition) for partition in range(2)]
        assert sum(after) - sum(before) == 210
        assert all(one - other > 50 for one, other in zip(after, before, strict=True)), "each in its own partition"
        assert all(left(coordinator, f"group-{number}") == set() for number in range(20))
        again = await world.open()
        assert all(left(again, f"group-{number}") == set() for number in range(20))
        await again.close()

    in_world(check)


def test_a_small_batch_limit_is_kept() -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        for one in range(30):
            await send(coordinator, "a-group-with-a-long-name" * 3, [one])
        world.now += RETENTION
        assert await coordinator.expire() == (30, 0)

    in_world(check, World(message_max_bytes=400))


def test_a_failed_disk_keeps_the_cache() -> None:
    """Stale offsets leave the cache only after their tombstones are durable."""

    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0])
        world.now += RETENTION
        world.filesystem.fail_at(world.filesystem.operations + 1)
        with pytest.raises(StorageError):
            await coordinator.expire()
        assert left(coordinator, "g") == {("flights", 0)}
        assert coordinator.expired == (0, 0)
        with pytest.raises(StorageError):
            await coordinator.expire()

    in_world(check)


class Told(logging.Handler):
    """Wakes who waits for a line in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put_nowait(record.getMessage())


def test_checks_come_by_themselves(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "keylane.coordinator")
    logger = logging.getLogger("keylane.coordinator")

    async def check(world: World, coordinator: Coordinator) -> None:
        told = Told()
        logger.addHandler(told)
        try:
            await send(coordinator, "g", [0, 1])
            world.now += RETENTION
            line = await asyncio.wait_for(told.lines.get(), 20)
        finally:
            logger.removeHandler(told)
        assert line == "2 committed offsets have expired, and 0 groups with them"
        assert coordinator.expired == (2, 0)
        assert left(coordinator, "g") == set()

    in_world(check, World(offsets_retention_check_interval_ms=1))


# --- on request ---


def test_deleting_a_group() -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        member_id = await member_of(coordinator, "g")
        await send(coordinator, "g", [0, 7], member_id=member_id, generation=1)
        assert coordinator.delete_group("g") == codes.NON_EMPTY_GROUP
        await coordinator.leave("g", [Leaver(member_id, None)])
        waits = send(coordinator, "g", [9], "weather")
        deleted = coordinator.delete_group("g")
        assert isinstance(deleted, Round)
        assert left(coordinator, "g") == {("flights", 0), ("flights", 7)}, "nothing goes before it is durable"
        assert coordinator.describe("g")[1].state == "Empty"
        await deleted
        await waits
        assert left(coordinator, "g") == set()
        assert coordinator.describe("g")[1].state == "Dead"
        assert coordinator.delete_group("g") == codes.GROUP_ID_NOT_FOUND
        assert coordinator.delete_group("") == codes.GROUP_ID_NOT_FOUND
        again = await world.open()
        assert left(again, "g") == set()
        assert again.list_groups() == (codes.NONE, [])
        await again.close()
        await member_of(coordinator, "g")
        assert coordinator.describe("g")[1].state == "Stable", "the name can be used again"

    in_world(check)


def test_tombstones_go_when_readers_had_the_time_to_see_them() -> None:
    """`log.cleaner.delete.retention.ms` after they were written, with the next snapshot."""

    async def check(world: World, coordinator: Coordinator) -> None:
        other = next(name for name in ("h", "i", "j") if partition_for(name, 2) != partition_for("g", 2))
        tombstones = [(OffsetKey("g", "flights", 0), False), (GroupKey("g"), False)]

        async def take_a_snapshot() -> None:
            before = snapshot_of(world)
            for _ in range(100):
                if snapshot_of(world) not in (before, None):
                    return
                await send(coordinator, other, [0])
            raise AssertionError("segments of 900 bytes are soon full")

        await send(coordinator, "g", [0])
        deleted = coordinator.delete_group("g")
        assert isinstance(deleted, Round)
        await deleted
        await take_a_snapshot()
        world.now += world.options.log_cleaner_delete_retention_ms
        await take_a_snapshot()
        assert await records(coordinator, "g") == tombstones, "of what they end nothing is left"
        world.now += 1
        await take_a_snapshot()
        assert await records(coordinator, "g") == []
        again = await world.open()
        assert await records(again, "g") == []
        await again.close()

    in_world(check, World(offsets_topic_segment_bytes=900))


def test_a_group_that_is_joined_while_it_is_deleted_goes_on() -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0])
        first = await member_of(coordinator, "g")
        await coordinator.leave("g", [Leaver(first, None)])
        deleted = coordinator.delete_group("g")
        assert isinstance(deleted, Round)
        joining = asyncio.create_task(member_of(coordinator, "g"))
        await deleted
        await joining
        assert left(coordinator, "g") == set()
        assert coordinator.describe("g")[1].state == "Stable"
        again = await world.open()
        assert again.describe("g")[1].state == "Stable"
        await again.close()

    in_world(check)


def test_deleting_offsets() -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0, 1, 2])
        await send(coordinator, "g", [0], "weather")
        asked = [("flights", [1, 50, 100]), ("none", [0]), ("weather", [0])]
        result = coordinator.delete_offsets("g", asked)
        assert isinstance(result, DeleteResult)
        unknown = codes.UNKNOWN_TOPIC_OR_PARTITION
        assert result.errors == [[codes.NONE, codes.NONE, unknown], [unknown], [codes.NONE]]
        assert len(left(coordinator, "g")) == 4
        assert result.durable is not None
        await result.durable
        assert left(coordinator, "g") == {("flights", 0), ("flights", 2)}
        nothing = coordinator.delete_offsets("g", [("flights", [1])])
        assert isinstance(nothing, DeleteResult)
        assert nothing.durable is None
        assert coordinator.delete_offsets("none", asked) == codes.GROUP_ID_NOT_FOUND

    in_world(check)


def test_what_follows_of_a_request_that_has_ended_its_group_is_no_error() -> None:
    async def check(_world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0, 1])
        first = coordinator.delete_offsets("g", [("flights", [0, 1])])
        assert isinstance(first, DeleteResult)
        assert first.durable is not None
        await first.durable
        assert coordinator.delete_offsets("g", [("flights", [2])]) == codes.GROUP_ID_NOT_FOUND
        rest = coordinator.delete_offsets("g", [("flights", [2, 100])], is_begun=True)
        assert isinstance(rest, DeleteResult)
        assert rest == DeleteResult([[codes.NONE, codes.UNKNOWN_TOPIC_OR_PARTITION]], None)

    in_world(check)


def test_offsets_that_live_consumers_need_are_refused() -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0])
        await send(coordinator, "g", [0], "weather")
        await member_of(coordinator, "g")
        result = coordinator.delete_offsets("g", [("flights", [0]), ("weather", [0])])
        assert isinstance(result, DeleteResult)
        assert result.errors == [[codes.GROUP_SUBSCRIBED_TO_TOPIC], [codes.NONE]]
        assert result.durable is not None
        await result.durable
        assert left(coordinator, "g") == {("flights", 0)}
        await member_of(coordinator, "workers", b"", "connect")
        assert coordinator.delete_offsets("workers", [("flights", [0])]) == codes.NON_EMPTY_GROUP

    in_world(check)


def test_a_failed_disk_refuses_deletes() -> None:
    async def check(world: World, coordinator: Coordinator) -> None:
        await send(coordinator, "g", [0])
        world.filesystem.fail_at(world.filesystem.operations + 1)
        deleted = coordinator.delete_group("g")
        assert isinstance(deleted, Round)
        with pytest.raises(StorageError):
            await deleted
        assert left(coordinator, "g") == {("flights", 0)}
        assert coordinator.delete_group("g") == codes.KAFKA_STORAGE_ERROR
        assert coordinator.delete_offsets("g", [("flights", [0])]) == codes.KAFKA_STORAGE_ERROR

    in_world(check)
