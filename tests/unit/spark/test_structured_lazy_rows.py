"""Rows whose columns are converted when they are read, and how few calls a row takes."""

from __future__ import annotations

import copy
import operator
import pickle
import sys
import threading
from collections import Counter
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    UserDefinedType,
)

import keylane
from keylane.spark.structured import rows
from keylane.spark.structured.parallel_map import RowMap
from keylane.spark.structured.row_task import MapTask
from keylane.spark.structured.rows import RowReader, headers_of, row_arrives, row_departs
from keylane.spark.structured.values import arrow_schema

INNER = StructType([StructField("a", LongType())])
SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("at", TimestampType()),
        StructField("days", ArrayType(DateType())),
        StructField("inner", INNER),
        StructField("count", StringType()),
    ]
)
VALUES = (7, datetime.fromtimestamp(0), [date(1970, 1, 2), None], Row(a=1), "c")  # noqa: DTZ006 - as `collect()` has it


def row() -> Any:
    schema = arrow_schema(SCHEMA)
    columns = [
        pa.array([7]),
        pa.array([0], pa.int64()).cast(schema.field("at").type),
        pa.array([[1, None]], pa.list_(pa.int32())).cast(schema.field("days").type),
        pa.array([{"a": 1}], schema.field("inner").type),
        pa.array(["c"]),
    ]
    ((made, _),) = RowReader(SCHEMA, None).rows(pa.RecordBatch.from_arrays(columns, schema=schema))
    return made


@pytest.mark.parametrize(
    "as_values",
    [
        tuple,
        list,
        lambda row: (*row,),
        lambda row: row[:],
        lambda row: tuple(row.asDict().values()),
        lambda row: tuple(row[name] for name in SCHEMA.fieldNames()),
        lambda row: tuple(row[number] for number in range(-5, 0)),
        lambda row: (row.id, row.at, row.days, row.inner, row["count"]),
        lambda row: row.__add__(()),
        lambda row: operator.add((), row),
        lambda row: row * 1,
        lambda row: tuple(pickle.loads(pickle.dumps(row))),
        lambda row: tuple(copy.deepcopy(row)),
        lambda row: tuple(row_arrives(row_departs(rows.TaskRow(row, None, 0))).row),
    ],
)
def test_however_it_is_read_it_has_the_same_values(as_values: Any) -> None:
    assert tuple(as_values(row())) == VALUES


def test_it_is_a_row_as_sparks_own() -> None:
    one, sparks = row(), Row(*SCHEMA.fieldNames())(*VALUES[:3], "x", "c")
    same = Row(**dict(zip(SCHEMA.fieldNames(), VALUES, strict=True)))
    assert isinstance(one, Row)
    assert (one == same, same == one, one != same, one == row(), one == sparks) == (True, True, False, True, False)
    assert (one < (8,), one <= same, one >= row(), one > same, sorted([(8,), one])) == (
        True,
        True,
        True,
        False,
        [one, (8,)],
    )
    assert (repr(one), len(one), "at" in one) == (repr(same), 5, True)
    text = "%s %s %r %s %s"
    assert text % one == text % tuple(same)
    assert (one.count("c"), one.index(VALUES[1])) == (1, 1)  # tuple's, as Row has them: not the column
    hashed = Row(at=VALUES[1])
    ((other, _),) = RowReader(StructType([SCHEMA["at"]]), None).rows(
        pa.RecordBatch.from_arrays([pa.array([0], arrow_schema(SCHEMA).field("at").type)], ["at"])
    )
    assert hash(other) == hash(hashed)
    with pytest.raises(Exception, match="READ_ONLY"):
        one.id = 8
    with pytest.raises(AttributeError):
        _ = one.nothing


def test_a_list_that_was_read_is_the_rows_own() -> None:
    one = row()
    one.days.append(date(1970, 1, 3))
    assert one.days[2:] == one["days"][2:] == [date(1970, 1, 3)]


class Costly(UserDefinedType):
    """A type that counts how often a value of it is made."""

    made = 0

    @classmethod
    def sqlType(cls) -> LongType:  # noqa: N802 - Spark's name
        return LongType()

    def deserialize(self, datum: Any) -> Any:
        type(self).made += 1
        return datum


def test_a_column_that_is_not_read_is_not_converted() -> None:
    schema = StructType([StructField("id", LongType()), StructField("costly", Costly())])
    batch = pa.RecordBatch.from_arrays([pa.array(range(10)), pa.array(range(10))], ["id", "costly"])
    returns = StructType([StructField("n", LongType())])
    for function, made in ((lambda row: (row.id,), 0), (lambda row: (row.costly + row.costly,), 10)):
        Costly.made = 0
        list(MapTask(RowMap(function, returns), schema, returns)(iter([batch])))
        assert Costly.made == made


def quick(row: Any) -> Any:
    return (row.id,)


async def quick_async(row: Any) -> Any:
    return {"n": row.id}


@pytest.mark.parametrize("function", [quick, quick_async])
def test_few_functions_are_called_for_each_row(function: Any) -> None:
    """How many there are for each hand-over depends on how quick the machine is now, and does not count here."""
    count, calls = 2_000, Counter[str]()
    schema, returns = StructType([StructField("id", LongType())]), StructType([StructField("n", LongType())])
    batch = pa.RecordBatch.from_arrays([pa.array(range(count))], ["id"])
    root = Path(keylane.__file__).parent
    of_rows = (str(root / "spark"), str(root / "records.py"))

    def counted(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(of_rows):
            calls[frame.f_code.co_name] += 1

    threading.setprofile(counted)
    sys.setprofile(counted)
    try:
        made = [*MapTask(RowMap(function, returns), schema, returns)(iter([batch]))]
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert sum(one.num_rows for one in made) == count
    assert sum(calls.values()) < 7 * count, calls


def test_headers_without_a_name_are_no_headers_of_a_record() -> None:
    """A frame that is no source's can have some, and its rows may be buried."""
    header = Row("key", "value")
    named, nameless = header("h", b"x"), header(None, b"x")
    assert headers_of(Row(headers=[None, nameless, named])) == [("h", b"x")]
