"""The source `keylane` beside Spark's own `kafka`: they take turns on the same topic, in the same warm session."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

RECORDS = 1_000_000
VALUE_BYTES = 200
LARGE_VALUE_BYTES = 2_000
"""Of a fifth of the records."""
PARTITIONS = 4
WARM_UPS = 2
"""Rounds that do not count: the JVM compiles its hot code in them, and Python workers start."""
BATCHES = 40
BATCH_RECORDS = 100
PAUSE_S = 0.4
"""From one small batch to the next."""


def make_topic(servers: str, name: str, records: int, value_bytes: int = VALUE_BYTES) -> str:
    """A topic of `records` values of `value_bytes` bytes with keys."""
    Admin({"bootstrap.servers": servers}).create_topics({name: PARTITIONS})
    _fill(servers, name, records, value_bytes)
    return name


def _fill(servers: str, topic: str, records: int, value_bytes: int = VALUE_BYTES) -> None:
    value = os.urandom(value_bytes)
    with BulkProducer(servers, {"linger.ms": 5}) as producer:
        producer.produce_all(
            kl.Output(topic, b"key-%08d" % number, value, partition=number % PARTITIONS) for number in range(records)
        )


def rates(
    spark: SparkSession, servers: str, formats: Iterable[str], repeat: int, records: int, value_bytes: int = VALUE_BYTES
) -> list[dict[str, Any]]:
    """Records a second of a batch query that reads every value."""
    topic = make_topic(servers, f"rates-{time.time_ns()}", records, value_bytes)
    took: dict[str, list[float]] = {name: [] for name in formats}
    for _ in range(WARM_UPS + repeat):
        for name, runs in took.items():
            begun = time.perf_counter()
            options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
            frame = spark.read.format(name).options(**options).load()
            (row,) = frame.selectExpr("count(*) AS records", "sum(length(value)) AS bytes").collect()
            runs.append(time.perf_counter() - begun)
            assert (row.records, row.bytes) == (records, records * value_bytes)
    load = os.getloadavg()[0]
    return [
        {
            "source": name,
            "records": records,
            "value_bytes": value_bytes,
            "records_per_s": round(records / statistics.median(runs[WARM_UPS:])),
            "runs": runs,
            "load": load,
        }
        for name, runs in took.items()
    ]


def latencies(spark: SparkSession, servers: str, formats: Iterable[str]) -> list[dict[str, Any]]:
    """What a micro-batch of 100 records takes, as Spark itself reports it (`triggerExecution`)."""
    found = []
    for name in formats:
        topic = make_topic(servers, f"latency-{time.time_ns()}", BATCH_RECORDS)
        options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
        took = _micro_batches(spark.readStream.format(name).options(**options).load(), servers, topic)
        figures = {"source": name, "batches": len(took), "p50_ms": statistics.median(took), "runs": took}
        found.append(figures | {"load": os.getloadavg()[0]})
    return found


def _micro_batches(frame: DataFrame, servers: str, topic: str) -> list[int]:
    query = frame.writeStream.format("noop").start()
    try:
        query.processAllAvailable()
        first = query.lastProgress.batchId if query.lastProgress else 0  # cold: starts workers
        took: dict[int, int] = {}
        for _ in range(BATCHES):
            _fill(servers, topic, BATCH_RECORDS)
            query.processAllAvailable()
            time.sleep(PAUSE_S)
            for one in query.recentProgress:
                if one.numInputRows and one.batchId > first:
                    took[one.batchId] = one.durationMs["triggerExecution"]
        return list(took.values())
    finally:
        query.stop()
