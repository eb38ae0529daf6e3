"""10,000 rows, each with a call of 50 ms: `parallel_map` beside what PySpark users write."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

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
    """Seconds of each way, beside the limit: calls × 50 ms / concurrency; and of a job without calls: Spark's part."""
    for _ in range(WARM_UPS):
        _job(spark, ROWS, _copied)
    found = [
        _way("rows that are copied, without a call", spark, repeat, _copied, limit_s=0),
        _way("parallel_map, async", spark, repeat, _async()),
        _way("parallel_map, async, in order by key (1,000 keys)", spark, repeat, _async(ordering="key", key="key")),
        _way("parallel_map, threads", spark, repeat, _threads()),
    ]
    if _has_pandas():
        found.append(_way("mapInPandas with a pool of threads", spark, repeat, _in_pandas))
    else:
        print("mapInPandas is left out: pandas is not installed")
    of_one = ROWS * CALL_MS / 1000 / TASKS
    found.append(_way("a plain UDF", spark, 1, _udf, rows=UDF_ROWS, limit_s=of_one))
    return found


def _way(
    name: str,
    spark: SparkSession,
    repeat: int,
    step: Callable[[DataFrame], DataFrame],
    *,
    rows: int = ROWS,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """The median of `repeat` jobs after one that starts the workers; of fewer rows, times what is missing."""
    took = [_job(spark, rows, step) * ROWS / rows for _ in range(1 + repeat)][1:]
    seconds = statistics.median(took)
    return {
        "way": name,
        "limit_s": limit_s,
        "seconds": round(seconds, 2),
        "over_limit": round(seconds / limit_s, 3) if limit_s else None,
        "runs": took,
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

    return parallel_map(call, "answer bigint", max_concurrency=CONCURRENCY, threads=CONCURRENCY)


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
