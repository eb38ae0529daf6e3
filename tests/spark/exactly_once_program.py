"""A streaming query from a topic through `parallel_map` into a topic, exactly once. A test starts it to kill it.

Arguments: MASTER SERVERS TOPIC OUTPUT FOLDER [OPTION=VALUE …], the options of its sink. It ends when all is written.
The data source is keylane's own, in a class of this file: it looks before and after each of the sink's requests to
Kafka whether the test wants this driver dead there (`FOLDER/die`, such as `End:before:2`).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keylane as kl
from keylane.spark import parallel_map
from keylane.spark.structured.source import KeylaneSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FOLDER, DRIVER = "KEYLANE_STEPS_FOLDER", "KEYLANE_STEPS_DRIVER"
BATCH = 60


class WatchedSource(KeylaneSource):
    """Named otherwise; pickled by value, so that Spark's workers have it."""

    @classmethod
    def name(cls) -> str:
        return "watched"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        watch()
        return super().streamWriter(schema, overwrite)


def watch() -> None:
    from keylane.spark.structured.exact import driver

    ask = driver._asked
    if ask.__name__ == "watched":
        return
    seen: dict[str, int] = {}

    def watched(request: Any, sink: Any, client: Any) -> Any:
        name = type(request).__name__
        reached(f"{name}:before", seen)
        answer = ask(request, sink, client)
        reached(f"{name}:after", seen)
        return answer

    driver._asked = watched


def reached(point: str, seen: dict[str, int]) -> None:
    import os
    import signal
    from pathlib import Path

    folder = Path(os.environ["KEYLANE_STEPS_FOLDER"])
    with (folder / "steps").open("a") as steps:
        steps.write(point + "\n")
    seen[point] = seen.get(point, 0) + 1
    try:
        wanted, _, times = (folder / "die").read_text().rpartition(":")
    except FileNotFoundError:
        return
    if wanted == point and seen[point] >= int(times):
        (folder / "die").rename(folder / "died")
        os.killpg(int(os.environ["KEYLANE_STEPS_DRIVER"]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


async def copy(row: Any) -> tuple[bytes, bytes]:
    return (bytes(row.key), bytes(row.value))


def main() -> None:
    master, servers, topic, output, place, *options = sys.argv[1:]
    folder = Path(place)
    os.environ[FOLDER], os.environ[DRIVER] = str(folder), str(os.getpgrp())
    settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    spark = kl.spark.session(master, "keylane exactly once", **settings)
    spark.dataSource.register(WatchedSource)
    source = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("keylane").options(**source, maxOffsetsPerTrigger=str(BATCH)).load()
    step = parallel_map(copy, "key binary, value binary", ordering="key", key="key")
    query = (
        frame.transform(step)
        .writeStream.format("watched")
        .options(**{"kafka.bootstrap.servers": servers, "topic": output})
        .options(delivery="exactly_once", sinkName=output)
        .options(**dict(one.split("=", 1) for one in options))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    main()
