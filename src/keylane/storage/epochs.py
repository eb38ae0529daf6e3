"""The leader epochs of a log: in which one each record was written, and where each of them ends (KIP-101, KIP-320).

A batch carries its epoch, and readers keep the one of the last record that they have read. So a reader, or a committed
offset, that comes from another history of the log is told where the two part. Apache Kafka keeps the same list in
`leader-epoch-checkpoint`.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

UNDEFINED = (-1, -1)
"""Epoch and end of an epoch that there never was."""
_start = itemgetter(1)


class EpochHistory(NamedTuple):
    """Epochs and the offsets of their first records, both rising; the first entry holds for all below it, too."""

    entries: tuple[tuple[int, int], ...] = ((0, 0),)

    @classmethod
    def read(cls, rows: Iterable[Iterable[int]]) -> EpochHistory:
        """From the lists that a file has."""
        return cls(tuple((epoch, start) for epoch, start in rows))

    @property
    def latest(self) -> int:
        return self.entries[-1][0]

    def epoch_at(self, offset: int) -> int:
        """The epoch in which the record with this offset was written."""
        return self.entries[max(bisect_right(self.entries, offset, key=_start) - 1, 0)][0]

    def begin(self, epoch: int, offset: int) -> EpochHistory:
        """What comes from this offset on is of this epoch; an epoch without a record leaves no trace."""
        if epoch == self.latest:
            return self
        assert epoch > self.latest, (epoch, self.entries)
        return EpochHistory((*(one for one in self.entries if one[1] < offset), (epoch, offset)))

    def starting_at(self, offset: int) -> EpochHistory:
        """The history of a log of which the records below this offset are gone."""
        first = self.epoch_at(offset)
        return EpochHistory(((first, offset), *(one for one in self.entries if one[0] > first)))

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch up to this one, and where it ends; `UNDEFINED` for one that is still to come, and for -1.

        For an epoch below all that are known, itself and where these begin, as in Apache Kafka.
        """
        if epoch == self.latest:
            return epoch, log_end
        if epoch == UNDEFINED[0]:
            return UNDEFINED
        end = next((start for known, start in self.entries if known > epoch), None)
        if end is None:
            return UNDEFINED
        return max((known for known, _ in self.entries if known <= epoch), default=epoch), end
