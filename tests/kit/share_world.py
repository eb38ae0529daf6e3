"""A coordinator with one share group that reads one topic, on a simulated disk: who says what, and what is durable."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.config import BrokerConfig
from keylane.coordinator.coordinator import Coordinator
from keylane.coordinator.journal.journal import on_files
from keylane.coordinator.share_groups.partition import DONE, Acknowledgement, Limits, SharePartition
from keylane.coordinator.share_groups.protocol import EARLIEST, HeartbeatAnswer, HeartbeatRequest, ShareSettings
from keylane.coordinator.share_groups.records import Place
from keylane.coordinator.share_service import Read, ShareService
from keylane.wire import codes
from kit.executor import InlineExecutor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kit.filesystem import SimulatedFileSystem

FOLDER = "/coordinator"
NOW_MS = 1_700_000_000_000
GROUP, TOPIC, TOPIC_ID = "g", "flights", uuid.UUID(int=7)
PLACE = Place(GROUP, TOPIC_ID, 0)
SETTINGS = ShareSettings(
    session_timeout_ms=45_000,
    heartbeat_interval_ms=5_000,
    assignment_interval_ms=0,
    max_size=3,
    limits=Limits(lock_ms=30_000, deliveries=3, in_flight=100),
    reset=EARLIEST,
    is_committed_only=False,
    can_renew=True,
)


class Topic(NamedTuple):
    topic_id: uuid.UUID
    partition_count: int


class Topics:
    """Those that there are; `version` grows with each change."""

    def __init__(self) -> None:
        self.version = 1
        self.by_name = {TOPIC: Topic(TOPIC_ID, 2)}

    def get(self, name: str) -> Topic | None:
        return self.by_name.get(name)

    def names(self) -> Iterable[str]:
        return self.by_name

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        return next((name for name, topic in self.by_name.items() if topic.topic_id == topic_id), None)


class ShareWorld:
    """A life of the coordinator, from `start` to its end or its crash."""

    def __init__(self, filesystem: SimulatedFileSystem, settings: ShareSettings = SETTINGS) -> None:
        self.topics = Topics()
        self.coordinator = Coordinator(
            journal=on_files(filesystem, FOLDER, InlineExecutor(), may_sync_inline=True),
            options=BrokerConfig(offsets_topic_num_partitions=2, offsets_topic_segment_bytes=2_000),
            partition_count=lambda name: self.topics.by_name[name].partition_count if name == TOPIC else None,
            topics=self.topics,
            share_settings=lambda _group: settings,
            clock=lambda: NOW_MS,
        )

    @property
    def share(self) -> ShareService:
        assert self.coordinator.share is not None
        return self.coordinator.share

    @property
    def partition(self) -> SharePartition:
        found = self.share.partition(PLACE)
        assert found is not None
        return found

    async def start(self) -> None:
        await self.coordinator.start()

    async def join(self, member: str = "a") -> HeartbeatAnswer:
        return await self.coordinator.share_heartbeat(HeartbeatRequest(GROUP, member, 0, "c", "/host", None, (TOPIC,)))

    async def leave(self, member: str = "a") -> HeartbeatAnswer:
        return await self.coordinator.share_heartbeat(HeartbeatRequest(GROUP, member, -1, "c", "/host"))

    def take(self, most: int, end: int = 1_000, member: str = "a") -> list[int]:
        """The offsets that a member is given, of a log of one-record batches up to `end`."""
        at = self.partition.next_offset
        batches = [(offset, offset) for offset in range(at, min(at + 2 * most, end))]
        read = Read(at, at + len(batches), batches)
        found = self.share.acquire(PLACE, self.partition, member, read, most, is_strict=True)
        return [offset for one in found for offset in range(one.first, one.last + 1)]

    async def say(self, kinds: dict[int, int], member: str = "a") -> int:
        """What a member says of each offset; returns when it is durable."""
        said = [Acknowledgement(offset, offset, (kind,)) for offset, kind in sorted(kinds.items())]
        error = self.share.acknowledge(PLACE, member, said)
        return error or await self.share.settled(GROUP)

    def done(self, end: int) -> set[int]:
        """Those that nobody is given any more, below `end`."""
        state = self.share.state_of(PLACE)
        behind = {one for batch in state.batches if batch.state in DONE for one in range(batch.first, batch.last + 1)}
        return behind | set(range(min(max(state.start, 0), end)))


NONE = codes.NONE
