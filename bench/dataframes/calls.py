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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

ROWS = 10_000
CALL_MS = 50
CONCURRENCY = 100
"""In each of the two tasks."""
TASKS = 2
UDF_ROWS = 200
"""One after another in each task, so that a part of the rows says it: its seconds are multiplied."""


def run(spark: SparkSession, repeat: int) -> list[dict[str, Any]]:
    """Seconds of each way, beside the limit: calls × 50 ms / concurrency."""
    found = [
        _way("parallel_map, async", spark, repeat, _async()),
        _way("parallel_map, async, in order by key (1,000 keys)", spark, repeat, _async(ordering="key", key="key")),
        _way("parallel_map, threads", spark, repeat, _threads()),
    ]
    if _has_pandas():
        found.append(_way("mapInPandas with a pool of threads", spark, repeat, _in_pandas))
    else:
        print("mapInPandas is left out: pandas is not installed")
    found.append(_way("a plain UDF", spark, 1, _udf, rows=UDF_ROWS))
    return found


def _way(
    name: str, spark: SparkSession, repeat: int, step: Callable[[DataFrame], DataFrame], rows: int = ROWS
) -> dict[str, Any]:
    concurrency = TASKS * (CONCURRENCY if rows == ROWS else 1)
    limit = rows * CALL_MS / 1000 / concurrency
    took = []
    for _ in range(1 + repeat):  # the first one starts workers
        frame = spark.range(rows, numPartitions=TASKS).selectExpr("id", "id % 1000 AS key").transform(step)
        begun = time.perf_counter()
        assert frame.selectExpr("count(answer)").collect()[0][0] == rows
        took.append(time.perf_counter() - begun)
    seconds = statistics.median(took[1:])
    of_all = ROWS / rows
    return {
        "way": name,
        "limit_s": limit * of_all,
        "seconds": round(seconds * of_all, 2),
        "over_limit": round(seconds / limit, 3),
        "runs": took,
        "load": os.getloadavg()[0],
    }


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
