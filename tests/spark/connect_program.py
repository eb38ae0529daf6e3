"""A client of Spark Connect, which has no JVM: source, sink, `parallel_map` and `GroupCommits`, and what is refused.

Arguments: REMOTE SERVERS FOLDER. It prints what it found as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

import keylane as kl
from keylane.spark import CarryOver, GroupCommits, acknowledged, parallel_map

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


PATIENCE_S = 60.0


class Commits(GroupCommits):
    """Tells of the query's end, which comes after all its progress."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ended = threading.Event()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        super().onQueryTerminated(event)
        self.ended.set()


async def doubled(row: Any, context: kl.Context) -> tuple[bytes, bytes]:
    """Fails once for one row in ten."""
    await asyncio.sleep(0.001)
    number = int(bytes(row.value))
    if number % 10 == 3 and context.attempt == 1:
        raise ConnectionError("busy")
    return (row.key, b"%d" % (2 * number))


def main() -> None:
    remote, servers, folder = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    kafka = {"kafka.bootstrap.servers": servers}
    rows = spark.range(60).selectExpr("cast(id % 7 AS string) AS key", "cast(id AS string) AS value")
    rows.write.format("keylane").mode("append").options(**kafka, topic="in").save()

    def streamed() -> DataFrame:
        return spark.readStream.format("keylane").options(**kafka, subscribe="in", startingOffsets="earliest").load()

    step = parallel_map(
        doubled, "key binary, value binary", ordering="key", key="key", order_by=("partition", "offset"),
        retries=kl.Retries(max_attempts=2, delay_ms=1),
    )  # fmt: skip
    commits = Commits({"bootstrap.servers": servers, "group.id": "connect"}, query="doubles")
    spark.streams.addListener(commits)
    writer = streamed().transform(step).writeStream.format("keylane").queryName("doubles")
    options = kafka | {"topic": "out", "checkpointLocation": f"{folder}/doubles"}
    writer.options(**options).trigger(availableNow=True).start().awaitTermination()
    assert commits.ended.wait(PATIENCE_S), "no event told the listener of the query's end"
    found = spark.read.format("keylane").options(**kafka, subscribe="out").load().collect()

    def in_batches() -> None:
        batches = streamed().writeStream.foreachBatch(acknowledged(lambda *_: None))
        batches.option("checkpointLocation", f"{folder}/batches").trigger(availableNow=True).start().awaitTermination()

    attempts: dict[str, Callable[[], object]] = {
        "carry_over": lambda: streamed().transform(parallel_map(doubled, "n int", carry_over=CarryOver(folder))),
        "acknowledged": in_batches,
        "snapshot": step.snapshot,
    }
    refused = {name: _refusal(attempt) for name, attempt in attempts.items()}
    print(json.dumps({"values": [int(bytes(row.value)) for row in found], "refused": refused}))  # noqa: T201
    sys.stdout.flush()
    os._exit(0)  # PySpark 4.3.0 can wait forever for its thread of listeners


def _refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except Exception as error:  # told to the test
        return str(error)
    return "it was not refused"


if __name__ == "__main__":
    main()
