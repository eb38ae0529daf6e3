"""A streaming query in a process of its own: a source, `parallel_map`, a sink. A test starts it to kill it.

Arguments: MASTER SERVERS TOPIC OUTPUT FOLDER KIND [JARS]. KIND: `sink` reads and writes with keylane and commits with
`GroupCommits`; `exact` does so exactly once; `connector` does so with Spark's own Kafka connector, of these jars;
`acknowledged` writes a file a batch; `available` does so too, and ends when what was there at its start is written. The
others run until they are killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.spark import GroupCommits, acknowledged, parallel_map

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> None:
    master, servers, topic, output, place, kind, *jars = sys.argv[1:]
    folder = Path(place)
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    settings |= {"spark.jars": jars[0]} if jars else {}
    spark = kl.spark.session(master, "keylane versions program", **settings)
    reader = spark.readStream.format("kafka" if jars else "keylane")
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    options |= {} if jars else {"kafka.group.id": kind}

    async def doubled(row: Any) -> tuple[bytes, bytes]:
        (folder / "working").touch()
        await asyncio.sleep(0.05)
        return row.key, b"%d" % (2 * int(bytes(row.value)))

    step = parallel_map(doubled, "key binary, value binary", ordering="key", key="key", max_concurrency=5)
    writer = reader.options(**options).load().transform(step).writeStream.queryName(kind)

    def write(frame: DataFrame, batch: int) -> None:
        file = folder / "out" / f"{batch}.json"
        file.parent.mkdir(exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps([int(bytes(row.value)) for row in frame.collect()]))
        part.rename(file)

    if kind in ("acknowledged", "available"):
        writer = writer.foreachBatch(acknowledged(write))
    else:
        writer = writer.format("kafka" if jars else "keylane")
        writer = writer.options(**{"kafka.bootstrap.servers": servers, "topic": output})
        writer = writer.options(delivery="exactly_once", sinkName=output) if kind == "exact" else writer
        spark.streams.addListener(GroupCommits({"bootstrap.servers": servers, "group.id": kind}, query=kind))
    if kind == "available":
        writer = writer.trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main()
