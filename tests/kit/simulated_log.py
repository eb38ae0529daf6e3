"""One partition of the simulation: its log, what is committed of it, and what is true of each record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.offsets import OffsetMap, decode

if TYPE_CHECKING:
    from keylane.options import Ordering
    from keylane.records import PlainMessage
    from kit.seam import Item, Sending

TOPIC = "simulated"

TopicPartition = tuple[str, int]


class Sent:
    """What was produced, or shown, for one attempt of a record, and what the world has answered."""

    def __init__(self, sending: Sending) -> None:
        self.sending = sending
        self.item = sending.item
        self.pending = len(sending.outputs)
        """Outputs without an answer."""
        self.error: BaseException | None = None
        self.blameless = False
        """Whether `error` came of something else than these outputs."""
        self.entered = False
        """Whether any of them may be in Kafka."""

    def answered(self, error: BaseException | None, *, refused: bool, blameless: bool) -> None:
        self.pending -= 1
        self.entered |= not refused
        if error is not None and (self.error is None or self.blameless):
            self.error, self.blameless = error, blameless


class Log:
    """One partition: what is in its log, what the group has committed of it, and what is true of each record."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.name: TopicPartition = (TOPIC, partition)
        self.records: dict[int, PlainMessage] = {}
        self.end = 0
        self.start = 0
        self.committed: tuple[int, str] | None = None
        """Offset and metadata, as acknowledged or at least applied by the broker."""
        self.todo: dict[int, PlainMessage] = {}
        """Records that the current assignment has to complete, in offset order."""
        self.running: dict[int, Item] = {}
        """Records of the current assignment that were handed out and not reported back."""
        self.assigned = False
        self.paused = False
        self.epoch = 0
        self.position = 0
        self.acknowledged = 0
        self.unacknowledged: set[int] = set()
        """Records that the current assignment has completed, and that no acknowledged commit has."""
        self.claimed: set[int] = set()
        """At most once, while there are rules by key: records that commits have complete and that are yet to run."""
        self.again: set[int] = set()
        """Records that were replayed, and that have not run since."""
        self.done: dict[int, Sent | None] = {}
        """What records came to, when they last did."""
        self.visible: dict[int, Sent] = {}
        """Whose outputs readers of committed records see."""
        self.given_up: set[int] = set()
        """Records whose last attempt ended a transaction: they do not run again in this process."""

    def complete(self, offset: int, sent: Sent | None = None) -> None:
        """The record is through; with these outputs, if there are any."""
        del self.todo[offset]
        self.again.discard(offset)
        self.claimed.discard(offset)
        self.unacknowledged.add(offset)
        self.done[offset] = sent

    def pass_over(self, offset: int) -> None:
        """The record is through without having run, which costs nobody anything after a crash."""
        del self.todo[offset]
        self.again.discard(offset)
        self.done[offset] = None

    def shard(self, message: PlainMessage, ordering: Ordering) -> Any:
        """What `message` has to keep its order in; None for nothing."""
        if ordering == "unordered" or (ordering == "key" and message.key_ is None):
            return None
        return message.key_ if ordering == "key" else self.partition

    def map(self) -> OffsetMap | None:
        return None if self.committed is None else decode(self.committed[1], self.committed[0])
