"""A stage of a chain in Spark: rows of Structured Streaming before and behind, lanes between. STAGE SERVERS FOLDER.

Each adds its name to the value. Tests start it in a process of its own, to kill it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keylane as kl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = {"before": ("orders", "ready"), "lanes": ("ready", "slow"), "behind": ("slow", "done")}


def rows(spark: SparkSession, stage: str, servers: str, folder: Path) -> Any:
    """From the source through `parallel_map` to the sink, exactly once."""
    source, sink = TOPICS[stage]

    def named(row: Any) -> dict[str, bytes]:
        return {"key": row.key, "value": row.value + b" " + stage.encode()}

    kafka = {"kafka.bootstrap.servers": servers}
    read = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "300"}
    reader = spark.readStream.format("keylane").options(**kafka, **read)
    orders = reader.option("kafka.isolation.level", "read_committed").load()
    step = kl.spark.parallel_map(named, "key binary, value binary", ordering="key", key="key")
    written = orders.transform(step).writeStream.format("keylane").options(**kafka)
    written = written.options(topic=sink, delivery="exactly_once", sinkName=stage)
    return written.option("checkpointLocation", str(folder / f"{stage}-checkpoint")).start()


def lanes(spark: SparkSession, stage: str, servers: str) -> Any:
    """Outputs and offsets in the same transactions."""
    source, sink = TOPICS[stage]

    async def slow(record: kl.Record) -> kl.Output:
        await asyncio.sleep(0.005)
        return kl.Output(sink, key=record.key, value=(record.value or b"") + b" lanes")

    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": servers, "group.id": stage, "session.timeout.ms": 6_000},
        topics=[source],
        outputs=[sink],
        handler=slow,
        delivery="transactional",
        offset_reset="earliest",
    )
    return kl.spark.start(pipeline, spark, lanes=2)


def main() -> None:
    stage, servers, folder = sys.argv[1:]
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
    spark = kl.spark.session("local[3,4]", f"keylane {stage}", **settings)
    query = lanes(spark, stage, servers) if stage == "lanes" else rows(spark, stage, servers, Path(folder))
    query.awaitTermination()


if __name__ == "__main__":
    main()
