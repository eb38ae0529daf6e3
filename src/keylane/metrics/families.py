"""A snapshot as named metrics: the names, units and meanings, in one table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from keylane.consumer.snapshot import Unassigned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from keylane.consumer.health import Health
    from keylane.consumer.snapshot import PartitionSnapshot, Snapshot
    from keylane.flow.workers import Histogram

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One value under its labels."""

    value: float | Histogram
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. Durations are in seconds; the value of a histogram is a `Histogram`."""

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...]


class Lane(Protocol):
    """One lane of a query, as `LaneQuery.lanes` has it."""

    @property
    def lane(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def launches(self) -> int: ...


COUNTERS = {
    "processed": "Records whose handler succeeded and whose outputs are acknowledged",
    "failed": "Failed attempts",
    "retried": "Failed attempts that were followed by another one, or wait for it",
    "dead_lettered": "Records that went to the dead-letter topic",
    "skipped": "Records given up under Skip, or skipped by an operator",
    "produced": "Outputs and dead letters that the broker acknowledged",
    "commits": "Commits that the broker acknowledged",
    "commit_failures": "Commits that the broker did not take",
    "commits_without_map": "Commits of a partition without its offset map",
    "commits_put_off": "Commits of a partition that waited because its offset map did not fit yet",
    "already_complete": "Polled records that an earlier run had completed",
    "lost_to_retention": "Offsets that the log had dropped before they were complete",
    "began_without_commit": "Partitions that were assigned without a committed offset of the group",
    "ended_uncommitted": "Consumers that ended before their last commit was acknowledged",
    "held": "Failed attempts that used none up, because a service was down",
    "throttled": "Attempts that a service has throttled: no failures, and none was used up",
    "expired": "Records that were too late, and were not started",
    "transactions_aborted": "Aborted transactions: what was in them runs again",
    "workers_died": "Worker processes that ended under a record, and were replaced",
}
"""Fields of `Snapshot` that only grow."""

GAUGES = {
    "in_flight": "Calls of the handler that run now",
    "handed_over": "Records with workers, begun or not, or waiting for acknowledgements or for a look at their result",
    "unseen": "Results that wait for on_produced or for the reader of a stream",
    "buffered": "Records polled and not complete",
    "concurrency": "Calls of the handler that may run at once now",
    "stuck": "Handlers in threads that are over handler_timeout_ms, or the coroutine that blocks its loop",
    "waiting_for_store": "Records whose handlers wait for a connection of the store",
    "waiting_for_pool": "Calls of the handler that wait for a place in the pool of HTTP calls",
}
"""Fields of `Snapshot` that come and go."""

PARTITION_GAUGES = {
    "base": ("commit_ready_offset", "The next offset to commit: everything below is complete"),
    "committed": ("committed_offset", "The offset that the broker has acknowledged"),
    "highest_completed": ("highest_completed_offset", "The highest offset that is complete"),
    "position": ("position", "The next offset to poll"),
    "log_end_offset": ("log_end_offset", "The log's end as last seen"),
    "lag": ("lag", "Records between the committed offset and the log's end, done or not"),
    "remaining": ("remaining", "Records up to the log's end that are not complete: what is left, by the offset map"),
    "incomplete": ("incomplete", "Records polled and not complete"),
    "shards": ("shards", "Keys (or 1 for the partition) with a record out or waiting"),
    "paused": ("paused", "1 while the partition is not polled, because it holds its share of the buffer"),
    "in_handlers": ("in_handlers", "Records with workers, or waiting for acknowledgements or a look at their result"),
    "uncommitted": ("uncommitted", "1 while a commit could have something new to say"),
    "on_hold": ("on_hold", "1 while the user has it paused: nothing of it starts"),
    "metadata_characters": ("commit_metadata_characters", "The size of the last acknowledged commit's metadata"),
}
"""Fields of `PartitionSnapshot`, by topic and partition."""


UNASSIGNED = "Partitions to be read that no member of the group has, for longer than a refresh of metadata takes"


def families(snapshot: Snapshot) -> list[Family]:
    """Every metric of a snapshot; those without a value yet are left out."""
    made = [_plain(name, "counter", text, getattr(snapshot, name)) for name, text in COUNTERS.items()]
    made += [_plain(name, "gauge", text, getattr(snapshot, name)) for name, text in GAUGES.items()]
    made += [
        _plain("partitions", "gauge", "Assigned partitions", len(snapshot.partitions)),
        _plain("unassigned_partitions", "gauge", UNASSIGNED, _unassigned(snapshot)),
        _plain("handler_seconds", "histogram", "How long handlers took", snapshot.handler_latency),
        _plain("commit_seconds", "histogram", "From a commit to its acknowledgement", snapshot.commit_latency),
    ]
    if snapshot.breakers:
        samples = tuple(Sample(one.open_ms / 1000, {"target": one.target}) for one in snapshot.breakers)
        made.append(Family("keylane_breaker_open_seconds", "gauge", "For how long a service has been down", samples))
    made += _by_partition(snapshot.partitions)
    made += _head_of_line(snapshot)
    return made


def _unassigned(snapshot: Snapshot) -> int:
    return len(snapshot.waits.partitions) if isinstance(snapshot.waits, Unassigned) else 0


def health_families(health: Health) -> list[Family]:
    """What the probes are told, as two metrics. The reason is on their pages alone: as a label it would never end."""
    return [
        _plain("alive", "gauge", "1 while /healthz says that it is alive", int(health.fault is None)),
        _plain("ready", "gauge", "1 while /readyz says that it is ready", int(health.unready is None)),
    ]


def lane_families(lanes: Iterable[Lane]) -> list[Family]:
    """Of a query of lanes: whether each runs, and how often it was started."""
    each = [(lane, {"lane": str(lane.lane)}) for lane in lanes]
    running = tuple(Sample(int(lane.state == "running"), labels) for lane, labels in each)
    launches = tuple(Sample(lane.launches, labels) for lane, labels in each)
    text = "Spark jobs started for the lane: more than 1 after failures"
    return [
        Family("keylane_lane_running", "gauge", "1 while the lane runs", running),
        Family("keylane_lane_launches", "counter", text, launches),
    ]


def _plain(name: str, kind: Kind, text: str, value: float | Histogram) -> Family:
    return Family(f"keylane_{name}", kind, text, (Sample(value),))


def _by_partition(partitions: tuple[PartitionSnapshot, ...]) -> Iterator[Family]:
    for field_name, (name, text) in PARTITION_GAUGES.items():
        values = ((getattr(one, field_name), one) for one in partitions)
        samples = tuple(Sample(value, _labels(one)) for value, one in values if value is not None)
        yield Family(f"keylane_partition_{name}", "gauge", text, samples)
    encodings = tuple(Sample(1, _labels(one) | {"encoding": one.metadata_encoding or "none"}) for one in partitions)
    text = "1 for the encoding of the last acknowledged commit's offset map"
    yield Family("keylane_partition_commit_metadata_encoding", "gauge", text, encodings)


def _head_of_line(snapshot: Snapshot) -> Iterator[Family]:
    """The record that has been worked on for longest: its offset is a value, because as a label it would never end."""
    oldest = snapshot.oldest
    age: tuple[Sample, ...] = ()
    offset: tuple[Sample, ...] = ()
    if oldest is not None:
        labels = {"topic": oldest.topic, "partition": str(oldest.partition)}
        age, offset = (Sample(oldest.age_ms / 1000, labels),), (Sample(oldest.offset, labels),)
    text = "Since the first attempt began of the oldest record that runs or waits for a retry"
    yield Family("keylane_oldest_in_flight_seconds", "gauge", text, age)
    text = "Offset of the oldest record that runs or waits for a retry"
    yield Family("keylane_oldest_in_flight_offset", "gauge", text, offset)


def _labels(partition: PartitionSnapshot) -> dict[str, str]:
    return {"topic": partition.topic, "partition": str(partition.partition)}
