"""Columns and options of the sink, checked before anything is produced."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from keylane.errors import UsageError
from keylane.records import Output
from keylane.spark.structured.sink import SinkOptions, outputs, parse_sink

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "strings": ArrayType(StringType()),
}
KAFKA = {"kafka.bootstrap.servers": "h:1"}


def parse(columns: str, **options: str) -> SinkOptions:
    fields = [StructField(name, TYPES[kind]) for name, kind in (one.split() for one in columns.split(", "))]
    return parse_sink(KAFKA | options, StructType(fields))


def test_options_in_any_case_and_sparks_own_are_taken() -> None:
    found = parse("value string", TOPIC="t", checkpointLocation="/c", IncludeHeaders="true")
    assert (found.topic, found.include_headers, dict(found.settings)) == ("t", True, {"bootstrap.servers": "h:1"})


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("key string", {"topic": "t"}, "needs a column 'value'"),
        ("value string", {}, "no topic"),
        ("value string, price double", {"topic": "t"}, "column 'price': the sink takes"),
        ("value int", {"topic": "t"}, "column 'value' is int: give string or binary"),
        ("value string, partition bigint", {"topic": "t"}, "column 'partition' is bigint: give int"),
        ("value string, headers strings", {"topic": "t"}, "array<struct<key:string,value:binary>>"),
        ("value string", {"topc": "t"}, "option topc='t' is not known"),
    ],
)
def test_what_cannot_work_is_refused_by_name(columns: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(columns, **options)


def test_rows_becomeoutputs() -> None:
    headers = pa.array([[{"key": "h", "value": b"1"}], None])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["k", None]), pa.array(["é", None]), pa.array(["a", "b"]), pa.array([3, None], pa.int32()), headers],
        names=["key", "value", "topic", "partition", "headers"],
    )
    options = SinkOptions({}, None, include_headers=True)
    assert list(outputs(batch, options)) == [
        Output("a", b"k", "é".encode(), [("h", b"1")], 3),
        Output("b"),
    ]
    fixed = SinkOptions({}, "fixed", include_headers=False)
    assert [(one.topic, one.headers) for one in outputs(batch, fixed)] == [("fixed", ()), ("fixed", ())]


def test_a_row_without_a_topic_fails() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["v"]), pa.array([None], pa.string())], names=["value", "topic"])
    with pytest.raises(UsageError, match="a row has no topic"):
        list(outputs(batch, SinkOptions({}, None, include_headers=False)))
