"""Retention: from time to time, every topic that is cleaned by deletion loses its oldest segments.

Thread safety: belongs to the event loop's thread; files are removed in the executor of the logs.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.broker.topics import TopicRegistry


class Retention:
    """`retention.ms` and `retention.bytes` of all topics, looked at every `interval_ms`."""

    def __init__(self, topics: TopicRegistry, clock: Callable[[], int], interval_ms: int) -> None:
        self._topics = topics
        self._clock = clock
        self._interval_s = interval_ms / 1_000
        self._is_stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Return when no file is being removed."""
        self._is_stopping.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while not self._is_stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), self._interval_s)
                return
            await self.run_once()

    async def run_once(self) -> None:
        """Look at every partition. What cannot be removed is logged by its log."""
        for topic in self._topics.topics():
            values = topic.values
            if not values.is_deleted:
                continue
            for log in topic.logs:
                if self._is_stopping.is_set():
                    return
                await log.remove_expired(self._clock(), values.retention_ms, values.retention_bytes)
                await asyncio.sleep(0)  # ten thousand partitions must not hold up the clients
