"""Values that Python does not have, or that are not of their column's type: they fail their row, not its task."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import keylane as kl
from keylane.errors import Fatal, HandlerError
from keylane.spark.structured.dead_letters import dead_letter
from keylane.spark.structured.parallel_map import RowMap
from keylane.spark.structured.row_task import BATCH_BYTES, MapTask
from keylane.spark.structured.rows import RowReader, TaskRow
from keylane.spark.structured.values import arrow_schema

FAR_US = 1_795_758_790_815_000_000
"""What a producer that counts microseconds makes of today."""
IN = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("inner", ArrayType(DateType())),
        StructField("value", BinaryType()),
    ]
)
OUT = StructType([StructField("n", LongType())])


def batch() -> pa.RecordBatch:
    """Of three records the second one is beyond Python's years."""
    schema = arrow_schema(IN)
    columns: list[Any] = [
        pa.array(["t"] * 3),
        pa.array([0] * 3, pa.int32()),
        pa.array([7, 8, 9]),
        pa.array([0, FAR_US, None], pa.int64()).cast(schema.field("timestamp").type),
        pa.array([[0], [10_000_000], None], pa.list_(pa.int32())).cast(schema.field("inner").type),
        pa.array([b"v"] * 3),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def ran(function: Any, **options: Any) -> list[dict[str, Any]]:
    step = RowMap(function, OUT, retries=kl.Retries(max_attempts=2, delay_ms=0), **options)
    made = MapTask(step, IN, OUT)(iter([batch()]))
    return [row for one in made for row in one.to_pylist()]


def unread(row: Any) -> Any:
    return {"n": row.offset}


def reads(row: Any) -> Any:
    return {"n": 0 if row.timestamp is None else row.timestamp.year}


@pytest.mark.parametrize("workers", ["thread", kl.Processes(1)])
def test_a_column_that_is_not_read_fails_nothing(workers: Any) -> None:
    options = {} if workers == "thread" else {"workers": workers}
    assert sorted(row["n"] for row in ran(unread, **options)) == [7, 8, 9]


@pytest.mark.parametrize("workers", ["thread", kl.Processes(1)])
def test_who_reads_it_fails_by_the_name_of_the_record(workers: Any) -> None:
    options = {} if workers == "thread" else {"workers": workers}
    assert sorted(row["n"] for row in ran(reads, on_exhausted=kl.Skip(), **options)) == [0, 1970]
    (failed,) = [row for row in ran(reads, outcome=True, **options) if row["error"]]
    assert failed["error"].startswith("Fatal: the column timestamp has a value here that Python does not have")
    assert failed["attempts"] == 1
    with pytest.raises(HandlerError, match="t-0@8: failed after 1 attempts: Fatal: the column timestamp"):
        ran(reads, **options)


@pytest.mark.parametrize(
    "read", [list, tuple, lambda row: row.asDict(), lambda row: row[2:5], lambda row: row["inner"]]
)
def test_it_is_read_in_no_way(read: Any) -> None:
    _, (row, _), _ = RowReader(IN, None).rows(batch())
    with pytest.raises(Fatal, match="has a value here that Python does not have"):
        read(row)
    assert (row.offset, row[:3]) == (8, ("t", 0, 8))


def test_its_dead_letter_has_its_time() -> None:
    _, (row, _), _ = RowReader(IN, None).rows(batch())
    dead = TaskRow(row, None, 1)
    dead.error = ValueError("no")
    letter = dead_letter(dead, "dead")
    assert ("keylane.timestamp", str(FAR_US // 1000).encode()) in letter.headers


def test_the_dead_letter_of_a_string_that_is_no_text_has_its_bytes() -> None:
    schema = StructType([StructField("key", StringType()), StructField("value", StringType())])
    columns = [pa.array([one], pa.binary()).view(pa.string()) for one in (b"k", b"\xff\x00")]
    ((row, _),) = RowReader(schema, None).rows(pa.RecordBatch.from_arrays(columns, ["key", "value"]))
    assert (row.key, row.value) == ("k", "\ufffd\x00")
    dead = TaskRow(row, None, 1)
    dead.error = ValueError("no")
    letter = dead_letter(dead, "dead")
    assert (letter.key, letter.value) == (b"k", b"\xff\x00")


def wrong(row: Any) -> Any:
    return [{"n": 1}, {"n": "text"}] if row.offset == 8 else {"n": row.offset}


def test_a_row_whose_answer_is_not_of_the_type_has_failed_alone() -> None:
    assert sorted(row["n"] for row in ran(wrong, on_exhausted=kl.Skip())) == [7, 9]
    by_error = {row["error"]: row["n"] for row in ran(wrong, outcome=True)}
    assert set(by_error.values()) == {None, 7, 9} - ({7} if len(by_error) == 2 else set())
    with pytest.raises(
        HandlerError, match="t-0@8: failed after 1 attempts: Fatal: the function returned a value of type"
    ):
        ran(wrong)


def test_answers_are_handed_on_before_they_are_too_many_bytes() -> None:
    texts = StructType([StructField("n", StringType())])
    large = "x" * (BATCH_BYTES // 2)
    step = RowMap(lambda _: [{"n": large}] * 3, texts)
    made = [*MapTask(step, IN, texts)(iter([batch()]))]
    assert sum(one.num_rows for one in made) == 9
    assert max(one.num_rows for one in made) <= 3


def test_nothing_starts_while_large_answers_wait_for_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a task holds few of them, however many rows there are."""
    monkeypatch.setattr("keylane.spark.structured.row_engine.MAX_ANSWER_BYTES", 20_000)
    monkeypatch.setattr("keylane.spark.structured.row_task.BATCH_BYTES", 10_000)
    texts = StructType([StructField("n", StringType())])
    begun: list[int] = []

    async def large(row: Any) -> Any:
        begun.append(row.offset)
        return {"n": "x" * 10_000}

    step = RowMap(large, texts, max_concurrency=1)
    made = MapTask(step, IN, texts)(batch() for _ in range(40))
    next(made)
    time.sleep(0.3)  # in which nothing more may start
    assert len(begun) < 20
    assert 1 + sum(one.num_rows for one in made) == len(begun) == 120
