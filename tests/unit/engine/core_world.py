"""A core with its hand on everything: events in by name, plans out, time by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.engine.assignment import Start
from keylane.engine.core import Core, Phase, Plan
from keylane.offsets import OffsetMap
from keylane.options import Pipeline
from keylane.records import PlainMessage

if TYPE_CHECKING:
    from keylane.engine.work import Outcome, Work

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}


def handler(record: Any) -> None:
    """Never called: these tests decide what handlers come to."""


def message(offset: int, key: bytes | None = None, partition: int = 0, value: bytes = b"v") -> PlainMessage:
    return PlainMessage("t", partition, offset, key, value, (("h", b"1"),), (1, 1_000 + offset))


class World:
    """A core, its time, and what was dispatched and not completed."""

    def __init__(
        self, concurrency: int = 100, ending: dict[tuple[str, int], int] | None = None, **options: Any
    ) -> None:
        options.setdefault("commit_interval_ms", 1_000)
        self.pipeline = Pipeline(kafka=KAFKA, topics=["t"], handler=handler, **options)
        self.core = Core(
            self.pipeline, concurrency=concurrency, may_queue=False, random=lambda: 0.0, ending_offsets=ending
        )
        self.now = 100.0
        self.works: dict[tuple[int, int], Work] = {}
        """With the workers, by partition and offset."""

    def assign(self, partition: int = 0, base: int = 0, offsets: OffsetMap | None = None, **more: Any) -> None:
        start = Start("t", partition, more.pop("epoch", 1), offsets or OffsetMap(base), more.pop("log_start", 0), 1_000)
        self.core.assigned([start], self.now)

    def poll(self, *messages: PlainMessage, epoch: int = 1) -> Plan:
        self.core.polled(("t", messages[0].partition_), epoch, messages)
        return self.plan()

    def plan(self, wait: float = 0.0) -> Plan:
        self.now += wait
        plan = self.core.plan(self.now)
        for work in plan.dispatch:
            assert work.offset not in {o for p, o in self.works if p == work.assignment.partition}, "dispatched twice"
            self.works[work.assignment.partition, work.offset] = work
        return plan

    def finish(self, *offsets: int, outcome: Outcome = None, partition: int = 0) -> Plan:
        works = [self.works.pop((partition, offset)) for offset in offsets]
        for work in works:
            work.outcome = outcome
        self.core.completed(works, self.now)
        return self.plan()

    @property
    def running(self) -> list[int]:
        return [offset for _, offset in self.works]

    def commit(self, plan: Plan, problems: dict[tuple[str, int], Any] | None = None) -> None:
        assert plan.commit is not None, "no commit was planned"
        self.core.commit_answered(plan.commit, problems or {}, self.now)

    def phase(self) -> Phase:
        return self.core.phase

    def failure(self) -> BaseException | None:
        return self.core.failure

    def counters(self, *names: str) -> list[int]:
        snapshot = self.core.snapshot(self.now)
        return [getattr(snapshot, name) for name in names]


def committed(plan: Plan) -> dict[int, int]:
    """Partition and offset of what the plan commits."""
    assert plan.commit is not None, "no commit was planned"
    return {entry.assignment.partition: entry.offset for entry in plan.commit}
