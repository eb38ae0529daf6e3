"""Transactions in one partition: which are undecided, where stable records end, and which were aborted.

A reader of committed records stops at the *last stable offset*: the first record of the first transaction that has no
durable marker yet, or the high watermark. Below it, it is told which producers' records to leave out (KIP-98).

Pure. A transaction is undecided from its first append; it is decided when its marker is durable.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection


class Ended(NamedTuple):
    """A transaction whose marker was appended."""

    producer_id: int
    first_offset: int
    marker_offset: int
    is_aborted: bool


class PartitionTransactions:
    """The transactions of one log."""

    def __init__(self) -> None:
        self._undecided: dict[int, int] = {}
        """By first offset, ascending: the position of the batch that has it."""
        # Aborted transactions, by marker: one entry in each column.
        self._producer_ids = array("q")
        self._first_offsets = array("q")
        self._marker_offsets = array("q")
        self._stable_offsets = array("q")
        """The last stable offset once that marker was durable: no later entry begins before it."""

    def begin(self, first_offset: int, position: int) -> None:
        """The first batch of a transaction was appended, at this position in the log."""
        self._undecided[first_offset] = position

    def end(self, ended: Ended) -> None:
        """The marker is durable."""
        del self._undecided[ended.first_offset]
        if ended.is_aborted:
            self._producer_ids.append(ended.producer_id)
            self._first_offsets.append(ended.first_offset)
            self._marker_offsets.append(ended.marker_offset)
            self._stable_offsets.append(next(iter(self._undecided), ended.marker_offset + 1))

    def cut(self, next_offset: int) -> None:
        """What was appended from this offset on was not written."""
        self._undecided = {first: position for first, position in self._undecided.items() if first < next_offset}

    def forget_before(self, start_offset: int) -> None:
        """The log starts here now: what ended before matters to nobody."""
        count = bisect_left(self._marker_offsets, start_offset)
        for column in (self._producer_ids, self._first_offsets, self._marker_offsets, self._stable_offsets):
            del column[:count]

    def forget_markers(self, marker_offsets: Collection[int]) -> None:
        """These markers are gone from the log, as are the records of their transactions."""
        for row in reversed(range(len(self._marker_offsets))):
            if self._marker_offsets[row] in marker_offsets:
                for column in (self._producer_ids, self._first_offsets, self._marker_offsets, self._stable_offsets):
                    del column[row]

    def every_aborted(self) -> list[Ended]:
        """The aborted transactions, by marker."""
        rows = zip(self._producer_ids, self._first_offsets, self._marker_offsets, strict=True)
        return [Ended(*row, is_aborted=True) for row in rows]

    @property
    def first_undecided(self) -> tuple[int, int] | None:
        """Offset and position where the first undecided transaction begins."""
        return next(iter(self._undecided.items())) if self._undecided else None

    def aborted(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions that may have records in these offsets."""
        found = []
        for row in range(bisect_left(self._marker_offsets, start_offset), len(self._marker_offsets)):
            if self._first_offsets[row] < end_offset:
                found.append((self._producer_ids[row], self._first_offsets[row]))
            if self._stable_offsets[row] >= end_offset:
                break
        return found

    def snapshot(self) -> dict[str, Any]:
        """Everything, for JSON."""
        columns = (self._producer_ids, self._first_offsets, self._marker_offsets, self._stable_offsets)
        return {
            "undecided": [list(one) for one in self._undecided.items()],
            "aborted": [list(row) for row in zip(*columns, strict=True)],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> PartitionTransactions:
        """The inverse of `snapshot`."""
        transactions = cls()
        transactions._undecided = dict(snapshot["undecided"])
        for producer_id, first_offset, marker_offset, stable_offset in snapshot["aborted"]:
            transactions._producer_ids.append(producer_id)
            transactions._first_offsets.append(first_offset)
            transactions._marker_offsets.append(marker_offset)
            transactions._stable_offsets.append(stable_offset)
        return transactions
