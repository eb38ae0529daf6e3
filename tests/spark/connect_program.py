"""Source, sink and `parallel_map` through Spark Connect, and what is refused there. Arguments: SERVERS."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from pyspark.sql import SparkSession

import keylane as kl
from keylane.spark import CarryOver, parallel_map

servers = sys.argv[1]
kafka = {"kafka.bootstrap.servers": servers}
spark = SparkSession.builder.remote("local[2]").getOrCreate()


async def copies(row: Any) -> tuple[bytes, bytes]:
    return (row.key, row.value)


numbers = spark.range(60).selectExpr("cast('k' AS binary) AS key", "cast(cast(id AS string) AS binary) AS value")
numbers.write.format("keylane").mode("append").options(**kafka, topic="in").save()
frame = spark.readStream.format("keylane").options(**kafka, subscribe="in", startingOffsets="earliest").load()
writer = frame.transform(parallel_map(copies, "key binary, value binary", ordering="key", key="key")).writeStream
with tempfile.TemporaryDirectory() as folder:
    query = writer.format("keylane").options(**kafka, topic="out", checkpointLocation=folder)
    query.trigger(availableNow=True).start().awaitTermination()
found = spark.read.format("keylane").options(**kafka, subscribe="out").load().collect()
assert sorted(int(bytes(row.value)) for row in found) == list(range(60)), found
try:
    frame.transform(parallel_map(copies, "key binary, value binary", carry_over=CarryOver("/none")))
except kl.UsageError as error:
    sys.stdout.write(f"{error}\n")
