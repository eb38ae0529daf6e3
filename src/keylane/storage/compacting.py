"""A compaction of one log, from the event loop: what is looked at, what runs in the executor, what is put in place.

Segments are written anew under an interim name, made durable, and renamed over the first of those that they stand for;
then the others are removed. A crash leaves the old segments, or the new one with some of the old behind it, which
recovery knows by their offsets.
"""

from __future__ import annotations

import asyncio
import functools
from itertools import takewhile
from typing import TYPE_CHECKING

from keylane.errors import PeerError
from keylane.storage.compaction import CLEANED_SUFFIX, Cleaner, CompactionStoppedError, last_offsets
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    from keylane.storage.filesystem import FileSystem
    from keylane.storage.log import PartitionLog
    from keylane.storage.segment import Segment

logger = logger_of("keylane.storage")

LONG_MAX = 2**63 - 1


class Compactor:
    """Compacts logs, one at a time."""

    def __init__(self, filesystem: FileSystem, executor: Executor) -> None:
        self._filesystem = filesystem
        self._executor = executor
        self._is_stopping = False

    def stop(self) -> None:
        """Give up what is under way, at its next batch, and begin nothing more: the logs stay as they are."""
        self._is_stopping = True

    async def compact(
        self,
        log: PartitionLog,
        now_ms: int,
        min_dirty_ratio: float,
        delete_retention_ms: int,
        *,
        min_lag_ms: int = 0,
        max_lag_ms: int = LONG_MAX,
    ) -> bool:
        """Compact a log, if enough of it never was, or some has waited for `max_lag_ms`; whether it was tried. What is
        younger than `min_lag_ms` stays, and all behind it. What fails is logged, and tried again."""
        async with log.trimming():
            if self._is_stopping or log.is_closed or log.failure is not None:
                return False
            segments = log.decided_segments()
            if min_lag_ms:
                segments = list(takewhile(lambda segment: segment.max_timestamp <= now_ms - min_lag_ms, segments))
            dirty = [segment for segment in segments if segment.base_offset >= log.clean_offset]
            dirty_bytes = sum(segment.size for segment in dirty)
            is_late = any(0 <= segment.first_timestamp < now_ms - max_lag_ms for segment in dirty)
            is_enough = dirty_bytes >= min_dirty_ratio * sum(segment.size for segment in segments)
            if not dirty_bytes or not (is_enough or is_late):
                return False
            try:
                await self._compact(log, segments, dirty, now_ms, delete_retention_ms)
            except CompactionStoppedError:
                pass
            except (OSError, PeerError) as error:
                logger.error("%s: not compacted: %s", log.folder, error)  # noqa: TRY400 - one line says it all
            return True

    async def _compact(
        self,
        log: PartitionLog,
        segments: Sequence[Segment],
        dirty: Sequence[Segment],
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        plan = log.compaction_plan(now_ms, delete_retention_ms, lambda: self._is_stopping or log.is_closed)
        work = functools.partial(last_offsets, self._filesystem, dirty, plan)
        last, count = await loop.run_in_executor(self._executor, work)
        until = log.end_of(dirty[count - 1])
        cleaner = Cleaner(self._filesystem, plan, last, log.options.index_interval_bytes)
        for group in groups([each for each in segments if each.base_offset < until], log.options.segment_bytes):
            end = log.end_of(group[-1])
            written = await loop.run_in_executor(self._executor, cleaner.write, group, end)
            if written is not None:
                path = written.segment.path
                await loop.run_in_executor(self._executor, self._put_in_place, path, log.folder)
                log.replace(group, written)
                await log.remove_doomed()
        log.clean_offset = until

    def _put_in_place(self, path: str, folder: str) -> None:
        self._filesystem.rename(path + CLEANED_SUFFIX, path)
        self._filesystem.sync_dir(folder)


def groups(segments: Sequence[Segment], most_bytes: int) -> Iterator[list[Segment]]:
    """Runs of segments that together are as large as one may be."""
    group: list[Segment] = []
    size = 0
    for segment in segments:
        if group and size + segment.size > most_bytes:
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group
