"""A streaming query with a shuffle, `parallel_map` and carry-over, into files by batch. A test starts it to kill it.

Arguments: MASTER SERVERS TOPIC FOLDER [available-now | watched | ADDRESS]. It runs until it is killed; with
available-now until all that was there when it started is written, or in the dead-letter topic. With the address of a
PostgreSQL each record is noted in the table `effects`, exactly once. With watched it looks before and after each call,
list, write and commit whether the test wants somebody dead there (`exactly_once_program.reached`), and appends each
call that has ended to `FOLDER/calls`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactly_once_program import FOLDER, reached, told  # type: ignore[import-not-found] # it is beside this file

import keylane as kl
from keylane.delivery import PostgresStore
from keylane.kafka.sole_member import SoleMember
from keylane.spark import CarryOver, acknowledged, parallel_map
from keylane.spark.structured.carry_lists import Lists

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

BATCH = 100


async def work(row: Any) -> tuple[int, int]:
    """The service refuses one record in 50 now and then, and a value of -1 always."""
    await asyncio.sleep(0.005)
    if int(bytes(row.value)) < 0 or (row.offset % 50 == 7 and os.urandom(1)[0] < 128):
        raise ConnectionError("busy")
    return (int(bytes(row.value)), os.getpid())


async def insert(row: Any, context: kl.Context) -> tuple[int, int]:
    """The same, with an effect in the database."""
    await context.transaction.execute("INSERT INTO effects VALUES (%s)", (int(bytes(row.value)),))
    return await work(row)


async def watched_work(row: Any) -> tuple[int, int]:
    reached("Call:before", {})
    answer = await work(row)
    with (Path(os.environ[FOLDER]) / "calls").open("a") as calls:
        calls.write(f"{answer[0]}\n")
    reached("Call:after", {})
    return answer


def watched(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        reached(f"{what}:before", {})
        answer = function(*arguments)
        reached(f"{what}:after", {})
        return answer

    return call


def main() -> None:
    master, servers, topic, place, *more = sys.argv[1:]
    ends, addresses = "available-now" in more, [one for one in more if "://" in one]
    folder = Path(place)
    retries, dead_letter = kl.Retries(max_attempts=1_000, delay_ms=100, max_delay_ms=100), None
    if ends:
        retries, dead_letter = kl.Retries(max_attempts=4, delay_ms=2_000), kl.DeadLetter(f"{topic}.dead")

    def write(frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        file = folder / "out" / f"{batch}.json"
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"numbers": [row.number for row in rows], "workers": [row.pid for row in rows]}))
        part.rename(file)

    function: Callable[..., Any] = insert if addresses else work
    if "watched" in more:
        function, write = watched_work, watched("Sink", write)
        Lists.write_once = watched("List", Lists.write_once)  # type: ignore[method-assign]
        SoleMember.commit = watched("Commit", SoleMember.commit)  # type: ignore[method-assign]
    (folder / "out").mkdir(exist_ok=True)
    settings = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2"}
    options: dict[str, Any] = {}
    if addresses:
        options["delivery"] = kl.ExactlyOnce(PostgresStore(addresses[0], connections=5))
    settings |= {"spark.ui.enabled": "false"} | told(folder)
    spark = kl.spark.session(master, "keylane stream program", **settings)
    spark.sparkContext.addPyFile(sys.modules[reached.__module__].__file__ or "")
    kafka = {"bootstrap.servers": servers}
    carry = CarryOver(str(folder / "lists"), deadline_ms=20_000, dead_letter=dead_letter, kafka=kafka)
    step = parallel_map(
        function,
        "number int, pid int",
        ordering="key",
        key="key",
        order_by=("partition", "offset"),
        retries=retries,
        carry_over=carry,
        **options,
    )
    options = {"kafka.bootstrap.servers": servers, "kafka.group.id": topic, "subscribe": topic}
    options |= {"startingOffsets": "committed", "maxOffsetsPerTrigger": str(BATCH), "carryOver": carry.folder}
    options |= {"includeHeaders": "true"} if ends else {}
    frame = spark.readStream.format("keylane").options(**options).load().transform(step)
    writer = frame.writeStream.foreachBatch(acknowledged(write, carry_over=carry))
    writer.option("checkpointLocation", str(folder / "checkpoint"))
    (writer.trigger(availableNow=True) if ends else writer).start().awaitTermination()


if __name__ == "__main__":
    main()
