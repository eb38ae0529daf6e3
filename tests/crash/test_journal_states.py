"""The states that a crash can leave of the journal and its snapshots, by the thousand; in the long form all of them.

One life appends commits, groups and tombstones, in segments so small that several snapshots are written meanwhile. It
ends at each operation on the disk; of what was not synced then, none is kept, or its first byte, its first two, and so
on (a sample of these in the short form); names that were not synced are lost or kept. Each of these disks is started
from: all that was acknowledged is there, and nothing that was not sent, batch by batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from keylane.broker.config import BrokerConfig
from keylane.coordinator.consumer_groups import records as consumer_records
from keylane.coordinator.formats import (
    SHARE_STATE,
    GroupValue,
    TopicCommit,
    encode_commit,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_records,
)
from keylane.coordinator.journal.image import Image
from keylane.coordinator.journal.journal import FileJournal
from keylane.coordinator.share_groups import records as share_records
from keylane.coordinator.share_groups.partition import AVAILABLE, Batch, State
from keylane.coordinator.share_groups.records import Place, encode_state, encode_state_key
from keylane.errors import PeerError
from keylane.storage import shared_sync
from keylane.storage.filesystem import StorageError
from kit.executor import InlineExecutor
from kit.filesystem import SimulatedCrashError, SimulatedFileSystem, all_different

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from keylane.coordinator.formats import Records
    from keylane.coordinator.offsets.store import OffsetStore
    from kit.filesystem import Names

FOLDER = "/coordinator"
OPTIONS = BrokerConfig(offsets_topic_num_partitions=3, offsets_topic_segment_bytes=900)
NOW_MS = 1_700_000_000_000

Found = dict[object, object]
"""What a start finds: committed offsets, and groups as their bytes."""


@pytest.fixture(autouse=True)
def syncs_on_the_spot_never_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: one life's operations are in the same order as the next one's."""
    monkeypatch.setattr(shared_sync, "INLINE_LIMIT_S", math.inf)


@dataclass
class Step:
    """One batch to append, what it makes of a state, and how it enters the store once it is durable."""

    partition: int
    records: Records
    change: Callable[[Found], object]
    apply: Callable[[OffsetStore, int], object] = lambda _store, _base_offset: None


def steps(count: int) -> list[Step]:
    made = []
    for number in range(count):
        group, partition = f"g{number % 3}", number % 3
        if number % 7 == 5:
            made.append(group_step(partition, group, number))
        elif number % 7 == 6:
            made.append(tombstone_step(partition, group))
        elif number % 7 == 2:
            made.append(share_step(group, number))
        elif number % 14 == 3:
            made.append(consumer_group_step(partition, group, number))
        elif number % 14 == 10:
            made.append(share_group_step(partition, group, number))
        else:
            made.append(commit_step(partition, group, number))
    return made


def commit_step(partition: int, group: str, number: int) -> Step:
    count = (1, 6, 2)[number % 3]
    text = f"map {number}" if number % 5 == 0 else ""
    commit = TopicCommit("flights", list(range(count)), [number * 10] * count, [number] * count, [text] * count)
    return Step(
        partition,
        encode_commit(group, [commit._replace(metadata=[text] * count if text else None)], NOW_MS),
        lambda state: state.update(((group, index), (number * 10, number, text)) for index in range(count)),
        lambda store, base_offset: store.apply(group, [commit], base_offset, NOW_MS),
    )


def group_step(partition: int, group: str, number: int) -> Step:
    key, value = encode_group_key(group), encode_group_value(GroupValue("consumer", number, "range", "m", 5, ()))
    return Step(partition, encode_records([(key, value)], NOW_MS), lambda state: state.update({key: value}))


def share_step(group: str, number: int) -> Step:
    """How far a share group has got: in the journal's partition of `__share_group_state`."""
    key = encode_state_key(Place(group, UUID(int=7), 0))
    value = encode_state(State(number, 1, (Batch(number, number + 3, AVAILABLE, 2),)), NOW_MS)
    return Step(SHARE_STATE, encode_records([(key, value)], NOW_MS), lambda state: state.update({key: value}))


def consumer_group_step(partition: int, group: str, number: int) -> Step:
    """A member takes another one's place in a group of KIP-848: its records are there, and those of the other end."""
    came, gone = f"m{number % 4}", f"m{(number + 2) % 4}"
    member = consumer_records.Member(None, None, "client", "/host", ("flights",), "", 300_000, None)
    owned = {UUID(int=7): dict.fromkeys(range(3), number)}
    changes = (
        consumer_records.Record(consumer_records.GROUP, "", consumer_records.Group(number, 77)),
        consumer_records.Record(consumer_records.MEMBER, came, member),
        consumer_records.Record(
            consumer_records.CURRENT, came, consumer_records.Current(number, 0, consumer_records.STABLE, owned, {})
        ),
        consumer_records.Record(consumer_records.CURRENT, gone, None),
        consumer_records.Record(consumer_records.MEMBER, gone, None),
    )
    return pairs_step(partition, [consumer_records.encode(group, one) for one in changes])


def share_group_step(partition: int, group: str, number: int) -> Step:
    """The same in a share group."""
    came, gone = f"m{number % 4}", f"m{(number + 2) % 4}"
    placed = share_records.PlacedTopic("flights", frozenset(range(number % 3 + 1)))
    changes = (
        share_records.Record(share_records.GROUP, "", share_records.Group(number, 77)),
        share_records.Record(share_records.MEMBER, came, share_records.Member(None, "client", "/host", ("flights",))),
        share_records.Record(share_records.TOPICS, "", share_records.Topics({UUID(int=7): placed})),
        share_records.Record(share_records.MEMBER, gone, None),
    )
    return pairs_step(partition, [share_records.encode(group, one) for one in changes])


def pairs_step(partition: int, pairs: list[tuple[bytes, bytes | None]]) -> Step:
    """Each key has this value, or none, from now on."""

    def change(state: Found) -> None:
        for key, value in pairs:
            state.pop(key, None)
            if value is not None:
                state[key] = value

    return Step(partition, encode_records(pairs, NOW_MS), change)


def tombstone_step(partition: int, group: str) -> Step:
    keys = [encode_offset_key(group, "flights", 0), encode_group_key(group)]
    return Step(
        partition,
        encode_records([(key, None) for key in keys], NOW_MS),
        lambda state: [state.pop(gone, None) for gone in ((group, 0), keys[1])],
        lambda store, _: store.remove(group, "flights", 0),
    )


def states_after(every: list[Step]) -> list[Found]:
    """The state after each batch, from none on."""
    states: list[Found] = [{}]
    for step in every:
        state = dict(states[-1])
        step.change(state)
        states.append(state)
    return states


def contents(image: Image) -> Found:
    state: Found = {key: kept.value for (_, key), kept in image.kept.items()}
    for group in image.store.groups:
        for _, (partitions, offsets, epochs, metadata) in image.store.fetch_all(group):
            texts = metadata or [""] * len(partitions)
            for index, *entry in zip(partitions, offsets, epochs, texts, strict=True):
                state[group, index] = tuple(entry)
    return state


class Life:
    """A journal with its image, from its start to its end."""

    def __init__(self, filesystem: SimulatedFileSystem, options: BrokerConfig = OPTIONS) -> None:
        self.image = Image()
        executor = InlineExecutor()
        self.journal = FileJournal(
            filesystem,
            FOLDER,
            executor,
            executor,
            image=self.image,
            options=options,
            clock=lambda: NOW_MS,
            may_sync_inline=True,
        )
        self.acknowledged = 0
        self.refused = 0

    async def run(self, every: list[Step]) -> None:
        """Append in rounds of one, two and three batches that share a sync."""
        await self.journal.load()
        at = 0
        while at < len(every):
            batches = every[at : at + 1 + at % 3]
            at += len(batches)
            for durable in [self._append(step) for step in batches]:
                try:
                    await durable
                    assert not self.refused, "acknowledged after a failure"
                    self.acknowledged += 1
                except StorageError:
                    self.refused += 1
            if at % 4 == 0 or at == len(every):
                await self._end_of_snapshot()
        await self.journal.close()

    def _append(self, step: Step) -> asyncio.Future[None]:
        def done(failure: StorageError | None, base_offset: int) -> None:
            if failure is None:
                step.apply(self.image.store, base_offset)

        return self.journal.append(step.partition, step.records, done)

    async def _end_of_snapshot(self) -> None:
        """What a snapshot raises is a crash; others of it are under way while batches are appended."""
        task = self.journal._snapshot_task
        if task is not None:
            await asyncio.wait({task})
            task.result()


def disks(filesystem: SimulatedFileSystem, torn_sizes: Iterable[int]) -> Iterator[SimulatedFileSystem]:
    """What a start may find: unsynced bytes dropped, or torn behind so many; unsynced names lost, or kept."""
    both: tuple[Names, Names] = ("lost", "kept")
    for names in both:
        yield filesystem.after_crash(names=names)
        yield filesystem.after_crash(names=names, content="zeroed")
        for share in (0.0, 1.0):
            yield filesystem.after_crash(names=names, content="scattered", torn_share=share)
        for size in torn_sizes:
            yield filesystem.after_crash(names=names, content="torn", torn_bytes=size)


def torn_sizes(unsynced: int, most: float, seed: int) -> Iterable[int]:
    every = range(1, unsynced + 1)
    if unsynced <= most:
        return every
    return {every[0], every[-2], every[-1], *Random(seed).sample(every, int(most) - 3)}


async def started(filesystem: SimulatedFileSystem) -> Found:
    life = Life(filesystem)
    await life.journal.load()
    found = contents(life.image)
    await life.journal.close()
    return found


async def live_until(
    operation: int | None, every: list[Step], *, fail: bool = False
) -> tuple[SimulatedFileSystem, int]:
    """The disk of a life that is ended, or meets an error, at an operation; and the batches it acknowledged."""
    filesystem = SimulatedFileSystem()
    if operation is not None:
        (filesystem.fail_at if fail else filesystem.crash_at)(operation)
    life = Life(filesystem)
    with contextlib.suppress(SimulatedCrashError, PeerError):
        await life.run(every)
    return filesystem, life.acknowledged


@pytest.mark.parametrize(
    ("batches", "torn", "least"), [(8, 30, 1_000), pytest.param(40, math.inf, 50_000, marks=pytest.mark.soak)]
)
def test_every_crash_prefix_torn_at_every_byte(
    batches: int,
    torn: float,
    least: int,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    """Or, in the short form, at the first byte, before the last one, and at some that each operation draws."""
    caplog.set_level(logging.ERROR, "keylane.coordinator")  # thousands of torn tails are not worth a line each
    every = steps(batches)
    states = states_after(every)

    async def check() -> tuple[int, set[str]]:
        whole, acknowledged = await live_until(None, every)
        assert acknowledged == len(every)
        count = 0
        for operation in range(1, whole.operations + 1):
            crashed, acknowledged = await live_until(operation, every)
            sizes = torn_sizes(crashed.unsynced_bytes(), torn, operation)
            for disk in all_different(disks(crashed, sizes)):
                found = await started(disk)
                assert found in states[acknowledged:], whole.history[operation - 1]
                count += 1
        return count, {line.split()[0] for line in whole.history}

    count, kinds = asyncio.run(check())
    record_property("disks", count)
    assert kinds == {"mkdir", "create", "write", "reserve", "sync", "sync_dir", "truncate", "rename", "remove"}
    assert count >= least, count


def test_an_error_at_every_operation_of_journal_and_snapshot() -> None:
    """After it, nothing is acknowledged that is not there after a crash; a snapshot that fails stops no commit."""
    every = steps(40)
    states = states_after(every)

    async def check() -> None:
        whole, _ = await live_until(None, every)
        for operation in range(1, whole.operations + 1):
            line = whole.history[operation - 1]
            failed, acknowledged = await live_until(operation, every, fail=True)
            if ".snapshot" in line:
                assert acknowledged == len(every), line
            for disk in (failed.after_crash(), failed.after_crash(names="kept", content="kept")):
                assert await started(disk) in states[acknowledged:], line

    asyncio.run(check())
