"""`__consumer_offsets` as a topic that clients may read: a view of the coordinator's journal.

It is listed once it holds something, marked as internal. It can be fetched, but not produced to, deleted or made.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol

from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.broker.topic_files import Topic
    from keylane.broker.topics import TopicRegistry


class OffsetsView(Protocol):
    """What the coordinator gives of each offsets partition."""

    def end_offset(self, partition: int) -> int:
        """The offset behind the last durable record."""
        ...

    async def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        """Whole durable batches from the one that holds `offset` on."""
        ...


class OffsetsTopic:
    """The topic's face: name, id, partitions."""

    name = OFFSETS_TOPIC
    leader_epoch = 0
    """Of all its batches: what it shows is made of the journal."""

    def __init__(self, view: OffsetsView, partition_count: int, cluster_id: str, owned: frozenset[int]) -> None:
        self.view = view
        self.partition_count = partition_count
        self.owned = owned
        """Partitions that this node coordinates; it shows no others, for what it has of them is not what they are."""
        self.topic_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{cluster_id}/{OFFSETS_TOPIC}")

    @property
    def is_listed(self) -> bool:
        """Whether anything was ever committed."""
        return any(self.view.end_offset(partition) > 0 for partition in self.owned)

    def check(self, partition: int) -> int:
        """Whether this partition can be read here: an error code."""
        if partition in self.owned:
            return codes.NONE
        is_there = 0 <= partition < self.partition_count
        return codes.NOT_LEADER_OR_FOLLOWER if is_there else codes.UNKNOWN_TOPIC_OR_PARTITION


class AllTopics:
    """The topics that clients are told of and that groups may subscribe to: those of the node, and this one, once it is
    listed."""

    def __init__(self, topics: TopicRegistry, offsets: Callable[[], OffsetsTopic]) -> None:
        """`offsets` is called once there is one."""
        self._topics = topics
        self._offsets = offsets
        self._is_listed = False
        """It is so for ever once it is."""

    @property
    def version(self) -> int:
        """Another one after each change."""
        return 2 * self._topics.version + (self._listed() is not None)

    def get(self, name: str) -> OffsetsTopic | Topic | None:
        return self._listed() if name == OFFSETS_TOPIC else self._topics.get(name)

    def names(self) -> list[str]:
        return [*self._topics.names(), *([] if self._listed() is None else [OFFSETS_TOPIC])]

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        is_it = topic_id is not None and topic_id == self._offsets().topic_id
        return OFFSETS_TOPIC if is_it else self._topics.name_of(topic_id)

    def _listed(self) -> OffsetsTopic | None:
        offsets = self._offsets()
        self._is_listed = self._is_listed or offsets.is_listed
        return offsets if self._is_listed else None
