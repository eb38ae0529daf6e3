"""Committed offsets beyond the ends of their logs, which a start names.

No crash leaves them: a commit follows the records that it speaks of, and those were durable. A copy of the folder that
was made file by file while the broker ran does, and so do files that somebody put back. A consumer that goes on there
would be told that its offset is out of range, or would miss the records that take the offsets up to its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from keylane.telling import logger_of

if TYPE_CHECKING:
    from keylane.broker.topics import TopicRegistry
    from keylane.coordinator.coordinator import Coordinator

logger = logger_of("keylane.broker")

NAMED = 10
"""More are counted."""
SLICE_GROUPS = 500
"""Looked at in one turn of the loop: 3 ms."""


class BeyondEnd(NamedTuple):
    """One committed offset."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    """Of the log."""

    def describe(self) -> str:
        return f"{self.committed} of group {self.group!r} in {self.topic}-{self.partition}, which ends at {self.end}"


async def find_offsets_beyond(coordinator: Coordinator, topics: TopicRegistry) -> list[BeyondEnd]:
    """All of them, once the offsets are loaded. Raises `DataFolderError` when they cannot be."""
    await coordinator.loaded()
    found = []
    for count, group in enumerate(coordinator.groups_with_offsets(), 1):
        for topic, columns in coordinator.committed_offsets(group):
            for partition, committed in zip(columns.partitions, columns.offsets, strict=True):
                log = topics.log(topic, partition)
                if log is not None and committed > log.next_offset:
                    found.append(BeyondEnd(group, topic, partition, committed, log.next_offset))
        if count % SLICE_GROUPS == 0:
            await asyncio.sleep(0)
    return found


async def warn_of_offsets_beyond(coordinator: Coordinator, topics: TopicRegistry, path: str) -> None:
    """One warning, if there are any."""
    found = await find_offsets_beyond(coordinator, topics)
    if found:
        others = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        logger.warning(
            "%s: %d committed offsets lie beyond the ends of their logs: %s%s: its files are of different moments, or "
            "records were lost; restore a backup (`keylane broker restore`), or set these offsets (`keylane groups`)",
            path,
            len(found),
            "; ".join(one.describe() for one in found[:NAMED]),
            others,
        )
