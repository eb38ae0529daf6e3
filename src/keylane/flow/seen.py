"""`in_hand`, `Seen`: what a flow has to do and why each item waits, as somebody sees who asks. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keylane.flow.items import Batch
from keylane.flow.work import Task

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from keylane.flow.admission import Rotation
    from keylane.flow.breakers import Breakers
    from keylane.flow.items import Item, Source, Unit
    from keylane.flow.keys import KeyRule
    from keylane.flow.retries import Schedule
    from keylane.flow.work import Queue, Why


def in_hand(unit: Unit) -> Iterator[tuple[Source, int, Task]]:
    """What of a unit is with the workers: each source, the number of its shard's head, and the task."""
    if isinstance(unit, Batch):
        for item in unit.items:
            if item.chain is None or item.chain.head is item:
                since = item.first_s or unit.since
                yield item.source, item.number, Task(item.source.name, item.number, "running", item.attempt, since)
        return
    source, has_begun = unit.source, unit.has_begun
    at = unit.ended if has_begun else unit.first
    first_s = None if unit.item is None else unit.item.first_s
    for index in range(at, at + 1 if unit.ordered else len(unit.numbers)):
        number = unit.numbers[index]
        why: Why = "running" if has_begun and index == at else "queued"
        since = first_s or (unit.began if why == "running" else unit.since)
        yield source, unit.numbers[0] if unit.ordered else number, Task(source.name, number, why, unit.attempt, since)


@dataclass(frozen=True, slots=True)
class Seen:
    """Where the items of a flow are."""

    out: Iterable[Unit]
    schedule: Schedule
    gated: Iterable[tuple[KeyRule, Item, float | None]]
    """What waits for a rule by its key, and until when, where that is known."""
    rotation: Rotation[Source]
    breakers: Breakers | None

    def tasks(self, sources: Iterable[Source], now: float, most: int) -> list[Task]:
        """What is in hand, what has a time, and of the other heads of shards in which items wait `most` with the
        longest queues. Looks at each item that waits once."""
        tasks = {(source, head): task for unit in self.out for source, head, task in in_hand(unit) if source.wanted}
        down = set() if self.breakers is None else {one.target for one in self.breakers.open(now)}
        for due, item in self.schedule:
            since = item.first_s
            task = Task(item.source.name, item.number, self._why(item, down), item.attempt, since, due)
            tasks[item.source, item.number] = task
        for rule, item, goes_on in self.gated:
            why: Why = "paused" if rule.do == "hold" else "rate"
            tasks[item.source, item.number] = Task(
                item.source.name, item.number, why, item.attempt, item.first_s, goes_on, key=item.payload.key()
            )
        heads = dict(tasks.keys())  # of a source with one shard, the one that there is
        others: list[tuple[Source, Queue]] = []
        for source in sources:
            for queue in source.queues():
                place = source, heads.get(source, -1) if queue.head is None else queue.head
                if (known := tasks.get(place)) is None:
                    others.append((source, queue))
                else:
                    tasks[place] = known._replace(behind=queue.behind, key=queue.key)
        ready: dict[Source, dict[int, None]] = {}
        for source, queue in heapq.nlargest(most, others, key=lambda one: one[1].behind):
            if source not in ready:
                ready[source] = dict.fromkeys(source.ready)
            number = next(iter(ready[source]), None) if queue.head is None else queue.head
            if number is not None:
                stands = self._stands(source, number, ready[source])
                probe_due = self._probe_due if stands == "service" else None
                tasks[source, number] = Task(
                    source.name, number, stands, due=probe_due, behind=queue.behind, key=queue.key
                )
        return list(tasks.values())

    def _stands(self, source: Source, number: int, ready: Container[int]) -> Why:
        """Why an item is not in hand that has no time."""
        if number not in ready:
            return "delivering"
        if source.is_paused:
            return "paused"
        if self.rotation.is_resting(source):
            return "rate"
        if number > source.owner.may_start():
            return "commit"
        return "ready" if self._probe_due is None else "service"

    @property
    def _probe_due(self) -> float | None:
        """When one of all items may start, where the service that all of them need is down. Items that call services of
        several names have a time each, by their own."""
        return None if self.breakers is None else self.breakers.due()

    def _why(self, item: Item, down: Container[str]) -> Why:
        """What an item waits for that has a time."""
        if self.breakers is not None and self.breakers.target(item.payload) in down:
            return "service"
        if item.throttled:
            return "throttled"
        if item.source.has_tried(item.number):
            return "retry"
        return "rate" if self.rotation.buckets.by_key else "scheduled"
