"""`__consumer_offsets` as a topic that clients may read: a view of the coordinator's journal.

It is listed once it holds something, marked as internal. It can be fetched, but not produced to, deleted or made.
"""

from __future__ import annotations

import uuid
from typing import Protocol

from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.wire import codes


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
