"""A lane's snapshots on their way to its driver: of each what is other than in the one before. Pure.

A driver of a thousand lanes takes more than a thousand a second, and most of a snapshot is as it was. Both ends begin
with the empty snapshot, so that the first report is whole; one that was not sent is part of the next, since a lane
compares with what it has sent. Values travel without their classes: each would cost the driver a call.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import NamedTuple

from keylane.consumer.snapshot import PartitionSnapshot, Snapshot
from keylane.flow.workers import Histogram

_HISTOGRAMS = ("handler_latency", "commit_latency")
_VALUES = tuple(one.name for one in fields(Snapshot) if one.name not in ("partitions", *_HISTOGRAMS))
_partition = partial(tuple.__new__, PartitionSnapshot)
"""`PartitionSnapshot._make`, without a frame for each."""


class Report(NamedTuple):
    """What is other than in the snapshot before."""

    values: dict[str, object]
    """Fields, by their names."""
    histograms: dict[str, tuple[tuple[int, ...], float]]
    """Their counts and sums, by the names of their fields."""
    partitions: dict[int, tuple[object, ...]]
    """By their places among all."""
    size: int
    """Partitions that there are now."""


class Sent:
    """The lane's end: the snapshot that was sent last."""

    def __init__(self) -> None:
        self._last = Snapshot()

    def report(self, snapshot: Snapshot) -> Report:
        """What to send of this one. It counts as sent: nothing of it is in the next."""
        before, self._last = self._last, snapshot
        values = {name: getattr(snapshot, name) for name in _VALUES}
        histograms: dict[str, Histogram] = {name: getattr(snapshot, name) for name in _HISTOGRAMS}
        known = dict(enumerate(before.partitions))
        return Report(
            {name: one for name, one in values.items() if one != getattr(before, name)},
            {name: (one.counts, one.sum_s) for name, one in histograms.items() if one != getattr(before, name)},
            {at: tuple(one) for at, one in enumerate(snapshot.partitions) if one != known.get(at)},
            len(snapshot.partitions),
        )


class Heard:
    """The driver's end: the snapshot that was heard last."""

    def __init__(self) -> None:
        self._last = Snapshot()

    def take(self, report: Report) -> Snapshot:
        """The snapshot that the lane has sent: the one before itself, when nothing is other."""
        values, histograms, changed, size = report
        partitions = self._last.partitions
        if changed and len(changed) == size:  # a busy lane's: all of them, in their order
            values["partitions"] = tuple(map(_partition, changed.values()))
        elif changed or size != len(partitions):
            now = list(partitions[:size])
            for at, one in changed.items():
                now[at : at + 1] = (_partition(one),)  # the last ones may be new
            values["partitions"] = tuple(now)
        for name, (counts, sum_s) in histograms.items():
            values[name] = Histogram(counts, sum_s)
        if values:
            self._last = self._last.changed(values)
        return self._last
