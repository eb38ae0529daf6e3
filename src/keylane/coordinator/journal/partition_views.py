"""Where the batches of one partition of `__consumer_offsets` stand in the journal, and how far they reach.

The journal is one file for all partitions. A view knows a place from which on a partition's batches are found: a sparse
index, since what lies between two entries is short enough to be read through.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

POSITION_BITS = 40
"""A place is a segment number and, in these low bits, a position in it."""
POSITION_MASK = (1 << POSITION_BITS) - 1
INDEX_INTERVAL_BYTES = 64 * 1024
"""A partition's view has one index entry for at least this much journal: 16 bytes of memory each."""


class View:
    """Where one offsets partition's batches are, and how far they reach."""

    __slots__ = ("appended", "durable", "next_place", "offsets", "places", "tail")

    def __init__(self) -> None:
        self.tail = 0
        """The first offset that stands in a segment; what is below it is seen through the last snapshot."""
        self.appended = 0
        """The next offset to give."""
        self.durable = 0
        """The offset behind the last durable record."""
        self.offsets = array("q")
        self.places = array("q")
        """A sparse index: base offset of a batch, and its frame's place (segment, then position)."""
        self.next_place = 0
        """From where on a frame gets its entry."""

    def append(self, base_offset: int, end: int, place: int) -> None:
        """A batch of the offsets from `base_offset` to before `end`, in the frame at that place."""
        if place >= self.next_place:
            self.offsets.append(base_offset)
            self.places.append(place)
            self.next_place = place + INDEX_INTERVAL_BYTES
        self.appended = end

    def cut(self) -> None:
        """What is not durable was not written."""
        if self.appended == self.durable:
            return
        self.appended = self.durable
        last = bisect_left(self.offsets, self.durable)
        self.offsets, self.places = self.offsets[:last], self.places[:last]
        self.next_place = self.places[-1] + INDEX_INTERVAL_BYTES if self.places else 0

    def begin(self, end: int) -> None:
        """The tail after a snapshot that was loaded."""
        self.tail = self.appended = self.durable = end

    def drop_before(self, end: int, place: int) -> None:
        """A snapshot stands for everything before."""
        self.tail = end
        first = bisect_left(self.places, place)
        # New ones: a read that is under way goes on with the old.
        self.offsets, self.places = self.offsets[first:], self.places[first:]
        if not self.places:
            self.next_place = 0
