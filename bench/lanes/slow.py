"""One record that takes 10 s in a stream of records that take 5 ms: lanes, and micro-batches with threads.

The plain way is what PySpark users write: `foreachBatch`, and in each partition a pool of threads. `mapInPandas` in its
place would change nothing that is seen here, since a batch ends with its slowest record, and it needs pandas.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from lanes.work import Timed, make_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

RATE = 500
"""Records a second: a sixth of what 16 handlers of 5 ms do, so that nothing waits but for the slow one."""
SECONDS = 40
SLOW_AT_S = 12
SLOW_S = 10
USUAL_US = 5_000
CONCURRENCY = 16
PARTITIONS = 4
WARM_UPS = 3
"""Portions of a few records, one after the other: a query's first batches start Python workers and compile its plan."""
PATIENCE_S = 120

Latencies = list[tuple[float, float]]
"""Of each record: when it ended, after the stream's begin, and how long after it was made; in seconds."""


def run(spark: SparkSession, servers: str, folder: Path) -> dict[str, Latencies]:
    """Both ways, each on a stream of its own."""
    return {
        "lanes": _stream(servers, lambda topic: _lanes(spark, servers, topic, folder / "slow")),
        "micro-batches with threads": _stream(servers, lambda topic: _micro_batches(spark, servers, topic)),
    }


def _stream(servers: str, contestant: Callable[[str], tuple[Callable[[], int], Callable[[], Latencies]]]) -> Latencies:
    """Starts the contestant, warms it up, then starts the stream; ends the contestant when it has seen all."""
    topic = f"slow-{time.time_ns()}"
    Admin({"bootstrap.servers": servers}).create_topics({topic: PARTITIONS})
    done, finish = contestant(topic)
    for portion in range(1, WARM_UPS + 1):
        with BulkProducer(servers) as producer:
            for number in range(PARTITIONS * 10):
                value = f"{time.time()} {USUAL_US}".encode()
                producer.produce(kl.Output(topic, key=b"k%d" % number, value=value, partition=number % PARTITIONS))
        _await(done, portion * PARTITIONS * 10)
    warm = done()
    begun = time.time()
    _produce(servers, topic)
    _await(done, warm + RATE * SECONDS)
    return [(end - begun, end - made) for made, end in finish() if made >= begun]


def _await(done: Callable[[], int], count: int) -> None:
    deadline = time.time() + PATIENCE_S
    while done() < count:
        if time.time() > deadline:
            raise TimeoutError(f"{done()} of {count} records after {PATIENCE_S} s")
        time.sleep(0.1)


def _produce(servers: str, topic: str) -> None:
    """`RATE` records a second, in portions of 20 ms; a record keeps the time when it was made."""
    portion = RATE // 50
    with BulkProducer(servers, {"linger.ms": 0}) as producer:
        begun = time.time()
        for number in range(SECONDS * 50):
            time.sleep(max(0.0, begun + number / 50 - time.time()))
            for one in range(portion):
                slow = number == SLOW_AT_S * 50 and one == 0
                value = f"{time.time()} {SLOW_S * 1_000_000 if slow else USUAL_US}".encode()
                place = (number * portion + one) % PARTITIONS
                producer.produce(kl.Output(topic, key=f"k{number % 97}-{one}".encode(), value=value, partition=place))


def _lanes(
    spark: SparkSession, servers: str, topic: str, folder: Path
) -> tuple[Callable[[], int], Callable[[], Latencies]]:
    folder.mkdir()
    query = kl.spark.start(make_pipeline(servers, topic, folder, "timed", "key", CONCURRENCY), spark, lanes=1)
    while not query.lanes or not query.lanes[0].partitions:
        time.sleep(0.05)

    def finish() -> Latencies:
        query.stop()
        return [(made, end) for made, end, _ in Timed.read(folder).took]

    return lambda: query.snapshot().processed, finish


def _micro_batches(spark: SparkSession, servers: str, topic: str) -> tuple[Callable[[], int], Callable[[], Latencies]]:
    found: Latencies = []

    def work(rows: Iterator[Any]) -> list[tuple[float, float]]:
        from concurrent.futures import ThreadPoolExecutor

        def one(row: Any) -> tuple[float, float]:
            made, sleep_us = bytes(row.value).split()
            time.sleep(int(sleep_us) / 1e6)
            return float(made), time.time()

        with ThreadPoolExecutor(CONCURRENCY // PARTITIONS) as pool:
            return list(pool.map(one, rows))

    def batch(frame: Any, number: int) -> None:  # noqa: ARG001 - Spark's signature
        found.extend(frame.rdd.mapPartitions(work).collect())

    source = spark.readStream.format("keylane").option("kafka.bootstrap.servers", servers)
    stream = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    query = stream.writeStream.foreachBatch(batch).start()

    def finish() -> Latencies:
        query.stop()
        return found

    return lambda: len(found), finish
