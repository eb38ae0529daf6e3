"""`Partition`: one partition, from the moment it is assigned until it is revoked or lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from keylane.consumer.snapshot import PartitionSnapshot
from keylane.flow.items import Source
from keylane.offsets import DispatchBound, OffsetMap, PartitionTracker, encoding_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.flow.items import Item
    from keylane.flow.outcomes import Outcome
    from keylane.pipeline import Pipeline
    from keylane.records import Message


@dataclass(frozen=True, slots=True)
class Start:
    """Where a newly assigned partition starts (`keylane.consumer.start` decides it)."""

    topic: str
    partition: int
    epoch: int
    """Grows with every assignment that the consumer takes; polled batches carry it."""
    offsets: OffsetMap
    """What the group has committed, or the resolved start with nothing complete above it."""
    log_start: int
    log_end: int
    metadata: str = ""
    """What the user's own function left with the committed offset."""


class Keeper(Protocol):
    """Who keeps the partitions together."""

    def ended(self, item: Item, outcome: Outcome, now: float) -> None:
        """The handler returned outputs or a value, or a record failed for the last time."""

    def released(self, partition: Partition, offsets: Sequence[int], messages: Sequence[Message]) -> None:
        """These are through."""


def partition_of(source: Source) -> Partition:
    """Whose source it is."""
    assert isinstance(source.owner, Partition), source
    return source.owner


def _offsets(messages: Sequence[Message]) -> Sequence[int]:
    """Ascending; a range where the log has no gaps, so that no record between the first and the last is asked."""
    if not messages:
        return ()
    first, last = messages[0].offset(), messages[-1].offset()
    if last - first + 1 == len(messages):
        return range(first, last + 1)
    return [message.offset() for message in messages]


class Partition:
    """A record's life as Kafka sees it, and the one who moves it:

    | state | what it means | it becomes |
    |---|---|---|
    | polled | the tracker has its offset as incomplete, and the flow has it ready (`observe`) | in flow (`started`), committing (at most once) |
    | in flow | it is with the workers, or waits for another attempt | delivering (`ended`), complete (`released`) |
    | delivering | its outputs or its dead letter wait for the broker, or somebody is to see its result (`Deliveries`) | complete, in flow |
    | committing | at most once: it may not start before a commit has it; almost once: it keeps its place until then (`modes`) | in flow; gone |
    | complete | the tracker has it as complete, and the next commit says so (`Commits`) | |

    The object itself is the epoch: a partition that comes back gets a new one, and what names the old one changes
    nothing. It is the owner of its source in the flow (`keylane.flow.items.Owner`), where records of it may start
    within the dispatch bound (docs/adr/0002). Thread safety: the loop's.
    """  # noqa: E501 - a table

    __slots__ = (
        "_bound",
        "_keeper",
        "_max_span",
        "buffered_bytes",
        "claimed",
        "committed",
        "committed_changes",
        "end",
        "epoch",
        "is_poll_paused",
        "log_end",
        "metadata",
        "name",
        "source",
        "tracker",
        "without_map",
    )

    def __init__(
        self, start: Start, pipeline: Pipeline, keeper: Keeper, bound: DispatchBound, end: int | None = None
    ) -> None:
        self.name = (start.topic, start.partition)
        self.epoch = start.epoch
        self._keeper = keeper
        self._bound = bound
        self._max_span = pipeline.max_uncommitted
        self.end = end
        """The ending offset: records from here on are not run. None without one."""
        self.tracker = PartitionTracker(start.offsets)
        self.source = Source(
            self.name, self, pipeline.ordering, self.name_of, depth_first=pipeline.traversal == "depth_first"
        )
        self.committed: int | None = start.offsets.base
        self.committed_changes = self.tracker.changes
        """`tracker.changes` as of the last acknowledged commit: while equal, there is nothing to commit."""
        self.metadata = ""
        """Of the last commit that was acknowledged in this assignment."""
        self.log_end: int | None = start.log_end
        self.buffered_bytes = 0
        """Of the values of what is polled and not complete."""
        self.claimed = 0
        """Records that commits count as complete, and that are not through yet (at most once)."""
        self.is_poll_paused = False
        self.without_map = False
        """The next commit must go without a map: the broker refused this one."""

    def name_of(self, offset: int) -> str:
        """How errors and logs name a record."""
        return f"{self.name[0]}-{self.name[1]}@{offset}"

    @property
    def wanted(self) -> bool:
        """False once no result of it counts any more."""
        return self.source.wanted

    @property
    def in_handlers(self) -> int:
        """Records that are with the workers, or wait for their outputs."""
        return self.source.out

    @property
    def reached_end(self) -> bool:
        """Whether there is nothing left to poll before the ending offset."""
        return self.end is not None and self.tracker.position >= self.end

    @property
    def uncommitted(self) -> bool:
        return self.tracker.changes != self.committed_changes

    # --- what was polled ---

    def observe(self, messages: Sequence[Message]) -> int:
        """Take in a polled batch; returns how many of its records were complete already.

        Records below the position (polled twice after a seek or a rebalance) and from the ending offset on are left
        out.
        """
        offsets = _offsets(messages)
        position = self.tracker.position
        if offsets[0] < position:
            fresh = [message for message in messages if message.offset() >= position]
            return self.observe(fresh) if fresh else 0
        if self.end is not None and offsets[-1] >= self.end:
            due = [message for message in messages if message.offset() < self.end]
            done = self.observe(due) if due else 0
            self.tracker.observe_end(self.end)
            return done
        done = self.tracker.observe(offsets)
        if done:
            is_complete = self.tracker.is_complete
            messages = [message for message in messages if not is_complete(message.offset())]
            offsets = _offsets(messages)
        self.buffered_bytes += sum(map(len, messages))
        self.source.feed(offsets, messages)
        return done

    def observe_end(self, log_end: int) -> None:
        """The log has no more records below `log_end` for now."""
        self.log_end = max(log_end, self.log_end or 0)
        self.tracker.observe_end(log_end if self.end is None else min(log_end, self.end))

    def see_log_end(self, log_end: int) -> None:
        """The high watermark as last seen."""
        self.log_end = log_end

    def pause_poll(self, *, is_paused: bool) -> None:
        self.is_poll_paused = is_paused

    # --- the owner of its source ---

    def may_start(self) -> int:
        limit = self.tracker.dispatch_limit(self._bound)
        return limit if self._max_span is None else min(limit, self.tracker.base + self._max_span - 1)

    def started(self, highest: int) -> None:
        self.tracker.mark_dispatched(highest)

    def ended(self, item: Item, outcome: Outcome, now: float) -> None:
        self._keeper.ended(item, outcome, now)

    def released(self, numbers: Sequence[int], payloads: Sequence[Message]) -> None:
        self._keeper.released(self, numbers, payloads)

    # --- complete ---

    def complete(self, offsets: Sequence[int]) -> int:
        """Commits count these as complete from now on; returns how many were not before."""
        return self.tracker.complete(offsets)

    def forget_bytes(self, size: int) -> None:
        self.buffered_bytes -= size

    def claim(self, offsets: Sequence[int]) -> None:
        """Under at-most-once: commits count these as complete before they start."""
        self.claimed += self.tracker.complete(offsets)

    def unclaim(self, count: int) -> None:
        """So many of these are through."""
        self.claimed -= count

    # --- committed ---

    def change_bound(self, bound: DispatchBound) -> None:
        """Within which records may start from now on."""
        self._bound = bound

    def acknowledged(self, offset: int, metadata: str, changes: int) -> None:
        """The broker took a commit of this."""
        assert self.committed is None or offset >= self.committed, (self, offset)
        self.committed = offset
        self.metadata = metadata
        self.committed_changes = max(self.committed_changes, changes)
        self.without_map = False

    def doubt(self, changes: int) -> None:
        """What was committed says no more than the tracker did after so many changes."""
        self.committed_changes = min(self.committed_changes, changes)

    def refuse_map(self) -> None:
        """The broker took none of this size."""
        self.without_map = True

    # --- what is seen from outside ---

    @property
    def oldest_tried(self) -> tuple[float, str, int, int] | None:
        """When the first attempt of a record began that failed and is not through, and where it is."""
        found = self.source.oldest_tried
        return None if found is None else (found[0], *self.name, found[1])

    def snapshot(self) -> PartitionSnapshot:
        tracker = self.tracker
        return PartitionSnapshot(
            *self.name,
            base=tracker.base,
            committed=self.committed,
            highest_completed=tracker.highest_completed,
            incomplete=tracker.pending,
            position=tracker.position,
            log_end_offset=self.log_end,
            remaining=None if self.log_end is None else tracker.remaining(self.log_end),
            shards=self.source.shards,
            paused=self.is_poll_paused,
            metadata_characters=len(self.metadata),
            metadata_encoding=encoding_of(self.metadata),
        )

    def __repr__(self) -> str:
        return f"Partition({self.name[0]}-{self.name[1]}, epoch {self.epoch}, base {self.tracker.base})"
