"""The partitions of a consumer: `Partition`, one of them until it is revoked or lost; `Partitions`, all; `PollBound`.

Each knows what is polled, what may start and what there is to commit. The bound on polled records is shared by all, and
no partition must keep another one from its records: each has a part that nobody else takes, and may hold half of what
is free of a part for all (the dynamic thresholds of Choudhury and Hahne, 1998). A partition over its threshold stops
the poll for a moment, because librdkafka throws away what it has prefetched of a paused partition; where that moment is
not enough, it is paused, so that the poll gets to what stands behind it.

A few large records fill the bound on bytes as many small ones fill that on records. What a partition holds is therefore
weighed by both, and once it is paused, its records' size says nothing about how many more there is room for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Protocol

from keylane.consumer.ending import Ending
from keylane.consumer.snapshot import PartitionSnapshot
from keylane.flow.items import Source
from keylane.flow.urgency import Line, UrgentSource
from keylane.offsets import PartitionTracker, encoding_of
from keylane.offsets.read_epoch import ReadEpoch
from keylane.records import Record, readable_headers_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence, Set

    from keylane.consumer.start import Start, TopicPartition
    from keylane.flow.items import Item
    from keylane.flow.outcomes import Outcome
    from keylane.offsets import DispatchBound
    from keylane.pipeline import Pipeline
    from keylane.records import Message
    from keylane.telling import Log


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

    | state | who holds it | what brings it there | it becomes |
    |---|---|---|---|
    | polled | the flow, which has it ready; the tracker has it as incomplete | `observe` | in flow (`started`); committing (at most once: `claim`); delivering (at its turn, where its output had a transaction undone: `turn_over`) |
    | in flow | the flow, from its first start on: it runs, waits for another attempt, or is ready for that; at most once the tracker has it as complete already | `started`; `AtMostOnce.acknowledged`; `FlowCore.fail`, `run_again` | delivering (`ended`); complete (`released`); committing (almost once: `released`) |
    | delivering | `Deliveries`: its outputs or its dead letter wait for the broker, or somebody is to see its result | `ended`; `turn_over` | complete (`released`); committing (almost once: `released`); in flow (`FlowCore.fail`, `run_again`) |
    | committing | the mode: at most once keeps it from starting, almost once keeps its place from the next, until an acknowledged commit has it; the tracker has it as complete | `claim`; `released` (almost once) | in flow (at most once: `AtMostOnce.acknowledged`); complete (almost once: `Acknowledgements.answered`) |
    | complete | the tracker, until the base passes it: the next commit says so (`Commits`) | `released`; `observe`, where the committed map has it, and its log is still the one of that map | |

    Closed (`Partitions.close`), it holds nothing any more: what no acknowledged commit has complete is polled again in
    another epoch. A record whose failure ends the run stays incomplete, in flow with nobody.

    The object itself is the epoch: a partition that comes back gets a new one, and what names the old one changes
    nothing. It is the owner of its source in the flow (`keylane.flow.items.Owner`), where records of it may start
    within the dispatch bound (docs/adr/0002). Thread safety: the loop's.
    """  # noqa: E501 - a table

    __slots__ = (
        "_bound",
        "_committed_epoch",
        "_is_unchecked",
        "_keeper",
        "_log",
        "_max_span",
        "_read_epoch",
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
        self,
        start: Start,
        pipeline: Pipeline,
        keeper: Keeper,
        bound: DispatchBound,
        end: int | None = None,
        *,
        line: Line | None = None,
        log: Log,
    ) -> None:
        """`line`: where items have their places, under `priority`."""
        self.name = (start.topic, start.partition)
        self.epoch = start.epoch
        self._keeper = keeper
        self._bound = bound
        self._max_span = pipeline.max_uncommitted
        self.end = end
        """The ending offset: records from here on are not run. None without one."""
        self._log = log
        self.tracker = PartitionTracker(start.offsets, is_unchecked=start.is_unchecked)
        self._is_unchecked = start.is_unchecked
        self._committed_epoch = start.leader_epoch
        self._read_epoch = ReadEpoch(start.offsets, start.leader_epoch)
        if line is None:
            depth_first = pipeline.traversal == "depth_first"
            self.source = Source(self.name, self, pipeline.ordering, self.name_of, depth_first=depth_first)
        else:
            self.source = UrgentSource(self.name, self, pipeline.ordering, self.name_of, line)
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
    def is_full(self) -> bool:
        """Whether nothing of it runs, and nothing more may: too much of it is not complete."""
        return not self.in_handlers and (self.is_poll_paused or self.may_start() < self.tracker.position - 1)

    @property
    def leader_epoch(self) -> int:
        """What commits carry."""
        return self._read_epoch.value

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
        self._observe_leader(messages)
        done = self.tracker.observe(offsets)
        if done:
            is_complete = self.tracker.is_complete
            messages = [message for message in messages if not is_complete(message.offset())]
            offsets = _offsets(messages)
        self.buffered_bytes += sum(map(len, messages))
        self.source.feed(offsets, messages)
        return done

    def _observe_leader(self, messages: Sequence[Message]) -> None:
        newest = messages[-1]
        epoch = newest.leader_epoch()
        if self._is_unchecked and epoch is not None and epoch > self._committed_epoch:
            self._check_committed_map(messages)
        self._read_epoch.observe(newest.offset(), epoch)

    def _check_committed_map(self, messages: Sequence[Message]) -> None:
        """A record of a later leader than any that the committed map speaks of, where that has some complete: the log
        was cut there, and has other records."""
        first = next(one.offset() for one in messages if (one.leader_epoch() or 0) > self._committed_epoch)
        if first <= self.tracker.committed_until:
            count = self.tracker.cut_committed_map(first)
            self._log.warning(
                "%s-%d: its log was cut at or below %d since the group's last commit, by an unclean leader election; "
                "from there on are other records, which run, though the group's map has %d of these offsets complete",
                *self.name,
                first,
                count,
            )
        self._is_unchecked = False

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
            in_handlers=self.in_handlers,
            uncommitted=self.uncommitted,
            on_hold=self.source.is_paused,
        )

    def __repr__(self) -> str:
        return f"Partition({self.name[0]}-{self.name[1]}, epoch {self.epoch}, base {self.tracker.base})"


STILL_S = 0.1
"""How long the poll may stand still before partitions are paused: quick handlers get through half a threshold in less.
Rebalances wait as long."""

SLOW_S = 1.0
"""For how long, once that was not enough, partitions over their thresholds are paused at once."""

ALL_STILL_S = 1.0
"""How long the poll may stand still while every partition has enough. librdkafka takes up to a second to fetch again
once all are paused; but a poll serves the client's callbacks, too."""

OWN_SHARE = 0.5
"""Of the bound: it is divided equally, and each partition may always hold its part. Where it is the only one assigned,
that may hold the whole bound."""

COMMON_SHARE = 0.4
"""Of the bound: for what partitions hold beyond that. What is left of the bound stays free, so that a poll brings more
than single records."""

FREE_SHARE = 0.5
"""How much of what is free of the common share one partition may hold."""

RELAXED = 0.5
"""A partition that was over its threshold is let in again at this share of it: pausing is not cheap."""

POLL_SHARE = 8
"""One poll takes at most one in so many of the free records, so that it cannot carry a partition far over its
threshold."""

LEAST_POLL = 100
"""But at least one in so many of the bound, while as many are free."""

EQUAL_PARTS = 2
"""Where less than half of the bound is free, a poll takes at most so many equal parts of it: what it brings is often of
one partition."""


@dataclass(frozen=True, slots=True)
class PollPlan:
    """What the intake may do next."""

    credit: int
    """Records that it may poll now."""
    pause: tuple[Partition, ...] = ()
    resume: tuple[Partition, ...] = ()


class PollBound:
    """Decides the poll's credit, and which partitions are paused, from what is buffered."""

    __slots__ = (
        "_at_end",
        "_ending",
        "_large",
        "_limit",
        "_max_bytes",
        "_over",
        "_partitions",
        "_paused",
        "_slow_until",
        "_still_since",
        "_still_until",
    )

    def __init__(self, limit: int, max_bytes: float = inf) -> None:
        self._limit = limit
        """Records; it moves with their size."""
        self._max_bytes = max_bytes
        """What the buffered values may have together."""
        self._partitions = 1
        """How many are assigned; at least one."""
        self._large: set[Partition] = set()
        """Those that hold more than their own part."""
        self._over: set[Partition] = set()
        """Those that went over their threshold, until they are relaxed or paused."""
        self._paused: set[Partition] = set()
        self._at_end: set[Partition] = set()
        """Those that have nothing left to poll. They are paused, and never resumed."""
        self._ending: set[Partition] = set()
        """Those of them that are still to be paused."""
        self._still_since: float | None = None
        """Since when partitions over their threshold have kept the poll from running."""
        self._still_until = 0.0
        """When that is looked at again."""
        self._slow_until = 0.0
        """Until when standing still is taken not to help."""

    def resize(self, limit: int) -> None:
        """So many records may be buffered from now on."""
        self._limit = limit

    def share_among(self, partitions: int) -> None:
        """So many are assigned."""
        self._partitions = max(1, partitions)

    def polled(self, partition: Partition) -> None:
        """A batch of `partition` was taken in."""
        if partition.reached_end and partition not in self._at_end:
            self._at_end.add(partition)
            self._ending.add(partition)
        if self._held_by(partition) > self._own_part:
            self._large.add(partition)

    @property
    def paused(self) -> Set[Partition]:
        """Those of which nothing more is polled for now, because they hold too much."""
        return self._paused

    def forget(self, partition: Partition) -> None:
        for some in (self._large, self._over, self._paused, self._at_end, self._ending):
            some.discard(partition)

    def plan(self, buffered: int, now: float) -> PollPlan:
        credit = self._credit(self._limit - buffered)
        if not (self._large or self._paused or self._ending):
            return PollPlan(credit)
        scale = self._limit / self._max_bytes  # as in `_held_by`: these may be thousands, at each turn
        held = {
            one: max(one.tracker.pending, one.buffered_bytes * scale) for one in self._large | self._paused | self._over
        }
        threshold = self._threshold(held)
        relaxed = threshold * RELAXED
        self._over |= {one for one in self._large - self._paused if held[one] >= threshold}
        self._over = {one for one in self._over - self._at_end if held[one] > relaxed}
        self._paused -= self._at_end
        resume = {one for one in self._paused if held[one] <= relaxed}
        pause, self._ending = self._ending, set()
        if not self._over:
            self._still_since = None
        elif self._stands_still(now):
            credit = 0
        else:
            pause |= self._over
            self._paused |= self._over
            self._over, self._still_since = set(), None
        self._paused -= resume
        for one in pause:
            one.pause_poll(is_paused=True)
        for one in resume:
            one.pause_poll(is_paused=False)
        return PollPlan(credit, tuple(pause), tuple(resume))

    def _credit(self, free: int) -> int:
        credit = max(free // POLL_SHARE, min(free, self._limit // LEAST_POLL))
        if free < self._limit // 2:
            credit = min(credit, EQUAL_PARTS * self._limit // self._partitions)
        return max(1, credit)

    def _held_by(self, partition: Partition) -> float:
        """What it has of the bound: its records, or what its bytes are worth in records where that is more."""
        return max(partition.tracker.pending, partition.buffered_bytes * self._limit / self._max_bytes)

    @property
    def _own_part(self) -> float:
        return self._limit * OWN_SHARE / self._partitions

    def _threshold(self, held: Mapping[Partition, float]) -> float:
        """How much one partition may hold. `held`: what each has of the bound."""
        if self._partitions == 1:
            return self._limit
        own = self._own_part
        self._large = {one for one in self._large if held[one] > own}
        taken = sum(map(held.__getitem__, self._large)) - own * len(self._large)
        return own + max(0, self._limit * COMMON_SHARE - taken) * FREE_SHARE

    def _stands_still(self, now: float) -> bool:
        """Whether the poll waits for those over their threshold; if not, they are to be paused."""
        if self._still_since is None:
            self._still_since = now
        others = self._partitions - len(self._over | self._paused | self._at_end)
        self._still_until = self._still_since + (STILL_S if others else ALL_STILL_S)
        if others and now < self._slow_until:
            return False
        if now < self._still_until:
            return True
        self._slow_until = now + SLOW_S
        return False

    def next_check(self) -> float | None:
        """When `plan` has something new to decide even if nothing happens."""
        return None if self._still_since is None else self._still_until


LEAST_BUFFER, EACH_PARTITION, LARGEST_BUFFER = 20_000, 400, 400_000
"""Records to buffer where the user sets no bound. A fetch brings hundreds of small ones of a partition in a row, so one
whose part is much less than that has nothing to run until its turn comes again."""


def default_bound(partitions: int) -> int:
    """How many records a consumer of so many partitions may have buffered, by default."""
    return min(max(LEAST_BUFFER, EACH_PARTITION * partitions), LARGEST_BUFFER)


FIRST_CREDIT = 500
"""Records to poll before the size of any is known."""


BATCHES = 8
"""About so many of the last polled batches say by a record each how large keys and headers are: to ask all is dear."""


def _beside_bytes(message: Message) -> int:
    """What a record has beside its value."""
    headers = readable_headers_of(message) or []
    return len(message.key() or b"") + sum(len(name) + len(value or b"") for name, value in headers)


class Partitions:
    """Those that are assigned, by topic and partition; one leaves for good when it is closed."""

    def __init__(
        self,
        pipeline: Pipeline,
        keeper: Keeper,
        counters: Counter[str],
        ending_offsets: Mapping[TopicPartition, int] | None,
        log: Log,
    ) -> None:
        self._pipeline = pipeline
        self._keeper = keeper
        self._max_bytes = pipeline.max_buffered_bytes
        self._mean_bytes: float | None = None
        """Bytes a buffered record, or one of a partition that is read on, where that is less; of the last ones, while
        there are none. None before the first."""
        self._beside_bytes = 0.0
        """Of them those of key and headers, as one record of each of the last batches has them."""
        self._line = None if pipeline.priority is None else Line(pipeline.priority, Record)
        self._on_hold: set[TopicPartition] = set()
        self._all_on_hold = False
        self._counters = counters
        self._log = log
        self._bound = PollBound(self._max_records(0), self._max_bytes)
        has_store = pipeline.guarantee == "exactly_once"
        self.ending = None if ending_offsets is None else Ending(ending_offsets, has_store=has_store)
        self.open: dict[TopicPartition, Partition] = {}
        self.buffered = 0
        """Records polled and not complete, over all of them."""
        self.buffered_bytes = 0
        """Of their values."""
        self.uncommitted = False
        """Whether a commit could have something new to say."""

    def _max_records(self, partitions: int) -> int:
        given = self._pipeline.max_buffered_records
        return default_bound(partitions) if given is None else given

    def add(self, start: Start, bound: DispatchBound, *, may_take: bool, may_begin: bool) -> Partition:
        """A newly assigned one. Without `may_take` nothing of it starts; `may_begin` as in `Source.stop`."""
        name = (start.topic, start.partition)
        assert name not in self.open, f"{name} was assigned twice"
        end = None if self.ending is None else self.ending.of(*name)
        partition = self.open[name] = Partition(
            start, self._pipeline, self._keeper, bound, end, line=self._line, log=self._log
        )
        if not may_take:
            partition.source.stop(may_begin=may_begin)
        partition.source.pause(is_paused=self._all_on_hold or name in self._on_hold)
        if self.ending is not None:
            self.ending.assigned()
        self._changed()
        self._counters["began_without_commit"] += start.origin == "none"
        self.lose(partition, start.log_start)
        return partition

    def close(self, partitions: Iterable[Partition]) -> None:
        """Revoked, lost, or given up: nothing of them counts any more."""
        for partition in partitions:
            partition.source.close()
            self.buffered -= partition.tracker.pending + partition.claimed
            self.buffered_bytes -= partition.buffered_bytes
            self._bound.forget(partition)
            del self.open[partition.name]
        self._changed()

    def get(self, name: TopicPartition, epoch: int) -> Partition | None:
        """The partition of that epoch, while it is open."""
        partition = self.open.get(name)
        return partition if partition is not None and partition.epoch == epoch else None

    def named(self, names: Iterable[TopicPartition]) -> list[Partition]:
        """Those of `names` that are open."""
        return [self.open[name] for name in names if name in self.open]

    # --- how far they got ---

    def observe(self, partition: Partition, messages: Sequence[Message]) -> None:
        """A polled batch."""
        self._beside_bytes += (_beside_bytes(messages[-1]) - self._beside_bytes) / BATCHES
        before, before_bytes = partition.tracker.pending, partition.buffered_bytes
        if done := partition.observe(messages):
            self._counters["already_complete"] += done
        self.buffered += partition.tracker.pending - before
        self.buffered_bytes += partition.buffered_bytes - before_bytes
        self._moved(partition)

    def observe_end(self, partition: Partition, log_end: int) -> None:
        partition.observe_end(log_end)
        self._moved(partition)

    def lose(self, partition: Partition, log_start: int) -> None:
        """The log starts at `log_start` now: what was not polled below it is lost."""
        lost = partition.tracker.drop_below(log_start)
        self.uncommitted = True
        if lost:
            self._counters["lost_to_retention"] += lost
            self._log.warning(
                "%s-%d: up to %d records below the log's start at %d were lost to retention before they were complete",
                *partition.name,
                lost,
                log_start,
            )

    def complete(self, partition: Partition, offsets: Sequence[int]) -> None:
        """Commits count these as complete from now on, and so does the buffer."""
        self.buffered -= partition.complete(offsets)
        self.uncommitted = True

    def claim(self, partition: Partition, offsets: Sequence[int]) -> None:
        """Under at-most-once: commits count these as complete from now on, before they start."""
        partition.claim(offsets)
        self.uncommitted = True

    def unclaim(self, partition: Partition, count: int) -> None:
        """So many that were claimed are through."""
        partition.unclaim(count)
        self.buffered -= count

    def released(self, partition: Partition, messages: Sequence[Message]) -> None:
        """These are through: the buffer has room for as many bytes."""
        size = sum(map(len, messages))
        partition.forget_bytes(size)
        self.buffered_bytes -= size

    def commit_is_planned(self) -> None:
        """A commit says all that there is to say."""
        self.uncommitted = False

    def doubt_commits(self) -> None:
        """What was planned to be committed may not have been."""
        self.uncommitted = True

    # --- what the user pauses ---

    def pause(self, names: Iterable[TopicPartition] | None) -> None:
        """Start nothing of these partitions (None: of any), until `resume`; those to come are meant, too."""
        if names is None:
            self._all_on_hold = True
        else:
            self._on_hold.update(names)
        self._hold(self.open.values())

    def resume(self, names: Iterable[TopicPartition] | None) -> list[Partition]:
        """Go on with these partitions (None: with all); returns those that had been on hold."""
        before = [one for one in self.open.values() if one.source.is_paused]
        if names is None:
            self._all_on_hold = False
            self._on_hold.clear()
        else:
            self._on_hold.difference_update(names)
        self._hold(before)
        return [one for one in before if not one.source.is_paused]

    def _hold(self, partitions: Iterable[Partition]) -> None:
        for one in partitions:
            one.source.pause(is_paused=self._all_on_hold or one.name in self._on_hold)

    def log_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """High watermarks as last seen."""
        for partition in self.named(ends):
            partition.see_log_end(ends[partition.name])

    def group_committed(self, offsets: Mapping[TopicPartition, int | None], now: float) -> None:
        """The answer to `Plan.ask_committed`; empty when there was none."""
        assert self.ending is not None
        self.ending.committed(offsets, now)

    # --- what the plan needs ---

    def poll_plan(self, now: float) -> PollPlan:
        self._follow_size()
        plan = self._bound.plan(self.buffered, now)
        return plan if self._mean_bytes is not None else replace(plan, credit=min(plan.credit, FIRST_CREDIT))

    def _follow_size(self) -> None:
        """Both bounds in records: those that are buffered, and as many more as there are bytes for."""
        count, size = self.buffered, self.buffered_bytes + self.buffered * self._beside_bytes
        room_bytes = self._max_bytes - size
        if count:
            self._mean_bytes = size / count
        for one in self._bound.paused:
            count -= one.tracker.pending + one.claimed
            size -= one.buffered_bytes + (one.tracker.pending + one.claimed) * self._beside_bytes
        if count:
            self._mean_bytes = min(self._mean_bytes or inf, size / count)
        if self._mean_bytes is not None:
            room = int(room_bytes / max(self._mean_bytes, 1e-9))
            self._bound.resize(max(1, min(self._max_records(len(self.open)), self.buffered + room)))

    def next_check(self) -> float | None:
        return self._bound.next_check()

    def end_is_reached(self) -> bool:
        return self.ending is not None and self.ending.is_reached(self.open)

    def ask_committed(self, now: float) -> list[TopicPartition]:
        """Partitions of others whose committed offsets to ask the broker for."""
        return [] if self.ending is None else self.ending.ask(self.open, now)

    def _moved(self, partition: Partition) -> None:
        self.uncommitted = True  # gaps, and records that were complete already, move the base
        self._bound.polled(partition)

    def _changed(self) -> None:
        self._bound.share_among(len(self.open))
        self._bound.resize(self._max_records(len(self.open)))
        if self.ending is not None:
            self.ending.changed()
