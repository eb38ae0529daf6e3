"""`GroupBatches`: what of each group is on its way to the journal, and what becomes of a group of which a batch fails.

A shell changes its group first, and makes durable what it became. Where a batch fails, what the group became by it
never was: the group is broken, and restored from what is durable once nothing of it is on its way any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.formats import encode_records
from keylane.coordinator.journal.journal import BatchTooLargeError
from keylane.storage.filesystem import StorageError
from keylane.telling import logger_of
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.coordinator.journal.journal import Journal
    from keylane.storage.shared_sync import Round

logger = logger_of("keylane.coordinator")


class GroupBatches:
    """Of all groups of one kind."""

    def __init__(
        self, journal: Journal, now_ms: Callable[[], int], restore: Callable[[str], None], too_large: str
    ) -> None:
        """`restore(group)` makes a group what is durable of it; `too_large` begins the log line of one of which a batch
        is too large, and has its name as %s."""
        self._journal = journal
        self._now_ms = now_ms
        self._restore = restore
        self._too_large = too_large
        self._waiting: dict[str, tuple[int, Round]] = {}
        """By group: batches that are not durable yet, and the round of the last."""
        self.broken: set[str] = set()
        """Groups of which a batch failed, until they are restored; to be looked at."""

    def append(
        self,
        group: str,
        partition: int,
        pairs: Sequence[tuple[bytes, bytes | None]],
        stored: Callable[[], None] = lambda: None,
    ) -> int:
        """Make these keys and values durable as one batch: an error code, when they never will be. `stored` is called
        when they are, unless the group is broken."""
        if not pairs:
            return codes.NONE
        try:
            durable = self._journal.append(
                partition,
                encode_records(pairs, self._now_ms()),
                lambda failure, _offset: self._ended(group, failure, stored),
            )
        except BatchTooLargeError as error:
            logger.warning(f"{self._too_large}: %s", group, error)
            self._break(group)
            return codes.UNKNOWN_SERVER_ERROR
        except StorageError:
            self._break(group)
            return codes.COORDINATOR_NOT_AVAILABLE
        count = self._waiting[group][0] if group in self._waiting else 0
        self._waiting[group] = (count + 1, durable)
        return codes.NONE

    async def settled(self, group: str) -> int:
        """Return when all of this group is durable: an error code, when it never will be."""
        if group in self._waiting:
            try:
                await self._waiting[group][1]
            except StorageError:
                return codes.COORDINATOR_NOT_AVAILABLE
        return codes.NONE

    def last(self, group: str) -> Round:
        """That of the last batch, of a group that has one on its way."""
        return self._waiting[group][1]

    def _ended(self, group: str, failure: StorageError | None, stored: Callable[[], None]) -> None:
        count, durable = self._waiting.pop(group)
        if count > 1:
            self._waiting[group] = (count - 1, durable)
        if failure is not None:
            self._break(group)
        elif group in self.broken:
            self._mend(group)
        else:
            stored()

    def _break(self, group: str) -> None:
        self.broken.add(group)
        self._mend(group)

    def _mend(self, group: str) -> None:
        """Only when nothing of it is on its way any more: the image then holds what is durable."""
        if group not in self._waiting:
            self.broken.discard(group)
            self._restore(group)
