"""A service that hangs for one record and refuses another, for 10 s each, in a stream of records of 5 ms.

Both queries read the same stream and give each record to the sink when its batch ends; a record's age there counts.
The connector's query does what its users write: a pool of threads in each partition, and a record that fails is tried
again in its place, as an error would end the query. keylane's has `parallel_map` with a carry-over.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

from lanes.picture import by_second, quantile

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.spark import CarryOver, acknowledged, parallel_map

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RATE = 200
SECONDS = 30
SLOW_AT_S, FAILING_AT_S, TROUBLE_S = 6, 18, 10
USUAL_S = 0.005
RETRY_S = 0.5
CONCURRENCY = 16
PARTITIONS = 2
PORTIONS = 50
"""A second."""
REST_S, WARM_UP_S = 10, 5
WARM_UPS = 2
"""Rounds that do not count: the JVM compiles its hot code in them."""

HANG_S = 0.1
"""How long keylane lets a call take: twenty times what one usually takes."""
KEYS = 97

Ended = list[tuple[float, float, bool]]
"""Of each record: when the sink got it, after the stream's begin, and how long after it was made, in seconds; and
whether its key is another one than those of the two records in trouble."""


def run(spark: SparkSession, servers: str, folder: Path, *, connector: bool) -> list[dict[str, Any]]:
    """Each way on a stream of its own, one after the other."""
    for way in _ways(connector=connector).values():
        _stream(spark, servers, folder, way, WARM_UP_S)
    ended = {
        name: _stream(spark, servers, folder, way, SECONDS, trouble=True)
        for name, way in _ways(connector=connector).items()
    }
    found = by_second({name: [(end, age) for end, age, _ in every] for name, every in ended.items()})
    for one in found:
        others = [age for _, age, is_other in ended[one["way"]] if is_other]
        one["others_p50_ms"], one["others_p99_ms"] = (round(1_000 * quantile(others, share)) for share in (0.5, 0.99))
        one["load"] = os.getloadavg()[0]
    return found


def at_rest(spark: SparkSession, servers: str, folder: Path, rounds: int, *, connector: bool) -> list[dict[str, Any]]:
    """The same streams while nothing is wrong: the ways in turn, on a new stream each, after two rounds that do not
    count; the medians of the rounds."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in _ways(connector=connector)}
    for number in range(WARM_UPS + rounds):
        for name, way in _ways(connector=connector).items():
            ages = [1_000 * age for _, age, _ in _stream(spark, servers, folder, way, REST_S)]
            assert len(ages) == RATE * REST_S, f"{name}: {len(ages)} records of {RATE * REST_S}"
            cuts = statistics.quantiles(ages, n=100, method="inclusive")
            if number >= WARM_UPS:
                load = os.getloadavg()[0]
                found[name].append((cuts[49], cuts[98], load))
                print(f"{name}: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms, load {load:.1f}", flush=True)
    return [
        {
            "way": name,
            "rounds": len(runs),
            "p50_ms": round(statistics.median(one[0] for one in runs)),
            "p99_ms": round(statistics.median(one[1] for one in runs)),
            "runs": runs,
            "load": statistics.median(one[2] for one in runs),
        }
        for name, runs in found.items()
    ]


def _ways(*, connector: bool) -> dict[str, Any]:
    ours = {"keylane, with carry-over": _ours}
    return ours | {"Spark's connector, with threads": _connectors} if connector else ours


def _stream(spark: SparkSession, servers: str, folder: Path, way: Any, seconds: int, *, trouble: bool = False) -> Ended:
    name = f"slow-{time.time_ns()}"
    Admin({"bootstrap.servers": servers}).create_topics({name: PARTITIONS})
    ended: list[tuple[float, bool, float]] = []

    def sink(frame: DataFrame, batch: int) -> None:  # noqa: ARG001 - Spark's signature
        rows = frame.collect()
        now = time.time()
        ended.extend((row.made, row.other, now) for row in rows)

    query: StreamingQuery = way(spark, servers, name, folder / name, sink)
    try:
        _produce(servers, name, 1)  # so that the first batch, which starts workers, is none of the stream's
        deadline = time.time() + 60
        while len(ended) < RATE and time.time() < deadline and query.isActive:
            time.sleep(0.1)
        ended.clear()
        begun = time.time()
        _produce(servers, name, seconds, trouble=trouble)
        while len(ended) < RATE * seconds and time.time() < deadline + seconds and query.isActive:
            time.sleep(0.1)
    finally:
        query.stop()
    return [(end - begun, end - made, other) for made, other, end in ended]


def _produce(servers: str, topic: str, seconds: int, *, trouble: bool = False) -> None:
    """`RATE` records a second. A value: when it was made, until when its service is in trouble, and in which; "same"
    has the key of one that is."""
    places = {SLOW_AT_S * PORTIONS: "hangs", FAILING_AT_S * PORTIONS: "fails"} if trouble else {}
    keys = {place % KEYS for place in places}
    portion, begun = RATE // PORTIONS, time.time()
    with BulkProducer(servers, {"linger.ms": 0}) as producer:
        for number in range(seconds * PORTIONS):
            time.sleep(max(0.0, begun + number / PORTIONS - time.time()))
            for one in range(portion):
                what = places.get(number, "same") if one == 0 and number % KEYS in keys else "other"
                value = f"{time.time()} {time.time() + TROUBLE_S} {what}".encode()
                place = (number * portion + one) % PARTITIONS
                producer.produce(kl.Output(topic, key=b"k%d-%d" % (number % KEYS, one), value=value, partition=place))


def _delay_s(value: bytes) -> float:
    """How long the service takes. Raises `ConnectionError` when it refuses."""
    _, until, trouble = bytes(value).split()
    left = float(until) - time.time()
    if trouble == b"fails" and left > 0:
        raise ConnectionError("the service refuses this record")
    return max(USUAL_S, left) if trouble == b"hangs" else USUAL_S


def _row(value: bytes) -> tuple[float, bool]:
    """For the sink: when the record was made, and whether it has another key than the two in trouble."""
    made, _, what = bytes(value).split()
    return float(made), what == b"other"


def _ours(spark: SparkSession, servers: str, topic: str, folder: Path, sink: Any) -> Any:
    carry = CarryOver(str(folder / "carried"), deadline_ms=2_000)

    async def call(row: Any) -> tuple[float, bool]:
        await asyncio.sleep(_delay_s(row.value))
        return _row(row.value)

    step = parallel_map(
        call,
        "made double, other boolean",
        ordering="key",
        key="key",
        max_concurrency=CONCURRENCY,
        handler_timeout_ms=round(1_000 * HANG_S),
        retries=kl.Retries(max_attempts=100, delay_ms=500, max_delay_ms=500),
        carry_over=carry,
    )
    options = {"kafka.group.id": topic, "carryOver": carry.folder}
    frame = _source(spark, "keylane", servers, topic, options).transform(step)
    checkpoint = str(folder / "checkpoint")
    return (
        frame.writeStream.foreachBatch(acknowledged(sink, carry_over=carry))
        .option("checkpointLocation", checkpoint)
        .start()
    )


def _connectors(spark: SparkSession, servers: str, topic: str, folder: Path, sink: Any) -> Any:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        from concurrent.futures import ThreadPoolExecutor

        import pyarrow as pa

        def call(value: bytes) -> tuple[float, bool]:
            while True:
                try:
                    time.sleep(_delay_s(value))
                    return _row(value)
                except ConnectionError:
                    time.sleep(RETRY_S)

        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for batch in batches:
                made = list(pool.map(call, batch.column("value").to_pylist()))
                columns = zip(*made, strict=True) if made else ((), ())
                arrays = [pa.array(one, kind) for one, kind in zip(columns, (pa.float64(), pa.bool_()), strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, ["made", "other"])

    from pyspark.sql.types import BooleanType, DoubleType, StructField, StructType

    from keylane.spark.structured.arrow_map import map_in_arrow

    frame = _source(spark, "kafka", servers, topic, {})
    mapped = map_in_arrow(
        frame, work, StructType([StructField("made", DoubleType()), StructField("other", BooleanType())])
    )
    return mapped.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint")).start()


def _source(spark: SparkSession, name: str, servers: str, topic: str, options: dict[str, str]) -> DataFrame:
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"} | options
    return spark.readStream.format(name).options(**given).load()
