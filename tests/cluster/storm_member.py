"""A member of a storm: it copies a topic in one of the modes, until SIGTERM. `python storm_member.py OPTIONS`.

OPTIONS is a JSON object: mode, kafka (librdkafka settings), topic, out (a topic), ledger (a path), folder (for a
database, a checkpoint and a sink). It says `ready` when it runs. What it runs into ends it, with exit code 1.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keylane as kl
from kit.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row, SparkSession

WORK_S = 0.005
COMMIT_INTERVAL_MS = 100
TABLE = "CREATE TABLE IF NOT EXISTS copied (part INTEGER, at INTEGER)"


def copies(options: dict[str, Any]) -> Callable[..., Any]:
    """Of each record, an output that names it. What the handler leaves in a database is written in its transaction."""
    ledgers: list[Ledger] = []  # opened where the handler runs: it may be pickled
    path, out, is_stored = options["ledger"], options["out"], options["mode"] == "exactly_once"

    def copy(record: kl.Record, context: kl.Context) -> kl.Output:
        if not ledgers:
            ledgers.append(Ledger(path))
        ledgers[0].began(record)
        time.sleep(WORK_S)
        if is_stored:
            context.transaction.execute("INSERT INTO copied VALUES (?, ?)", (record.partition, record.offset))
        ledgers[0].done(record)
        return kl.Output(out, record.key, b"%d" % record.offset, partition=record.partition)

    return copy


def pipeline(options: dict[str, Any]) -> kl.Pipeline:
    chosen: dict[str, Any] = {"ordering": "key", "max_concurrency": 8}
    if options["mode"] == "transactional":
        chosen["delivery"] = "transactional"
    if options["mode"] == "exactly_once":
        chosen["delivery"] = kl.ExactlyOnce(str(Path(options["folder"], "copied.db")))
    return kl.Pipeline(
        kafka=options["kafka"],
        topics=[options["topic"]],
        handler=copies(options),
        offset_reset="earliest",
        commit=kl.Commit(interval_ms=COMMIT_INTERVAL_MS),
        **chosen,
    )


def in_one_process(options: dict[str, Any]) -> None:
    if options["mode"] == "exactly_once":
        sqlite3.connect(Path(options["folder"], "copied.db")).execute(TABLE).connection.close()
    with kl.ParallelConsumer(pipeline(options)) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        say_ready()
        consumer.run()


def on_lanes(options: dict[str, Any]) -> None:
    with session("local[4]") as spark:
        query = kl.spark.start(pipeline(options), spark, lanes=2)
        say_ready()
        asked_to_end.wait_or(lambda: not query.isActive or any(lane.launches > 1 for lane in query.lanes))
        restarted = [lane.to_dict() for lane in query.lanes if lane.launches > 1]
        query.stop()
        if query.exception() is not None or restarted:
            sys.exit(f"the lanes ended: {query.exception()}, {restarted}")


def on_data_frames(options: dict[str, Any]) -> None:
    """The sink is a file a batch: a batch that comes again replaces its file."""
    from keylane.spark import acknowledged, parallel_map

    folder, path = Path(options["folder"]), options["ledger"]
    ledgers: list[Ledger] = []

    def copy(row: Row) -> tuple[int, int]:
        if not ledgers:
            ledgers.append(Ledger(path))
        ledgers[0].began(row)  # type: ignore[arg-type] # it has what a record has
        time.sleep(WORK_S)
        ledgers[0].done(row)  # type: ignore[arg-type]
        return row.partition, row.offset

    def write(frame: DataFrame, batch: int) -> None:
        part = folder / f"{batch}.part"
        part.write_text(json.dumps([[row.part, row.at] for row in frame.collect()]))
        part.rename(part.with_suffix(".json"))

    with session("local[2]") as spark:
        given = {f"kafka.{name}": str(value) for name, value in options["kafka"].items()}
        given |= {"subscribe": options["topic"], "startingOffsets": "committed"}
        step = parallel_map(copy, "part int, at long", ordering="key", key="key", workers=kl.Threads(8))
        frame = spark.readStream.format("keylane").options(**given).load().transform(step)
        writer = frame.writeStream.foreachBatch(acknowledged(write))
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        say_ready()
        asked_to_end.wait_or(lambda: not query.isActive)
        failure = query.exception()
        query.stop()
        if failure is not None:
            sys.exit(f"the query ended: {failure}")


def session(master: str) -> SparkSession:
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    return kl.spark.session(master, "keylane storm", **settings)


class _End(threading.Event):
    """Set by SIGTERM."""

    def wait_or(self, condition: Callable[[], object]) -> None:
        while not self.wait(0.1) and not condition():
            pass


asked_to_end = _End()
RUNNERS = {"lanes": on_lanes, "dataframes": on_data_frames}


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main(options: dict[str, Any]) -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(levelname)s %(message)s")
    faulthandler.register(signal.SIGUSR1)  # for whoever looks at one that stands still
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    RUNNERS.get(options["mode"], in_one_process)(options)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
