"""A Spark driver that runs lanes and prints what they do. The crash tests start it in a process of its own.

Arguments: MASTER SERVERS GROUP TOPIC OUTPUT [--until-done]
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

import keylane as kl
from keylane.testing.outputs import source_of

master, servers, group, topic, output = sys.argv[1:6]


async def copy(record: kl.Record) -> kl.Output:
    await asyncio.sleep((60 if record.offset % 50 == 7 else 5) / 1000)
    return kl.Output(output, record.key, record.value, headers=[source_of(record)], partition=record.partition)


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": servers, "group.id": group},
        topics=[topic],
        handler=copy,
        max_concurrency=20,
        commit_interval_ms=300,
        offset_reset="earliest",
    )
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # halves what the start of three JVMs costs a busy machine
    settings = {f"spark.{jvm}.extraJavaOptions": options for jvm in ("driver", "executor")}
    spark = kl.spark.session(master, "keylane driver program", **{"spark.ui.enabled": "false", **settings})
    trigger = {"availableNow": True} if "--until-done" in sys.argv else None
    query = kl.spark.start(pipeline, spark, lanes=2, trigger=trigger)
    active = True
    while active:
        active = query.isActive
        lanes = [lane.to_dict() for lane in query.lanes]
        error = None if query.exception() is None else str(query.exception())
        told = {"active": active, "processed": query.snapshot().processed, "lanes": lanes, "error": error}
        print(json.dumps(told), flush=True)  # noqa: T201 - the test reads it
        time.sleep(0.05)
    spark.stop()
