"""Records as Arrow batches in the schema of Spark's Kafka source. The one idea: a column at a time, never a row."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from keylane.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.kafka.ranges import Columns

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

MAX_MS = (2**63 - 1) // 1000
"""The last millisecond that Spark's timestamps have, which count microseconds."""
_TIMESTAMP_TYPES = {0: -1, 1: 0, 2: 1}
"""librdkafka's numbers for none, create time and log append time, and Kafka's."""


def source_schema(*, include_headers: bool) -> StructType:
    """The schema of Spark's Kafka source."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        fields.append(StructField("headers", ArrayType(_HEADER)))
    return StructType(fields)


def record_batch(columns: Columns, topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """One batch; `columns` must not be empty."""
    count = len(columns.offsets)
    arrays = [
        pa.array(columns.keys, pa.binary(), size=count),
        _joined(columns.values),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(columns.offsets, pa.int64(), size=count),
        _times(columns, f"{topic}-{partition}"),
        _timestamp_types(columns.time_types),
    ]
    if columns.headers is not None:
        arrays.append(_headers(columns.headers, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined(values: Sequence[bytes | None]) -> pa.Array:
    """A buffer that Arrow appends to is copied each time that it grows."""
    try:
        data = b"".join(values)  # type: ignore[arg-type]
    except TypeError:  # a record without a value
        return pa.array(values, pa.binary(), size=len(values))
    ends = array("i", [*accumulate(map(len, values), initial=0)])  # type: ignore[arg-type]
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)], null_count=0)


def _times(columns: Columns, partition: str) -> pa.Array:
    """Milliseconds as Spark's microseconds. Raises `PeerError` that names a record whose time does not fit."""
    times = pa.array(columns.times, pa.timestamp("ms", "UTC"), size=len(columns.times))
    try:
        return times.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        offset, one = next(
            (offset, one) for offset, one in zip(columns.offsets, columns.times, strict=True) if abs(one) > MAX_MS
        )
        raise PeerError(
            f"{partition}@{offset}: its timestamp is {one} ms since the epoch, and Spark's end at {MAX_MS}: its "
            "producer gives another unit; start behind it (startingOffsets), or delete it (kafka-delete-records)"
        ) from None


def _timestamp_types(types: Sequence[int]) -> pa.Array:
    if types.count(types[0]) == len(types):
        return pa.repeat(pa.scalar(_TIMESTAMP_TYPES[types[0]], pa.int32()), len(types))
    return pa.array([_TIMESTAMP_TYPES[one] for one in types], pa.int32())


def _headers(headers: list[list[tuple[str, bytes | None]] | None], kind: Any) -> pa.Array:
    rows = [None if some is None else [{"key": name, "value": value} for name, value in some] for some in headers]
    return pa.array(rows, kind)
