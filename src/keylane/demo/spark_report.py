"""The enriched topic as a Spark DataFrame: read by tasks, one a partition; written as Parquet; delays summed up.

Each task reads its partition with keylane's plain reader and hands Arrow batches to Spark, so the work spreads over the
cluster like any other and needs no connector for the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.demo.delays import FREEZING_F, POOR_VISIBILITY_MILES, STRONG_WIND_MPH, Delay
from keylane.demo.rows import DDL, arrow_schema, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


def enriched_flights(spark: SparkSession, servers: str, topic: str, partitions: int) -> DataFrame:
    """One row an output record, see `keylane.demo.rows`; a replay's repetitions are in it (drop them by `source`)."""
    tasks = spark.range(0, partitions, 1, numPartitions=partitions)
    return tasks.mapInArrow(_reader(servers, topic), DDL)


def _reader(servers: str, topic: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from keylane.kafka.bulk import read_to_end

        for partition in [row for batch in batches for row in batch.column(0).to_pylist()]:
            for records in read_to_end(servers, topic, [partition]):
                rows = [row_of(record) for record in records if record.value is not None]
                yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema())

    return read


def write_and_summarise(spark: SparkSession, servers: str, topic: str, partitions: int, path: Path) -> list[Delay]:
    """Write the enriched flights as Parquet, then compute the delays from what was written."""
    flights = enriched_flights(spark, servers, topic, partitions).dropDuplicates(["source"])
    flights.write.mode("overwrite").parquet(str(path))
    return delays_on_spark(spark.read.parquet(str(path)))


def delays_on_spark(flights: DataFrame) -> list[Delay]:
    """The same figures as `delays.delays_of`, by Spark."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    cells = flights.withColumn("weather", _kind(F)).groupBy("carrier", "weather")
    means = cells.agg(
        F.count("*").alias("flights"), F.count("dep_delay").alias("departed"), F.avg("dep_delay").alias("mean")
    )
    rows = means.orderBy("carrier", "weather").collect()
    return [Delay(row.carrier, row.weather, row.flights, row.departed, row["mean"]) for row in rows]


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
