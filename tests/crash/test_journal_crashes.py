"""The coordinator after a crash or an error at any operation, a tail torn at any byte, and any byte flipped.

The oracle is what clients were told: every acknowledged commit is there afterwards, and what is there is a prefix of
what was sent, commit by commit: none in part, none out of turn. What a client could read is there after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest

from keylane.broker.config import BrokerConfig
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.groups.protocol import JoinRequest, SyncRequest
from keylane.coordinator.journal.headers import SEGMENT, JournalDamagedError, encode_header
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.journal.segments import MANIFEST, SEGMENT_SUFFIX, SNAPSHOT_SUFFIX, SegmentReader, encode_frame
from keylane.coordinator.offset_service import CommitRequest, CommitResult
from keylane.errors import DataFolderError, PeerError
from keylane.storage.filesystem import FILL, SECTOR_BYTES
from keylane.wire.batches import CRC_START, NewRecord, encode_batch
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem, all_different

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from kit.filesystem import Content, Names

FOLDER = "/coordinator"
OPTIONS = BrokerConfig(
    offsets_topic_num_partitions=4, offsets_topic_segment_bytes=1_500, group_initial_rebalance_delay_ms=0
)
ONE_SEGMENT = BrokerConfig(offsets_topic_num_partitions=4, group_initial_rebalance_delay_ms=0)
AFTER_CRASH: list[tuple[Names, Content, float]] = [
    *product(("lost", "kept"), ("lost", "kept", "zeroed"), (0.0,)),  # type: ignore[list-item]
    *product(("lost", "kept"), ("torn",), (0.01, 0.3, 0.6, 0.99)),  # type: ignore[list-item]
    *product(("lost", "kept"), ("scattered",), (0.0, 1.0)),  # type: ignore[list-item]
]

State = dict[tuple[str, str, int], tuple[int, int, str]]
"""(group, topic, partition) -> (offset, leader epoch, metadata)."""
TOPICS = {"flights": 8, "weather": 2}


@functools.cache
def commits() -> list[list[CommitRequest]]:
    """Rounds of commits that wait together: one or many partitions, several groups, with and without metadata."""
    number, rounds = 0, []
    for size in (1, 3, 2, 4, 1, 2, 3, 2, 1):
        requests = []
        for _ in range(size):
            number += 1
            group = f"group-{number % 3}"
            count = (1, 8, 3)[number % 3]
            metadata = [f"map-{number}" * (1 + index % 3) for index in range(count)] if number % 2 else None
            flights = TopicCommit("flights", list(range(count)), [number * 100] * count, [number] * count, metadata)
            weather = TopicCommit("weather", [0, 1], [number, number + 1], [-1, -1], None)
            requests.append(CommitRequest(group, [flights, weather] if number % 4 == 0 else [flights]))
        rounds.append(requests)
    return rounds


def applied(state: State, request: CommitRequest) -> State:
    state = dict(state)
    for topic, partitions, offsets, epochs, metadata in request.topics:
        for row, partition in enumerate(partitions):
            text = metadata[row] if metadata else ""
            state[request.group, topic, partition] = (offsets[row], epochs[row], text)
    return state


@functools.cache
def prefixes() -> list[State]:
    """The state after each commit, from none on."""
    states: list[State] = [{}]
    for requests in commits():
        for request in requests:
            states.append(applied(states[-1], request))
    return states


def read_state(coordinator: Coordinator) -> State:
    """All that clients can read."""
    state: State = {}
    for number in range(3):
        fetched = coordinator.fetch(f"group-{number}", None)
        assert not isinstance(fetched, int), fetched
        for topic, (partitions, offsets, epochs, metadata), _ in fetched:
            for row, partition in enumerate(partitions):
                text = metadata[row] if metadata else ""
                state[f"group-{number}", topic, partition] = (offsets[row], epochs[row], text)
    return state


@dataclass
class Told:
    """What clients were told."""

    acknowledged: int = 0
    """Commits, from the first on, that were."""
    refused: int = 0
    read: list[State] = field(default_factory=list)
    generation: int = 0
    """The last generation whose assignment a member got."""
    member_id: str = ""


async def open_coordinator(filesystem: SimulatedFileSystem, options: BrokerConfig = OPTIONS) -> Coordinator:
    coordinator = Coordinator(
        journal=on_files(filesystem, FOLDER, InlineExecutor()),
        options=options,
        partition_count=TOPICS.get,
        clock=lambda: 1_700_000_000_000,
    )
    await coordinator.start()
    await coordinator.loaded()
    return coordinator


async def live(filesystem: SimulatedFileSystem, told: Told, options: BrokerConfig = OPTIONS) -> None:
    """One life of a coordinator: a member joins a group, and consumers commit."""
    coordinator = await open_coordinator(filesystem, options)
    await join(coordinator, told)
    for number, requests in enumerate(commits()):
        results = [coordinator.commit(request) for request in requests]
        for result in results:
            if await is_acknowledged(result):
                assert told.refused == 0, "acknowledged after a failure"
                told.acknowledged += 1
            else:
                told.refused += 1
        told.read.append(read_state(coordinator))
        if number % 2:  # other snapshots are under way while commits go on
            await end_of_snapshot(coordinator)
    await coordinator.close()


async def end_of_snapshot(coordinator: Coordinator) -> None:
    """Wait for the snapshot that is being written, if there is one; what a crash does to it is its own affair."""
    task = coordinator._journal._snapshot_task  # type: ignore[attr-defined]
    if task is not None:
        await asyncio.wait({task})
        if not task.cancelled() and isinstance(task.exception(), SimulatedCrashError):
            raise SimulatedCrashError


async def is_acknowledged(result: int | CommitResult) -> bool:
    if isinstance(result, int):
        return False
    assert result.durable is not None
    try:
        await result.durable
    except PeerError:
        return False
    return True


async def join(coordinator: Coordinator, told: Told) -> None:
    request = JoinRequest("", None, "client", "/host", 30_000, 30_000, "consumer", (("range", b"sub"),))
    joined = await coordinator.join("members", request._replace(requires_known_member_id=False))
    if joined.error == 0:
        sync = SyncRequest(joined.member_id, None, joined.generation, None, None, {joined.member_id: b"all"})
        if (await coordinator.sync("members", sync)).error == 0:
            told.generation, told.member_id = joined.generation, joined.member_id


async def check_restart(filesystem: SimulatedFileSystem, told: Told, options: BrokerConfig = OPTIONS) -> None:
    """What a restart finds is what clients were told; and it works."""
    coordinator = await open_coordinator(filesystem, options)
    state = read_state(coordinator)
    allowed = prefixes()[told.acknowledged :]
    assert state in allowed, f"{told.acknowledged} commits were acknowledged, and {state} is there"
    for seen in told.read:
        reached = prefixes().index(state)
        assert prefixes().index(seen) <= reached, "a client read what is gone"
    if told.generation:
        assert coordinator.heartbeat("members", told.member_id, None, told.generation) == 0
    result = coordinator.commit(CommitRequest("group-0", [TopicCommit("flights", [0], [77], [1], None)]))
    assert await is_acknowledged(result)
    await coordinator.close()
    again = await open_coordinator(filesystem.after_crash(), options)
    assert read_state(again)["group-0", "flights", 0] == (77, 1, "")
    await again.close()


async def swallow(life: Coroutine[None, None, None]) -> None:
    """Run a life that may end in a crash."""
    with contextlib.suppress(PeerError, SimulatedCrashError):
        await life


def operations() -> int:
    filesystem = SimulatedFileSystem()
    asyncio.run(live(filesystem, Told()))
    return filesystem.operations


def test_a_quiet_life() -> None:
    filesystem, told = SimulatedFileSystem(), Told()
    asyncio.run(live(filesystem, told))
    assert told.acknowledged == len(prefixes()) - 1
    assert told.read[-1] == prefixes()[-1]
    assert told.generation == 1
    renames = [line for line in filesystem.history if line.startswith("rename")]
    assert len(renames) >= 2, "two snapshots"
    assert any(line.startswith("remove") and line.endswith(SEGMENT_SUFFIX) for line in filesystem.history)
    assert any(line.startswith("remove") and line.endswith(SNAPSHOT_SUFFIX) for line in filesystem.history)
    asyncio.run(check_restart(filesystem.after_crash(), told))


def disks_after_crash(filesystem: SimulatedFileSystem) -> Iterator[SimulatedFileSystem]:
    return all_different(
        filesystem.after_crash(names=names, content=content, torn_share=share) for names, content, share in AFTER_CRASH
    )


@pytest.mark.parametrize("operation", range(1, operations() + 1))
def test_crash_at_every_operation(operation: int) -> None:
    filesystem, told = SimulatedFileSystem(), Told()
    filesystem.crash_at(operation)
    asyncio.run(swallow(live(filesystem, told)))
    for found in disks_after_crash(filesystem):
        asyncio.run(check_restart(found, told))


@pytest.mark.parametrize("operation", range(1, operations() + 1))
def test_error_at_every_operation(operation: int) -> None:
    """After it nothing is acknowledged, what was is there, and nothing was shown that a restart does not find."""
    filesystem, told = SimulatedFileSystem(), Told()
    filesystem.fail_at(operation)
    asyncio.run(swallow(live(filesystem, told)))
    assert told.acknowledged < len(prefixes()) - 1 or told.refused == 0
    for found in disks_after_crash(filesystem):
        asyncio.run(check_restart(found, told))


@pytest.mark.parametrize("operation", range(1, operations() + 1))
def test_power_loss_after_a_killed_process(operation: int) -> None:
    """What a restart shows is durable by then, also what the killed process had written and not synced."""
    filesystem, told = SimulatedFileSystem(), Told()
    filesystem.fail_at(operation)

    async def lives() -> None:
        await swallow(live(filesystem, told))
        second = await open_coordinator(filesystem)  # and nobody closes it
        seen = read_state(second)
        third = await open_coordinator(filesystem.after_crash())
        assert read_state(third) == seen
        commit = CommitRequest("group-0", [TopicCommit("flights", [0], [77], [1], None)])
        assert await is_acknowledged(second.commit(commit))
        fourth = await open_coordinator(filesystem.after_crash())
        assert read_state(fourth) == applied(seen, commit)

    asyncio.run(lives())


def journal_bytes(least: int = 0) -> bytes:
    """One segment with all commits, which is made longer by more of the same until it has so many bytes."""
    filesystem = SimulatedFileSystem()
    asyncio.run(live(filesystem, Told(), ONE_SEGMENT))

    async def go_on() -> None:
        coordinator = await open_coordinator(filesystem, ONE_SEGMENT)
        last = [request for requests in commits() for request in requests][-1]
        while coordinator._journal._position < least:  # type: ignore[attr-defined]
            assert await is_acknowledged(coordinator.commit(last))
        await coordinator.close()

    if least:
        asyncio.run(go_on())
    (name,) = [name for name in filesystem.listdir(FOLDER) if name.endswith(SEGMENT_SUFFIX)]
    data = filesystem.read(f"{FOLDER}/{name}")
    assert len(data) >= least
    return data


def with_journal(data: bytes, *, segment: int = 1) -> SimulatedFileSystem:
    filesystem = SimulatedFileSystem()
    filesystem.mkdir(FOLDER)
    filesystem.open_append(f"{FOLDER}/{segment:010d}{SEGMENT_SUFFIX}").write(data)
    return filesystem


async def state_of(filesystem: SimulatedFileSystem) -> State:
    coordinator = await open_coordinator(filesystem, ONE_SEGMENT)
    state = read_state(coordinator)
    await coordinator.close()
    return state


@pytest.mark.soak  # its short form is in test_journal_states
def test_tail_torn_at_every_byte() -> None:
    """Each prefix of the file loads, shows whole commits only, and never fewer than a shorter one."""
    data = journal_bytes(16_384)
    states = prefixes()

    async def check() -> None:
        reached = 0
        for end in range(len(data) + 1):
            found = states.index(await state_of(with_journal(data[:end])))
            assert reached <= found <= reached + 1, f"at byte {end}"
            reached = found
        assert reached == len(states) - 1

    asyncio.run(check())


@pytest.mark.parametrize("size", [1, 40, 512, 4_096])
@pytest.mark.parametrize("byte", [b"\0", FILL])
def test_a_tail_that_was_not_written(byte: bytes, size: int) -> None:
    """A file may have been made longer by a write whose content was lost, or have a reserve; or both."""
    data = journal_bytes()
    assert asyncio.run(state_of(with_journal(data + byte * size))) == prefixes()[-1]
    assert asyncio.run(state_of(with_journal(data + byte * size + FILL * 100 + bytes(100)))) == prefixes()[-1]
    assert asyncio.run(state_of(with_journal(data[:-300] + byte * size))) in prefixes()


def test_a_reserve_is_no_torn_tail(caplog: pytest.LogCaptureFixture) -> None:
    """It is found after every kill."""
    filesystem = SimulatedFileSystem()

    async def lives() -> None:
        first = await open_coordinator(filesystem, ONE_SEGMENT)
        commit = CommitRequest("group-0", [TopicCommit("flights", [0], [77], [1], None)])
        assert await is_acknowledged(first.commit(commit))
        path = f"{FOLDER}/0000000001{SEGMENT_SUFFIX}"
        assert filesystem.read(path).endswith(FILL * 1_000_000)
        assert len(filesystem.read(path)) % SECTOR_BYTES == 0, "a lost sector is all reserve, or all content"
        second = await open_coordinator(filesystem.after_kill(), ONE_SEGMENT)
        assert read_state(second)["group-0", "flights", 0] == (77, 1, "")
        await second.close()
        assert not filesystem.read(path).endswith(FILL), "cut off by a clean end"

    asyncio.run(lives())
    assert "cut off" not in caplog.text


def test_a_lost_sector_of_what_was_synced_is_damage() -> None:
    """Unlike one of the last round: a later round shows that it was durable."""
    data = journal_bytes()
    frames = [frame[0] for frame in SegmentReader(data, "", number=1, partitions=4, may_be_torn=False)]
    found = []
    for sector in range(SECTOR_BYTES, frames[-1] - SECTOR_BYTES, SECTOR_BYTES):
        for lost in (FILL * SECTOR_BYTES, bytes(SECTOR_BYTES)):
            disk = with_journal(data[:sector] + lost + data[sector + SECTOR_BYTES :] + FILL * 2_000)
            with pytest.raises(JournalDamagedError) as caught:
                asyncio.run(state_of(disk))
            found.append(caught.value.position)
    assert len(found) > 10
    assert set(found) <= set(frames)


@pytest.mark.parametrize(
    ("size", "step"),
    [(0, 5), pytest.param(0, 1, marks=pytest.mark.soak), pytest.param(65_536, 1, marks=pytest.mark.soak)],
)
@pytest.mark.parametrize(
    "reserve",
    [pytest.param(b"", id="closed"), pytest.param(FILL * 5_000, id="with a reserve", marks=pytest.mark.full)],
)
def test_every_flipped_byte_is_found(
    size: int, step: int, reserve: bytes, record_property: Callable[[str, object], None]
) -> None:
    """Damage is refused, with file and position, wherever it is: also in the last frame. The short form looks at each
    fifth byte, other ones with a reserve than without, and at all of the first frame and the last one."""
    data = journal_bytes(size)
    frames = [frame[0] for frame in SegmentReader(data, "", number=1, partitions=4, may_be_torn=False)]
    ends = {*range(frames[1]), *range(frames[-1], len(data))}
    positions = sorted(ends.union(range(2 if reserve else 0, len(data), step)))
    record_property("bytes", len(positions))

    async def check() -> None:
        for position in positions:
            damaged = bytearray(data + reserve)
            damaged[position] ^= 1 << position % 8
            with pytest.raises(DataFolderError, match=f"{FOLDER}/0000000001") as caught:
                await state_of(with_journal(bytes(damaged)))
            if isinstance(caught.value, JournalDamagedError):
                assert caught.value.position <= position

    asyncio.run(check())


def segments_before_a_snapshot() -> tuple[SimulatedFileSystem, Told]:
    """A life that ends when it begins to write its first snapshot: three segments, and nothing stands for them."""
    history = SimulatedFileSystem()
    asyncio.run(live(history, Told()))
    begin = next(at for at, line in enumerate(history.history, 1) if line.startswith(f"write {FOLDER}/0000000002.snap"))
    filesystem, told = SimulatedFileSystem(), Told()
    filesystem.crash_at(begin)
    asyncio.run(swallow(live(filesystem, told)))
    found = filesystem.after_crash()
    assert [name for name in found.listdir(FOLDER) if name.endswith(SEGMENT_SUFFIX)] == [
        f"000000000{number}{SEGMENT_SUFFIX}" for number in (1, 2, 3)
    ]
    return found, told


def test_a_torn_segment_that_is_not_the_last_is_damage() -> None:
    filesystem, told = segments_before_a_snapshot()
    first = f"{FOLDER}/0000000001{SEGMENT_SUFFIX}"
    file = filesystem.open_append(first)
    file.truncate(file.size - 5)
    with pytest.raises(JournalDamagedError, match=f"{first} at byte"):
        asyncio.run(check_restart(filesystem, told))


def test_marks_that_became_the_reserves_byte_lose_no_commit() -> None:
    """The one byte of a frame whose loss says nothing: it may have a sector of its own."""
    data = journal_bytes()
    whole = asyncio.run(state_of(with_journal(data)))
    frames = [frame[0] for frame in SegmentReader(data, "", number=1, partitions=4, may_be_torn=False)]
    for position in (*frames, len(data) - 1):
        for byte in (FILL, b"\0"):
            for reserve in (b"", FILL * 2_000):
                altered = data[:position] + byte + data[position + 1 :] + reserve
                assert asyncio.run(state_of(with_journal(altered))) == whole


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_segment_is_damage(number: int) -> None:
    filesystem, told = segments_before_a_snapshot()
    filesystem.remove(f"{FOLDER}/000000000{number}{SEGMENT_SUFFIX}")
    missing = f"000000000{number}.journal" if number > 1 else r"0000000002\.snapshot"
    with pytest.raises(JournalDamagedError, match=f"{missing} at byte 0: this (segment|snapshot) is missing"):
        asyncio.run(check_restart(filesystem, told))


def test_all_missing_segments_are_damage() -> None:
    filesystem, told = segments_before_a_snapshot()
    for number in (1, 2, 3):
        filesystem.remove(f"{FOLDER}/000000000{number}{SEGMENT_SUFFIX}")
    with pytest.raises(JournalDamagedError, match=r"0000000003\.journal at byte 0: this segment is missing"):
        asyncio.run(check_restart(filesystem, told))


def test_a_missing_snapshot_is_damage() -> None:
    filesystem, told, snapshot = after_snapshots()
    filesystem.remove(snapshot)
    with pytest.raises(JournalDamagedError, match=f"{snapshot} at byte 0: this snapshot is missing"):
        asyncio.run(check_restart(filesystem, told))


def after_snapshots() -> tuple[SimulatedFileSystem, Told, str]:
    """A whole life, and the path of its last snapshot."""
    filesystem, told = SimulatedFileSystem(), Told()
    asyncio.run(live(filesystem, told))
    (name,) = [name for name in filesystem.listdir(FOLDER) if name.endswith(SNAPSHOT_SUFFIX)]
    return filesystem, told, f"{FOLDER}/{name}"


def test_the_segment_behind_a_snapshot_is_missed() -> None:
    filesystem, told, snapshot = after_snapshots()
    segment = snapshot.replace(SNAPSHOT_SUFFIX, SEGMENT_SUFFIX)
    filesystem.remove(segment)
    with pytest.raises(JournalDamagedError, match=f"{segment} at byte 0: this segment is missing, and its snapshot"):
        asyncio.run(check_restart(filesystem, told))


def test_every_flipped_byte_of_a_snapshot_is_found() -> None:
    """A snapshot has its name only when it is whole: so cut short or changed it is damage, with file and position."""
    filesystem, _, path = after_snapshots()
    data = filesystem.read(path)

    async def check() -> None:
        for position in range(len(data)):
            damaged = bytearray(data)
            damaged[position] ^= 1 << position % 8
            for content in (bytes(damaged), data[:position]):
                filesystem.write_atomic(path, content)
                with pytest.raises(DataFolderError, match=path) as caught:
                    await open_coordinator(filesystem)
                if isinstance(caught.value, JournalDamagedError):
                    assert caught.value.position <= position

    asyncio.run(check())


def test_what_a_crash_left_behind_a_snapshot_is_removed() -> None:
    filesystem, told, path = after_snapshots()
    for name in ("0000000001.journal", "0000000002.snapshot", "0000000009.snapshot.tmp"):
        filesystem.open_append(f"{FOLDER}/{name}").write(b"anything")
    found = asyncio.run(open_coordinator(filesystem))
    assert read_state(found) == told.read[-1]
    assert [f"{FOLDER}/{name}" for name in filesystem.listdir(FOLDER) if name != MANIFEST] == [
        path.replace(SNAPSHOT_SUFFIX, SEGMENT_SUFFIX),
        path,
    ]


def test_a_missing_commit_is_damage() -> None:
    """Frames of one offsets partition follow each other without a gap, even when each of them is sound."""
    data = journal_bytes()

    async def check() -> None:
        frames = list(SegmentReader(data, "", number=1, partitions=4, may_be_torn=False))
        for at, ((position, partition, *_), (following, *_)) in enumerate(pairwise(frames)):
            without = data[:position] + data[following:]
            if any(later == partition for _, later, *_ in frames[at + 1 :]):
                with pytest.raises(JournalDamagedError, match="is due"):
                    await state_of(with_journal(without))

    asyncio.run(check())


def test_records_of_another_kind_are_damage() -> None:
    """Sound frames around what is no coordinator record: refused with file and position, like any damage."""
    batch = encode_batch([NewRecord(b"\0\1 no offset key", b"x")], timestamp_ms=1)
    data = encode_header(SEGMENT, 1, 4) + encode_frame(0, 0, batch[:CRC_START], batch[CRC_START:])
    with pytest.raises(JournalDamagedError, match=r"0000000001\.journal at byte 36: a coordinator key"):
        asyncio.run(state_of(with_journal(data)))


def test_another_file_is_not_touched() -> None:
    for data in (b"not a journal at all, but something dear to its owner", b"short"):
        filesystem = with_journal(data)
        with pytest.raises(JournalDamagedError, match="not a keylane journal"):
            asyncio.run(state_of(filesystem))
        assert filesystem.read(f"{FOLDER}/0000000001{SEGMENT_SUFFIX}") == data


def test_another_number_of_partitions_is_refused() -> None:
    filesystem = with_journal(journal_bytes())
    options = BrokerConfig(offsets_topic_num_partitions=50)
    with pytest.raises(DataFolderError, match=r"offsets\.topic\.num\.partitions=50.*with 4"):
        asyncio.run(open_coordinator(filesystem, options))
