"""Leader epochs: one for each start of the broker, and one for each topic that is made anew, never the same one twice.

A counter in the data folder would count up to the same numbers again once an older copy of the folder is put back, and
readers would take the new records for those that they have read. So an epoch is the time, in ticks; the folder only
keeps it from going back when the clock does. Where the clock is behind, a start goes on by a random step: a copy that
is put back then takes another one. Other topics have the epoch of the start, so that epochs stay beside the clock.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from keylane.errors import DataFolderError
from keylane.storage.sealed import read_sealed, write_sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from keylane.storage.filesystem import FileSystem

KIND = "leader-epoch"
TICK_MS = 250
"""Shorter than it takes to stop a broker, put its folder back and start it; epochs last until 2043 with it."""
FIRST_TICK_MS = 1_767_225_600_000
"""The start of 2026."""
LARGEST_EPOCH = 2**31 - 1
LARGEST_TICK = LARGEST_EPOCH - 2**27
"""A clock that says more is wrong, or has lasted: what is left is for the steps."""
LARGEST_STEP = 2**12


class LeaderEpochs:
    """Gives them out. `load` comes first, then `start`."""

    def __init__(self, filesystem: FileSystem, path: str, clock: Callable[[], int]) -> None:
        self._filesystem = filesystem
        self._path = path
        self._clock = clock
        self._last = 0

    def load(self) -> None:
        """Read the last start's. Blocks; raises `DataFolderError` for damage."""
        if self._filesystem.exists(self._path):
            self._last = read_sealed(self._filesystem, self._path, KIND)

    def start(self, highest: int) -> int:
        """The epoch of this start, durable on return: above `highest`, which a log knows. Blocks."""
        self._last = max(self._last, highest)
        epoch = self._above_last(1 + secrets.randbelow(LARGEST_STEP))
        write_sealed(self._filesystem, self._path, KIND, epoch)
        return epoch

    def of_topic(self, is_another: bool) -> int:
        """Of partitions that are made; a topic whose name one had that was removed since the start gets a new one.
        Raises `DataFolderError` when there is none."""
        return self._above_last(1) if is_another else self._last

    def _above_last(self, step: int) -> int:
        """The time, or by so much more than the last one where the clock is behind."""
        tick = (self._clock() - FIRST_TICK_MS) // TICK_MS
        if self._last < tick <= LARGEST_TICK:
            self._last = tick
        else:
            self._last += step
        if self._last > LARGEST_EPOCH:
            raise DataFolderError(
                f"{self._path}: there is no leader epoch above those that were given (the clock was wrong at some "
                "start): let the topics move to a new data folder"
            )
        return self._last
