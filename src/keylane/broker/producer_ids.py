"""Producer ids: never the same one twice, whatever happens. Blocks of ids are reserved durably before they are used.

The file is not believed alone: it may be missing, or an older copy of itself. A log takes the first batches of an id
that it knows for ones that it has, so an id that is given twice is records that are acknowledged and never written.
Therefore ids start above every one that the logs and the journal know.

Nor is the folder believed: where it was put back to an older state, producers that live outside it have ids that
nothing in it knows. So each start gives ids of its own leader epoch, which no copy of the folder repeats.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keylane.storage.filesystem import StorageError
from keylane.storage.sealed import read_sealed, write_sealed
from keylane.telling import logger_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from keylane.storage.filesystem import FileSystem

logger = logger_of("keylane.broker")

KIND = "producer-ids"
BLOCK_SIZE = 1_000
"""Ids reserved at once; what is left of a block at a restart is never used (Kafka's figure)."""
IDS_OF_AN_EPOCH = 2**31
"""More than a start gives; with the largest leader epoch an id still fits Kafka's int64."""


class ProducerIds:
    """Hands out ids. `load` comes first, then `start_above`, as often as more ids are found."""

    def __init__(self, filesystem: FileSystem, path: str, executor: Executor) -> None:
        self._filesystem = filesystem
        self._path = path
        self._executor = executor
        self._next = 0
        self._reserved_until = 0
        self._reserving = asyncio.Lock()

    def load(self, leader_epoch: int) -> None:
        """Read where the next block starts, which is not below the ids of this start's leader epoch. Blocks; raises
        `DataFolderError` for damage."""
        kept = read_sealed(self._filesystem, self._path, KIND) if self._filesystem.exists(self._path) else 0
        self._next = self._reserved_until = max(kept, leader_epoch * IDS_OF_AN_EPOCH)

    def start_above(self, highest: int) -> None:
        """Give no id that may be in use, now that this one was found in a log or the journal; -1 for none.

        A block more is left out: ids may have been given whose producers have written nothing yet. No id was given yet.
        """
        assert self._next == self._reserved_until, "an id was given before all that are in use were known"
        first = highest + 1 + BLOCK_SIZE if highest >= 0 else 0
        if highest >= self._reserved_until:
            logger.warning(
                "%s says that ids start at %d, and producer id %d is in use: the file is missing, or an older copy of "
                "itself; ids go on from %d",
                self._path,
                self._reserved_until,
                highest,
                first,
            )
        self._next = self._reserved_until = max(first, self._reserved_until)

    async def new_id(self) -> int:
        """An id that nobody has had before. Raises `StorageError` when none can be reserved."""
        async with self._reserving:
            if self._next == self._reserved_until:
                await self._reserve()
            self._next += 1
            return self._next - 1

    async def _reserve(self) -> None:
        until = self._reserved_until + BLOCK_SIZE
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, write_sealed, self._filesystem, self._path, KIND, until)
        except OSError as error:
            raise StorageError(
                f"{self._path}: {error}; no producer id can be reserved: free or mend the disk"
            ) from error
        self._reserved_until = until
