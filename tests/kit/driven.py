"""`Driven`: one engine behind the seam with partitions of its own, for properties that need less than a simulation.

What starts is noted and ends when the test says so; commits are acknowledged at once, and kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.offsets import OffsetMap, decode
from keylane.pipeline import Pipeline
from keylane.records import PlainMessage
from kit.engines import make_engine
from kit.seam import Commit, Entry, Item, Make, Start, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keylane.flow.spending import Spends
    from keylane.records import Output
    from kit.seam import Outcome, Plan, TopicPartition

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "driven"}


class Driven:
    """`starts`: the committed map of each partition. `options` are the pipeline's, `spends` has its budget."""

    def __init__(
        self,
        starts: Mapping[TopicPartition, OffsetMap],
        concurrency: int,
        random: Callable[[], float],
        *,
        log_end: int = 10_000,
        spends: Spends | None = None,
        **options: Any,
    ) -> None:
        topics = sorted({topic for topic, _ in starts})
        options.setdefault("commit", kl.Commit(every_records=1))
        self.pipeline = Pipeline(kafka=KAFKA, topics=topics, handler=_never_called, **options)
        self.now = 0.0
        self.engine = make_engine(self.pipeline, Make(Workers(concurrency), budget=spends), random)
        self.engine.assigned([Start(name, 1, offsets, 0, log_end) for name, offsets in starts.items()], self.now)
        self.running: list[Item] = []
        self.started: list[Item] = []
        self.commits: list[Entry] = []
        """Acknowledged, oldest first."""
        self.produced: list[Output] = []

    def load(self, name: TopicPartition, keys: Sequence[bytes | None], first: int = 0) -> None:
        """Records with these keys are polled; the first has offset `first`."""
        self.poll(name, [PlainMessage(*name, first + number, key) for number, key in enumerate(keys)])

    def poll(self, name: TopicPartition, records: Sequence[PlainMessage]) -> None:
        if records:
            self.engine.polled(name, 1, records)

    def turn(self) -> list[Item]:
        """One plan: what it starts, in order. Commits in it are acknowledged."""
        plan = self.engine.plan(self.now)
        new = [item for call in plan.calls for item in call.items]
        self.running += new
        self.started += new
        self._acknowledge(plan)
        for sending in plan.produce:
            self.produced += sending.outputs
            for number in range(len(sending.outputs)):
                self.engine.answered(sending, number, None, self.now)
        return new

    def end(self, item: Item, outcome: Outcome = None) -> None:
        self.running.remove(item)
        self.engine.ended([(item, outcome)], self.now)

    def committed(self, name: TopicPartition) -> OffsetMap | None:
        """What the last commit of a partition says."""
        entry = next((one for one in reversed(self.commits) if one.name == name), None)
        return None if entry is None else decode(entry.metadata, entry.offset)

    def _acknowledge(self, plan: Plan) -> None:
        commit: Commit | None = plan.commit
        if commit is not None:
            self.commits += commit.entries
            self.engine.commit_answered(commit, {}, self.now)


def _never_called(_: object) -> None:
    """The test decides what handlers come to."""
