"""Columns and options of the sink, checked before anything is produced."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from keylane.spark.structured.sink import SinkOptions, parse_sink, sink_rows

if TYPE_CHECKING:
    from keylane.spark.structured.sink_rows import SinkRows

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "strings": ArrayType(StringType()),
    "names": ArrayType(StructType([StructField("key", StringType())])),
}
KAFKA = {"kafka.bootstrap.servers": "h:1"}


def parse(columns: str, **options: str) -> SinkOptions:
    fields = [StructField(name, TYPES[kind]) for name, kind in (one.split() for one in columns.split(", "))]
    return parse_sink(KAFKA | options, StructType(fields))


def test_options_in_any_case_and_sparks_own_are_taken() -> None:
    found = parse("value string", TOPIC="t", checkpointLocation="/c", IncludeHeaders="true")
    assert (found.topic, dict(found.settings)) == ("t", {"bootstrap.servers": "h:1"})


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("key string", {"topic": "t"}, "needs a column 'value'"),
        ("value string", {}, "no topic"),
        ("value string, VALUE string", {"topic": "t"}, "columns value, VALUE: two have one name"),
        ("value string, price double", {"topic": "t"}, "column 'price': the sink takes"),
        ("value int", {"topic": "t"}, "column 'value' is int: give string or binary"),
        ("value string, partition bigint", {"topic": "t"}, "column 'partition' is bigint: give int"),
        ("value string, headers strings", {"topic": "t"}, "array<struct<key:string,value:binary>>"),
        ("value string, headers names", {"topic": "t"}, "array<struct<key:string,value:binary>>"),
        ("value string", {"topc": "t"}, "option topc='t' is not known"),
        ("value string", {"topic": "t", "kafka.offsets.servers": "o:1"}, "'o:1' is for a source's group; a sink has"),
    ],
)
def test_what_cannot_work_is_refused_by_name(columns: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(columns, **options)


def only(batch: pa.RecordBatch, options: SinkOptions) -> SinkRows:
    (rows,) = sink_rows([batch], options)
    return rows


def test_rows_become_outputs() -> None:
    headers = pa.array([[{"key": "h", "value": b"1"}], None])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["k", None]), pa.array(["é", None]), pa.array(["a", "b"]), pa.array([3, None], pa.int32()), headers],
        names=["key", "value", "topic", "partition", "headers"],
    )
    options = SinkOptions({}, None)
    assert list(only(batch, options).outputs()) == [
        Output("a", b"k", "é".encode(), (("h", b"1"),), 3),
        Output("b"),
    ]
    fixed = SinkOptions({}, "fixed")
    assert [(one.topic, tuple(one.headers)) for one in only(batch, fixed).outputs()] == [
        ("fixed", (("h", b"1"),)),
        ("fixed", ()),
    ]


HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
NAMED, NAMELESS = {"key": "h", "value": b"x"}, {"key": None, "value": b"x"}


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("topic", pa.array(["a", None]), "has no topic: its column 'topic' is null"),
        ("partition", pa.array([None, -1], pa.int32()), "column 'partition' is -1: give one from 0 on, or null"),
        ("headers", pa.array([None, [NAMED, None]], pa.list_(HEADER)), "column 'headers' has a header without a name"),
        ("headers", pa.array([[], [NAMELESS]], pa.list_(HEADER)), "column 'headers' has a header without a name"),
    ],
)
def test_a_row_that_cannot_be_written_fails_by_its_number(column: str, values: pa.Array, says: str) -> None:
    good = pa.RecordBatch.from_arrays([pa.array(["v", "w", "x"])], names=["value"])
    wrong = pa.RecordBatch.from_arrays([pa.array(["v", "w"]), values], names=["value", column])
    rows = sink_rows([good.append_column(column, pa.array([None] * 3, values.type)), wrong], SinkOptions({}, "t"))
    if column == "topic":
        rows = sink_rows([good.append_column(column, pa.array(["a"] * 3)), wrong], SinkOptions({}, None))
    next(rows)
    with pytest.raises(UsageError, match=f"^row 5 of its task:? {says}"):
        next(rows)


EXACTLY_ONCE = {"kafka.bootstrap.servers": "b", "topic": "t", "delivery": "exactly_once", "sinkName": "orders.v1-a_b"}


def test_exactly_once_has_a_name_and_a_time() -> None:
    schema = StructType([StructField("value", StringType())])
    found = parse_sink(EXACTLY_ONCE, schema)
    assert (found.sink, found.transaction_timeout_ms) == ("orders.v1-a_b", 600_000)
    found = parse_sink(EXACTLY_ONCE | {"kafka.transaction.timeout.ms": "5000"}, schema)
    assert found.transaction_timeout_ms == 5_000
    assert parse_sink({"kafka.bootstrap.servers": "b", "topic": "t", "delivery": "at_least_once"}, schema).sink is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delivery": "twice"}, "delivery='twice': give at_least_once or exactly_once"),
        ({"sinkName": "a/b"}, "sinkName='a/b': delivery=exactly_once needs a name"),
        ({"sinkName": ""}, "sinkName='': delivery=exactly_once needs a name"),
        ({"delivery": "at_least_once"}, "sinkName='orders.v1-a_b' counts for delivery=exactly_once alone"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id is not supported: give sinkName"),
        ({"kafka.transaction.timeout.ms": "10"}, "kafka.transaction.timeout.ms='10': give a whole number of at least"),
        ({"sinkname_": "x"}, "did you mean sinkName"),
    ],
)
def test_what_exactly_once_cannot_take_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_sink(EXACTLY_ONCE | options, StructType([StructField("value", StringType())]))
