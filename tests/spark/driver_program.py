"""A Spark driver that runs lanes and prints what they do. Tests start it in a process of its own, to kill it.

Arguments: MASTER SERVERS GROUP TOPIC OUTPUT, and see below. MASTER is "-" for a session that
PySpark makes by itself: under spark-submit, as on a user's cluster; and a Connect server's sc://HOST:PORT.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import random
import time
from typing import Any

import keylane as kl
from kit.outputs import source_of

parser = argparse.ArgumentParser()
for place in ("master", "servers", "group", "topic", "output"):
    parser.add_argument(place)
parser.add_argument("--lanes", type=int, default=2)
parser.add_argument("--name")
parser.add_argument("--until-done", action="store_true")
parser.add_argument("--members")
parser.add_argument("--failure-window-ms", type=int, default=600_000)
parser.add_argument("--rows-to", help="at the end, the outputs as rows through parallel_map into this topic")
parser.add_argument("--wander", action="store_true", help="another number of lanes, from 1 to 3, every two seconds")


def pipeline(args: argparse.Namespace) -> kl.Pipeline:
    output = args.output

    async def copy(record: kl.Record) -> kl.Output:
        await asyncio.sleep((60 if record.offset % 50 == 7 else 5) / 1000)
        return kl.Output(output, record.key, record.value, headers=[source_of(record)], partition=record.partition)

    return kl.Pipeline(
        kafka={"bootstrap.servers": args.servers, "group.id": args.group, "session.timeout.ms": 6_000},
        topics=[args.topic],
        handler=copy,
        max_concurrency=20,
        commit=kl.Commit(interval_ms=300),
        offset_reset="earliest",
    )


def mark(row: Any) -> dict[str, bytes]:
    return {"key": row.key, "value": row.value + b"!"}


def copy_rows(spark: Any, servers: str, topic: str, to: str) -> None:
    """A batch query from the source through `parallel_map` to the sink."""
    frame = spark.read.format("keylane").option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
    step = kl.spark.parallel_map(mark, returns="key binary, value binary", ordering="key", key="key")
    written = frame.select("key", "value").transform(step).write.format("keylane")
    written.option("kafka.bootstrap.servers", servers).option("topic", to).mode("append").save()


def main() -> None:
    logging.basicConfig(level="INFO")
    args = parser.parse_args()
    if args.master.startswith("sc://"):
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(args.master).getOrCreate()
    elif args.master == "-":
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.getOrCreate()
    else:
        settings = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
        spark = kl.spark.session(args.master, "keylane driver program", **{"spark.ui.enabled": "false", **settings})
    trigger = {"availableNow": True} if args.until_done else None
    query = kl.spark.start(
        pipeline(args),
        spark,
        lanes=args.lanes,
        trigger=trigger,
        name=args.name,
        members=args.members,
        lane_failure_window_ms=args.failure_window_ms,
    )
    active = True
    for number in itertools.count():
        if args.wander and number % 40 == 39:
            query.set_lanes(random.randint(1, 3))
        if not active:
            break
        active = query.isActive
        lanes = [lane.to_dict() for lane in query.lanes]
        error = None if query.exception() is None else str(query.exception())
        told = {"active": active, "processed": query.snapshot().processed, "lanes": lanes, "error": error}
        print(json.dumps(told), flush=True)  # noqa: T201 - the test reads it
        time.sleep(0.05)
    if args.rows_to is not None:
        query.awaitTermination()
        copy_rows(spark, args.servers, args.output, args.rows_to)
    spark.stop()


if __name__ == "__main__":
    main()
