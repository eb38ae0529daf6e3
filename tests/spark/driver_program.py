"""A Spark driver that runs lanes and prints what they do. Tests start it in a process of its own, to kill it.

Arguments: MASTER SERVERS GROUP TOPIC OUTPUT [--lanes N] [--name NAME] [--until-done]. MASTER is "-" for a session that
PySpark makes by itself: under spark-submit, as on a user's cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time

import keylane as kl
from keylane.testing.cluster import LIGHT_JVM
from keylane.testing.outputs import source_of

parser = argparse.ArgumentParser()
for place in ("master", "servers", "group", "topic", "output"):
    parser.add_argument(place)
parser.add_argument("--lanes", type=int, default=2)
parser.add_argument("--name")
parser.add_argument("--until-done", action="store_true")


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
        commit_interval_ms=300,
        offset_reset="earliest",
    )


def main() -> None:
    logging.basicConfig(level="INFO")
    args = parser.parse_args()
    if args.master == "-":
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.getOrCreate()
    else:
        settings = {f"spark.{jvm}.extraJavaOptions": LIGHT_JVM for jvm in ("driver", "executor")}
        spark = kl.spark.session(args.master, "keylane driver program", **{"spark.ui.enabled": "false", **settings})
    trigger = {"availableNow": True} if args.until_done else None
    query = kl.spark.start(pipeline(args), spark, lanes=args.lanes, trigger=trigger, name=args.name)
    active = True
    while active:
        active = query.isActive
        lanes = [lane.to_dict() for lane in query.lanes]
        error = None if query.exception() is None else str(query.exception())
        told = {"active": active, "processed": query.snapshot().processed, "lanes": lanes, "error": error}
        print(json.dumps(told), flush=True)  # noqa: T201 - the test reads it
        time.sleep(0.05)
    spark.stop()


if __name__ == "__main__":
    main()
