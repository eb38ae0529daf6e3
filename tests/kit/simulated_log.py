"""One partition of the simulation: its log, what is committed of it, and what is true of each record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.offsets import OffsetMap, decode
from keylane.offsets.codec import map_origin

if TYPE_CHECKING:
    from keylane.options import Ordering
    from keylane.records import PlainMessage
    from kit.seam import Committed, Entry, Item, Sending

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
        self.committed: Committed | None = None
        """As acknowledged, or at least applied by the broker."""
        self.rewound: OffsetMap | None = None
        """Where the current assignment started, in place of there."""
        self.leader = 0
        """The epoch of who leads it."""
        self.begun_at = {0: 0}
        """By epoch, its first offset: of those that the log still has."""
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
        """What the group has complete, by a commit that is its own."""
        if self.committed is None:
            return None
        if map_origin(self.committed.metadata, self.committed.leader_epoch) == "copied":
            return OffsetMap(self.committed.offset)
        return decode(self.committed.metadata, self.committed.offset)

    def covers(self, offset: int) -> bool:
        """Whether the group has the record complete that the log has at this offset."""
        if self.rewound is not None:
            return self.rewound.is_complete(offset)
        found = self.map()
        return found is not None and found.is_complete(offset) and self._was_known(offset, self.committed)

    def said_by(self, entry: Entry, offset: int) -> bool:
        """Whether a commit of this says that the record is complete."""
        return decode(entry.metadata, entry.offset).is_complete(offset) and self._was_known(offset, entry)

    def _was_known(self, offset: int, commit: Committed | Entry | None) -> bool:
        """A commit speaks of no record that a later leader has written."""
        epoch = -1 if commit is None else commit.leader_epoch
        record = self.records.get(offset)
        return epoch < 0 or record is None or (record.leader_epoch() or 0) <= epoch

    def end_of(self, leader_epoch: int) -> int:
        """Of the records of this epoch and those before it."""
        later = [at for epoch, at in self.begun_at.items() if epoch > leader_epoch]
        return max(min(later, default=self.end), self.start)

    def changed_from(self) -> int | None:
        """What its leader says of the committed epoch: from where on the log has other records."""
        commit = self.committed
        if commit is None or commit.leader_epoch < 0:
            return None
        return self.change_since(commit.offset, commit.leader_epoch, has_map=bool(commit.metadata))

    def change_since(self, offset: int, leader_epoch: int, *, has_map: bool) -> int | None:
        """The same for who has read it up to this offset, in this epoch: as `keylane.kafka.log_changes` answers."""
        end = self.end_of(leader_epoch)
        if offset == end and not has_map:
            return None
        is_gap = end < offset <= self.end and not any(end <= one < offset for one in self.records)
        return offset if is_gap else end

    def make_anew(self) -> None:
        """The topic is deleted, with what the group has committed of it, and made again."""
        self.start, self.committed = 0, None
        self.cut(0)

    def cut(self, offset: int) -> None:
        """Another leader, which has nothing from this offset on."""
        self.leader += 1
        self.begun_at = {epoch: at for epoch, at in self.begun_at.items() if at < offset} | {self.leader: offset}
        self.end = offset
        for kept in (self.records, self.done, self.visible):
            for gone in [one for one in kept if one >= offset]:
                del kept[gone]
        for offsets in (self.again, self.given_up):
            offsets.difference_update([one for one in offsets if one >= offset])
