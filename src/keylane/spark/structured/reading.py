"""What one task of the source does: offset ranges of a partition become Arrow batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from keylane.flow.workers.tuning import HOST
from keylane.spark.structured import spans
from keylane.spark.structured.columns import record_batch, source_schema
from keylane.spark.structured.values import arrow_schema
from keylane.spark.structured.worker_gc import spare_modules_from_gc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from keylane.spark.structured.options import SourceOptions, TopicPartition
    from keylane.spark.structured.spans import Spans


@dataclass
class OffsetRanges(InputPartition):
    """What one task reads of one partition."""

    topic: str
    partition: int
    spans: Spans


def tasks(wanted: Mapping[TopicPartition, Spans], options: SourceOptions) -> list[InputPartition]:
    """The tasks of a batch that reads this."""
    made = spans.tasks(wanted, options.min_partitions, options.max_records_per_partition)
    return [OffsetRanges(topic, partition, some) for (topic, partition), some in made]


def read(task: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """In the task."""
    if not isinstance(task, OffsetRanges):  # what Spark makes of a batch query without partitions
        return
    from keylane.kafka.ranges import borrowed

    if TaskContext.get() is not None:
        spare_modules_from_gc("read")
    schema = arrow_schema(source_schema(include_headers=options.include_headers))
    with HOST.while_running(), borrowed(options.settings, options.group_id or options.group_id_prefix) as reader:
        for columns in reader.read(
            task.topic,
            task.partition,
            task.spans,
            silence_ms=options.poll_timeout_ms,
            fail_on_data_loss=options.fail_on_data_loss,
            headers=options.include_headers,
        ):
            yield record_batch(columns, task.topic, task.partition, schema)
