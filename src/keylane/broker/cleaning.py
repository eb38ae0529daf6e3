"""Cleaning: from time to time, topics lose their oldest segments (retention), or what is superseded (compaction).

Thread safety: belongs to the event loop's thread; files are read, written and removed in the executor of the logs.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from keylane.storage.compacting import Compactor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor

    from keylane.broker.topics import TopicRegistry
    from keylane.storage.filesystem import FileSystem


class Cleaning:
    """Looks at all topics every `retention_ms` and every `compaction_ms`, as they are then."""

    def __init__(
        self,
        topics: TopicRegistry,
        filesystem: FileSystem,
        executor: Executor,
        clock: Callable[[], int],
        *,
        retention_ms: Callable[[], int],
        compaction_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._compactor = Compactor(filesystem, executor)
        self._intervals_ms = (retention_ms, compaction_ms)
        self._is_stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for interval_ms, look in zip(self._intervals_ms, (self.remove_expired, self.compact), strict=True):
            self._tasks.append(asyncio.get_running_loop().create_task(self._repeat(interval_ms, look)))

    async def stop(self) -> None:
        """Return when no partition is being worked on."""
        self._is_stopping.set()
        self._compactor.stop()
        await asyncio.gather(*self._tasks)

    async def _repeat(self, interval_ms: Callable[[], int], look: Callable[[], Awaitable[None]]) -> None:
        while not self._is_stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), interval_ms() / 1_000)
                return
            await look()

    async def remove_expired(self) -> None:
        """Look at every partition of topics with the policy `delete`."""
        for topic in self._topics.topics():
            if topic.values.is_deleted:
                for log in topic.logs:
                    if self._is_stopping.is_set():
                        return
                    await log.remove_expired(self._clock(), topic.values.retention_ms, topic.values.retention_bytes)
                    await asyncio.sleep(0)  # ten thousand partitions must not hold up the clients

    async def compact(self) -> None:
        """Look at every partition of topics with the policy `compact`."""
        for topic in self._topics.topics():
            if topic.values.is_compacted:
                for log in topic.logs:
                    if self._is_stopping.is_set():
                        return
                    values = topic.values
                    await self._compactor.compact(
                        log,
                        self._clock(),
                        values.min_cleanable_dirty_ratio,
                        values.delete_retention_ms,
                        min_lag_ms=values.min_compaction_lag_ms,
                        max_lag_ms=values.max_compaction_lag_ms,
                    )
                    await asyncio.sleep(0)
