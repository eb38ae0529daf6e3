"""10,000 rows, each with a call of 50 ms: `parallel_map` beside what PySpark users write."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import processors

from keylane.options import Threads
from keylane.spark import parallel_map
from keylane.spark.structured.arrow_map import map_in_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

ROWS = 10_000
CALL_MS = 50
CONCURRENCY = 100
"""In each of the two tasks."""
TASKS = 2
LIMIT_S = ROWS * CALL_MS / 1000 / (TASKS * CONCURRENCY)
UDF_ROWS = 200
"""One after another in each task, so that a part of the rows says it: its seconds are multiplied."""


WARM_UPS = 10
"""Jobs that do not count: the JVM compiles its hot code in them, and whoever is measured first has no cold one."""


def run(spark: SparkSession, repeat: int) -> list[dict[str, Any]]:
    """Seconds of each way, beside the limit: calls × 50 ms / concurrency; and of a job without calls: Spark's part.

    The ways run in turn, so that a bad minute of the machine is everybody's.
    """
    ways: dict[str, Callable[[DataFrame], DataFrame]] = {
        "rows that are copied, without a call": _copied,
        "parallel_map, async": _async(),
        "parallel_map, async, in order by key (1,000 keys)": _async(ordering="key", key="key"),
        "parallel_map, threads": _threads(),
    }
    if _has_pandas():
        ways["mapInPandas with a pool of threads"] = _in_pandas
    else:
        print("mapInPandas is left out: pandas is not installed")
    for _ in range(WARM_UPS):
        _job(spark, ROWS, _copied)
    for step in ways.values():
        _job(spark, ROWS, step)  # starts what the way needs
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for _ in range(repeat):
        for way, step in ways.items():
            runs[way].append(_measured(spark, ROWS, step))
    found = [_result(way, took, 0 if ways[way] is _copied else LIMIT_S) for way, took in runs.items()]
    _job(spark, TASKS, _udf)
    of_rows = _measured(spark, UDF_ROWS, _udf)
    udf = Run(of_rows.seconds * ROWS / UDF_ROWS, of_rows.others)
    return [*found, _result("a plain UDF", [udf], ROWS * CALL_MS / 1000 / TASKS)]


DISTURBED = 0.05
"""Of a run: others took more than this share of the processors' time. An undisturbed one has 0 to 2 %."""


class Run(NamedTuple):
    seconds: float
    others: float | None
    """The share of the processors' time that others took (`processors.taken_by_others`)."""


def _measured(spark: SparkSession, rows: int, step: Callable[[DataFrame], DataFrame]) -> Run:
    before = processors.times()
    seconds = _job(spark, rows, step)
    return Run(seconds, processors.taken_by_others(before, processors.times()))


def _result(way: str, runs: list[Run], limit_s: float) -> dict[str, Any]:
    """The median of the undisturbed runs (of all, when none is), and the slowest of all."""
    undisturbed = [one.seconds for one in runs if one.others is None or one.others <= DISTURBED]
    seconds = statistics.median(undisturbed or [one.seconds for one in runs])
    slowest = max(runs)
    return {
        "way": way,
        "limit_s": limit_s,
        "seconds": round(seconds, 2),
        "over_limit": round(seconds / limit_s, 3) if limit_s else None,
        "undisturbed": len(undisturbed),
        "slowest_s": round(slowest.seconds, 2),
        "slowest_others": slowest.others,
        "runs": runs,
        "load": os.getloadavg()[0],
    }


def _job(spark: SparkSession, rows: int, step: Callable[[DataFrame], DataFrame]) -> float:
    """Seconds of one job of one stage, from its plan to its end. Every row must be there."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count

    seen = Observation()
    frame = spark.range(rows, numPartitions=TASKS).selectExpr("id", "id % 1000 AS key").transform(step)
    begun = time.perf_counter()
    frame.observe(seen, count("answer").alias("answers")).write.format("noop").mode("overwrite").save()
    took = time.perf_counter() - begun
    assert seen.get["answers"] == rows
    return took


def _copied(frame: DataFrame) -> DataFrame:
    from pyspark.sql.types import LongType, StructField, StructType

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.select(["id"]).rename_columns(["answer"])

    return map_in_arrow(frame, copy, StructType([StructField("answer", LongType())]))


def _async(**options: Any) -> Callable[[DataFrame], DataFrame]:
    async def call(row: Any) -> tuple[int]:
        await asyncio.sleep(CALL_MS / 1000)
        return (row.id,)

    return parallel_map(call, "answer bigint", max_concurrency=CONCURRENCY, **options)


def _threads() -> Callable[[DataFrame], DataFrame]:
    def call(row: Any) -> tuple[int]:
        time.sleep(CALL_MS / 1000)
        return (row.id,)

    return parallel_map(call, "answer bigint", max_concurrency=CONCURRENCY, workers=Threads(CONCURRENCY))


def _in_pandas(frame: DataFrame) -> DataFrame:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pandas  # type: ignore[import-untyped, unused-ignore]

        def call(number: int) -> int:
            time.sleep(CALL_MS / 1000)
            return number

        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for batch in batches:
                yield pandas.DataFrame({"answer": list(pool.map(call, batch["id"].tolist()))})

    return frame.mapInPandas(work, "answer bigint")


def _udf(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import udf

    @udf("bigint")
    def call(number: int) -> int:
        time.sleep(CALL_MS / 1000)
        return number

    return frame.select(call("id").alias("answer"))


def _has_pandas() -> bool:
    return find_spec("pandas") is not None
