"""How far the log of one offsets partition was read, purely: what a table that follows it may still believe.

The idea: a table is what the log's batches amount to, in the log's order. Two things can make it wrong. A reader that
was away for longer than tombstones stay in the log misses some, and what they ended would come back: it begins again.
And a batch of an older epoch behind one of a newer was let through by a broker that forgot the fence: it is applied,
since every reader sees it there, and it is told as an alarm.

Sources: KIP-534 (how long tombstones stay), S2 (loading).
"""

from __future__ import annotations

from typing import NamedTuple

from keylane.coordinator.transactions.transactional_ids import NO_EPOCH, NO_PRODUCER_ID, Producer

NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_EPOCH)


class Place(NamedTuple):
    """Where a batch is in the log, and who wrote it."""

    base_offset: int
    next_offset: int
    producer: Producer


class Follower:
    """One reader of one partition's log."""

    def __init__(self, delete_retention_ms: int, now_ms: int) -> None:
        """`delete_retention_ms`: the topic's `delete.retention.ms`."""
        self._may_be_away_ms = delete_retention_ms // 2
        self.position = 0
        """The next offset to read."""
        self.newest = NO_PRODUCER
        """Who wrote the newest batch, but for those that the fence should have refused."""
        self._at_end_ms = now_ms
        """When the table was last known to have all of the log, or when its load began."""

    def has_missed_tombstones(self, now_ms: int) -> bool:
        """Whether what is read now may lack tombstones of before: the table is to be dropped, and read anew."""
        return now_ms - self._at_end_ms > self._may_be_away_ms

    def begin_again(self, now_ms: int) -> None:
        """The table is empty, and the whole log is to be read."""
        self.position = 0
        self.newest = NO_PRODUCER
        self._at_end_ms = now_ms

    def hear(self, place: Place) -> str | None:
        """The batch at `position` or behind it comes into the table. What is alarming about it, if anything."""
        self.position = place.next_offset
        producer, newest = place.producer, self.newest
        if producer in (newest, NO_PRODUCER):
            return None
        if producer.producer_id == newest.producer_id and producer.epoch < newest.epoch:
            return (
                f"a batch of epoch {producer.epoch} at offset {place.base_offset}, behind one of epoch {newest.epoch}: "
                "the log's broker has forgotten the fence, and commits of two leaders may be mixed"
            )
        self.newest = producer
        if newest == NO_PRODUCER or producer.producer_id == newest.producer_id:
            return None
        return (
            f"producer id {producer.producer_id} at offset {place.base_offset}, where {newest.producer_id} wrote "
            "before: the transactional id had expired, and a leader of before is not fenced by it"
        )

    def reached_end(self, asked_ms: int) -> None:
        """The log's end, as it was when it was asked for at this time, is in the table."""
        self._at_end_ms = max(self._at_end_ms, asked_ms)
