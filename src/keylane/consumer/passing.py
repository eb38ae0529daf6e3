"""Records that an operator passes over one by one while the consumer runs: they are skipped, or parked as dead letters.

The idea: only what waits is taken out, and nothing that is with a worker or behind another one of its shard; so nothing
runs twice at once, and order stays. An operator hears of a record when an acknowledged commit has it, or why there is
none: what was not committed runs again after a death.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keylane.consumer.parked import Parked
from keylane.flow.items import Item
from keylane.flow.keys import PassedOver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keylane.consumer.deliveries import Deliveries
    from keylane.consumer.partitions import Partition, Partitions
    from keylane.flow.core import FlowCore
    from keylane.flow.work import Stands
    from keylane.pipeline import Pipeline

Place = tuple[str, int, int]
"""Topic, partition and offset."""

Told = dict[Place, str]
"""Of the records of partitions that the consumer has: empty where it is done and committed, else why it was not."""


@dataclass(frozen=True, slots=True)
class Passing:
    """What is asked for."""

    records: tuple[Place, ...]
    dlq: str | None = None
    """The topic of the letters; None: the records are skipped."""
    why: str = ""
    """What a letter says."""


WHY_NOT: Mapping[Stands, str] = {
    "running": "it runs: hold its key, and send this again once it has ended",
    "queued": "it is with the workers: hold its key, and send this again",
    "delivering": "its outputs, its dead letter or its result are on their way: look again",
    "behind": "it waits behind an earlier record of its key: begin with that one (`keylane operate keys`)",
    "commit": "it is too far ahead of what is committed: begin with the records that hold the base",
}
GIVEN_UP = "its partition was given up before a commit had it: `keylane records show` says where it stands"


@dataclass(slots=True)
class _Pending:
    """A record that was taken out, and what its tracker has to have committed."""

    place: Place
    partition: Partition
    parked: Parked | None
    mark: int | None = None

    def told(self) -> str | None:
        """What is to be told; None while that is not known."""
        if self.parked is not None and self.parked.failure is not None:
            return self.parked.failure
        partition = self.partition
        if self.mark is None and partition.tracker.is_complete(self.place[2]):
            self.mark = partition.tracker.changes
        if self.mark is not None and partition.committed_changes >= self.mark:
            return ""
        return None if partition.wanted else GIVEN_UP


@dataclass(slots=True)
class _Call:
    answer: Callable[[Told], None]
    told: Told
    pending: list[_Pending] = field(default_factory=list)

    def look(self) -> bool:
        """Whether all is known, and was told."""
        for one in self.pending:
            if (told := one.told()) is not None:
                self.told[one.place] = told
        self.pending = [one for one in self.pending if one.place not in self.told]
        if not self.pending:
            self.answer(self.told)
        return not self.pending


class Passings:
    """Of one consumer. Thread safety: none; its owner is the loop."""

    def __init__(self, pipeline: Pipeline, partitions: Partitions, flow: FlowCore, deliveries: Deliveries) -> None:
        self._pipeline = pipeline
        self._partitions = partitions
        self._flow = flow
        self._deliveries = deliveries
        self._calls: list[_Call] = []

    def begin(self, asked: Passing, answer: Callable[[Told], None], now: float) -> None:
        """Take out what may be; `answer` is told of it once, perhaps at once."""
        call = _Call(answer, {})
        for place in asked.records:
            partition = self._partitions.open.get(place[:2])
            if partition is None:
                continue
            parked = None if asked.dlq is None else Parked(asked.dlq, asked.why)
            if (refusal := self._taken_out(partition, place, parked, now)) is None:
                call.pending.append(_Pending(place, partition, parked))
            else:
                call.told[place] = refusal
        if not call.look():
            self._calls.append(call)

    def _taken_out(self, partition: Partition, place: Place, parked: Parked | None, now: float) -> str | None:
        """None, or why it is not."""
        offset = place[2]
        if partition.tracker.is_complete(offset):
            return "it is complete already"
        if offset >= partition.tracker.position:
            return "it was not read yet: look again"
        if not partition.source.may_take:
            return "its partition is being given up: send this again"
        if parked is not None and self._pipeline.reads_topic(parked.dlq):
            return f"its pipeline reads the topic {parked.dlq!r}: name another one for its letter"
        found = self._flow.take_out(partition.source, offset, now)
        if not isinstance(found, Item):
            return WHY_NOT[found]
        self._deliveries.ended(found, PassedOver() if parked is None else parked, now)
        return None

    def look(self) -> None:
        """Tell what is known by now."""
        if self._calls:
            self._calls = [one for one in self._calls if not one.look()]
