"""`parallel_map` in Spark: rows in, rows out, on frames of any kind."""

from __future__ import annotations

import asyncio
import datetime
import os
import time
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.spark import parallel_map

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

QUICK = kl.Retries(max_attempts=3, delay_ms=1, max_delay_ms=1)


def test_rows_become_none_one_or_many(spark: SparkSession) -> None:
    async def function(row: Any) -> Any:
        await asyncio.sleep(0)
        number = row.id
        some = [{"number": number, "text": str(number)}] * (number % 3)
        return some if number % 2 else some[0] if some else None

    found = spark.range(300).transform(parallel_map(function, "number bigint, text string")).collect()
    expected = [n for n in range(300) for _ in range(n % 3 if n % 2 else min(1, n % 3))]
    assert sorted(row.number for row in found) == expected
    assert all(row.text == str(row.number) for row in found)


def test_a_function_takes_along_the_modules_beside_its_program(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors have no path to them. What the function holds of Spark's own comes along as ever."""
    (tmp_path / "rules_beside_the_program.py").write_text("def doubled(number): return 2 * number")
    monkeypatch.syspath_prepend(tmp_path)
    rules = import_module("rules_beside_the_program")
    offset = spark.sparkContext.broadcast(100)
    step = parallel_map(lambda row: (rules.doubled(row.id) + offset.value,), "number bigint")
    assert [row.number for row in spark.range(3).transform(step).collect()] == [100, 102, 104]


def test_values_are_sparks_own_in_both_directions(spark: SparkSession) -> None:
    moment = datetime.datetime(2026, 11, 21, 12, 0, 1, 500)  # noqa: DTZ001 - as Spark's rows have it
    rows = [(1, "a", b"\x00", moment, [1, 2], {"k": 1.5}, None)]
    types = "i int, s string, b binary, t timestamp, a array<int>, m map<string,double>, n double"
    frame = spark.createDataFrame(rows, types)
    (found,) = frame.transform(parallel_map(lambda row: tuple(row), types)).collect()
    assert tuple(found) == rows[0]


def test_failed_rows_have_an_outcome_or_fail_the_task(spark: SparkSession) -> None:
    def function(row: Any, context: kl.Context) -> Any:
        if row.id == 3:
            raise kl.Fatal("no such flight")
        if row.id == 4 or (row.id == 5 and context.attempt < 3):
            raise ValueError("busy")
        return (row.id,)

    step = parallel_map(function, "number bigint", retries=QUICK, outcome=True)
    found = spark.range(3, 7).transform(step).collect()
    outcomes = {(row.number, row.error, row.attempts) for row in found}
    assert outcomes == {(None, "Fatal: no such flight", 1), (None, "ValueError: busy", 3), (5, None, 3), (6, None, 1)}
    assert all(row.seconds >= 0 for row in found)
    with pytest.raises(Exception, match=r"row 1 of Spark.s partition \d+: failed after 3 attempts: ValueError: busy"):
        spark.range(4, 5).transform(parallel_map(function, "number bigint", retries=QUICK)).collect()


def test_a_column_without_nulls_has_them_in_a_row_that_failed_alone(spark: SparkSession) -> None:
    """`id` takes no null. Spark believes that: a null within is a JVM's error, or found by no query."""
    frame = spark.range(4)
    judged = frame.transform(parallel_map(odd_alone, frame.schema, outcome=True))
    assert judged.where("id is null").count() == 2
    assert sorted(row.id for row in judged.where("error is null").collect()) == [1, 3]
    with pytest.raises(Exception, match="type NoneType for the column id, which is int64 not null"):
        frame.transform(parallel_map(lambda _: (None,), frame.schema)).collect()


def odd_alone(row: Any) -> Any:
    if row.id % 2 == 0:
        raise ValueError("even")
    return (row.id,)


def test_an_attempt_of_a_coroutine_has_its_time(spark: SparkSession) -> None:
    async def slow(row: Any) -> Any:
        await asyncio.sleep(3600)

    step = parallel_map(slow, "number bigint", retries=kl.Retries(max_attempts=1), handler_timeout_ms=50, outcome=True)
    (found,) = spark.range(1).transform(step).collect()
    assert found.error.startswith("HandlerTimeoutError: the handler took longer than")


def test_keys_stay_in_order_across_tasks(spark: SparkSession) -> None:
    async def function(row: Any) -> Any:
        began = time.monotonic_ns()
        await asyncio.sleep(0.001 * (row.id % 3))
        return (row.k, row.id, began, time.monotonic_ns())

    frame = spark.range(200, numPartitions=4).selectExpr("id % 7 AS k", "id").repartition(4, "id")
    step = parallel_map(
        function, "k bigint, id bigint, began bigint, ended bigint", ordering="key", key="k", order_by="id"
    )
    by_key: dict[int, list[Any]] = {}
    for row in frame.transform(step).collect():
        by_key.setdefault(row.k, []).append(row)
    assert sum(map(len, by_key.values())) == 200
    for rows in by_key.values():
        rows.sort(key=lambda row: row.began)
        assert [row.id for row in rows] == sorted(row.id for row in rows)
        assert all(first.ended <= second.began for first, second in pairwise(rows))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ordering": "key"}, "needs key="),
        ({"key": "id"}, "needs ordering='key'"),
        ({"ordering": "key", "key": "nokey"}, "there is no column 'nokey' among id"),
        ({"ordering": "partition"}, "there is no column 'topic'"),
        ({"ordering": "other"}, "give one of 'key', 'partition', 'unordered'"),
        ({"handler_timeout_ms": 5}, "declare the function `async def`"),
        ({"workers": "thread"}, "give keylane.Threads"),
        ({"order_by": "id"}, "needs ordering"),
        ({"max_concurrency": 0}, "max_concurrency=0"),
        ({"returns": 5}, "give columns and types"),
        ({"retries": 3}, "give keylane.Retries"),
        ({"returns": "a int, a int"}, "returns=… has more than one column 'a'"),
        ({"returns": "s array<struct<a:int,a:int>>"}, "'s' with more than one field 'a'"),
        ({"returns": "error string", "outcome": True}, "outcome=True adds has more than one column 'error'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    spark: SparkSession, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(kl.UsageError, match=says):
        spark.range(1).transform(parallel_map(lambda _: None, **{"returns": "a int"} | options))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([], "the frame has no columns"),
        (["id", "id"], "more than one column 'id'"),
        (["map(1, named_struct('a', 1, 'a', 2)) AS m"], "'m' with more than one field 'a'"),
        (["array(interval '1' month) AS month"], "'month' of interval month, which Python does not have"),
    ],
)
def test_what_does_not_reach_python_is_named(spark: SparkSession, columns: list[str], says: str) -> None:
    with pytest.raises(kl.UsageError, match=says):
        spark.range(3).selectExpr(*columns).transform(parallel_map(lambda _: None, "a int"))


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"b": 1}, r"returned \['b'\]"),
        ((1, 2), "returned 2 values"),
        (5, "returned a value of type int: return a dict"),
    ],
)
def test_a_wrong_result_is_named(spark: SparkSession, returned: Any, says: str) -> None:
    with pytest.raises(Exception, match=says):
        spark.range(1).transform(parallel_map(lambda _: returned, "a int")).collect()


@contextmanager
def process_number() -> Iterator[int]:
    yield os.getpid()


@pytest.mark.full
def test_functions_that_compute_run_in_processes(spark: SparkSession) -> None:
    """Each task has one, with its own resource; what fails there is tried again as elsewhere."""

    def function(row: Any, context: kl.Context) -> Any:
        assert context.resource == os.getpid()
        if row.id == 4 and context.attempt < 3:
            raise ValueError("busy")
        if row.id == 5:
            raise kl.Fatal("no such flight")
        return (row.id, context.resource, context.attempt)

    step = parallel_map(
        function,
        "id bigint, pid bigint, attempt int",
        workers=kl.Processes(),
        resource=process_number,
        retries=QUICK,
        outcome=True,
    )
    found = spark.range(8, numPartitions=2).transform(step).collect()
    assert {(row.id, row.attempt, row.error) for row in found} == {
        *((number, 1, None) for number in (0, 1, 2, 3, 6, 7)),
        (4, 3, None),
        (None, None, "Fatal: no such flight"),
    }
    pids = {row.pid for row in found if row.pid}
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


@pytest.mark.full
def test_a_process_is_killed_when_its_time_is_over_or_it_dies(spark: SparkSession) -> None:
    def function(row: Any) -> Any:
        if row.id == 1:
            while True:  # a computation that no thread could be freed from
                pass
        if row.id == 2:
            os._exit(7)
        return (row.id,)

    step = parallel_map(
        function,
        "id bigint",
        workers=kl.Processes(),
        handler_timeout_ms=2_000,
        retries=kl.Retries(max_attempts=1),
        outcome=True,
    )
    found = spark.range(4, numPartitions=1).transform(step).collect()
    errors = sorted(str(row.error).partition(" (pid")[0] for row in found if row.error)
    assert sorted(row.id for row in found if row.error is None) == [0, 3]
    assert errors == [
        "HandlerTimeoutError: the handler took longer than 2000 ms; its process was ended",
        "WorkerProcessError: a worker process",
    ]
    done = step.snapshot()
    assert (done.processed, done.failed, done.workers_died) == (2, 2, 1)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
