"""`OlderStreamReader`: the streaming source for a Spark that asks how far the topics are, and nothing else (4.0, 4.1).

The idea: there a source is not told where a batch starts, nor how much it may take; each batch goes to the ends of the
logs. An offset is a batch's whole plan all the same (docs/adr/0041), because it is known where a query stands: a plan
that was returned becomes a batch, and at a restart Spark hands over the last one. But under the trigger `availableNow`
it asks first. Then the plan starts where a new query would, and `partitions` puts in its place what Spark knows.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader

from keylane.errors import KeylaneError
from keylane.spark.structured.plans import Plan, follow
from keylane.spark.structured.reading import read, tasks
from keylane.spark.structured.topics import Topics
from keylane.spark.versions import ADMISSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from keylane.spark.structured.options import SourceOptions, TopicPartition


class OlderStreamReader(DataSourceStreamReader):
    """A streaming query. Lives in one process for the query; tasks get pickled copies for `read`."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises `UsageError` for options that take what this Spark does not have."""
        for name, value in (
            ("maxOffsetsPerTrigger", options.max_offsets),
            ("minOffsetsPerTrigger", options.min_offsets),
            ("carryOver", options.carry_over),
        ):
            if value is not None:
                ADMISSION.need(f"option {name}={value}", "leave it out: each batch then takes all that is there")
        self._options = options
        self._topics: Topics | None = None
        self._last: dict[str, Any] | None = None
        """The newest plan: the next one follows it. None: Spark has not said where the query stands."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._first().to_json()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name, and this one's form
        if self._last is not None:
            after = self._to_the_ends(before := Plan.from_json(self._last))
            if after is not before:
                self._last = after.to_json()
            return self._last
        names = self._asked.partitions()
        try:
            first = self._first()
        except KeylaneError:  # a query that is new is told by `initialOffset`; one that is not has gone on from there
            ends = self._asked.log_ends(names)
            first = Plan(uuid.uuid4().hex, 0, ends, ends)
        return self._to_the_ends(first).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        is_of_this_run, self._last = end == self._last, end
        if start == end:  # so Spark tells, at a restart, where the query stands
            return []
        before, plan = Plan.from_json(start), Plan.from_json(end)
        if plan.redo is not None or before.redo is not None:
            ADMISSION.need("the checkpoint has carried records, which")
        if plan.seq != before.seq + 1:  # it was made before it was known where the query stands
            starts = {**plan.start, **self._asked.log_starts(list(plan.next))}
            plan = follow(
                before,
                starts,
                plan.next,
                fail_on_data_loss=self._options.fail_on_data_loss,
                epochs=plan.epochs,
                ids=plan.ids,
                changes=self._asked.changes(before, starts, dict(plan.next)),
            )
            if plan is before:
                return []
        elif not is_of_this_run:
            plan = self._asked.still_there(plan)
        return tasks(plan.spans(), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._options)

    def __getstate__(self) -> dict[str, Any]:
        """For tasks: options alone."""
        return {"_options": self._options}

    @property
    def _asked(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self._options)
        return self._topics

    def _first(self) -> Plan:
        starts, maps = self._asked.resolve(self._options.start, self._asked.partitions())
        return Plan(uuid.uuid4().hex, 0, starts, starts, maps, self._asked.epochs, ids=self._asked.ids(starts))

    def _to_the_ends(self, before: Plan) -> Plan:
        names: list[TopicPartition] = self._asked.partitions()
        starts, ends = self._asked.log_starts(names), self._asked.log_ends(names, before.next)
        known = {name: end for name, end in ends.items() if name in starts}
        return follow(
            before,
            starts,
            known,
            fail_on_data_loss=self._options.fail_on_data_loss,
            epochs=self._asked.epochs,
            changes=self._asked.changes(before, starts, known),
            ids=self._asked.ids_for(before, known),
            reads=self._options.subscription.reads,
        )
