"""Features (KIP-584): what is done in another way from a level on, and the level that each is at, of the whole broker.

A level that was changed stands in the data folder's `features.json` before the change is answered; until then every
feature is at the newest that there is. Only what holds is told: `metadata.version` and `kraft.version` are of a
metadata log, which this broker has not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.transactions.transactional_ids import EPOCH_A_TRANSACTION
from keylane.errors import DataFolderError
from keylane.storage.sealed import keep_sealed, read_sealed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from keylane.storage.filesystem import FileSystem

KIND = "features"
TRANSACTION_VERSION, SHARE_VERSION = "transaction.version", "share.version"
DEAD_LETTERS = 2
"""The level of `share.version` from which on share groups write them (KIP-1191)."""


class Feature(NamedTuple):
    """A feature that there is."""

    oldest: int
    newest: int
    needs: tuple[int, int]
    """An API and its version, offered where the feature is there: others offer a part of this broker's APIs."""


FEATURES = {
    "group.version": Feature(1, 1, (68, 0)),
    SHARE_VERSION: Feature(1, DEAD_LETTERS, (76, 0)),
    TRANSACTION_VERSION: Feature(0, EPOCH_A_TRANSACTION, (26, 5)),
}
"""Groups of the consumer protocol (KIP-848), share groups (KIP-932), and transactions (KIP-890)."""


class Finalized(NamedTuple):
    """The levels that hold."""

    epoch: int
    """How often they were changed."""
    levels: Mapping[str, int]


NEWEST = Finalized(0, {name: feature.newest for name, feature in FEATURES.items()})


class Features:
    """In memory, and in the file before a change is answered."""

    def __init__(self, filesystem: FileSystem, path: str, executor: Executor) -> None:
        self._filesystem = filesystem
        self._path = path
        self._executor = executor
        self._change = asyncio.Lock()
        self.finalized = NEWEST

    def load(self) -> None:
        """Read the file, if there is one. Raises `DataFolderError`."""
        if not self._filesystem.exists(self._path):
            return
        epoch, levels = read_sealed(self._filesystem, self._path, KIND)
        for name, level in levels.items():
            if name not in FEATURES or not FEATURES[name].oldest <= level <= FEATURES[name].newest:
                raise DataFolderError(
                    f"{self._path}: feature {name} is at level {level}, which this keylane does not have: start the "
                    "one that set it"
                )
        self.finalized = Finalized(epoch, {**NEWEST.levels, **levels})

    def level(self, name: str) -> int:
        return self.finalized.levels[name]

    async def change(self, levels: Mapping[str, int]) -> None:
        """Give features these levels, which they have; durable on return. Raises `StorageError`."""
        async with self._change:
            changed = {**self.finalized.levels, **levels}
            if changed == self.finalized.levels:
                return
            finalized = Finalized(self.finalized.epoch + 1, changed)
            await keep_sealed(self._filesystem, self._executor, self._path, KIND, [*finalized])
            self.finalized = finalized
