"""`Snapshot`: what a consumer has done and holds, as one value that travels and adds up.

Counters are cumulative since the consumer started, gauges are of now. Both are plain numbers, so that the snapshots of
many consumers (the lanes of one Spark query) merge into one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from keylane.flow.breakers import OpenBreaker, longest
from keylane.flow.failures import merged
from keylane.flow.workers import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from keylane.flow.failures import FailureKind
    from keylane.flow.workers import Running


class PartitionSnapshot(NamedTuple):
    """One assigned partition. Offsets as Kafka means them: `base` and `committed` are the next to read."""

    topic: str
    partition: int
    base: int
    """Everything below is complete: what the next commit says."""
    committed: int | None
    """What the broker has acknowledged; None before the first acknowledgement."""
    highest_completed: int
    """base - 1 when nothing above the base is complete."""
    incomplete: int
    """Records polled and not complete."""
    position: int
    """The next offset to poll."""
    log_end_offset: int | None
    """The broker's high watermark as last seen; None before it was seen."""
    shards: int = 0
    """Under KEY, keys with a record out or waiting; under PARTITION 1 for the partition; under UNORDERED 0."""
    paused: bool = False
    """Not polled for now, because it holds its share of the buffer."""
    metadata_characters: int = 0
    """The size of the last acknowledged commit's metadata; 0 when it had no offset map."""
    metadata_encoding: str | None = None
    """The encoding of its offset map (docs/offset-map.md); None without one."""
    remaining: int | None = None
    """Offsets up to the log's end that are not complete: what is really left, by the offset map. At most `lag`. Gaps in
    the log (compaction, ends of transactions) count until they are polled. None before the log's end was seen."""
    in_handlers: int = 0
    """Records that are with the workers, or wait for their outputs."""
    uncommitted: bool = False
    """Whether a commit could have something new to say."""
    on_hold: bool = False
    """Paused by the user: nothing of it starts."""

    @property
    def high_watermark(self) -> int | None:
        """Kafka's name of `log_end_offset` as consumers see it: what lies beyond is not replicated yet."""
        return self.log_end_offset

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the log's end, done or not; None while either is unknown."""
        if self.log_end_offset is None or self.committed is None:
            return None
        return max(0, self.log_end_offset - self.committed)


@dataclass(frozen=True, slots=True)
class OldestRecord:
    """The record that has been worked on for longest: the head of the line. It runs, or waits to run once more; what is
    buffered and has not begun is never it."""

    topic: str
    partition: int
    offset: int
    age_ms: int
    """Since its first attempt began."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Who a member waits for in a rebalance of its group, while it has nothing to do."""

    group: str
    members: tuple[str, ...]
    """Ids of the others in the group: those among them that are alive join within moments."""
    session_timeout_ms: int
    """After which the group gives a dead one up."""

    def merge(self, other: Wait) -> Wait:
        """Of two members that wait: neither waits for the other one."""
        both = tuple(one for one in self.members if one in other.members)
        return Wait(self.group, both or self.members, max(self.session_timeout_ms, other.session_timeout_ms))

    def __str__(self) -> str:
        shown = some_of(self.members)
        who = f"member {shown}" if len(self.members) == 1 else f"one of the members {shown}"
        return (
            f"waits for the rebalance of group {self.group}: {who} may be dead: up to "
            f"{self.session_timeout_ms / 1000:.0f} s; group.instance.id avoids this (docs/kubernetes.md#static-members)"
        )


_SHOWN = 3


def some_of(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    shown, more = ", ".join(names[:_SHOWN]), len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """Where a reader of committed records stands behind a transaction that has been open for long."""

    places: tuple[tuple[str, int, int], ...]
    """Topic, partition, and the offset from which on nothing may be read before it ends."""

    def merge(self, other: OpenTransactions) -> OpenTransactions:
        return OpenTransactions(tuple(sorted({*self.places, *other.places})))

    def __str__(self) -> str:
        shown = some_of([f"{topic}-{number} from offset {offset} on" for topic, number, offset in self.places])
        return (
            f"waits for an open transaction: {shown}; kafka-transactions.sh describe-producers names its "
            "producer, and abort ends it where that is gone"
        )


@dataclass(frozen=True, slots=True)
class Unassigned:
    """Partitions that are to be read, and that no member of the group has."""

    group: str
    partitions: tuple[tuple[str, int], ...]

    def merge(self, other: Unassigned) -> Unassigned:
        """Of two members, of which one may have asked before the other."""
        return Unassigned(self.group, tuple(sorted({*self.partitions, *other.partitions})))

    def __str__(self) -> str:
        shown = some_of([f"{topic}-{number}" for topic, number in self.partitions])
        return (
            f"waits for partitions that nobody in group {self.group} has: {shown}; nothing of these is read until the "
            "group divides them anew"
        )


Waits: TypeAlias = "Wait | OpenTransactions | Unassigned"
"""What a consumer waits for, when that takes long."""


def _merged_waits(waits: Sequence[Waits]) -> Waits | None:
    """A rebalance first: until it is over, nobody reads."""
    rebalances = [one for one in waits if isinstance(one, Wait)]
    if rebalances:
        return reduce(Wait.merge, rebalances)
    opened = [one for one in waits if isinstance(one, OpenTransactions)]
    if opened:
        return reduce(OpenTransactions.merge, opened)
    unassigned = [one for one in waits if isinstance(one, Unassigned)]
    return reduce(Unassigned.merge, unassigned) if unassigned else None


Begun = tuple[float, str, int, int]
"""When the first attempt of a record began; its topic, partition and offset."""


@dataclass(frozen=True)  # one with slots would be unpickled by a call for each field, and drivers do that a lot
class Snapshot:
    """Counters, gauges and partitions of one consumer, or of several merged."""

    processed: int = 0
    """Records whose handler succeeded, and whose outputs are acknowledged."""
    failed: int = 0
    """Failed attempts."""
    retried: int = 0
    """Failed attempts that were followed by another one, or wait for it."""
    dead_lettered: int = 0
    skipped: int = 0
    """Records given up under `Skip`."""
    produced: int = 0
    """Outputs and dead letters that the broker acknowledged."""
    commits: int = 0
    """Commits that the broker acknowledged."""
    commit_failures: int = 0
    commits_without_map: int = 0
    """Commits of a partition that had to leave out its map, because the broker takes less metadata than was set."""
    commits_put_off: int = 0
    """Commits of a partition that waited because its map did not fit yet; what was committed before stays."""
    already_complete: int = 0
    """Polled records that were not run, because an earlier run had completed them."""
    lost_to_retention: int = 0
    """Offsets that the log had dropped before they were complete."""
    began_without_commit: int = 0
    """Partitions that the group had no committed offset for when they were assigned."""
    ended_uncommitted: int = 0
    """Consumers that ended before their last commit was acknowledged: what is complete since the one before runs again,
    unless the broker took it all the same."""
    transactions_aborted: int = 0
    """Aborted transactions: what was in them ran again, or will."""
    held: int = 0
    """Failed attempts that used none up, because a service was down (`Breaker`)."""
    throttled: int = 0
    """Attempts that a service has throttled (`Throttled`): they are no failures, and used up no attempt."""
    expired: int = 0
    """Records that were too late, and were not started (`expires_ms`). They are no failures; where they went,
    `dead_lettered` and `skipped` count them."""
    stuck: int = 0
    """Handlers in threads that are over `handler_timeout_ms` now: their keys wait. A coroutine that blocks its loop:
    everything waits."""
    waiting_for_store: int = 0
    """Records whose handlers wait for a connection of the store now (`ExactlyOnce`)."""
    waiting_for_pool: int = 0
    """Calls of the handler that wait for a place in the pool of `keylane.http.Calls` now: `max_connections`, or
    `max_connections_per_host`, is what holds records back."""
    workers_died: int = 0
    """Worker processes that ended under a record, and were replaced."""
    concurrency: int = 0
    """Calls of the handler that may run at once now."""
    in_flight: int = 0
    """Calls of the handler that run now: at most `concurrency`."""
    handed_over: int = 0
    """Records with the workers, begun or not, and those that wait for the acknowledgement of their outputs or for their
    result to be seen."""
    unseen: int = 0
    """Results that wait for `on_produced` or for the reader of a stream."""
    buffered: int = 0
    """Records polled and not complete; those handed over are among them."""
    handler_latency: Histogram = field(default_factory=Histogram)
    """How long handlers took. A batch counts once."""
    commit_latency: Histogram = field(default_factory=Histogram)
    """From sending a commit to its acknowledgement."""
    oldest: OldestRecord | None = None
    partitions: tuple[PartitionSnapshot, ...] = ()
    failures: tuple[FailureKind, ...] = ()
    """Failed attempts by what was raised, and where; and coroutines that block their loop."""
    breakers: tuple[OpenBreaker, ...] = ()
    """Services that are down, and for how long: what would call them is held."""
    waits: Waits | None = None
    """What a consumer waits for, when that takes long: to join its group, to read on, or for its group to give somebody
    partitions that nobody has; None when it need not wait."""

    @classmethod
    def of(
        cls,
        counters: Mapping[str, int],
        running: Sequence[Running],
        partitions: Iterable[PartitionSnapshot],
        tried: Iterable[Begun],
        now: float,
        **gauges: Any,
    ) -> Snapshot:
        """Of one consumer, from one moment; `tried` failed and are not through, `gauges` are the other fields."""
        begun = [(call.since, *call.source.name, call.payload.offset()) for call in running]
        begun += tried
        counted: dict[str, Any] = {name: counters.get(name, 0) for name in _COUNTERS}
        return cls(
            **counted,
            in_flight=len(running),
            waiting_for_pool=sum(one.why == "pool" for one in running),
            oldest=_oldest(min(begun), now) if begun else None,
            partitions=tuple(sorted(partitions, key=lambda one: (one.topic, one.partition))),
            **gauges,
        )

    @property
    def lag(self) -> int | None:
        """Of the partitions whose lag is known; None when none is."""
        return _total(one.lag for one in self.partitions)

    @property
    def remaining(self) -> int | None:
        """Of the partitions of which it is known; None when it is of none."""
        return _total(one.remaining for one in self.partitions)

    def changed(self, values: Mapping[str, object]) -> Snapshot:
        """With other values of these fields. `dataclasses.replace` would set all of them by a call each."""
        made = object.__new__(Snapshot)
        vars(made).update(vars(self), **values)
        return made

    def merge(self, other: Snapshot) -> Snapshot:
        """Both together."""
        return Snapshot.merged((self, other))

    @classmethod
    def merged(cls, many: Sequence[Snapshot]) -> Snapshot:
        """All together. Of a partition that is in several (it moved), the view that got furthest."""
        partitions: dict[tuple[str, int], PartitionSnapshot] = {}
        for one in (partition for snapshot in many for partition in snapshot.partitions):
            before = partitions.setdefault((one.topic, one.partition), one)
            if one.base > before.base:
                partitions[one.topic, one.partition] = one
        return cls.totals(many).changed({"partitions": tuple(partitions[name] for name in sorted(partitions))})

    @classmethod
    def totals(cls, many: Sequence[Snapshot]) -> Snapshot:
        """All together, without the partitions."""
        sums = {name: sum(map(attrgetter(name), many)) for name in NUMBERS}
        return cls(
            **sums,
            handler_latency=Histogram.merged([one.handler_latency for one in many]),
            commit_latency=Histogram.merged([one.commit_latency for one in many]),
            oldest=max((one.oldest for one in many if one.oldest), key=lambda one: one.age_ms, default=None),
            failures=merged(*(one.failures for one in many)),
            breakers=longest(one for snapshot in many for one in snapshot.breakers),
            waits=_merged_waits([one.waits for one in many if one.waits is not None]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings, for JSON; of a histogram count, sum, median, p99 and counts."""
        made = asdict(self) | {"lag": self.lag, "remaining": self.remaining}
        made["partitions"] = [one._asdict() | {"lag": one.lag} for one in self.partitions]
        made["breakers"] = [one._asdict() for one in self.breakers]
        made["failures"] = [{"error": one.error, "where": one.where, "count": one.count} for one in self.failures]
        for name in ("handler_latency", "commit_latency"):
            made[name] = getattr(self, name).to_dict()
        return made


def _total(numbers: Iterable[int | None]) -> int | None:
    known = [one for one in numbers if one is not None]
    return sum(known) if known else None


def _oldest(begun: Begun, now: float) -> OldestRecord:
    since, topic, partition, offset = begun
    return OldestRecord(topic, partition, offset, round((now - since) * 1000))


NUMBERS = [one.name for one in fields(Snapshot) if one.type == "int"]
"""Fields that are whole numbers."""
_GIVEN = ("concurrency", "in_flight", "waiting_for_pool", "handed_over", "unseen", "buffered")
"""Those that `Snapshot.of` gets, or finds by itself."""
_COUNTERS = [name for name in NUMBERS if name not in _GIVEN]
