"""The sinks: at least once and exactly once, and Spark's own connector, write the same micro-batches in turn.

The rows are made in Spark's JVM (`rate-micro-batch`), in one task, so that a batch is what the sink takes.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import processors

from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = 300_000
"""A micro-batch, of a key and a value of 200 bytes."""
PARTITIONS = 4
WARM_UPS = 1
"""Rounds that do not count."""
BATCHES = 3
"""A query, the first of which does not count."""
PATIENCE_S = 300.0


def rates(spark: SparkSession, servers: str, folder: Path, repeat: int, *, connector: bool) -> list[dict[str, Any]]:
    """Seconds of a micro-batch (Spark's `addBatch`), medians; and of processors' time, of Spark and broker together."""
    ways: dict[str, tuple[str, dict[str, str]]] = {
        "`keylane`": ("keylane", {}),
        "`keylane`, `delivery=exactly_once`": ("keylane", {"delivery": "exactly_once"}),
    }
    if connector:
        ways["`kafka`"] = ("kafka", {})
    runs: dict[str, list[tuple[float, float | None]]] = {way: [] for way in ways}
    for number in range(WARM_UPS + repeat):
        for way, (name, options) in ways.items():
            measured = _batches(spark, servers, folder, name, options)
            if number >= WARM_UPS:
                runs[way] += measured
                print(way, [round(seconds, 2) for seconds, _ in measured], flush=True)
    load = os.getloadavg()[0]
    return [
        {
            "sink": way,
            "batches": len(took),
            "seconds": round(statistics.median(seconds for seconds, _ in took), 2),
            "processor_s": round(statistics.median(used for _, used in took if used is not None), 2)
            if any(used is not None for _, used in took)
            else None,
            "runs": took,
            "load": load,
        }
        for way, took in runs.items()
    ]


def _batches(
    spark: SparkSession, servers: str, folder: Path, name: str, options: dict[str, str]
) -> list[tuple[float, float | None]]:
    topic, admin = f"sink-{time.time_ns()}", Admin({"bootstrap.servers": servers})
    admin.create_topics({topic: PARTITIONS})
    named = {"sinkName": topic} if options else {}
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=str(ROWS), numPartitions="1")
    rows = source.load().selectExpr(
        "cast(value % 1000 as string) AS key", "lpad(cast(value as string), 200, '0') value"
    )
    before, started = processors.times(), 0
    query = (
        rows.writeStream.format(name)
        .options(**{"kafka.bootstrap.servers": servers, "topic": topic}, **options, **named)
        .option("checkpointLocation", str(folder / topic))
        .start()
    )
    found: list[tuple[float, float | None]] = []
    try:
        until = time.monotonic() + PATIENCE_S
        while started < BATCHES:
            assert time.monotonic() < until, f"{started} batches in {PATIENCE_S:.0f} s"
            time.sleep(0.01)
            if (failed := query.exception()) is not None:
                raise failed
            ended = [one for one in query.recentProgress if one.numInputRows]
            if len(ended) > started:
                now = processors.times()
                if started:
                    ticks = None if before is None or now is None else now.own - before.own
                    used = None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")
                    found.append((ended[started].durationMs["addBatch"] / 1_000, used))
                before, started = now, started + 1
    finally:
        query.stop()
        admin.delete_topics([topic])
    return found
