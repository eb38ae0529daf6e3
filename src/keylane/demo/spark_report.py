"""The enriched topic as a Spark DataFrame: read by tasks, one a partition; written as Parquet; delays summed up.

Each task reads its partition with keylane's plain reader, so the work spreads over the cluster like any other and needs
no connector for the JVM. It hands over rows, not Arrow batches: `mapInArrow` insists on pandas, which keylane does not
require.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.demo.delays import FREEZING_F, POOR_VISIBILITY_MILES, STRONG_WIND_MPH, Delay
from keylane.demo.rows import COLUMNS, DDL, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession


def enriched_flights(
    spark: SparkSession, servers: str, topic: str, partitions: int, settings: Mapping[str, str] | None = None
) -> DataFrame:
    """One row a source record, see `keylane.demo.rows`.

    Outputs of one record are all in one partition, so each task can leave a replay's repetitions out by itself.
    """
    tasks = spark.sparkContext.parallelize(range(partitions), partitions)
    rows = tasks.mapPartitions(_reader(servers, topic, settings))
    return spark.createDataFrame(rows, DDL, verifySchema=False)


def _reader(
    servers: str, topic: str, settings: Mapping[str, str] | None
) -> Callable[[Iterable[int]], Iterator[tuple[Any, ...]]]:
    def read(partitions: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        from keylane.kafka.bulk import read_to_end

        seen = set()
        for records in read_to_end(servers, topic, list(partitions), settings=settings):
            for record in records:
                row = row_of(record)
                if row["source"] not in seen:
                    seen.add(row["source"])
                    yield tuple(None if row[name] is None else TYPES[kind](row[name]) for name, kind in COLUMNS.items())

    return read


TYPES: dict[str, type] = {"int": int, "string": str, "double": float, "boolean": bool}
"""What Spark takes for the types of `COLUMNS`: it does not make a double of an int by itself."""


def write_and_summarise(
    spark: SparkSession,
    servers: str,
    topic: str,
    partitions: int,
    path: Path,
    settings: Mapping[str, str] | None = None,
) -> list[Delay]:
    """Write the enriched flights as Parquet, then compute the delays from what was written."""
    enriched_flights(spark, servers, topic, partitions, settings).write.mode("overwrite").parquet(str(path))
    return delays_on_spark(spark.read.parquet(str(path)))


def delays_on_spark(flights: DataFrame) -> list[Delay]:
    """The same figures as `delays.delays_of`, by Spark."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    cells = flights.withColumn("weather", _kind(F)).groupBy("carrier", "weather")
    means = cells.agg(
        F.count("*").alias("flights"), F.count("dep_delay").alias("departed"), F.avg("dep_delay").alias("mean")
    )
    cells_of = sorted(means.collect(), key=lambda row: (row.carrier, row.weather))
    return [Delay(row.carrier, row.weather, row.flights, row.departed, row["mean"]) for row in cells_of]


def _kind(F: Any) -> Column:  # noqa: N803 - Spark's own custom
    kind: Column = (
        F.when(~F.col("has_weather"), "unknown")
        .when((F.col("weather_precip") > 0) & (F.col("weather_temp") < FREEZING_F), "snow")
        .when(F.col("weather_precip") > 0, "rain")
        .when(F.col("weather_visib") < POOR_VISIBILITY_MILES, "fog")
        .when(F.col("weather_wind_speed") >= STRONG_WIND_MPH, "wind")
        .otherwise("fair")
    )
    return kind
