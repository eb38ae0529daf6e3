"""The data source `keylane`, for `spark.read` and `spark.readStream`; what writes is in `sink`.

The idea: on the driver, planning (`plans`, `spans`: pure) between questions to brokers (`topics`); in tasks, `reading`.
Spark pickles readers into tasks, so they hold options and nothing that is open.
"""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from keylane.errors import PeerError, UsageError
from keylane.spark.structured.carry_lists import Lists
from keylane.spark.structured.columns import source_schema
from keylane.spark.structured.older_source import OlderStreamReader
from keylane.spark.structured.options import FIRST_ANSWER_S, NAME, parse_source
from keylane.spark.structured.plans import Plan, follow, new_records
from keylane.spark.structured.reading import read, tasks
from keylane.spark.structured.sent_files import find_sent_files
from keylane.spark.structured.sink import ANSWER_S, KeylaneStreamWriter, KeylaneWriter, checked, parse_sink
from keylane.spark.structured.topics import Topics
from keylane.spark.versions import ADMISSION, ARROW_STREAM_SINKS
from keylane.telling import logger_of

if ADMISSION.here:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
else:  # `OlderStreamReader` has no use for them

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A name for the class below to be made."""


logger = logger_of(__name__)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from keylane.spark.structured.carry_lists import CarryList
    from keylane.spark.structured.options import SourceOptions, TopicPartition


class KeylaneSource(DataSource):
    """Kafka's topics as DataFrames, with the options and the schema of Spark's own Kafka source."""

    _is_copy = False
    """Spark makes one for the tasks of each batch, and hands copies to a batch's commit and abort."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _is_copy=True)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = {name.lower(): value for name, value in self.options.items()}
        return source_schema(include_headers=options.get("includeheaders", "").strip().lower() == "true")

    def reader(self, schema: StructType) -> KeylaneReader:
        self._check_schema(schema)
        return KeylaneReader(parse_source(dict(self.options), streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        find_sent_files()
        try:
            self._check_schema(schema)
            options = parse_source(dict(self.options), streaming=True)
            return KeylaneStreamReader(options) if ADMISSION.here else OlderStreamReader(options)
        except UsageError as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> KeylaneWriter:
        if overwrite:
            raise UsageError('mode("overwrite"): a topic cannot be overwritten; use mode("append")')
        options = parse_sink(dict(self.options), schema)
        if options.sink is not None:
            raise UsageError(
                "delivery=exactly_once is for streaming queries: a batch write has no batch id to be replayed under"
            )
        return KeylaneWriter(checked(options, ANSWER_S))

    def streamWriter(self, schema: StructType, overwrite: bool) -> KeylaneStreamWriter:  # noqa: ARG002, N802
        """With `overwrite`, in Spark's mode complete, each batch is the whole result; a topic takes it as it takes any
        other, as by Spark's own sink."""
        options = parse_sink(dict(self.options), schema)
        if options.sink is None:
            return KeylaneStreamWriter(checked(options, FIRST_ANSWER_S), schema)
        ARROW_STREAM_SINKS.need("delivery=exactly_once")
        from keylane.spark.structured.exact.writer import ExactlyOnceWriter

        return ExactlyOnceWriter(options, schema, is_first=not self._is_copy)

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise UsageError(
                f"schema {schema.simpleString()}: the source has Kafka's schema, and takes no other; select and cast "
                "after load()"
            )


class KeylaneReader(DataSourceReader):
    """A batch query: from startingOffsets to endingOffsets, as they are when it is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        topics = Topics(self._options)
        names = topics.partitions()
        starts, maps = topics.resolve(self._options.start, names)
        ends, _ = topics.resolve(self._options.end, names)
        plan = Plan("", 1, starts, {name: max(ends[name], starts[name]) for name in names}, maps)
        return tasks(plan.spans(), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._options)


class RefusedReader(DataSourceStreamReader):
    """Of options that cannot work: an error where Spark makes a reader would end in one of Spark's own, of a reader
    that it does not have."""

    def __init__(self, error: UsageError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self._error

    def latestOffset(self, *_: Any, **__: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: ARG002
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise self._error


class KeylaneStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. Lives in one process for the query; tasks get pickled copies for `read`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._topics: Topics | None = None
        self._last: tuple[list[TopicPartition], dict[TopicPartition, int]] | None = None
        """The log ends as last seen, for `reportLatestOffset`."""
        self._fixed_ends: dict[TopicPartition, int] | None = None
        """Of trigger availableNow."""
        self._planned: dict[str, Any] | None = None
        """The newest plan of this run: its logs are those that were asked for it."""
        self._planned_at = -math.inf  # so that the first batch does not wait, as in Spark's own source

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        starts, maps = self._asked.resolve(self._options.start, self._asked.partitions())
        ids = self._asked.ids(starts)
        return Plan(uuid.uuid4().hex, 0, starts, starts, maps, self._asked.epochs, ids=ids).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.max_offsets) if self._options.max_offsets else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        before = Plan.taken_over(start)
        if not before.id:
            logger.warning(
                "the checkpoint is of Spark's own Kafka source: this query goes on where it stands, and that source "
                "cannot go on from here"
            )
            before = replace(before, id=uuid.uuid4().hex)
        carried = self._carried(before)
        due_ms = None if carried is None else carried.next_due_ms()
        after = self._following(before, limit, carried, due_ms)
        if after is before and due_ms is not None and self._fixed_ends is not None:
            # Trigger availableNow ends with the first offset that stays, and what is carried is not done yet.
            time.sleep(max(0.0, due_ms / 1000 - time.time()))
            after = self._following(before, limit, carried, due_ms)
        if after is before:
            return start
        self._planned_at, self._planned = time.monotonic(), after.to_json()
        return self._planned

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        plan = Plan.taken_over(end)
        if not plan.id:  # a batch that Spark's own source has planned, and did not finish
            plan = replace(plan, start={**self._asked.log_starts([*plan.next]), **Plan.taken_over(start).next})
        if end != self._planned:
            plan = self._asked.still_there(plan)
        carried: list[tuple[str, int, int]] = []
        if plan.redo is not None:
            found = self._lists().read(plan.redo)
            if found is None:
                raise PeerError(
                    f"{self._options.carry_over}: the list of batch {plan.redo} is gone, and this batch runs what it "
                    "carries: restore it, or use a new checkpoint with startingOffsets=committed"
                )
            carried = found.records()
        return tasks(plan.spans(carried), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._fixed_ends = self._asked.log_ends(self._asked.partitions())

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        if self._last is None:
            return None
        latest: dict[str, dict[str, int]] = {}
        for (topic, partition), end in self._last[1].items():
            latest.setdefault(topic, {})[str(partition)] = end
        return latest

    def __getstate__(self) -> dict[str, Any]:
        """For tasks: options alone."""
        return {"_options": self._options}

    @property
    def _asked(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self._options)
        return self._topics

    def _log(self, before: Plan) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Log starts and ends; the ends are fixed under trigger availableNow."""
        names = self._asked.partitions()
        starts, ends = self._asked.log_starts(names), self._asked.log_ends(names, before.next)
        self._last = (names, ends)
        if self._fixed_ends is not None:
            fixed = self._fixed_ends
            ends = {
                name: max(fixed[name], min(end, before.next.get(name, 0)))
                for name, end in ends.items()
                if name in fixed
            }
        return {name: starts[name] for name in ends}, ends

    def _lists(self) -> Lists:
        if self._options.carry_over is None:
            raise UsageError("the checkpoint plans carried records: give the source its option carryOver again")
        return Lists(self._options.carry_over)

    def _carried(self, before: Plan) -> CarryList | None:
        """What the batch before left behind. Raises `PeerError` when its list is missing, or of another query."""
        if before.redo is None and (self._options.carry_over is None or before.seq == 0):
            return None
        found = self._lists().newest()
        if found is None or (found.id, found.seq) != (before.id, before.seq):
            there = "no list" if found is None else f"the list of batch {found.batch} of plan {found.seq}"
            raise PeerError(
                f"{self._options.carry_over}: it should have the list of plan {before.seq}, and has {there}: end the "
                "query in acknowledged(…, carry_over=…), and give it a folder of its own"
            )
        return found

    def _following(self, before: Plan, limit: ReadLimit, carried: CarryList | None, due_ms: int | None) -> Plan:
        """The next plan, by the logs and the time of now; `before` itself when there is nothing to do."""
        starts, ends = self._log(before)
        due = due_ms is not None and due_ms <= time.time() * 1000
        if not due and self._must_wait(before, ends):
            return before
        return follow(
            before,
            starts,
            ends,
            limit=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            redo=None if carried is None else carried.batch,
            carried={} if carried is None else carried.counts(),
            due=due,
            fail_on_data_loss=self._options.fail_on_data_loss,
            epochs=self._asked.epochs,
            changes=self._asked.changes(before, starts, ends),
            ids=self._asked.ids_for(before, ends, carries=due),
            reads=self._options.subscription.reads,
        )

    def _must_wait(self, before: Plan, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether there are fewer records than minOffsetsPerTrigger, and maxTriggerDelay has not passed."""
        least = self._options.min_offsets
        if least is None or self._fixed_ends is not None or new_records(before, ends) >= least:
            return False
        return time.monotonic() - self._planned_at < self._options.max_trigger_delay_ms / 1000
