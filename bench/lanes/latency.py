"""From append to output: how long a record takes from its topic to the topic of outputs, through a lane and through
micro-batches.

The micro-batches are Spark's own: its Kafka connector on both sides, a Python UDF, and a trigger of 0 ms, so that a
batch begins when the one before has ended. The work is a call of 5 ms for each record. What counts is the broker's
time of the output (`LogAppendTime`) less the time in the value, and other code than the contestants' reads it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer, read_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

RATE, SECONDS = 200, 30
PORTIONS = 50
"""A second."""
WARM_UP_S = 10
"""Of the same stream; it does not count."""
CALL_S = 0.005
PARTITIONS, CONCURRENCY = 4, 16
PATIENCE_S = 120

Contestant: TypeAlias = "Callable[[SparkSession, str, str, str, Path], AbstractContextManager[None]]"


def run(spark: SparkSession, servers: str, folder: Path, *, connector: bool) -> dict[str, list[float]]:
    """Milliseconds of each record by the way it took."""
    found = {"a lane": _measured(_lane, spark, servers, folder / "lane")}
    if connector:
        found["micro-batches of 0 ms, Spark's connector and a UDF"] = _measured(_udf, spark, servers, folder / "udf")
    return found


def _measured(contestant: Contestant, spark: SparkSession, servers: str, folder: Path) -> list[float]:
    given, made = (f"{what}-{time.time_ns()}" for what in ("given", "made"))
    admin = Admin({"bootstrap.servers": servers})
    admin.create_topics({given: PARTITIONS})
    admin.create_topics({made: PARTITIONS}, config={"message.timestamp.type": "LogAppendTime"})
    folder.mkdir()
    with contestant(spark, servers, given, made, folder):
        begun = _produce(servers, given)
        expected, deadline = RATE * (WARM_UP_S + SECONDS), time.time() + PATIENCE_S
        while (count := sum(1 for _ in _outputs(servers, made))) < expected:
            if time.time() > deadline:
                raise TimeoutError(f"{count} of {expected} outputs after {PATIENCE_S} s")
            time.sleep(0.5)
    return [at_ms - made_s * 1000 for made_s, at_ms in _outputs(servers, made) if made_s >= begun + WARM_UP_S]


def _outputs(servers: str, topic: str) -> Iterator[tuple[float, int]]:
    for batch in read_to_end(servers, topic):
        for record in batch:
            yield float(record.value or b""), record.timestamp_ms or 0


def _produce(servers: str, topic: str) -> float:
    """`RATE` records a second; each value is the time when it was made."""
    portion = RATE // PORTIONS
    with BulkProducer(servers, {"linger.ms": 0}) as producer:
        begun = time.time()
        for number in range((WARM_UP_S + SECONDS) * PORTIONS):
            time.sleep(max(0.0, begun + number / PORTIONS - time.time()))
            for one in range(portion):
                place = (number * portion + one) % PARTITIONS
                producer.produce(kl.Output(topic, b"k%d" % (number % 97), b"%f" % time.time(), partition=place))
    return begun


@contextmanager
def _lane(spark: SparkSession, servers: str, given: str, made: str, folder: Path) -> Iterator[None]:  # noqa: ARG001 - of all contestants
    async def call(record: kl.Record) -> kl.Output:
        await asyncio.sleep(CALL_S)
        return kl.Output(made, record.key, record.value)

    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": servers, "group.id": given},
        topics=[given],
        handler=call,
        ordering="key",
        max_concurrency=CONCURRENCY,
        offset_reset="earliest",
    )
    query = kl.spark.start(pipeline, spark, lanes=1)
    while not query.lanes or not query.lanes[0].partitions:
        time.sleep(0.05)
    yield
    query.stop()


@contextmanager
def _udf(spark: SparkSession, servers: str, given: str, made: str, folder: Path) -> Iterator[None]:
    from pyspark.sql.functions import udf

    @udf("binary")
    def call(value: bytes) -> bytes:
        time.sleep(CALL_S)
        return value

    options = {"kafka.bootstrap.servers": servers}
    source = spark.readStream.format("kafka").options(**options, subscribe=given, startingOffsets="earliest").load()
    query = (
        source.select("key", call("value").alias("value"))
        .writeStream.format("kafka")
        .options(**options, topic=made, checkpointLocation=str(folder))
        .trigger(processingTime="0 seconds")
        .start()
    )
    while not query.recentProgress:
        time.sleep(0.05)
    yield
    query.stop()
