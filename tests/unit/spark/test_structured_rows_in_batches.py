"""Batches of rows, by when the rows come."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from keylane.options import Batch
from keylane.spark.structured.parallel_map import RowMap
from keylane.spark.structured.row_task import MapTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROW = StructType([StructField("number", LongType())])
TOO_LONG_MS = 60_000


def task(function: Callable[..., Any], batch: Batch) -> MapTask:
    return MapTask(RowMap(function, ROW, batch=batch), ROW, ROW)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"number": list(numbers)})


def test_a_batch_waits_for_its_least_size() -> None:
    sizes: list[int] = []
    called = threading.Event()

    def handle(some: list[Any]) -> list[Any]:
        sizes.append(len(some))
        called.set()
        return [(row.number,) for row in some]

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(1, 2, 3)
        assert not called.wait(0.3), "too few"
        yield rows(4, 5)
        assert called.wait(30), "enough"

    made = task(handle, Batch(10, min_size=5, linger_ms=TOO_LONG_MS))(batches())
    assert sorted(row["number"] for one in made for row in one.to_pylist()) == [1, 2, 3, 4, 5]
    assert sizes == [5]


def test_a_batch_waits_no_longer_than_it_lingers() -> None:
    called = threading.Event()

    def handle(some: list[Any]) -> None:
        called.set()

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(1, 2, 3)
        assert called.wait(30)

    assert list(task(handle, Batch(10, min_size=5, linger_ms=50))(batches())) == []


def test_the_last_rows_of_a_task_linger_for_no_others() -> None:
    began = time.monotonic()
    step = task(lambda some: [(row.number,) for row in some], Batch(10, min_size=5, linger_ms=TOO_LONG_MS))
    assert sum(one.num_rows for one in step(iter([rows(1, 2, 3)]))) == 3
    assert time.monotonic() - began < TOO_LONG_MS / 2_000
