"""A streaming query from a topic through `parallel_map` into a topic, exactly once. A test starts it to kill it.

Arguments: MASTER SERVERS TOPIC OUTPUT FOLDER [goes-on] [OPTION=VALUE …], the options of its sink. It ends when all is
written; with goes-on it runs until it is killed. The data source is keylane's own, in a class of this file: it looks
before and after each of the sink's requests to Kafka, at each of a task's steps and after a commit whether the test
wants somebody dead there. `FOLDER/die` says where and whom: `End:before:2 driver` (or `worker`, `executor`, `node`).
For `broker` the program stands still there until the test, which kills it, has made `FOLDER/go`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter

import keylane as kl
from keylane.spark import parallel_map
from keylane.spark.structured.source import KeylaneSource

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        return WatchedWriter(super().streamWriter(schema, overwrite))


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


class WatchedWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[Any]) -> Any:
        def watched() -> Iterator[Any]:
            for batch in iterator:
                yield batch
                reached("Task:rows", {})

        reached("Task:begin", {})
        message = self._writer.write(watched())
        reached("Task:end", {})
        return message

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        self._writer.commit(messages, batchId)
        reached("Commit:after", {})

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self._writer.abort(messages, batchId)


def reached(point: str, seen: dict[str, int]) -> None:
    import contextlib
    import os
    import signal
    import time
    from pathlib import Path

    folder = Path(os.environ["KEYLANE_STEPS_FOLDER"])
    with (folder / "steps").open("a") as steps:
        steps.write(point + "\n")
    seen[point] = seen.get(point, 0) + 1
    try:
        where, _, whom = (folder / "die").read_text().partition(" ")
        wanted, _, times = where.rpartition(":")
        if wanted != point or seen[point] < int(times):
            return
        (folder / "die").rename(folder / "died")
    except FileNotFoundError:  # nobody is to die; or another process was there first
        return
    if whom == "broker":
        until = time.monotonic() + 60
        while not (folder / "go").exists() and time.monotonic() < until:
            time.sleep(0.01)
        return
    if whom == "driver":
        os.killpg(int(os.environ["KEYLANE_STEPS_DRIVER"]), signal.SIGKILL)
    if whom == "executor":  # a worker's parent is its daemon
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(daemon[1]), signal.SIGKILL)
    if whom == "node":  # all that Spark's Worker has started is in its session
        others = [int(one.name) for one in Path("/proc").glob("[0-9]*") if int(one.name) != os.getpid()]
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == os.getsid(0):
                    os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def told(folder: Path) -> dict[str, str]:
    """What `reached` goes by, in this process; the settings by which executors have it, too."""
    names = {FOLDER: str(folder), DRIVER: str(os.getpgrp())}
    os.environ.update(names)
    return {f"spark.executorEnv.{name}": value for name, value in names.items()}


async def copy(row: Any) -> tuple[bytes, bytes]:
    return (bytes(row.key), bytes(row.value))


def main() -> None:
    master, servers, topic, output, place, *options = sys.argv[1:]
    folder = Path(place)
    settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    spark = kl.spark.session(master, "keylane exactly once", **settings, **told(folder))
    spark.dataSource.register(WatchedSource)
    source = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    goes_on = "goes-on" in options
    frame = spark.readStream.format("keylane").options(**source, maxOffsetsPerTrigger=str(BATCH)).load()
    step = parallel_map(copy, "key binary, value binary", ordering="key", key="key")
    query = (
        frame.transform(step)
        .writeStream.format("watched")
        .options(**{"kafka.bootstrap.servers": servers, "topic": output})
        .options(delivery="exactly_once", sinkName=output)
        .options(**dict(one.split("=", 1) for one in options if "=" in one))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**{"processingTime": "0 seconds"} if goes_on else {"availableNow": True})
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    main()
